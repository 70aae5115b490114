"""Equal cases of several plans and stores: slices, versions and packages that compute nothing do not separate them.

Groups of one plan stay separate, because a user compares them. `describe_pooled` lists what pooled rows differ in.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from pipeline.base.domain.group_names import ENVIRONMENT, list_program_params
from pipeline.base.domain.window import WindowKind
from pipeline.base.domain.work_units import GIVEN_RATE
from pipeline.base.system.grouping import group_by
from pipeline.report.read.environments import describe_equal, read_computing_packages
from pipeline.report.read.study_records import JobRow, Row

_WINDOW, _SLICES = "window", "slices"
_PROJECT_PROGRAMS = "workloads/"
"""Folder of the project's programs, which their options describe; other programs are described by their source."""


def pool_slices(rows: Sequence[Row]) -> list[Row]:
    """Give all interleaved windows one setting, unless a plan runs a group with several."""
    texts: dict[object, set[str]] = defaultdict(set)
    for row in (row for row in rows if row.window is WindowKind.INTERLEAVED):
        settings = {**dict(row.settings), _WINDOW: ""}
        identity = (row.plan, row.scenario, repr(row.options), [job.digest for job in row.jobs], settings)
        texts[repr(identity)].add(dict(row.settings)[_WINDOW])
    windows = set().union(*texts.values())
    if len(windows) < 2 or any(len(compared) > 1 for compared in texts.values()):
        return list(rows)
    return [_rename_window(row) if row.window is WindowKind.INTERLEAVED else row for row in rows]


def _rename_window(row: Row) -> Row:
    window = dict(row.settings)[_WINDOW]
    return dataclasses.replace(
        row,
        key=row.key.replace(window, row.window),
        settings=tuple((key, row.window.value if key == _WINDOW else value) for key, value in row.settings),
        facts={**row.facts, _SLICES: window},
    )


def pool_programs(stores: Sequence[Sequence[Row]]) -> list[list[Row]]:
    """Give the newest version of a program in each store one digest and environment.

    Older versions in a store keep their digest; `selection` leaves them out.
    """
    packages = read_computing_packages([row for rows in stores for row in rows])
    newest: list[dict[str, JobRow]] = []
    compared: dict[tuple[str, str], set[str]] = defaultdict(set)
    for rows in stores:
        jobs = [(row, job) for row in sorted(rows, key=lambda row: row.start_ms) for job in row.jobs]
        newest.append({_identify(job, packages): job for _, job in jobs})
        for row, job in jobs:
            compared[row.plan, _identify(job, packages)].add(job.digest)
    separate = {program for (_, program), digests in compared.items() if len(digests) > 1}
    common = {program: job for programs in newest for program, job in programs.items() if program not in separate}
    return [
        [_rename_programs(row, {programs[key].digest: common[key] for key in programs.keys() & common}) for row in rows]
        for rows, programs in zip(stores, newest, strict=True)
    ]


def _identify(job: JobRow, packages: Mapping[str, object]) -> str:
    params, environment = list_program_params(job.params), job.params.get(ENVIRONMENT, "")
    source = "" if params.get("script", "").startswith(_PROJECT_PROGRAMS) else job.program_digest or job.digest
    options = {key: job.params.get(key) for key in ("workload", "epochs", GIVEN_RATE)}
    return repr(
        (source, packages.get(environment, environment), sorted((params | options | {ENVIRONMENT: ""}).items()))
    )


def _rename_programs(row: Row, common: Mapping[str, JobRow]) -> Row:
    key, jobs = row.key, []
    for digest in {job.digest for job in row.jobs} & common.keys():
        key = key.replace(digest, common[digest].digest)
    for job in row.jobs:
        same, environment = common.get(job.digest, job), job.params.get(ENVIRONMENT, "")
        params = {**job.params, ENVIRONMENT: same.params[ENVIRONMENT]} if environment else job.params
        jobs.append(dataclasses.replace(job, digest=same.digest, params=params, environment=environment))
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
