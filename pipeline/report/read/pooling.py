"""Equal cases of several plans and stores: slices, versions and packages that compute nothing do not separate them."""

from __future__ import annotations

import dataclasses
import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence

from pipeline.base.domain.group_names import ENVIRONMENT, list_program_params
from pipeline.base.domain.marks import Marks, join, merge_notes
from pipeline.base.domain.normalisation import average_figures
from pipeline.base.domain.window import WindowKind
from pipeline.base.domain.work_units import GIVEN_RATE
from pipeline.base.system.words import group_by
from pipeline.report.read.environments import describe_equal, identify_packages
from pipeline.report.read.study_records import JobRow, Row


def average_runs(rows: Iterable[Row], left_out: MutableMapping[str, int]) -> list[Row]:
    """Replace the runs of each group in a block by one row; count the other runs in `left_out`."""
    merged = []
    for runs in group_by(rows, lambda row: (row.block, row.key)).values():
        valid = [row for row in runs if row.is_valid]
        merged.append(_average(valid) if len(valid) > 1 else [*valid, *runs][0])
        if len(runs) > len(valid) > 0:
            reason = "a baseline of which another run in the block counts"
            left_out[reason] = left_out.get(reason, 0) + len(runs) - len(valid)
    return merged


def _average(runs: Sequence[Row]) -> Row:
    jobs = [
        dataclasses.replace(of_job[0], metrics=average_figures([job.metrics for job in of_job]))
        for of_job in zip(*(row.jobs for row in runs), strict=True)
    ]
    return dataclasses.replace(
        runs[0],
        metrics=average_figures([row.metrics for row in runs]),
        jobs=tuple(jobs),
        marks=Marks("", join(merge_notes((row.marks.note for row in runs), "run"))),
    )


SETTING = "host"
"""Name of the setting that describes the kind of host of a row, if the hosts differ."""
_KIND = {"cpu_model": "CPU", "cpus": "CPUs", "power_limit_w": "power limit (W)", "driver_version": "driver"}
_UNKNOWN = "not recorded"


def list_host_differences(rows: Sequence[Row]) -> Mapping[str, tuple[str, ...]]:
    """Return, for each device, the names of the facts in which its hosts differ."""
    by_device: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for row in rows:
        for fact in _KIND:
            by_device[row.device][fact].add(row.facts.get(fact, ""))
    several = {device: [fact for fact in _KIND if len(values[fact]) > 1] for device, values in by_device.items()}
    return {device: tuple(_KIND[fact] for fact in facts) for device, facts in several.items() if facts}


def separate_hosts(rows: Sequence[Row]) -> list[Row]:
    """Add the kind of host to the settings of the rows, for each device whose hosts differ."""
    differing = list_host_differences(rows)
    facts = {words: fact for fact, words in _KIND.items()}
    labelled = []
    for row in rows:
        kind = [f"{words} {row.facts.get(facts[words]) or _UNKNOWN}" for words in differing.get(row.device, ())]
        settings = (*row.settings, (SETTING, "; ".join(kind))) if kind else row.settings
        labelled.append(dataclasses.replace(row, settings=settings))
    return labelled


_WINDOW, _SLICES = "window", "slices"
_OTHER_OPTIONS = ("workload", "epochs", GIVEN_RATE)
_PROJECT_PROGRAMS = "workloads/"
"""Folder of the project's programs, which their options describe; other programs are described by their source."""


def pool_slices(stores: list[list[Row]]) -> list[list[Row]]:
    """Give all interleaved windows one setting, unless a plan compares several for a group."""
    texts: dict[str, set[str]] = defaultdict(set)
    for row in (row for rows in stores for row in rows if row.window is WindowKind.INTERLEAVED):
        settings = dict(row.settings)
        window = settings.pop(_WINDOW)
        texts[repr((row.plan, row.scenario, row.options, [job.digest for job in row.jobs], settings))].add(window)
    is_compared = any(len(windows) > 1 for windows in texts.values())
    if is_compared or len(set().union(*texts.values())) < 2:
        return stores
    return [[_rename_window(row) if row.window is WindowKind.INTERLEAVED else row for row in rows] for rows in stores]


def _rename_window(row: Row) -> Row:
    window = dict(row.settings)[_WINDOW]
    settings = tuple((key, row.window.value if key == _WINDOW else value) for key, value in row.settings)
    key, facts = row.key.replace(window, row.window), {**row.facts, _SLICES: window}
    return dataclasses.replace(row, key=key, settings=settings, facts=facts)


def pool_programs(stores: Sequence[Sequence[Row]]) -> list[list[Row]]:
    """Give equal programs of several stores one digest and environment, except programs that one store compares."""
    packages = identify_packages([row for rows in stores for row in rows])
    pooled = []
    for rows in stores:
        jobs = {job.digest: job for row in rows for job in row.jobs}
        names = {digest: _identify(job, packages) for digest, job in jobs.items()}
        counts = Counter(names.values())
        names = {digest: name for digest, name in names.items() if counts[name] == 1}
        pooled.append([_rename_programs(row, names, packages) for row in rows])
    return pooled


def _identify(job: JobRow, packages: Mapping[str, str]) -> str:
    params = {**list_program_params(job.params), **{key: job.params.get(key) for key in _OTHER_OPTIONS}}
    environment = params.pop(ENVIRONMENT, None) or ""
    source = "" if (params.get("script") or "").startswith(_PROJECT_PROGRAMS) else job.program_digest or job.digest
    identity = (source, packages.get(environment, environment), sorted(params.items()))
    return hashlib.sha256(repr(identity).encode()).hexdigest()


def _rename_programs(row: Row, names: Mapping[str, str], packages: Mapping[str, str]) -> Row:
    key, jobs = row.key, []
    for digest, name in names.items():
        key = key.replace(digest, name)
    for job in row.jobs:
        environment = job.params.get(ENVIRONMENT, "")
        if job.digest in names and environment in packages:
            job = dataclasses.replace(job, params={**job.params, ENVIRONMENT: packages[environment]})
        jobs.append(dataclasses.replace(job, digest=names.get(job.digest, job.digest), environment=environment))
    return dataclasses.replace(row, key=key, jobs=tuple(jobs))


def describe_pooled(rows: Sequence[Row]) -> Iterator[str]:
    """Describe the slices, packages and versions of programs in which the rows of equal cases differ."""
    if slices := sorted({row.facts[_SLICES] for row in rows if _SLICES in row.facts}):
        yield f"Windows with different slices are pooled: {'; '.join(slices)}."
    yield from describe_equal(rows)
    for jobs in group_by((job for row in rows for job in row.jobs), lambda job: job.digest).values():
        versions = {job.program_digest for job in jobs}
        if len(versions) > 1:
            yield f"{len(versions)} versions of {jobs[0].params['workload']} with equal options are pooled."
