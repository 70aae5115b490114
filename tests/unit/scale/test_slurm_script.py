"""The batch script of a job array, and what it starts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from pipeline import outcome
from pipeline.base.command import Completed
from pipeline.base.errors import ConfigError
from pipeline.base.interrupts import UndoStack
from pipeline.scale import slurm
from pipeline.scale.options import SlurmOptions


@pytest.fixture(autouse=True)
def _typed(monkeypatch: pytest.MonkeyPatch) -> None:
    typed = ["run.py", "-m", "repeats=3", "hydra/launcher=slurm", "resume=true", "--", "train.py", "a b"]
    monkeypatch.setattr(outcome, "typed", typed)


def test_an_exporter_is_refused_as_tasks_on_one_host_would_want_its_port() -> None:
    config = SimpleNamespace(gpu=SimpleNamespace(device="auto"), unit=None, exporter=SimpleNamespace(name="prometheus"))
    with pytest.raises(ConfigError, match="would take the same port for exporter=prometheus; leave it out"):
        slurm.run(SimpleNamespace(configs=[config], config=config), UndoStack(), SlurmOptions())  # type: ignore[arg-type]


def script(options: SlurmOptions, limit_s: float | None = None) -> str:
    return slurm.script_of(options, [1, 3], "false", limit_s, Path("/shared/slurm"))


def test_options_are_directives_and_what_is_not_given_is_left_to_the_cluster() -> None:
    options = SlurmOptions(
        partition="gpu", gres="gpu:h100:1", array_parallelism=2, additional_parameters={"exclusive": True, "nice": 5}
    )
    directives = {line for line in script(options).splitlines() if line.startswith("#SBATCH")}
    assert directives == {
        "#SBATCH --array=1,3%2",
        "#SBATCH --exclusive",
        "#SBATCH --gres=gpu:h100:1",
        "#SBATCH --job-name=collocation",
        "#SBATCH --nice=5",
        "#SBATCH --nodes=1",
        "#SBATCH --ntasks=1",
        "#SBATCH --open-mode=append",
        "#SBATCH --output=/shared/slurm/%A_%a.log",
        "#SBATCH --partition=gpu",
        "#SBATCH --requeue",
        "#SBATCH --signal=B:TERM@120",
    }


@pytest.mark.parametrize(
    ("environ", "limit_s", "resume", "time_limit_s"),
    [
        ({}, None, "false", 2**31 - 1),
        ({"SLURM_RESTART_COUNT": "1"}, 7.5, "true", 8),
        ({"SLURM_JOB_END_TIME": "1"}, None, "false", 1),  # nothing is left
        ({"SLURM_JOB_END_TIME": str(2**40)}, 60, "false", 60),
    ],
)
def test_a_task_runs_its_unit_and_resumes_when_it_is_requeued(environ, limit_s, resume, time_limit_s, tmp_path) -> None:
    options = SlurmOptions(setup=["export FROM_SETUP=1"])
    said = tmp_path / "said.py"
    said.write_text("import os, sys\nprint(*sys.argv[1:], os.environ['FROM_SETUP'], sep='|')\n")
    text = script(options, limit_s).replace(str(Path("run.py").absolute()), str(said))
    done = subprocess.run(
        ["bash", "-c", text],
        env={"PATH": "/usr/bin:/bin", "SLURM_ARRAY_TASK_ID": "3", "SLURM_ARRAY_JOB_ID": "8", **environ},
        capture_output=True,
        text=True,
        check=True,
    )
    words = ["-m", "repeats=3", "unit=3", f"resume={resume}", f"time_limit_s={time_limit_s}"]
    words += ["plan_file=/shared/slurm/plan-8.json", "--", "train.py", "a b"]
    assert done.stdout == "|".join([*words, "1"]) + "\n"
    assert sys.executable in text


def test_an_option_cannot_smuggle_in_a_line() -> None:
    with pytest.raises(ConfigError, match="partition spans several lines"):
        script(SlurmOptions(partition="gpu\nrm"))


def test_units_are_done_by_a_command_that_had_the_same_words_but_for_its_secrets(monkeypatch) -> None:
    recorded = "run.py -m repeats=3 hydra/launcher=slurm workload.environ.HF_TOKEN='<hidden>'"
    unit = SimpleNamespace(number=2, state=slurm.DONE)
    monkeypatch.setattr(slurm, "_overview", lambda *_: SimpleNamespace(command=recorded, units=[unit]))
    for word, done in (("workload.environ.HF_TOKEN=another", {2}), ("workload.environ.OTHER=x", set())):
        monkeypatch.setattr(outcome, "typed", ["run.py", "-m", "repeats=3", "hydra/launcher=slurm", word])
        assert slurm._done("", "") == done


def test_only_its_owner_reads_a_script_which_may_hold_secrets(monkeypatch, tmp_path: Path) -> None:
    said = {"status": 0, "stdout": "7;cluster\n", "stderr": ""}
    monkeypatch.setattr(slurm, "_slurm", lambda *argv: Completed(argv=argv, **said))
    assert slurm._submit("#!/bin/bash\n", tmp_path) == "7"
    (path,) = tmp_path.glob("submit-*.sh")
    assert path.stat().st_mode & 0o777 == 0o600
