"""Bundles: one file with everything that a report of an experiment needs, without a database.

A bundle is a tar archive, compressed with xz: `manifest.json` first, then `runs.jsonl` (one MLflow run per line) and
the artifacts below `artifacts/RUN_ID/`. The manifest has the version, the experiment, and the size and SHA-256 digest
of every other file. A bundle may come from a stranger: nothing of it is executed, and a name, size or digest that does
not match the manifest refuses the bundle before anything is used.
"""

from __future__ import annotations

import atexit
import functools
import hashlib
import io
import json
import lzma
import os
import re
import shutil
import sqlite3
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO
from urllib.parse import unquote, urlsplit

from pipeline.base import mlflow_internals
from pipeline.base.domain.layout import CONFIG, DATABASE, ENVIRONMENT, GROUP, JOB_FILE, STORE_LOCK
from pipeline.base.domain.package_locks import make_portable
from pipeline.base.mlflow_internals import database_tables
from pipeline.base.system import locks
from pipeline.base.system.errors import ConfigError, TrackingError
from pipeline.record.store.local_store import Store, open_store
from pipeline.record.store.portable_paths import PortablePaths
from pipeline.record.store.run_artifacts import locate

VERSION = 1
_KIND = "collocation bundle"
_MANIFEST, _RUNS = "manifest.json", "runs.jsonl"
_MOST_FILES, _MOST_BYTES, _MOST_MANIFEST_BYTES = 200_000, 1 << 33, 1 << 26
_NAMES_FOLDERS = frozenset((CONFIG, GROUP, JOB_FILE))
_RUN_ID = re.compile(r"[0-9a-f]{32}")


def export(store: Store, experiment: str, file: Path) -> int:
    """Write the bundle of an experiment; return its number of runs.

    Raises:
        ConfigError: the store has no such experiment, or `file` cannot be written.
    """
    stored = store.client.get_experiment_by_name(experiment)
    if stored is None or stored.lifecycle_stage != "active":
        raise ConfigError(f"{store.uri} has no experiment {experiment!r}; choose another experiment with --experiment")
    if store.root is None:
        raise ConfigError(f"{store.uri} is a server; export from a local store with --root")
    runs = database_tables.read_complete_runs(store.root / DATABASE, stored.experiment_id)
    folders = {run["run_id"]: locate(run.pop("artifact_uri"), store.root) for run in runs}
    artifacts = {
        f"artifacts/{run_id}/{path.relative_to(folder).as_posix()}": path
        for run_id, folder in folders.items()
        if folder is not None
        for path in sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    }
    try:
        files = dict(_make_portable(runs, artifacts))
        manifest = {name: _describe(content) for name, content in files.items()}
        head = {"kind": _KIND, "version": VERSION, "experiment": experiment, "files": manifest}
        _write(file, {_MANIFEST: json.dumps(head, indent=1).encode(), **files})
    except OSError as error:
        raise ConfigError(f"could not write {file}: {error.strerror}; choose another file with --out") from error
    return len(runs)


def unpack(file: Path, root: Path) -> str:
    """Write the runs and artifacts of a bundle to a local store; return the experiment. Runs in the store stay.

    Raises:
        ConfigError: the file is not a complete bundle of this version.
        TrackingError: the store cannot be written.
    """
    if not mlflow_internals.is_tried():
        low, high = (".".join(map(str, bound)) for bound in mlflow_internals.TRIED)
        raise ConfigError(f"reading a bundle needs MLflow {low} to {high}; run pip install 'mlflow>={low},<{high}'")
    root = root.absolute()
    with tempfile.TemporaryDirectory(prefix="colloc-bundle-") as folder:
        experiment, runs = _extract(file, Path(folder))
        store = open_store(root)
        experiment_id = store.open_experiment(experiment)
        place = Path(unquote(urlsplit(store.client.get_experiment(experiment_id).artifact_location).path))
        try:
            with locks.hold_lock(root / STORE_LOCK):
                new = database_tables.insert_runs(root / DATABASE, experiment_id, place.as_uri(), runs)
                for run_id in new:
                    if (artifacts := Path(folder) / "artifacts" / run_id).is_dir():
                        shutil.copytree(artifacts, place / run_id / "artifacts", dirs_exist_ok=True)
        except (OSError, sqlite3.Error) as error:
            raise TrackingError(
                f"could not write the runs of {file} to {root}: {error}; check its permissions"
            ) from error
    return experiment


@functools.cache
def open_bundle(file: Path) -> Store:
    """Open a bundle as a store in a temporary folder, which is removed at the end of the process.

    Raises:
        ConfigError: the file is not a complete bundle of this version.
    """
    folder = tempfile.TemporaryDirectory(prefix="colloc-bundle-store-")
    atexit.register(folder.cleanup)
    unpack(file, Path(folder.name))
    return open_store(Path(folder.name))


def _make_portable(
    runs: Sequence[dict[str, Any]], artifacts: Mapping[str, Path]
) -> Iterator[tuple[str, Path | bytes]]:
    """Yield the files of a bundle without paths, users and hosts of the machine; binary artifacts stay as they are."""
    paths = PortablePaths((run["tags"], run["params"]) for run in runs)
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
    yield _RUNS, "".join(f"{json.dumps(run)}\n" for run in masked).encode()
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


def _describe(content: Path | bytes) -> dict[str, object]:
    with _open_content(content) as source:
        return {"bytes": _measure_size(content), "sha256": hashlib.file_digest(source, "sha256").hexdigest()}


def _open_content(content: Path | bytes) -> io.BytesIO | io.BufferedReader:
    return io.BytesIO(content) if isinstance(content, bytes) else content.open("rb")


def _measure_size(content: Path | bytes) -> int:
    return len(content) if isinstance(content, bytes) else content.stat().st_size


def _write(file: Path, files: dict[str, Path | bytes]) -> None:
    """Write an archive that depends on the content of the files only, in place of an old one once it is complete."""
    part = file.with_name(f".{file.name}.part")
    try:
        with tarfile.open(part, "w:xz", preset=6, format=tarfile.PAX_FORMAT) as archive:
            for name, content in files.items():
                entry = tarfile.TarInfo(name)
                entry.size = _measure_size(content)
                with _open_content(content) as source:
                    archive.addfile(entry, source)
        part.replace(file)
    finally:
        part.unlink(missing_ok=True)


def _extract(file: Path, folder: Path) -> tuple[str, list[dict[str, Any]]]:
    """Extract a bundle to an empty folder, and check it; return the experiment and its runs."""
    try:
        with tarfile.open(file, "r:xz") as archive:
            first = archive.next()
            if first is None or first.name != _MANIFEST or first.size > _MOST_MANIFEST_BYTES:
                raise ConfigError(f"{file} is not a bundle: it does not begin with {_MANIFEST}; export the study again")
            head = _read_manifest(file, json.load(_open(archive, first)))
            missing = dict(head["files"])
            while (entry := archive.next()) is not None:
                _extract_file(file, archive, entry, missing, folder)
    except (OSError, EOFError, tarfile.TarError, lzma.LZMAError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"{file} is not a complete bundle: {error}; copy the file again, or export the study again"
        ) from error
    if missing:
        raise ConfigError(f"{file} lacks {len(missing)} files, such as {next(iter(missing))}; copy the bundle again")
    lines = (folder / _RUNS).read_text(encoding="utf-8").splitlines()
    try:
        runs = [database_tables.check_run(json.loads(line)) for line in lines]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ConfigError(f"{file} has an impossible run in {_RUNS}: {error}; export the study again") from error
    return head["experiment"], runs


def _read_manifest(file: Path, head: Any) -> dict[str, Any]:
    if not isinstance(head, dict) or head.get("kind") != _KIND:
        raise ConfigError(f"{file} is not a bundle of this project; export a study with: report export")
    if head.get("version") != VERSION:
        raise ConfigError(
            f"{file} has format version {head.get('version')!r}, but this version of the project reads format version "
            f"{VERSION}; use the version that wrote the file"
        )
    files, experiment = head.get("files"), head.get("experiment")
    if not isinstance(files, dict) or not isinstance(experiment, str) or not experiment or _RUNS not in files:
        raise ConfigError(f"{file} has an incomplete {_MANIFEST}; export the study again")
    sizes = [size for entry in files.values() if isinstance(entry, dict) and type(size := entry.get("bytes")) is int]
    if len(files) > _MOST_FILES or len(sizes) < len(files) or min(sizes) < 0:
        raise ConfigError(f"{file} has an impossible list of files in {_MANIFEST}; export the study again")
    if sum(sizes) > _MOST_BYTES:
        raise ConfigError(
            f"{file} would unpack to {sum(sizes) / 2**30:.3g} GiB, more than the limit of {_MOST_BYTES / 2**30:g} GiB; "
            "export an experiment with fewer runs"
        )
    return head


def _extract_file(
    file: Path, archive: tarfile.TarFile, entry: tarfile.TarInfo, missing: dict[str, Any], folder: Path
) -> None:
    """Write one file of an archive to a folder if its name, size and digest are those of the manifest."""
    expected = missing.pop(entry.name, None)
    path = PurePosixPath(entry.name)
    is_artifact = path.parts[:1] == ("artifacts",) and len(path.parts) > 2 and _RUN_ID.fullmatch(path.parts[1])
    if (
        expected is None
        or not entry.isreg()
        or path.is_absolute()
        or ".." in path.parts
        or not (is_artifact or entry.name == _RUNS)
    ):
        raise ConfigError(
            f"{file} contains {entry.name[:200]!r}, which its manifest does not list; do not use this file"
        )
    if entry.size != expected["bytes"]:
        raise ConfigError(
            f"{file}: {entry.name} has {entry.size} bytes instead of {expected['bytes']}; copy the bundle again"
        )
    target, digest = folder / path, hashlib.sha256()
    target.parent.mkdir(parents=True, exist_ok=True)
    with os.fdopen(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as output:
        source = _open(archive, entry)
        while block := source.read(1 << 20):
            digest.update(block)
            output.write(block)
    if digest.hexdigest() != expected.get("sha256"):
        raise ConfigError(f"{file}: {entry.name} does not match its digest; copy the bundle again")


def _open(archive: tarfile.TarFile, entry: tarfile.TarInfo) -> BinaryIO:
    source = archive.extractfile(entry)
    if source is None:
        raise tarfile.TarError(f"{entry.name[:200]!r} is not a file")
    return source  # type: ignore[return-value]
