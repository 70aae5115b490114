"""Bundles: one file with everything that a report of an experiment needs, without a database.

A bundle is an archive (`bundle_archive.py`) of `runs.jsonl`, with one MLflow run per line, and the artifacts below
`artifacts/RUN_ID/`. It does not name the file system, users and hosts of the measuring machine (`portable_paths.py`).
A bundle may come from a stranger: nothing of it is executed, and it is checked before anything is written elsewhere.
"""

from __future__ import annotations

import atexit
import functools
import hashlib
import json
import math
import os
import shutil
import sqlite3
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

from pipeline.base import mlflow_internals
from pipeline.base.domain.layout import CONFIG, DATABASE, ENVIRONMENT, GROUP, JOB_FILE, STORE_LOCK
from pipeline.base.domain.package_locks import make_portable
from pipeline.base.mlflow_internals import database_tables
from pipeline.base.system import locks, words
from pipeline.base.system.errors import ConfigError, TrackingError
from pipeline.base.system.words import format_count
from pipeline.clean import temporary_folder
from pipeline.record.store import bundle_archive, run_artifacts
from pipeline.record.store.local_store import Store, describe_error, explain_missing, open_store, translate_errors
from pipeline.record.store.portable_paths import PortablePaths

_NAMES_FOLDERS = frozenset((CONFIG, GROUP, JOB_FILE))
_ARTIFACTS = "artifacts"
_REQUESTS = 8
"""Requests to a server at the same time: a run needs one for each of its metrics."""


def export(store: Store, experiment: str, file: Path) -> int:
    """Write the bundle of an experiment; return its number of runs.

    Raises:
        ConfigError: the store has no such experiment, or `file` cannot be written.
        TrackingError: the store cannot be read.
    """
    with translate_errors(f"could not read experiment {experiment!r} from {store.uri}"):
        stored = store.client.get_experiment_by_name(experiment)
        known = sorted(listed.name for listed in store.client.search_experiments())
    if stored is None or stored.lifecycle_stage != "active":
        raise ConfigError(explain_missing(experiment, store.uri, known, "choose another with --experiment: "))
    with temporary_folder.hold_scratch() as scratch:
        runs = _read_runs(store, stored.experiment_id)
        with translate_errors(f"could not add a salt for names to experiment {experiment!r} of {store.uri}"):
            salt = store.read_salt(experiment, creates=True)
        artifacts: dict[str, Path] = {}
        without = []
        for run in runs:
            uri = run.pop("artifact_uri")
            if not run_artifacts.has_folder(uri, run["run_id"]):
                without.append(f"{run['run_id']}: {uri!r}")
                continue
            folder = run_artifacts.fetch_all(store, run["run_id"], uri, scratch)
            for path in sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()):
                artifacts[f"artifacts/{run['run_id']}/{path.relative_to(folder).as_posix()}"] = path
        try:
            bundle_archive.write(file, experiment, dict(_make_portable(runs, artifacts, salt)))
        except OSError as error:
            raise ConfigError(f"could not write {file}: {error.strerror}; choose another file with --out") from error
    if without:
        counted = format_count(len(without), "run")
        words.say(f"note: no artifacts of {counted} in {file}: artifact_uri is no folder of the run ({without[0]})")
    return len(runs)


def unpack(file: Path, root: Path) -> str:
    """Write the runs and artifacts of a bundle to a local store; return the experiment. Runs in the store stay.

    Raises:
        ConfigError: the file is not a complete bundle of this version.
        TrackingError: the store cannot be written.
    """
    root = root.absolute()
    with temporary_folder.hold_scratch() as folder:
        experiment = bundle_archive.extract(file, folder)
        deque(_parse_runs(file, folder), maxlen=0)  # nothing is written of a bundle with an impossible run
        _insert(file, _parse_runs(file, folder), folder / _ARTIFACTS, root, experiment, shutil.copytree)
    return experiment


@functools.lru_cache(maxsize=1)
def load_runs(file: Path) -> tuple[str, list[dict[str, Any]]]:
    """Read the experiment of a bundle and its runs with final metrics, oldest first, without artifacts and MLflow.

    Raises:
        ConfigError: the file is not a bundle of this version.
    """
    with temporary_folder.hold_scratch() as folder:
        experiment = bundle_archive.extract(file, folder, only_runs=True)
        return experiment, list(_parse_runs(file, folder, has_series=False))


@functools.cache
def open_bundle(file: Path, *, has_series: bool = True) -> Store:
    """Open a bundle as a store in a temporary folder, which is removed at the end of the process.

    Without `has_series`, metrics have their final values only; `export` writes complete metrics nevertheless.

    Raises:
        ConfigError: the file is not a complete bundle of this version.
    """
    stack = ExitStack()
    atexit.register(stack.close)
    folder = stack.enter_context(temporary_folder.hold_scratch())
    experiment = bundle_archive.extract(file, folder)
    runs = _parse_runs(file, folder) if has_series else load_runs(file)[1]
    return _insert(file, runs, folder / _ARTIFACTS, folder, experiment, os.rename)


def _insert(
    file: Path, runs: Iterable[dict[str, Any]], artifacts: Path, root: Path, experiment: str, place: Callable[..., Any]
) -> Store:
    if not mlflow_internals.is_tried():
        low, high = (".".join(map(str, bound)) for bound in mlflow_internals.TRIED)
        raise ConfigError(f"reading a bundle needs MLflow {low} to {high}; run pip install 'mlflow>={low},<{high}'")
    store = open_store(root)
    experiment_id = store.open_experiment(experiment)
    target = Path(unquote(urlsplit(store.client.get_experiment(experiment_id).artifact_location).path))
    try:
        with locks.hold_lock(root / STORE_LOCK):
            for run_id in database_tables.insert_runs(root / DATABASE, experiment_id, target.as_uri(), runs):
                if (artifacts / run_id).is_dir():
                    (target / run_id).mkdir(parents=True, exist_ok=True)
                    place(artifacts / run_id, target / run_id / _ARTIFACTS)
    except (OSError, sqlite3.Error) as error:
        raise TrackingError(f"could not write the runs of {file} to {root}: {error}; check its permissions") from error
    return store


def _parse_runs(file: Path, folder: Path, *, has_series: bool = True) -> Iterator[dict[str, Any]]:
    try:
        with (folder / bundle_archive.RUNS).open(encoding="utf-8", newline="\n") as lines:
            yield from database_tables.parse_runs(lines, has_series=has_series)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigError(
            f"{file} has an impossible run in {bundle_archive.RUNS}: {error}; do not use this file"
        ) from error


def _read_runs(store: Store, experiment_id: str) -> list[dict[str, Any]]:
    """Read the active runs of an experiment, oldest first."""
    if store.root is not None and (store.root / bundle_archive.RUNS).is_file():  # of a bundle
        location = store.client.get_experiment(experiment_id).artifact_location
        runs_of_bundle = _parse_runs(store.root, store.root)
        return [{**run, "artifact_uri": f"{location}/{run['run_id']}/{_ARTIFACTS}"} for run in runs_of_bundle]
    if store.root is not None:
        return database_tables.read_complete_runs(store.root / DATABASE, experiment_id)
    from mlflow.exceptions import MlflowException

    try:
        with ThreadPoolExecutor(_REQUESTS) as pool:
            read = list(pool.map(lambda run: _read_served(store, run), store.search_runs(experiment_id)))
    except MlflowException as error:
        raise TrackingError(f"could not read the runs from {store.uri}: {describe_error(error)}; try again") from error
    return sorted(read, key=lambda run: (run["start_ms"], run["run_id"]))


def _read_served(store: Store, run: Any) -> dict[str, Any]:
    """Read one run of a server as `database_tables.read_complete_runs` does."""
    histories = {key: store.client.get_metric_history(run.info.run_id, key) for key in sorted(run.data.metrics)}
    return {
        "run_id": run.info.run_id,
        "name": run.info.run_name,
        "status": run.info.status,
        "start_ms": run.info.start_time,
        "end_ms": run.info.end_time,
        "user": run.info.user_id or "",
        "artifact_uri": run.info.artifact_uri,
        "tags": dict(sorted(run.data.tags.items())),
        "params": dict(sorted(run.data.params.items())),
        "metrics": {
            key: [[None if math.isnan(point.value) else point.value, point.timestamp, point.step] for point in points]
            for key, points in histories.items()
        },
    }


def _make_portable(
    runs: Sequence[dict[str, Any]], artifacts: Mapping[str, Path], salt: str
) -> Iterator[tuple[str, Path | bytes]]:
    """Yield the files of a bundle without paths, users and hosts of the machine; binary artifacts stay as they are."""
    paths = PortablePaths(((run["tags"], run["params"]) for run in runs), salt)
    for name in (name for name in artifacts if PurePosixPath(name).name in _NAMES_FOLDERS):
        paths.read_text(_read_text(artifacts[name]) or "")
    masked = [
        {
            **run,
            "name": paths.mask(run["name"]),
            "user": paths.mask_user(run["user"]),
            "tags": paths.mask_tags(run["tags"]),
            "params": {key: paths.mask(text) for key, text in run["params"].items()},
        }
        for run in runs
    ]
    yield bundle_archive.RUNS, "".join(f"{json.dumps(run)}\n" for run in masked).encode()
    known: dict[tuple[str, bytes], bytes] = {}  # most runs have the same environment and changes
    for name, path in artifacts.items():
        text = _read_text(path)
        if text is None:
            yield name, path
            continue
        file = PurePosixPath(name).name
        key = file, hashlib.sha256(text.encode()).digest()
        if key not in known:
            portable = paths.mask_artifact(file, make_portable(text) if file == ENVIRONMENT else text)
            known[key] = portable.encode()
        yield name, known[key]


def _read_text(path: Path) -> str | None:
    """Read a text with its line endings; `None` for a binary file."""
    content = path.read_bytes()
    try:
        return None if b"\0" in content else content.decode()
    except UnicodeDecodeError:
        return None
