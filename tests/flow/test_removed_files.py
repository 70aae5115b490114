"""Jobs that remove a study's script, working folder or store: their groups fail, and the study says how to resume."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from pipeline.base.domain.tags import Tag
from pipeline.base.system.paths import shorten_path
from tests.support.run_fixtures import Program

pytest_plugins = ["tests.support.run_fixtures", "tests.support.tracking_fixtures"]
pytestmark = pytest.mark.covers("pipeline/study", "pipeline/record/spool.py")
STUDY = ["degree=1,2", "repeats=1", "baseline=never", "warm_start=false", "listeners=[]"]
REMOVES = "import os, shutil, sys, time\ntime.sleep(0.2)\nif sys.argv[1] in '{when}': {removes}\n"
REMOVES_FOLDER = "shutil.rmtree(os.path.dirname(sys.argv[0]), ignore_errors=True)"


def run_study(tmp_path: Path, template_store: Path, removes: str, *, root: str, when: str = "1") -> list[str]:
    """Run two groups, of which those with these numbers of jobs remove something; return what was printed."""
    folder = tmp_path / "work"
    folder.mkdir()
    shutil.copytree(template_store, folder / root)
    (folder / "train.py").write_text(REMOVES.format(when=when, removes=removes))
    words = [f"tracking.root={root}", f"gpu.lock_dir={tmp_path}", "gpu=cpu", "foreign_load=note", "-m", *STUDY]
    status, out, err = Program(folder).run(*words, "--", "train.py", "{degree}")
    assert status == 1, err
    assert "Traceback" not in out + err
    return [line.strip() for line in (out + err).splitlines()]


def find_lines(lines: list[str], text: str) -> list[str]:
    return [line for line in lines if text in line]


def test_a_group_fails_whose_script_was_removed_and_the_study_goes_on(tmp_path, study_of):
    (tmp_path / "train.py").write_text(REMOVES.format(when="2", removes="os.remove(sys.argv[0])"))
    study = study_of("-m", *STUDY, "--", "train.py", "{degree}")
    assert study.status == 1
    reasons = {group.info.run_name: group.data.tags[Tag.REASON] for group, _ in study.groups}
    assert reasons["naive-1x-train"] == f"job 0-train: {tmp_path}/train.py was removed during the study; restore it"
    assert len(find_lines(study.err.splitlines(), "2 groups: 2 failed; to run them: ")) == 1


@pytest.mark.slow
def test_a_study_whose_working_folder_was_removed_says_how_to_resume(tmp_path, template_store):
    lines = run_study(tmp_path, template_store, REMOVES_FOLDER, root="../mlruns", when="2")
    assert find_lines(lines, f"naive-1x-train: job 0-train cannot start in {tmp_path}/work: No such file or directory")
    assert len(find_lines(lines, "failed; to run ")) == 1
    assert f"the working folder {tmp_path}/work was removed during the study; make it again first" in lines
    assert find_lines(lines, "report: ")


@pytest.mark.slow
def test_a_store_that_was_removed_is_said_in_one_line(tmp_path, template_store):
    lines = run_study(tmp_path, template_store, REMOVES_FOLDER, root="mlruns")
    removed = (
        f"error: {tmp_path}/work/mlruns, with the results of this study, was removed while naive-1x-train ran; set "
    )
    assert [line[: len(removed)] for line in find_lines(lines, "error")] == [removed]
    assert len(find_lines(lines, "2 groups: 1 not finished; to run it: ")) == 1
    assert find_lines(lines, "report: ")


def test_a_path_is_shortened_only_below_a_folder_that_exists(tmp_path, monkeypatch):
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    assert shorten_path(tmp_path / "work/a") == Path("a")
    assert shorten_path(tmp_path / "a") == tmp_path / "a"
    (tmp_path / "work").rmdir()
    assert shorten_path(tmp_path / "work/a") == tmp_path / "work/a"
