"""A program is spelled as the user started it, and only programs of ours know how that was."""

from __future__ import annotations

import sys

import pytest

from pipeline import outcome
from pipeline.base import invocation
from pipeline.launch.environ import inherited_environ
from pipeline.record import provenance

TYPED = ["/site/gpu_collocation/run.py", "degree=2", "--", "train.py", "resume=false"]


@pytest.fixture
def by_command(monkeypatch, tmp_path):
    monkeypatch.setenv(invocation.VARIABLE, "1")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin/python"))
    invocation._command.cache_clear()
    yield tmp_path / "bin"
    invocation._command.cache_clear()


def test_a_clone_has_run_py_and_modules():
    assert invocation.spell("run", "mix=[S,M]", "a b") == "python run.py 'mix=[S,M]' 'a b'"
    assert invocation.spell("gpu", "clean") == "python -m pipeline.gpu clean"
    assert invocation.spell("schema", python="/x/python") == "/x/python -m pipeline.plan.json_schema"


def test_the_command_has_one_name(by_command):
    assert invocation.spell("run", "-m", "degree=1,2") == "collocate run -m degree=1,2"
    assert invocation.spell("tracking", "flush", python="/x/python") == "collocate tracking flush"


def test_a_command_that_is_not_on_the_path_is_spelled_by_its_path(by_command, monkeypatch, tmp_path):
    by_command.mkdir()
    program = by_command / "collocate"
    program.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "other"))
    assert invocation.spell("gpu") == f"{program} gpu"
    invocation._command.cache_clear()
    (tmp_path / "other").mkdir()
    (tmp_path / "other/collocate").symlink_to(program)  # as pipx and uv do
    assert invocation.spell("gpu") == "collocate gpu"


def test_what_resumes_a_study_is_spelled_so_too(by_command, monkeypatch):
    monkeypatch.setattr(outcome, "typed", TYPED)
    assert outcome.command_to_resume() == "collocate run degree=2 resume=true -- train.py resume=false"
    assert provenance.command_line() == "collocate run degree=2 -- train.py resume=false"


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
    assert invocation.divide(recorded) == (start, recorded[len(start) :])


def test_a_study_of_the_command_can_be_resumed_from_a_clone(monkeypatch):
    recorded = ["collocate", "run", "degree=2", "unit=1"]
    assert outcome.command_to_resume(recorded) == "collocate run degree=2 unit=1 resume=true"


def test_jobs_do_not_inherit_how_the_study_was_started(monkeypatch):
    monkeypatch.setenv(invocation.VARIABLE, "1")
    assert invocation.VARIABLE not in inherited_environ()
