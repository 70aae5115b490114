"""The file store of a job's own `mlflow.*` calls, read as plain files.

MLflow's own reader (3.17) refuses a complete store because of one truncated line, which a killed job leaves, and reads
step 0 for every metric with a data set. Layout: <experiment>/<run>/{meta.yaml,metrics/,params/,tags/,artifacts/}.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from pipeline.base.domain.samples import MOST_POINTS, PointSeries
from pipeline.base.system import regular_files

TORN = ".artifact.uploading."
"""Part of the name of an incomplete artifact file that a killed client left."""
_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptRun:
    """One run created by a script.

    Attributes:
        prefix: prefix of this run's names and artifacts in the job's run; empty for the first run.
        metrics: points `(step, wall-clock ms, value)` of each metric, by name.
        metric_files: the file of each metric, by name.
        artifacts: folders with artifacts, each with its target folder; empty for the top folder.
    """

    prefix: str
    params: dict[str, str]
    tags: dict[str, str]
    metrics: dict[str, PointSeries]
    metric_files: dict[str, Path]
    artifacts: tuple[tuple[Path, str], ...]


def read_script_runs(store: Path, most_points: int = MOST_POINTS) -> list[ScriptRun]:
    """Return every run of a file store, oldest first, with a maximum number of points per metric."""
    folders = []
    for meta_file in store.glob("[!.]*/*/meta.yaml"):
        meta = _meta(meta_file)
        if meta is not None and "run_id" in meta and meta.get("lifecycle_stage") != "deleted":
            start = meta.get("start_time")
            folders.append((start if isinstance(start, int) else 0, meta_file.parent))
    runs = []
    for number, (_, folder) in enumerate(sorted(folders), start=1):
        prefix = "" if number == 1 else f"run{number}/"
        metrics_folder = folder / "metrics"
        paths = regular_files.list_files(metrics_folder).files
        files = {path.relative_to(metrics_folder).as_posix(): path for path in paths}
        metrics = {key: _points(path, most_points) for key, path in files.items()}
        runs.append(
            ScriptRun(
                prefix=prefix,
                params=dict(_texts(folder / "params")),
                tags={key: value for key, value in _texts(folder / "tags") if not key.startswith("mlflow.")},
                metrics={key: points for key, points in metrics.items() if len(points)},
                metric_files=files,
                artifacts=tuple(_artifacts(folder, prefix)),
            )
        )
    return runs


def _meta(path: Path) -> dict[str, Any] | None:
    try:
        meta = yaml.safe_load(regular_files.read_text(path))
    except (OSError, yaml.YAMLError, ValueError, RecursionError):
        return None
    return meta if isinstance(meta, dict) else None


def _texts(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield key and content of each file below a folder; a slash in a key is a subfolder."""
    for path in regular_files.list_files(folder).files:
        with suppress(OSError):
            yield path.relative_to(folder).as_posix(), regular_files.read_text(path)


def _points(path: Path, most: int) -> PointSeries:
    """Read the complete lines `ms value [step [data set, its digest]]` of a metric; an unterminated line is skipped."""
    points = PointSeries(most=most)
    with suppress(OSError):
        for block in regular_files.read_line_blocks(path, _BLOCK_BYTES):
            for line in block.split(b"\n")[:-1]:
                parts = line.split(b" ")
                if len(parts) in (2, 3, 5):
                    with suppress(ValueError):
                        step, t_ms = int(parts[2]) if len(parts) > 2 else 0, int(parts[0])
                        if max(abs(step), abs(t_ms)) < 2**63:  # the range of a database
                            points.append(step, t_ms, float(parts[1]))
    return points


def _artifacts(run: Path, prefix: str) -> Iterator[tuple[Path, str]]:
    if (run / "artifacts").is_dir():
        yield run / "artifacts", prefix.rstrip("/")
    for meta_file in sorted(run.parent.glob("models/*/meta.yaml")):
        meta = _meta(meta_file) or {}
        if meta.get("source_run_id") == run.name and (meta_file.parent / "artifacts").is_dir():
            yield meta_file.parent / "artifacts", f"{prefix}models/{meta.get('name')}-{meta_file.parent.name}"
