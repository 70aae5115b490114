"""The folder of the store stays out of the user's repository."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from pipeline.base.domain.layout import DATABASE
from pipeline.base.system import tracking_root
from pipeline.record.spool import Spool
from pipeline.record.store import local_store

pytest_plugins = ["tests.support.tracking_fixtures"]


def untracked(repository: Path) -> str:
    command = ["git", "-C", str(repository), "status", "--porcelain", "--untracked-files=all"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_a_folder_that_is_made_is_none_of_the_repository_around_it(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    root = tmp_path / "results" / "mlruns"
    tracking_root.make(root)
    (root / DATABASE).touch()
    assert untracked(tmp_path) == ""
    (root / ".gitignore").write_text("changed by its owner\n")
    tracking_root.make(root)
    assert (root / ".gitignore").read_text() == "changed by its owner\n"


def test_a_folder_that_was_there_is_left_as_it_is(tmp_path: Path) -> None:
    """It may be the user's own project, or this one's mlruns/ with its .gitkeep."""
    (tmp_path / ".gitkeep").touch()
    tracking_root.make(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [".gitkeep"]
    with pytest.raises(FileExistsError):
        tracking_root.make(tmp_path / ".gitkeep")


def test_whoever_needs_the_folder_first_makes_it(
    tmp_path: Path, template_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Spool(tmp_path / "spooled", None, {}, {})  # type: ignore[arg-type]
    monkeypatch.setattr(local_store, "_prepare", lambda root, **_: shutil.copy(template_store / DATABASE, root))
    local_store.open_store(tmp_path / "opened")
    assert all((tmp_path / name / ".gitignore").exists() for name in ("spooled", "opened"))
