"""The batch script of a job array, and what it starts."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from pipeline.base.domain.machine_state import cpu_device
from pipeline.base.system.errors import CommandError, ConfigError
from pipeline.base.system.helper_program import Completed
from pipeline.base.system.interrupts import UndoStack
from pipeline.plan import config_reader
from pipeline.record.invocation import Invocation
from pipeline.record.shards import overview
from pipeline.record.shards.slurm_arrays import Submission
from pipeline.scale import slurm
from pipeline.scale.slurm import SlurmOptions
from tests.conftest import GPU
from tests.support.tracking_cases import as_running, record

OF_TASK = {"SLURM_CLUSTER_NAME": "test", "SLURM_ARRAY_JOB_ID": "8", "SLURM_ARRAY_TASK_ID": "3"}


TYPED = ("run.py", "-m", "repeats=3", "hydra/launcher=slurm", "resume=true", "--", "train.py", "a b")


def test_an_exporter_is_refused_as_tasks_on_one_host_would_want_its_port() -> None:
    config = SimpleNamespace(
        gpu=SimpleNamespace(device="auto"), shard=None, repeats=1, exporter=SimpleNamespace(name="prometheus")
    )
    with pytest.raises(ConfigError, match=r"exporter=prometheus .* would share its port; remove exporter"):
        slurm.run(SimpleNamespace(configs=[config], config=config), UndoStack(), SlurmOptions())  # type: ignore[arg-type]


def make_script(options: SlurmOptions, limit_s: float | None = None, typed: Sequence[str] = TYPED) -> str:
    return slurm.make_script(options, typed, [1, 3], "false", limit_s, Path("/shared/slurm"))


def test_options_are_directives_and_what_is_not_given_is_left_to_the_cluster() -> None:
    options = SlurmOptions(
        partition="gpu", gres="gpu:h100:1", array_parallelism=2, additional_parameters={"exclusive": True, "nice": 5}
    )
    directives = {line for line in make_script(options).splitlines() if line.startswith("#SBATCH")}
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
def test_a_task_runs_its_shard_and_resumes_when_it_is_requeued(
    environ, limit_s, resume, time_limit_s, tmp_path
) -> None:
    options = SlurmOptions(setup=["export FROM_SETUP=1"])
    script_file = tmp_path / "said.py"
    shown = "*sys.argv[1:], os.environ['FROM_SETUP'], os.environ['COLLOCATION_STUDY'], os.environ['COLLOCATION_TASK']"
    script_file.write_text(f"import os, sys\nprint({shown}, sep='|')\n")
    text = make_script(options, limit_s).replace(str(Path("run.py").absolute()), str(script_file))
    done = subprocess.run(
        ["bash", "-c", text],
        env={"PATH": "/usr/bin:/bin", **OF_TASK, **environ},
        capture_output=True,
        text=True,
        check=True,
    )
    words = ["-m", "repeats=3", "wait=true", "shard=3", f"resume={resume}", f"time_limit_s={time_limit_s}"]
    words += ["plan_file=/shared/slurm/plan-8.json", "--", "train.py", "a b"]
    typed = "run.py -m repeats=3 hydra/launcher=slurm resume=true -- train.py 'a b'"
    assert done.stdout == "|".join([*words, "1", typed, "test/8_3"]) + "\n"
    assert sys.executable in text


def test_a_task_waits_for_its_device_unless_it_was_said_whether_it_does() -> None:
    assert " wait=true shard=" in make_script(SlurmOptions())
    text = make_script(SlurmOptions(), typed=["run.py", "-m", "repeats=3", "wait=false", "hydra/launcher=slurm"])
    assert " wait=false shard=" in text and "wait=true" not in text


def test_a_task_measures_within_the_limit_that_it_was_given() -> None:
    options = SlurmOptions(timeout_min=10, signal_delay_s=60)
    assert "\nlimit_s=540\n" in make_script(options) and "\nlimit_s=8\n" in make_script(options, 7.5)


def test_an_option_cannot_smuggle_in_a_line() -> None:
    with pytest.raises(ConfigError, match="partition has a line break"):
        make_script(SlurmOptions(partition="gpu\nrm"))


@pytest.fixture
def remaining(monkeypatch: pytest.MonkeyPatch):
    """What is left of a plan of three shards, of which the store has these."""

    def look(*shards: SimpleNamespace, plan: str = "p", num_models: int = 1) -> tuple[list[int], int]:
        overview = SimpleNamespace(plan_any_gpu=plan, num_models=1, shards=shards, unasked="")
        monkeypatch.setattr(slurm, "_read_overview", lambda *_: overview)
        request: Any = SimpleNamespace(config=SimpleNamespace(resume="true", tracking=SimpleNamespace(experiment="e")))
        planned: Any = SimpleNamespace(any_gpu_digest="p", shard_sizes=(2, 2, 2))
        return slurm._select_shards(request, "http://h:1", planned, num_models)

    return look


def make_shard(number: int, state: str, *tasks: str, **results: int) -> SimpleNamespace:
    return SimpleNamespace(number=number, state=state, tasks=tasks, results=results)


def test_shards_that_are_done_or_in_the_queue_are_left_out_if_the_plan_is_the_same(remaining, capsys) -> None:
    begun = [make_shard(1, "done"), make_shard(2, "running", "14_2"), make_shard(3, "waiting", "14_3")]
    assert remaining(*begun) == ([], 2)
    assert "shards 2, 3 are still in the queue (job 14); wait, or run scancel 14" in capsys.readouterr().err
    assert remaining(make_shard(1, "done"), make_shard(2, "incomplete"), make_shard(3, "running")) == ([2, 3], 0)
    assert remaining(*begun, plan="of a program that has changed") == ([1, 2, 3], 0)
    assert remaining(make_shard(1, "done"), make_shard(2, "done"), num_models=2) == ([1, 2, 3], 0)
    assert remaining(
        make_shard(1, "done", ok=1, skipped=1), make_shard(2, "done", ok=2), make_shard(3, "done", oom=2)
    ) == ([1], 0)


def test_what_may_be_in_the_queue_is_not_submitted_again_without_a_word(monkeypatch, capsys) -> None:
    facts = {"plan": "p", "plan_shards": "1x2", "slurm_task": "c1/9_1", "command_line": "run.py"}
    running = as_running(record((), facts=facts, shard=1))
    monkeypatch.setattr(overview.results, "read_groups", lambda *_: [running])
    monkeypatch.setattr(overview.slurm_arrays, "read", lambda *_: None)

    def remaining(error: CommandError) -> tuple[list[int], int]:
        monkeypatch.setattr(slurm.squeue, "read_cluster_states", lambda *_: (_ for _ in ()).throw(error))
        request: Any = SimpleNamespace(config=SimpleNamespace(resume="true", tracking=SimpleNamespace(experiment="e")))
        plan: Any = SimpleNamespace(any_gpu_digest="of a program that has changed", shard_sizes=(1, 1))
        return slurm._select_shards(request, "http://h:1", plan, 1)

    with pytest.raises(
        ConfigError, match=r"the shards in the queue cannot be read: .*timed out.*; start again with resume=true"
    ):
        remaining(CommandError(["squeue"], 1, "Socket timed out"))
    assert remaining(CommandError(["scontrol"], 0, "this is not c1")) == ([1, 2], 0)
    assert "warning: shards in the queue of another cluster are also submitted here: " in capsys.readouterr().err


def test_of_several_models_a_shard_is_done_once_each_of_them_has_it(remaining) -> None:
    assert remaining(
        make_shard(1, "done"), make_shard(2, "done"), make_shard(1, "done"), make_shard(2, "incomplete")
    ) == ([2, 3], 0)


@pytest.mark.parametrize(
    ("options", "changes", "why"),
    [
        (
            {"timeout_min": 2},
            {},
            "timeout_min=2 leaves no time to measure, because .*signal_delay_s=120 s earlier; set .*=3 or",
        ),
        ({}, {"dry_run": "json"}, "dry_run=json does not work with hydra/launcher=slurm"),
    ],
)
def test_what_no_task_could_run_is_refused(config, options, changes, why) -> None:
    vars(config).update(changes)
    with pytest.raises(ConfigError, match=why):
        slurm.run(SimpleNamespace(configs=[config], config=config), UndoStack(), SlurmOptions(**options))  # type: ignore[arg-type]


def test_what_every_task_would_refuse_is_not_submitted(compose) -> None:
    configs = config_reader.read(compose(["degree=2", "only=[naive-2x-typo]"]))
    request: Any = SimpleNamespace(configs=configs, simulated=None, is_sweep=True)
    with pytest.raises(ConfigError, match="is not a group of the plan"):
        slurm._plan(request)


@pytest.mark.parametrize(
    ("gpu", "of_task"), [("cpu", replace(cpu_device(), name="another CPU", uuid="cpu-n01")), ("nvidia", GPU)]
)
def test_a_task_has_the_plan_that_was_made_where_the_study_was_typed(compose, gpu, of_task) -> None:
    configs = config_reader.read(compose(["workload=tiny", "degree=2", f"gpu={gpu}"]))
    request: Any = SimpleNamespace(configs=configs, simulated=None, is_sweep=True)
    remote_plan = slurm.worker_command.make_plan(request, lambda _: of_task)
    assert slurm._plan(request).any_gpu_digest == remote_plan.any_gpu_digest


def test_only_its_owner_reads_a_script_which_may_hold_secrets(monkeypatch, tmp_path: Path) -> None:
    reply = {"status": 0, "stdout": "7;cluster\n", "stderr": ""}
    monkeypatch.setattr(slurm, "_run_slurm", lambda *argv: Completed(argv=argv, **reply))
    assert slurm._submit("#!/bin/bash\n", tmp_path) == "7"
    (path,) = tmp_path.glob("submit-*.sh")
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("gres", "models"),
    [("gpu:1", ("gpu:1",)), (None, (None,)), (["gpu:h100:1", "gpu:a100:1"], ["gpu:h100:1", "gpu:a100:1"])],
)
def test_each_gres_of_a_list_is_another_model_of_gpu(gres, models) -> None:
    assert slurm.list_gres(SlurmOptions(gres=gres)) == models


@pytest.mark.parametrize(
    ("gres", "why"),
    [(["gpu:1"] * 2, "names gpu:1 twice"), ([], "is neither a gres nor a list of gres"), ([1], "write")],
)
def test_what_is_no_list_of_gres_is_refused(gres, why) -> None:
    with pytest.raises(ConfigError, match=why):
        slurm.list_gres(SlurmOptions(gres=gres))


def test_a_task_of_one_of_several_models_is_told_how_many_there_are() -> None:
    text = slurm.make_script(SlurmOptions(gres="gpu:h100:1"), TYPED, [1], "false", None, Path("/shared"), 2)
    assert "#SBATCH --gres=gpu:h100:1\n" in text and ' gpu.models=2 wait=true shard="$SLURM_ARRAY_TASK_ID"' in text
    assert "gpu.models" not in make_script(SlurmOptions())


class Queue:
    """A Slurm that takes a number of job arrays, whose tasks have ended when they are asked for again."""

    request: ClassVar[list[tuple[str, ...]]]

    def __init__(self, num_taken: int) -> None:
        self.num_taken, self.scripts, self.given = num_taken, list[str](), list[Submission]()
        self.answers = [{"11_1": "RUNNING", "12_1": "PENDING Priority"}, {}]

    def __call__(self, *argv: str) -> Completed:
        self.request.append(argv)
        if argv[0] == "sbatch":
            self.scripts.append(Path(argv[-1]).read_text())
            is_taken = len(self.scripts) <= self.num_taken
            output = ("", f"{10 + len(self.scripts)}\n") if is_taken else ("Invalid generic resource", "")
            return Completed(argv=argv, status=0 if is_taken else 1, stdout=output[1], stderr=output[0])
        return Completed(argv=argv, status=0, stdout="", stderr="")

    def states(self, jobs: Collection[str]) -> Mapping[str, str]:
        self.request.append(("squeue", *jobs))
        return self.answers.pop(0)


@pytest.fixture
def config() -> SimpleNamespace:
    """The configuration of a study for such a Slurm."""
    return SimpleNamespace(
        gpu=SimpleNamespace(device="auto"),
        shard=None,
        repeats=1,
        exporter=SimpleNamespace(name="none"),
        tracking=SimpleNamespace(uri="http://h:1", experiment="e", series_points=1),
        resume="false",
        time_limit_s=None,
        dry_run=False,
    )


@pytest.fixture
def submit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, config: SimpleNamespace):
    """Submit a study of one shard on two models to such a Slurm; the exit status and what was asked of it."""

    def run(num_taken: int) -> tuple[int, Queue]:
        Queue.request = []
        queue = Queue(num_taken)
        monkeypatch.setattr(slurm, "_run_slurm", queue)
        monkeypatch.setattr(slurm.squeue, "read_states", queue.states)
        monkeypatch.setattr(slurm, "_POLL_S", 0.0)
        monkeypatch.setattr(slurm, "_read_overview", lambda *_: SimpleNamespace(as_text=lambda _: "all", is_done=True))
        plan = SimpleNamespace(any_gpu_digest="p", shard_sizes=(1,))
        monkeypatch.setattr(slurm, "_plan", lambda _: plan)
        monkeypatch.setattr(slurm.squeue, "read_cluster", lambda: "c1")
        add_submission = queue.given.append
        sender = SimpleNamespace(
            open=lambda *_: None, wait_for_store=lambda: None, note_arrays=lambda _, new: add_submission(new)
        )
        invocation = Invocation(words=TYPED)
        request: Any = SimpleNamespace(
            configs=[config], config=config, sender=sender, root=tmp_path, invocation=invocation
        )
        options = SlurmOptions(gres=["gpu:h100:1", "gpu:a100:1"], folder=str(tmp_path / "slurm"))
        return slurm.run(request, UndoStack(), options), queue

    return run


def test_a_study_on_several_models_is_an_array_for_each_and_all_are_waited_for(submit, capsys, tmp_path) -> None:
    status, queue = submit(2)
    assert status == 0
    assert [text.partition("--gres=")[2].partition("\n")[0] for text in queue.scripts] == ["gpu:h100:1", "gpu:a100:1"]
    assert len(list((tmp_path / "slurm").glob("submit-*.sh"))) == 2
    assert queue.request[-1] == ("squeue", "11", "12")
    assert [(submission.num_shards, submission.cluster, submission.arrays) for submission in queue.given] == [
        (1, "c1", ["11", "12"])
    ]
    printed = capsys.readouterr().err
    for line in (
        "submitted 1 shard of 1 as job array 12 for gpu:a100:1, output in ",
        "cancel it: scancel 11 12",
        "gpu:h100:1 shard 1 | running",
        "gpu:a100:1 shard 1 | pending: Priority",
        "gpu:a100:1 shard 1 | left the queue",
    ):
        assert line in printed


def test_where_one_of_the_arrays_is_refused_none_is_left(submit) -> None:
    refused = (
        "refused the job array: Invalid generic resource.*; job array 11, which was submitted before, was cancelled"
    )
    with pytest.raises(ConfigError, match=refused):
        submit(1)
    assert ("scancel", "11") in Queue.request
