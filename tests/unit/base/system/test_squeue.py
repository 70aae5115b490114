"""What Slurm's queue says, by a program in its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.base.system import squeue
from pipeline.base.system.errors import CommandError


@pytest.fixture
def says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Put programs of these lines of shell script on PATH."""

    def put(**lines: str) -> None:
        for name, line in lines.items():
            program = tmp_path / name
            program.write_text(f"#!/bin/sh\n{line}\n")
            program.chmod(0o700)
        monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")

    return put


def test_tasks_have_their_states_whatever_a_user_has_set_to_see_less(says, monkeypatch, tmp_path: Path) -> None:
    said = "12 3 RUNNING None\\n12 4 PENDING Nodes required for job are DOWN\\n\\n15 N/A PENDING Priority"
    says(squeue=f"echo $@ $SQUEUE_PARTITION $SLURM_CONF > {tmp_path}/asked; printf '{said}\\n'")
    monkeypatch.setenv("SQUEUE_PARTITION", "other")
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm.conf")
    assert squeue.read_states({"15", "12"}) == {"12_3": "RUNNING", "12_4": "PENDING Nodes required for job are DOWN"}
    asked = (tmp_path / "asked").read_text()
    assert "--jobs=12,15 " in asked and asked.endswith(" /etc/slurm.conf\n") and "other" not in asked


def test_of_arrays_that_slurm_has_forgotten_nothing_is_left(says) -> None:
    says(squeue="echo slurm_load_jobs error: Invalid job id specified >&2; exit 1")
    assert squeue.read_states({"12"}) == {}


def test_a_slurm_that_is_absent_or_does_not_answer_is_an_error(says, monkeypatch, tmp_path: Path) -> None:
    says(squeue="echo Unable to contact slurm controller >&2; exit 1")
    with pytest.raises(CommandError, match="Unable to contact"):
        squeue.read_states({"12"})
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    with pytest.raises(CommandError, match="squeue"):
        squeue.read_states({"12"})


def test_another_cluster_does_not_answer_for_the_tasks_of_this_one(says) -> None:
    says(squeue="echo 12 3 RUNNING None", scontrol="echo 'ClusterName             = c1'")
    assert squeue.read_cluster_states("c1", {"12"}) == {"12_3": "RUNNING"}
    with pytest.raises(CommandError, match="this is cluster c1, not c2"):
        squeue.read_cluster_states("c2", {"12"})


def test_how_tasks_ended_is_known_from_the_queue_and_once_it_forgot_from_accounting(says) -> None:
    queue = "12 1 RUNNING None\\n12 2 TIMEOUT TimeLimit\\n12 3 COMPLETED None\\n"
    accounted = "12_2|FAILED\\n12_5|CANCELLED by 0\\n12_6|RUNNING\\n12_[7-9]|PENDING\\n"
    says(squeue=f"case $* in *--states=all*) printf '{queue}';; esac", sacct=f"printf '{accounted}'")
    ended = {"12_2": "TIMEOUT TimeLimit", "12_3": "COMPLETED"}
    assert squeue.list_end_states({"12"}) == {"12_5": "CANCELLED by 0", **ended}
    assert squeue.read_states({"12"}) == {}
    says(sacct="echo Slurm accounting storage is disabled >&2; exit 1")
    assert squeue.list_end_states({"12"}) == ended
