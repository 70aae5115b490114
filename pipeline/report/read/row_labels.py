"""Labels that distinguish the rows of a study from each other."""

from __future__ import annotations

import dataclasses
import hashlib
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from pipeline.base.domain import group_names
from pipeline.base.domain.sharing_modes import PROFILE, modes_of
from pipeline.base.system.words import group_by
from pipeline.report.read import labels
from pipeline.report.read.study_records import JobRow, Row


def label_rows(rows: Sequence[Row]) -> list[Row]:
    """Return the rows with labels that distinguish them."""
    names = _workload_names([job for row in rows for job in row.jobs])
    modes = modes_of(row.scenario for row in rows)
    # A group that failed before its jobs had places gets its label from another block.
    placed: dict[str, Row] = {}
    for row in rows:
        if row.key not in placed or labels.is_placed(row.sharing, [job.place for job in row.jobs]):
            placed[row.key] = row
    renamed = []
    for row in _rename_rows(rows):
        jobs = [
            dataclasses.replace(job, label=names[job.digest].workload, words=names[job.digest].words)
            for job in row.jobs
        ]
        places = [job.place for job in placed[row.key].jobs]
        if not any(places):
            places = _list_requested_places(row)
        row = dataclasses.replace(
            row,
            jobs=tuple(jobs),
            sharing=modes[row.scenario],
            detail=labels.describe_mode(row.sharing, row.options, places),
            profiles=labels.find_profiles(row.sharing, row.options, places),
        )
        renamed.append(row)
    return _add_differences(_add_order(_add_settings(renamed)))


def _list_requested_places(row: Row) -> list[Mapping[str, str]]:
    """Return the MIG profiles that jobs without a place requested by their sizes; else empty places."""
    options = row.options
    profile_of = {} if options.get("profiles") else dict(options.get("size_profile") or ())  # type: ignore[call-overload]
    if options.get("profile", "auto") != "auto" or not all(job.size in profile_of for job in row.jobs):
        return [{} for _ in row.jobs]
    return [{PROFILE: str(profile_of[job.size])} for job in row.jobs]


def _rename_rows(rows: Sequence[Row]) -> list[Row]:
    """Name the rows as if they were the groups of one plan."""
    facts = [
        group_names.GroupFacts(
            scenario=row.scenario,
            jobs=tuple(
                group_names.JobFacts(size=job.size, workload=job.label, params=job.params, digest=job.digest)
                for job in row.jobs
            ),
            options=row.options,
            settings=dict(row.settings),
        )
        for row in rows
    ]
    return [dataclasses.replace(row, name=name) for row, name in zip(rows, group_names.name_groups(facts), strict=True)]


def _add_settings(rows: Sequence[Row]) -> list[Row]:
    """Add the settings in which rows of the same jobs differ; if there are several devices, add each row's device."""
    alike = group_by(rows, _jobs)
    devices = _find_varying(rows) & {"device"}
    varied = {jobs: _find_varying(same) | devices for jobs, same in alike.items()}
    renamed = []
    for row in rows:
        words = [f"{key} {value}" for key, value in row.settings if value and key in varied[_jobs(row)]]
        renamed.append(dataclasses.replace(row, setting=", ".join(words)))
    return renamed


def _add_order(rows: Sequence[Row]) -> list[Row]:
    """Add the order of the jobs to the settings in every mode, if one mode ran the jobs in several orders."""
    orders: dict[tuple[object, ...], set[tuple[str, ...]]] = defaultdict(set)
    for row in rows:
        digests = tuple(job.digest for job in row.jobs)
        orders[*_identify_jobs(row), row.mode, tuple(sorted(digests))].add(digests)
    reordered = {place[:-2] for place, sequences in orders.items() if len(sequences) > 1}
    renamed = []
    for row in rows:
        order = f"order {'+'.join(job.size or job.label for job in row.jobs)}"
        setting = f"{row.setting}, {order}" if row.setting else order
        renamed.append(dataclasses.replace(row, setting=setting) if _identify_jobs(row) in reordered else row)
    return renamed


def _add_differences(rows: Sequence[Row]) -> list[Row]:
    """Extend the details of different groups that have the same label."""
    alike: dict[tuple[object, ...], dict[str, Row]] = defaultdict(dict)
    for row in rows:
        alike[*_identify_jobs(row), row.mode].setdefault(row.key, row)
    details: dict[str, str] = {}
    for by_key in alike.values():
        keys = sorted(by_key) if len(by_key) > 1 else []
        all_options = [{"scenario": by_key[key].scenario, **by_key[key].options} for key in keys]
        words = labels.distinguish_params(
            [{k: labels.describe_value(v) for k, v in options.items()} for options in all_options]
        )
        for key, word in zip(keys, words, strict=True):
            # If no words distinguish the groups, a few digits of a hash do.
            unsaid = "" if words.count(word) == 1 else f"({hashlib.sha256(key.encode()).hexdigest()[:6]})"
            details[key] = " ".join(filter(None, (by_key[key].detail, word, unsaid)))
    return [dataclasses.replace(row, detail=details.get(row.key, row.detail)) for row in rows]


def _identify_jobs(row: Row) -> tuple[object, ...]:
    return (
        labels.label_jobs(labels.sort_jobs(row.called)),
        tuple(sorted(job.label for job in row.jobs)),
        row.setting,
    )


def _jobs(row: Row) -> tuple[tuple[object, ...], ...]:
    step_mode = labels.STEP_MODE
    programs = sorted(((labels.identify_program(j.params), j.params.get(step_mode)) for j in row.jobs), key=str)
    return tuple(programs if len(set(programs)) > 1 else programs[:1])


def _find_varying(rows: Sequence[Row]) -> set[str]:
    values: dict[str, set[str]] = defaultdict(set)
    for row in rows:
        for key, value in row.settings:
            values[key].add(value)
    return {key for key, variants in values.items() if len(variants) > 1}


def _workload_names(jobs: Sequence[JobRow]) -> dict[str, labels.JobLabel]:
    programs = {job.digest: group_names.spell_flags(group_names.list_program_params(job.params)) for job in jobs}
    names = {job.digest: job.params.get("workload", "") for job in jobs}
    differing = [key for key, values in labels.collect_words(programs.values()).items() if len(values) > 1]
    words = {digest: labels.describe_params(params, differing) for digest, params in programs.items()}
    label_of = {
        digest: labels.label_workload(names[digest], params, words[digest]) for digest, params in programs.items()
    }
    distinct_labels = _distinguish_labels(label_of, programs, {job.digest: job.params.get("epochs") for job in jobs})
    return {digest: labels.JobLabel(label, words=words[digest]) for digest, label in distinct_labels.items()}


def _distinguish_labels(
    label_of: Mapping[str, str], programs: Mapping[str, Mapping[str, str]], epochs: Mapping[str, str | None]
) -> dict[str, str]:
    """Return the label of each digest, extended if several programs share a label.

    Epochs are not added, because they belong to the window.
    """
    labels_by_digest = {}
    for label, digests in group_by(sorted(label_of), label_of.__getitem__).items():
        words = labels.distinguish_params([programs[digest] for digest in digests])
        counts = Counter((epochs[digest], word) for digest, word in zip(digests, words, strict=True))
        for digest, word in zip(digests, words, strict=True):
            unsaid = f"({digest[:6]})" if counts[epochs[digest], word] > 1 else ""
            labels_by_digest[digest] = " ".join(filter(None, (label, word, unsaid)))
    return labels_by_digest
