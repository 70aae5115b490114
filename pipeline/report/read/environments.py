"""Names of environments, each after the package that distinguishes it from the others."""

from __future__ import annotations

import dataclasses
import hashlib
import logging
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pipeline.base.domain import layout
from pipeline.base.domain.group_names import ENVIRONMENT
from pipeline.base.domain.package_locks import compare_locks, parse_lock, select_computing
from pipeline.base.system.errors import CollocationError
from pipeline.clean import temporary_folder
from pipeline.record.store.store_access import fetch
from pipeline.report.read.study_records import Row

logger = logging.getLogger(__name__)

_FRAMEWORKS = ("torch", "jax", "tensorflow", "paddlepaddle", "cupy", "timm", "transformers", "numpy", "python")
"""Packages that names prefer, in this order."""


def name_environments(rows: Sequence[Row]) -> tuple[list[Row], tuple[str, ...]]:
    """Return the rows with names for their environments, and sentences on the differences between these.

    If all jobs have one environment, the rows are unchanged.
    """
    jobs = _find_environments(sorted(rows, key=lambda row: row.start_ms))
    if len(jobs) < 2:
        return list(rows), ()
    locks = {digest: _read_lock(*holder).splitlines() for digest, holder in jobs.items()}
    names = _names(locks)
    return [_with_names(row, names) for row in rows], tuple(_differences(locks, names))


def read_packages(rows: Sequence[Row]) -> dict[str, str]:
    """Return the packages of the jobs of rows by name, as in their locks; several versions are joined by `or`."""
    packages: dict[str, set[str]] = defaultdict(set)
    for holder in _find_environments(rows).values():
        for name, line in parse_lock(_read_lock(*holder).splitlines()).items():
            packages[name].add(line)
    return {name: " or ".join(sorted(lines)) for name, lines in packages.items()}


def identify_packages(rows: Sequence[Row]) -> dict[str, str]:
    """Return a digest of the packages for computing of each environment, if there are several, with a recorded lock."""
    environments = _find_environments(rows)
    locks = {digest: _read_lock(*holder) for digest, holder in environments.items()} if len(environments) > 1 else {}
    packages = {digest: select_computing(parse_lock(lock.splitlines())) for digest, lock in locks.items() if lock}
    return {
        digest: hashlib.sha256(repr(sorted(lines.items())).encode()).hexdigest() for digest, lines in packages.items()
    }


def describe_equal(rows: Sequence[Row]) -> Iterator[str]:
    """Describe the packages in which environments differ that count as one."""
    first: dict[str, tuple[Path | str, str]] = {}
    holders = {job.environment: (row, job) for row in reversed(rows) for job in row.jobs if job.environment}
    for row, job in holders.values():
        holder = (row.store, job.run_id)
        if (other := first.setdefault(job.params[ENVIRONMENT], holder)) != holder:
            differ = compare_locks(_read_lock(*other).splitlines(), _read_lock(*holder).splitlines())
            yield f"Environments with equal packages for computing are pooled; {differ}."


def _find_environments(rows: Sequence[Row]) -> dict[str, tuple[Path | str, str]]:
    """Return the store and run of the first job of each environment, by the digest of the environment."""
    jobs = ((row, job) for row in reversed(rows) for job in reversed(row.jobs))
    return {digest: (row.store, job.run_id) for row, job in jobs if (digest := job.params.get(ENVIRONMENT))}


def _with_names(row: Row, names: Mapping[str, str]) -> Row:
    jobs = [
        dataclasses.replace(job, params={**job.params, ENVIRONMENT: names[digest]})
        if (digest := job.params.get(ENVIRONMENT))
        else job
        for job in row.jobs
    ]
    return dataclasses.replace(row, jobs=tuple(jobs))


def _names(locks: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return a name for each digest: `with torch==2.4.0`, `without boto3`; else `environment 2`."""
    packages = {digest: parse_lock(lock) for digest, lock in locks.items()}
    package_names = {name for installed in packages.values() for name in installed}
    in_order = [*(name for name in _FRAMEWORKS if name in package_names), *sorted(package_names)]
    if all(packages.values()):
        for package in in_order:
            lines = {digest: installed.get(package, "").partition(" @ ")[0] for digest, installed in packages.items()}
            words = {digest: f"with {line}" if line else f"without {package}" for digest, line in lines.items()}
            if len(set(words.values())) == len(words):
                return words
    return {digest: f"environment {number}" for number, digest in enumerate(locks, 1)}


def _differences(locks: Mapping[str, Sequence[str]], names: Mapping[str, str]) -> list[str]:
    first, *later = locks
    sentences = []
    for digest in later:
        differs = compare_locks(locks[first], locks[digest]) if locks[first] and locks[digest] else ""
        packages = differs or "packages not recorded"
        sentences.append(f"Environment {names[digest]!r}, compared with {names[first]!r}: {packages}.")
    return sentences


def _read_lock(store: Path | str, run_id: str) -> str:
    try:
        with temporary_folder.hold_scratch() as folder:
            path = fetch(store, run_id, layout.ENVIRONMENT, folder)
            return "" if path is None else path.read_text(encoding="utf-8", errors="replace")
    except (CollocationError, OSError) as error:
        logger.warning("cannot read the environment of run %s: %s", run_id, error)
        return ""
