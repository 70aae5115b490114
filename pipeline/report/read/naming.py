"""Gives the rows of a study labels that tell them apart: a label depends on what else there is."""

from __future__ import annotations

import dataclasses
import hashlib
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from pipeline.base.domain import group_names
from pipeline.base.domain.modes import modes_of
from pipeline.report.read import labels
from pipeline.report.read.records import JobRow, Row


def named(rows: Sequence[Row]) -> list[Row]:
    """The rows with labels that tell them apart."""
    names = _workload_names([job for row in rows for job in row.jobs])
    modes = modes_of(row.scenario for row in rows)
    # A group that failed before it was placed is called as in the blocks in which it was placed.
    placed: dict[str, Row] = {}
    for row in rows:
        if row.key not in placed or labels.is_placed(row.sharing, [job.place for job in row.jobs]):
            placed[row.key] = row
    renamed = []
    for row in _with_names(rows):
        jobs = [
            dataclasses.replace(job, label=names[job.digest].workload, words=names[job.digest].words)
            for job in row.jobs
        ]
        places = [job.place for job in placed[row.key].jobs]
        row = dataclasses.replace(
            row,
            jobs=tuple(jobs),
            sharing=modes[row.scenario],
            detail=labels.mode_detail(row.sharing, row.options, places),
            profiles=labels.profiles_of(row.sharing, row.options, places),
        )
        renamed.append(row)
    return _with_differences(_with_order(_with_settings(renamed)))


def _with_names(rows: Sequence[Row]) -> list[Row]:
    """The rows as the plan of a study that has them all would call them: their runs may be those of several."""
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


def _with_settings(rows: Sequence[Row]) -> list[Row]:
    """The rows with those of their settings in which rows of the same jobs differ; a device is named by every row."""
    alike: dict[tuple[labels.Program, ...], list[Row]] = defaultdict(list)
    for row in rows:
        alike[_jobs(row)].append(row)
    devices = _varying(rows) & {"device"}
    varied = {jobs: _varying(same) | devices for jobs, same in alike.items()}
    made = []
    for row in rows:
        said = [f"{key} {value}" for key, value in row.settings if value and key in varied[_jobs(row)]]
        made.append(dataclasses.replace(row, setting=", ".join(said)))
    return made


def _with_order(rows: Sequence[Row]) -> list[Row]:
    """The rows with the order of their jobs among their settings, where a mode ran the same jobs in several orders.

    All modes of these jobs say it, so that each is compared with the others in its own order.
    """
    orders: dict[tuple[object, ...], set[tuple[str, ...]]] = defaultdict(set)
    for row in rows:
        digests = tuple(job.digest for job in row.jobs)
        orders[*_same_jobs(row), row.mode, tuple(sorted(digests))].add(digests)
    reordered = {place[:-2] for place, found in orders.items() if len(found) > 1}
    made = []
    for row in rows:
        order = f"order {'+'.join(job.size or job.label for job in row.jobs)}"
        setting = f"{row.setting}, {order}" if row.setting else order
        made.append(dataclasses.replace(row, setting=setting) if _same_jobs(row) in reordered else row)
    return made


def _with_differences(rows: Sequence[Row]) -> list[Row]:
    """The rows, those of different groups that would be called the same with what they differ in behind the mode."""
    alike: dict[tuple[object, ...], dict[str, Row]] = defaultdict(dict)
    for row in rows:
        alike[*_same_jobs(row), row.mode].setdefault(row.key, row)
    details: dict[str, str] = {}
    for by_key in alike.values():
        keys = sorted(by_key) if len(by_key) > 1 else []
        of_each = [{"scenario": by_key[key].scenario, **by_key[key].options} for key in keys]
        words = labels.telling_apart([{k: labels.in_words(v) for k, v in of.items()} for of in of_each])
        for key, word in zip(keys, words, strict=True):
            # No words for it: a few digits of the group's key, as of a program that differs in nothing that is said.
            unsaid = "" if words.count(word) == 1 else f"({hashlib.sha256(key.encode()).hexdigest()[:6]})"
            details[key] = " ".join(filter(None, (by_key[key].detail, word, unsaid)))
    return [dataclasses.replace(row, detail=details.get(row.key, row.detail)) for row in rows]


def _same_jobs(row: Row) -> tuple[object, ...]:
    """What rows of the same jobs, in whatever order, share: with the mode, all that a table tells groups apart by."""
    return (
        labels.jobs_label(labels.in_one_order(row.called)),
        tuple(sorted(job.label for job in row.jobs)),
        row.setting,
    )


def _jobs(row: Row) -> tuple[labels.Program, ...]:
    programs = sorted((labels.program_of(job.params) for job in row.jobs), key=str)
    return tuple(programs if len(set(programs)) > 1 else programs[:1])


def _varying(rows: Sequence[Row]) -> set[str]:
    values: dict[str, set[str]] = defaultdict(set)
    for row in rows:
        for key, value in row.settings:
            values[key].add(value)
    return {key for key, found in values.items() if len(found) > 1}


def _workload_names(jobs: Sequence[JobRow]) -> dict[str, labels.Called]:
    programs = {job.digest: group_names.as_flags(group_names.own_params(job.params)) for job in jobs}
    names = {job.digest: job.params.get("workload", "") for job in jobs}
    differing = [key for key, values in labels.of_all(programs.values()).items() if len(values) > 1]
    words = {digest: labels.params_in_words(own, differing) for digest, own in programs.items()}
    found = {digest: labels.workload_label(names[digest], own, words[digest]) for digest, own in programs.items()}
    apart = _told_apart(found, programs, {job.digest: job.params.get("epochs") for job in jobs})
    return {digest: labels.Called(label, words=words[digest]) for digest, label in apart.items()}


def _told_apart(
    found: Mapping[str, str], programs: Mapping[str, Mapping[str, str]], epochs: Mapping[str, str | None]
) -> dict[str, str]:
    """The label of each digest, made longer where different programs would share it.

    Programs with the same settings are told apart too: other scripts, other environments. Epochs are the window, which
    rows say of themselves, so that they need not tell programs apart.
    """
    alike: dict[str, list[str]] = defaultdict(list)
    for digest in sorted(found):
        alike[found[digest]].append(digest)
    named = {}
    for label, digests in alike.items():
        words = labels.telling_apart([programs[digest] for digest in digests])
        said = Counter((epochs[digest], word) for digest, word in zip(digests, words, strict=True))
        for digest, word in zip(digests, words, strict=True):
            unsaid = f"({digest[:6]})" if said[epochs[digest], word] > 1 else ""
            named[digest] = " ".join(filter(None, (label, word, unsaid)))
    return named
