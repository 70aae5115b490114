"""Locks on files: alone or shared, dropped with the last descriptor, and passed on by intent only."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.base.system import locks


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
