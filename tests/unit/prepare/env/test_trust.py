"""Whether others could decide what lies at a path."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from pipeline.prepare.env import trust


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "bin" / "program"
    path.parent.mkdir()
    path.touch(0o755)
    return path


def swap(program: Path, how: str) -> None:
    """Make it possible that somebody else put the program there."""
    if how == "file":
        program.chmod(0o777)
    elif how == "folder":
        program.parent.chmod(0o777)
    elif how == "gone":
        shutil.rmtree(program.parent)
        program.parent.parent.chmod(0o1777)
    else:
        program.parent.parent.joinpath("open").mkdir()
        program.parent.parent.joinpath("open").chmod(0o777)
        program.rename(program.parent.parent / "open" / "moved")
        program.symlink_to("../open/moved")


@pytest.mark.parametrize("how", ["file", "folder", "gone", "link"])
def test_a_program_that_others_could_have_put_there_is_known(program, how):
    assert trust.find_replaceable_part(program) is None
    swap(program, how)
    assert trust.find_replaceable_part(program) is not None


def test_a_link_to_a_program_of_ours_is_trusted(tmp_path, program):
    link = tmp_path / "link"
    link.symlink_to("bin/../bin/program")
    assert trust.find_replaceable_part(link) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_program_of_another_user_is_not_trusted(program):
    assert trust.find_replaceable_part(program) is None
    os.chown(program.parent, 4242, 0)
    assert trust.find_replaceable_part(program) == program.parent


def test_links_that_lead_nowhere_end(tmp_path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    assert trust.find_replaceable_part(tmp_path / "a") is None
