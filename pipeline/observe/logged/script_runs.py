"""What a job's own `mlflow.*` calls left in its folder, read from MLflow's file store as plain files.

MLflow's own reader (3.17) refuses a whole store for one torn line, which a killed job leaves, and reads step 0 for
every metric that names a data set. Layout: <experiment>/<run>/{meta.yaml,metrics/,params/,tags/,artifacts/}.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from pipeline.base import regular_files


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptRun:
    """One run that a script made.

    Attributes:
        prefix: what its names and artifacts get in front in the job's run; empty for the first run.
        metrics: name to points `(step, wall-clock ms, value)`.
        artifacts: folders with what they hold, each with the folder that it becomes (empty: the run's own).
    """

    prefix: str
    params: dict[str, str]
    tags: dict[str, str]
    metrics: dict[str, list[tuple[int, int, float]]]
    artifacts: tuple[tuple[Path, str], ...]


def read_script_runs(store: Path) -> list[ScriptRun]:
    """Every run of a file store in the order in which they began; nothing if the script never used MLflow."""
    found = []
    for meta_file in store.glob("[!.]*/*/meta.yaml"):
        meta = _meta(meta_file)
        if meta is not None and "run_id" in meta and meta.get("lifecycle_stage") != "deleted":
            found.append((_start(meta), meta_file.parent))
    runs = []
    for number, (_, folder) in enumerate(sorted(found), start=1):
        prefix = "" if number == 1 else f"run{number}/"
        runs.append(
            ScriptRun(
                prefix=prefix,
                params=dict(_texts(folder / "params")),
                tags={key: value for key, value in _texts(folder / "tags") if not key.startswith("mlflow.")},
                metrics={key: points for key, text in _texts(folder / "metrics") if (points := _points(text))},
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


def _start(meta: dict[str, Any]) -> int:
    start = meta.get("start_time")
    return start if isinstance(start, int) else 0


def _texts(folder: Path) -> Iterator[tuple[str, str]]:
    """Key and content of each file below a folder; a slash in a key makes a folder there."""
    for path in regular_files.below(folder).files:
        with suppress(OSError):
            yield path.relative_to(folder).as_posix(), regular_files.read_text(path)


def _points(text: str) -> list[tuple[int, int, float]]:
    """The whole lines `ms value [step [data set, its digest]]` of a metric's file; a line without its end is torn."""
    points = []
    for line in text.split("\n")[:-1]:
        parts = line.split(" ")
        if len(parts) in (2, 3, 5):
            with suppress(ValueError):
                point = int(parts[2]) if len(parts) > 2 else 0, int(parts[0]), float(parts[1])
                if max(map(abs, point[:2])) < 2**63:  # what a database takes
                    points.append(point)
    return points


def _artifacts(run: Path, prefix: str) -> Iterator[tuple[Path, str]]:
    if (run / "artifacts").is_dir():
        yield run / "artifacts", prefix.rstrip("/")
    for meta_file in sorted(run.parent.glob("models/*/meta.yaml")):
        meta = _meta(meta_file) or {}
        if meta.get("source_run_id") == run.name and (meta_file.parent / "artifacts").is_dir():
            yield meta_file.parent / "artifacts", f"{prefix}models/{meta.get('name')}-{meta_file.parent.name}"
