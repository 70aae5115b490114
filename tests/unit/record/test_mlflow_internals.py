"""Uses of MLflow beyond its documented interface, and lines of its metric files that no database could take."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pipeline.base.domain import script_runs
from tests.support.tracking_cases import PROJECT

_KNOWING = {
    "pipeline/base/domain/script_runs.py",
    "pipeline/record/store/database_schema.py",
    "pipeline/record/store/local_store.py",
    "pipeline/record/store/pages.py",
    "pipeline/record/store/portable_paths.py",
}


def test_few_modules_know_what_is_private() -> None:
    words = ("mlflow\\.(store|utils|_)", "viewState", r"(FROM|INTO) experiments\b", r"\.artifact\.uploading")
    private = re.compile("|".join(words))
    files = [file for name in ("pipeline", "listeners", "hydra_plugins") for file in (PROJECT / name).rglob("*.py")]
    knowing = {file.relative_to(PROJECT).as_posix() for file in files if private.search(file.read_text("utf-8"))}
    assert knowing == _KNOWING


def test_no_module_reads_or_writes_the_tables_of_runs() -> None:
    tables = re.compile(r"(FROM|INTO|UPDATE|JOIN) (runs|tags|params|metrics|latest_metrics)\b")
    files = (PROJECT / "pipeline").rglob("*.py")
    assert not [file for file in files if tables.search(file.read_text("utf-8"))]


@pytest.mark.parametrize("line", [f"1 2.0 {2**63}", f"{2**63} 2.0 1", "1 two 1", "1 2.0 1 more", "1 2.0 1\ttorn"])
def test_a_line_that_is_no_point_is_left_out(tmp_path: Path, line: str) -> None:
    file = tmp_path / "loss"
    file.write_text(f"1000 0.5 7\n{line}\n2000 0.25 8\n")
    points = script_runs._points(file, 100)
    assert len(points) == 2
