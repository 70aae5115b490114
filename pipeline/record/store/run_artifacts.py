"""The artifacts of runs; those of a local store are read as files, also after the store was moved."""

from __future__ import annotations

import heapq
import re
import shlex
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from pipeline.base.domain import layout
from pipeline.base.domain.layout import DATABASE, STORE_ARTIFACTS
from pipeline.base.system.errors import TrackingError
from pipeline.base.system.paths import shorten_path
from pipeline.base.system.secrets import strip_logins
from pipeline.clean import temporary_folder
from pipeline.record import group_record
from pipeline.record.group_record import GroupRecord
from pipeline.record.store import pages
from pipeline.record.store.local_store import Store

_RUN_ID = re.compile("[0-9a-f]{32}")


def locate(uri: str, root: Path) -> Path | None:
    """Return the folder of a run's artifacts in a store: beside its database if it was moved there with it.

    `None` if the artifacts are not on a file system.

    Raises:
        TrackingError: all artifacts of the experiment are missing.
    """
    folder = _find_folder(uri, root)
    if folder is not None and not folder.parents[1].is_dir():
        recorded = Path(unquote(urlsplit(uri).path))
        expected_folder = root.joinpath(*recorded.parts[-4:-2])
        raise TrackingError(
            f"the artifacts of the experiment are missing: neither {expected_folder} nor {recorded.parents[1]} "
            "exists; copy the folder artifacts beside the database"
        )
    return folder


def _find_folder(uri: str, root: Path) -> Path | None:
    recorded = Path(unquote(urlsplit(uri).path))
    if urlsplit(uri).scheme not in ("", "file") or len(recorded.parts) < 4:
        return None
    parts = recorded.parts[-4:]  # artifacts/EXPERIMENT/RUN/artifacts
    moved_folder = root.joinpath(*parts) if parts[0] == STORE_ARTIFACTS else recorded
    return moved_folder if moved_folder.parents[1].is_dir() else recorded


def locate_experiment(store: Store, stored: Any) -> Path | None:
    """Return the folder with the runs of an experiment; `None` if it is not on a file system.

    Raises:
        TrackingError: the experiment has runs, but the folder is missing.
    """
    if store.folder is None:
        return None
    uri = f"{stored.artifact_location}/RUN/artifacts"
    folder = _find_folder(uri, store.folder)
    if folder is None or folder.parents[1].is_dir():
        return None if folder is None else folder.parents[1]
    has_runs = bool(store.client.search_runs([stored.experiment_id], max_results=1))
    return locate(uri, store.folder) if has_runs else folder.parents[1]


def list_records(folder: Path, store: object, most: int | None = None) -> Iterable[Path]:
    """Return the records of the groups in the folder of an experiment, or the `most` newest ones.

    Raises:
        TrackingError: a group has no record, because an earlier version wrote it.
    """
    paths = sorted(folder.glob(f"*/{layout.ARTIFACTS}/{layout.RECORD}"))
    recorded = {path.parent for path in paths}
    if any(path.parent not in recorded for path in folder.glob(f"*/{layout.ARTIFACTS}/{layout.GROUP}")):
        raise group_record.make_refusal(store)
    return paths if most is None else heapq.nlargest(most, paths, key=lambda path: path.stat().st_mtime)


def find_record(store: Store, run_id: str, *, is_printed: bool = False) -> GroupRecord | None:
    """Read the record of a group's run; `None` if the run was created just now and has no artifacts.

    Raises:
        TrackingError: the run has artifacts but no record, or the record is damaged.
    """
    with temporary_folder.hold_scratch() as scratch:
        path = fetch(store, run_id, layout.RECORD, scratch)
        if path is not None:
            return group_record.parse(path.read_bytes(), f"{layout.RECORD} of run {run_id}", is_printed=is_printed)
        if layout.GROUP in list_names(store, run_id):
            raise group_record.make_refusal(store.folder or store.uri)
        return None


def read_record(store: Store, run_id: str, *, is_printed: bool = False) -> GroupRecord:
    """Read the record of a group's run.

    Raises:
        TrackingError: the run has no record, or the record is damaged.
    """
    if (record := find_record(store, run_id, is_printed=is_printed)) is None:
        raise TrackingError(f"run {run_id} in {store.uri} has no artifact {layout.RECORD}; choose another run")
    return record


def log_record(store: Store, record: GroupRecord) -> None:
    """Store a record as an artifact of its run, in place of an earlier one."""
    with temporary_folder.hold_scratch() as scratch:
        path = scratch / layout.RECORD
        path.write_text(group_record.encode(record), encoding="utf-8")
        store.client.log_artifact(record.run_id, str(path))


def has_folder(uri: str, run_id: str) -> bool:
    """Return whether the artifact URI of a run names a folder of this run; MLflow reads an empty one as the current."""
    address = urlsplit(uri)
    return address.scheme not in ("", "file") or run_id in Path(unquote(address.path)).parts


def list_names(store: Store, run_id: str) -> list[str]:
    """Return the names of the artifacts of a run, except those in folders.

    Raises:
        TrackingError: the artifacts cannot be read.
    """
    from mlflow.exceptions import MlflowException

    try:
        if (folder := _locate_run(store, run_id)) is not None:
            return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
        return sorted(artifact.path for artifact in store.client.list_artifacts(run_id))
    except (MlflowException, OSError) as error:
        raise TrackingError(str(error)) from error


def fetch(store: Store, run_id: str, name: str, scratch: Path) -> Path | None:
    """Return an artifact of a run, as a copy in `scratch` if it is not a file; `None` if the run does not have it.

    Raises:
        TrackingError: the artifacts cannot be read.
    """
    from mlflow.exceptions import MlflowException

    try:
        if (folder := _locate_run(store, run_id)) is not None:
            return path if (path := folder / name).exists() else None
        if name not in list_names(store, run_id):
            return None
        return Path(store.client.download_artifacts(run_id, name, str(scratch)))
    except (MlflowException, OSError) as error:
        raise TrackingError(str(error)) from error


def _locate_run(store: Store, run_id: str) -> Path | None:
    if store.folder is None:
        return None
    if _RUN_ID.fullmatch(run_id):
        for folder in store.folder.glob(f"{STORE_ARTIFACTS}/*/{run_id}/{layout.ARTIFACTS}"):
            return folder
    uri = store.client.get_run(run_id).info.artifact_uri
    # Without a folder of its own, a run has a folder that does not exist.
    return locate(uri, store.folder) if has_folder(uri, run_id) else store.folder / run_id


def fetch_all(store: Store, run_id: str, scratch: Path) -> Path:
    """Return the folder with all artifacts of a run, as a copy below `scratch` if they are not files.

    The copy is without the output folder of a job, which may be large.

    Raises:
        TrackingError: the artifacts cannot be read.
    """
    from mlflow.exceptions import MlflowException

    try:
        if (folder := _locate_run(store, run_id)) is not None:
            return folder
        copy = scratch / run_id
        copy.mkdir()
        for entry in store.client.list_artifacts(run_id):
            if entry.path != layout.OUTPUT:
                store.client.download_artifacts(run_id, entry.path, str(copy))
    except (MlflowException, OSError) as error:
        raise TrackingError(f"could not read the artifacts of run {run_id}: {error}; try again") from error
    return copy


_UI = "http://127.0.0.1:5000"


def make_ui_link(base_url: str, experiment_id: str) -> str:
    """Return the URL of the page with an experiment's runs."""
    return pages.link_experiment(_strip_login(base_url), experiment_id)


def make_run_link(base_url: str | None, experiment_id: str, run_id: str) -> str:
    """Return the URL of a run's page, on a server or in the local UI that `describe_local_ui` starts."""
    server = base_url if base_url is not None and base_url.startswith("http") else _UI
    return pages.link_run(_strip_login(server), experiment_id, run_id)


def _strip_login(server: str) -> str:
    return strip_logins(server).rstrip("/")


def describe_local_ui(root: Path, experiment_id: str) -> str:
    """Return the command that starts the UI of a local store, and the page to open afterwards."""
    return _spell_command(f"sqlite:///{shorten_path((root / DATABASE).absolute())}", experiment_id)


def describe_ui(uri: str, experiment_id: str) -> str:
    """Return the link or the command that shows an experiment at a tracking URI."""
    scheme = uri.partition(":")[0]
    if scheme in ("http", "https"):
        return make_ui_link(uri, experiment_id)
    if scheme.startswith("databricks"):
        return f"experiment {experiment_id} in the workspace of {uri}"
    return _spell_command(strip_logins(uri), experiment_id)


def _spell_command(backend: str, experiment_id: str) -> str:
    program = "mlflow" if shutil.which("mlflow") else shorten_path(Path(sys.executable).parent / "mlflow")
    # The default of four workers takes minutes to start on a small or busy machine.
    command = shlex.join([str(program), "ui", "--backend-store-uri", backend, "--workers", "1"])
    return f"{command}   then open {make_ui_link(_UI, experiment_id)}"
