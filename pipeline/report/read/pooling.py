"""Equal cases of several plans and stores: slices, versions and packages that compute nothing do not separate them."""

from __future__ import annotations

import dataclasses
import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

from pipeline.base.domain.group_names import ENVIRONMENT, list_program_params
from pipeline.base.domain.window import WindowKind
from pipeline.base.domain.work_units import GIVEN_RATE
from pipeline.base.system.grouping import group_by
from pipeline.report.read.environments import describe_equal, identify_packages
from pipeline.report.read.study_records import JobRow, Row

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
