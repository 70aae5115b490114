"""Uses of MLflow beyond its documented interface are in few modules."""

from __future__ import annotations

import re

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
