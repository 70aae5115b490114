"""Files that a user names."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.base.domain.layout import DATABASE
from pipeline.base.system import locks, paths
from pipeline.base.system.errors import ConfigError
from pipeline.base.system.paths import expand_path, find_file, is_file
from pipeline.base.system.words import natural_key
from pipeline.record.spool import Spool
from pipeline.record.store import local_store


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("absent", "=absent does not exist in /"),
        ("/absent/x", "=/absent/x does not exist; check the name"),
        (".", "set it to a file"),
    ],
)
def test_what_is_no_file_is_refused(path, words):
    assert not is_file(Path(path))
    with pytest.raises(ConfigError, match=words):
        find_file("workload.script", path)


@pytest.mark.parametrize("name", ["x" * 300, "x/" * 3000])
def test_a_name_that_no_file_can_have_is_refused(name):
    assert not is_file(Path(name))
    for use in (expand_path, find_file):
        with pytest.raises(ConfigError, match="is too long for a path"):
            use("data.root", name)


def test_numbers_within_texts_are_in_their_order() -> None:
    names = ["a bs128", "a bs16", "a bs8", "a", "b 2.5", "b 2.25", "10", "9"]
    assert sorted(names, key=natural_key) == ["9", "10", "a", "a bs8", "a bs16", "a bs128", "b 2.5", "b 2.25"]


pytest_plugins = ["tests.support.tracking_fixtures"]


def untracked(repository: Path) -> str:
    command = ["git", "-C", str(repository), "status", "--porcelain", "--untracked-files=all"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_a_folder_that_is_made_is_none_of_the_repository_around_it(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    root = tmp_path / "results" / "mlruns"
    paths.make_root(root)
    (root / DATABASE).touch()
    assert untracked(tmp_path) == ""
    (root / ".gitignore").write_text("changed by its owner\n")
    paths.make_root(root)
    assert (root / ".gitignore").read_text() == "changed by its owner\n"


def test_a_folder_that_was_there_is_left_as_it_is(tmp_path: Path) -> None:
    """It may be the user's own project, or this one's mlruns/ with its .gitkeep."""
    (tmp_path / ".gitkeep").touch()
    paths.make_root(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [".gitkeep"]
    with pytest.raises(FileExistsError):
        paths.make_root(tmp_path / ".gitkeep")


def test_whoever_needs_the_folder_first_makes_it(
    tmp_path: Path, template_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Spool(tmp_path / "spooled", None, {}, {})  # type: ignore[arg-type]
    monkeypatch.setattr(local_store, "_prepare", lambda root, **_: shutil.copy(template_store / DATABASE, root))
    local_store.open_store(tmp_path / "opened")
    assert all((tmp_path / name / ".gitignore").exists() for name in ("spooled", "opened"))


@pytest.mark.parametrize(("first", "second", "both"), [(True, True, True), (True, False, False), (False, True, False)])
def test_sharers_exclude_who_wants_it_alone(tmp_path: Path, first: bool, second: bool, both: bool) -> None:
    one, other = locks.open_file(tmp_path / "lock"), locks.open_file(tmp_path / "lock")
    assert locks.try_take(one, is_shared=first)
    assert locks.try_take(other, is_shared=second) == both
    locks.drop(one)
    assert locks.try_take(other, is_shared=second)
    os.close(one)
    os.close(other)


@pytest.mark.parametrize("is_passed_on", [True, False])
def test_a_child_holds_what_is_passed_on_and_nothing_else(tmp_path: Path, is_passed_on: bool) -> None:
    lock = locks.open_file(tmp_path / "lock")
    locks.take(lock)
    argv = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, pass_fds=[lock] if is_passed_on else []) as child:
        os.close(lock)
        other = locks.open_file(tmp_path / "lock")
        assert locks.try_take(other) != is_passed_on
        child.communicate()
    assert locks.try_take(other)
    os.close(other)


def test_it_is_free_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), locks.hold_lock(tmp_path / "lock"):
        other = locks.open_file(tmp_path / "lock")
        assert not locks.try_take(other)
        raise RuntimeError
    assert locks.try_take(other)
    os.close(other)
