"""What Slurm's queue says, by a program in its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.base import squeue
from pipeline.base.errors import CommandError


@pytest.fixture
def says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Put a `squeue` of these lines of shell script on PATH."""

    def put(lines: str) -> None:
        program = tmp_path / "squeue"
        program.write_text(f"#!/bin/sh\n{lines}\n")
        program.chmod(0o700)
        monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")

    return put


def test_the_tasks_of_arrays_and_jobs_alone_have_their_states(says, tmp_path: Path) -> None:
    said = "12 3 RUNNING None\\n12 4 PENDING Nodes required for job are DOWN\\n15 N/A PENDING Priority"
    says(f"echo $@ > {tmp_path}/asked; printf '{said}\\n'")
    assert squeue.states({"15", "12"}) == {
        "12_3": "RUNNING None",
        "12_4": "PENDING Nodes required for job are DOWN",
        "15": "PENDING Priority",
    }
    assert "--array --jobs=12,15 " in (tmp_path / "asked").read_text()


def test_of_jobs_that_slurm_has_forgotten_nothing_is_left(says) -> None:
    says("echo slurm_load_jobs error: Invalid job id specified >&2; exit 1")
    assert squeue.states({"12"}) == {}


def test_a_slurm_that_is_absent_or_does_not_answer_is_an_error(says, monkeypatch, tmp_path: Path) -> None:
    says("echo Unable to contact slurm controller >&2; exit 1")
    with pytest.raises(CommandError, match="Unable to contact"):
        squeue.states({"12"})
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    with pytest.raises(CommandError, match="squeue"):
        squeue.states({"12"})


@pytest.mark.parametrize(
    ("environ", "task"),
    [
        ({}, ""),
        ({"SLURM_JOB_ID": "13"}, "13"),
        ({"SLURM_JOB_ID": "13", "SLURM_ARRAY_JOB_ID": "12", "SLURM_ARRAY_TASK_ID": "3"}, "12_3"),
    ],
)
def test_a_process_knows_its_task(monkeypatch, environ: dict[str, str], task: str) -> None:
    for name in ("SLURM_JOB_ID", "SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert squeue.own_task() == task
    assert not task or squeue.job_of(task) == environ.get("SLURM_ARRAY_JOB_ID", "13")
