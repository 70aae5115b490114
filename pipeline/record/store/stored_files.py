"""The artifacts of a run, by the location of its results: a store or a bundle."""

from __future__ import annotations

from pathlib import Path

from pipeline.base.system.errors import ConfigError, TrackingError
from pipeline.record.store import bundle_reader, run_artifacts
from pipeline.record.store.store_access import open_named


def fetch(where: Path | str, run_id: str, name: str, scratch: Path) -> Path | None:
    """Return an artifact of a run, as a copy in `scratch` if it is not a file; `None` if the run does not have it.

    Raises:
        TrackingError: the artifacts cannot be read.
    """
    if not bundle_reader.is_bundle(where):
        return run_artifacts.fetch(open_named(where), run_id, name, scratch)
    try:
        path = bundle_reader.locate(Path(where), run_id) / name
    except ConfigError as error:
        raise TrackingError(str(error)) from error
    return path if path.is_file() else None
