"""A program is spelled as the user started it, and only programs of ours know how that was."""

from __future__ import annotations

import sys

import pytest

from pipeline.base.system import entry_points
from pipeline.launch.environ import inherit_environ
from pipeline.record import owner
from pipeline.record.invocation import Invocation, spell_resume_command

TYPED = ["/site/gpu_collocation/run.py", "degree=2", "--", "train.py", "resume=false"]


@pytest.fixture
def command_folder(monkeypatch, tmp_path):
    monkeypatch.setenv(entry_points.VARIABLE, "1")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin/python"))
    entry_points._command.cache_clear()
    yield tmp_path / "bin"
    entry_points._command.cache_clear()


def test_a_clone_has_run_py_and_modules():
    assert entry_points.spell("run", "mix=[S,M]", "a b") == "python run.py 'mix=[S,M]' 'a b'"
    assert entry_points.spell("gpu", "clean") == "python -m pipeline.gpu clean"


def test_another_interpreter_than_that_on_the_path_is_named(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/x/python")
    assert entry_points.spell("schema") == "/x/python -m pipeline.plan.json_schema"


def test_elsewhere_a_clone_is_named_by_its_path(tmp_path, monkeypatch):
    clone = tmp_path / "a clone"
    clone.mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(entry_points, "PROJECT_DIR", clone)
    assert entry_points.spell("run", "degree=2") == f"python '{clone}/run.py' degree=2"
    assert entry_points.spell("schema") == f"python '{clone}/collocate.py' schema"
    assert owner.spell_close_command(tmp_path).endswith(
        f"'{clone}/collocate.py' tracking flush --root {tmp_path} --close-lost"
    )
    assert spell_resume_command(["run.py", "degree=2"]).endswith(f"'{clone}/run.py' degree=2 resume=true")
    monkeypatch.chdir(clone)
    assert entry_points.spell("gpu", "clean") == "python -m pipeline.gpu clean"
    clone.rmdir()
    assert entry_points.spell("gpu") == f"python '{clone}/collocate.py' gpu"


def test_the_command_has_one_name(command_folder):
    assert entry_points.spell("run", "-m", "degree=1,2") == "collocate run -m degree=1,2"
    assert entry_points.spell("tracking", "flush") == "collocate tracking flush"


def test_a_command_that_is_not_on_the_path_is_spelled_by_its_path(command_folder, monkeypatch, tmp_path):
    command_folder.mkdir()
    program = command_folder / "collocate"
    program.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "other"))
    assert entry_points.spell("gpu") == f"{program} gpu"
    entry_points._command.cache_clear()
    (tmp_path / "other").mkdir()
    (tmp_path / "other/collocate").symlink_to(program)  # as pipx and uv do
    assert entry_points.spell("gpu") == "collocate gpu"


def test_what_resumes_a_study_is_spelled_so_too(command_folder):
    command_folder.mkdir()
    assert spell_resume_command(TYPED) == "collocate run degree=2 resume=true -- train.py resume=false"
    assert Invocation(words=TYPED).masked_command == "collocate run degree=2 -- train.py resume=false"


@pytest.mark.parametrize(
    ("recorded", "start"),
    [
        (["collocate", "run", "degree=2"], ["collocate", "run"]),
        (["/venv/bin/collocate", "run", "degree=2"], ["/venv/bin/collocate", "run"]),
        (["run.py", "degree=2"], ["run.py"]),
        (["collocate"], ["collocate"]),
        ([], []),
    ],
)
def test_the_start_of_a_recorded_command_line_is_known(recorded, start):
    assert entry_points.divide(recorded) == (start, recorded[len(start) :])


def test_a_study_of_the_command_can_be_resumed_from_a_clone(monkeypatch):
    recorded = ["collocate", "run", "degree=2", "shard=1"]
    assert spell_resume_command(recorded) == "collocate run degree=2 shard=1 resume=true"


def test_jobs_do_not_inherit_how_the_study_was_started(monkeypatch):
    monkeypatch.setenv(entry_points.VARIABLE, "1")
    assert entry_points.VARIABLE not in inherit_environ()
