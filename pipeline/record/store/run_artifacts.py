"""The artifacts of runs; those of a local store are read as files, also after the store was moved."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from pipeline.base.domain.layout import STORE_ARTIFACTS
from pipeline.base.system.errors import TrackingError
from pipeline.record.store.local_store import Store


def locate(uri: str, root: Path) -> Path | None:
    """Return the folder of a run's artifacts in a store: beside its database if it was moved there with it.

    `None` if the artifacts are not on a file system.

    Raises:
        TrackingError: all artifacts of the experiment are missing.
    """
    recorded = Path(unquote(urlsplit(uri).path))
    if urlsplit(uri).scheme not in ("", "file") or len(recorded.parts) < 4:
        return None
    parts = recorded.parts[-4:]  # artifacts/EXPERIMENT/RUN/artifacts
    beside = root.joinpath(*parts) if parts[0] == STORE_ARTIFACTS else recorded
    folder = beside if beside.parents[1].is_dir() else recorded
    if not folder.parents[1].is_dir():
        raise TrackingError(
            f"the artifacts of the experiment are missing: neither {beside.parents[1]} nor {recorded.parents[1]} "
            "exists; copy the folder artifacts beside the database"
        )
    return folder


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
        if name not in list_names(store, run_id):
            return None
        folder = _locate_run(store, run_id)
        return Path(store.client.download_artifacts(run_id, name, str(scratch))) if folder is None else folder / name
    except (MlflowException, OSError) as error:
        raise TrackingError(str(error)) from error


def _locate_run(store: Store, run_id: str) -> Path | None:
    if store.root is None:
        return None
    uri = store.client.get_run(run_id).info.artifact_uri
    return locate(uri, store.root) if has_folder(uri, run_id) else store.root / run_id  # a folder that does not exist


def fetch_all(store: Store, run_id: str, uri: str, scratch: Path) -> Path:
    """Return the folder with all artifacts of a run, as a copy below `scratch` if they are not files.

    Raises:
        TrackingError: the artifacts cannot be read.
    """
    from mlflow.exceptions import MlflowException

    if store.root is not None and (folder := locate(uri, store.root)) is not None:
        return folder
    copy = scratch / run_id
    copy.mkdir()
    try:
        store.client.download_artifacts(run_id, "", str(copy))
    except (MlflowException, OSError) as error:
        raise TrackingError(f"could not read the artifacts of run {run_id}: {error}; try again") from error
    return copy
