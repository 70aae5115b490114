"""Studies on several GPUs of one host, and studies in one worker one after another."""

from __future__ import annotations

import json
import re
import shutil
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from pipeline.base.domain.records import Result
from pipeline.base.system.errors import TrackingError
from pipeline.base.system.paths import PROJECT_DIR
from pipeline.record.invocation import STUDY as TYPED
from pipeline.record.shards.overview import read_overview
from pipeline.report.evaluate import effects
from pipeline.report.evaluate.cells import make_cells
from pipeline.report.read import rows
from pipeline.simulation.machine.state_file import StateFile
from tests.support import forks
from tests.support.run_cases import SHORT, TOY, groups
from tests.support.run_program import Program
from tests.support.waiting import wait_until

pytestmark = pytest.mark.covers("pipeline/scale")


STUDY = ["-m", *TOY, *SHORT[1:], "window.seconds=1.5", "degree=2", "repeats=3", "listeners=[host]"]
MACHINE = ["gpu=simulated_a100_40gb", "gpu.count=2", "gpu.machine=machine.json"]


@pytest.fixture
def program(program, tmp_path) -> Program:
    """A study on a simulated machine with two GPUs."""
    program.first, program.last = [*STUDY, *MACHINE, f"gpu.lock_dir={tmp_path}"], []
    return program


@pytest.fixture
def worker_on(tmp_path):
    """Find the worker on a GPU."""

    def find(process, index):
        words = {"hydra/launcher=worker", f"gpu.device={StateFile(tmp_path / 'machine.json').read().gpus[index].uuid}"}
        (worker,) = [child for child in psutil.Process(process.pid).children() if words <= set(child.cmdline())]
        return worker

    return find


@pytest.mark.slow
def test_two_gpus_share_a_study_and_a_shard_that_was_lost_is_run_again(start, worker_on, tmp_path):
    process = start("hydra/launcher=gpus")
    for line in process.stderr:
        if re.match(r"GPU 1 shard 2 \| \[2/2\]", line):
            break
    worker_on(process, 1).kill()
    out, err = process.communicate(timeout=600)
    assert process.returncode == 1, err
    assert "GPU 1 shard 2 | ended with exit status 137" in err
    assert "1 of 6 groups without a result; to run it: " in err
    seen = read_overview(tmp_path / "mlruns", "collocation-rehearsal").as_text(0.0)
    assert re.search(r"\nto run the rest: .*\brun.py -m .* hydra/launcher=gpus resume=true$", seen), seen
    process = start("hydra/launcher=gpus", "resume=true")
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    assert "1 shard of 3 to run" in err
    assert "GPU 1 shard 2 | resume: 1 of 2 groups are finished" in err  # it goes to the GPU that has begun it
    assert re.search(r"naive-2x-toy +(fastest +)?3 +ok", out), out
    study = rows.read([tmp_path / "mlruns"], "collocation-rehearsal")
    assert [block.num_missing for block in study.blocks] == [0, 0, 0]
    assert study.num_planned == 6
    assert len({row.gpu_uuid for row in study.rows}) == 2
    assert {dict(row.settings)["other GPUs"] for row in study.rows} == {"1"}
    assert all(row.result is Result.OK for row in study.rows)
    # On one GPU alone that is another plan than the workers'.
    one = ["gpu.device=0", f"gpu.lock_dir={tmp_path}", f"tracking.root={tmp_path}/mlruns"]
    argv = [*TOY[:2], f"reproduce={study.rows[0].run_id}", *MACHINE, *one]
    done = forks.run(PROJECT_DIR / "run.py", *argv, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_workers_finish_their_shards_if_the_launcher_is_killed(start, tmp_path):
    process = start("hydra/launcher=gpus", "repeats=2", "window.seconds=0.5")
    begun = set()
    for line in process.stderr:
        begun |= set(re.findall(r"shard (\d) \| \[1/2\]", line))
        if begun == {"1", "2"}:
            break
    process.kill()
    process.communicate()

    def is_done():
        try:
            return read_overview(tmp_path / "mlruns", "collocation-rehearsal").is_done
        except TrackingError:  # the store has no group yet
            return False

    wait_until(is_done, 60)
    wait_until(lambda: not any(gpu.processes for gpu in StateFile(tmp_path / "machine.json").read().gpus), 60)


@pytest.mark.slow
def test_what_keeps_a_gpu_company_ends_with_a_launcher_that_is_killed(start, tmp_path):
    process = start("hydra/launcher=beside", "repeats=1", "window.seconds=30")
    for line in process.stderr:
        if "in company | [1/2]" in line or "alone | [1/2]" in line:
            break
    workers = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.communicate()
    assert not psutil.wait_procs(workers, 60)[1]
    assert not any(gpu.processes for gpu in StateFile(tmp_path / "machine.json").read().gpus)


@pytest.mark.slow
def test_gpus_of_two_models_each_measure_the_whole_study_and_are_never_mixed(start, tmp_path):
    models = ["gpu=simulated_a100_40gb,simulated_h100_80gb", "gpu.count=1"]
    process = start("hydra/launcher=gpus", *models, "repeats=1", "window.seconds=0.5")
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    assert "1 shard of 1 to run on GPU 0 (NVIDIA A100-SXM4-40GB)\n1 shard of 1 to run on GPU 1 (NVIDIA H100 80GB" in err
    assert re.findall(r"^naive-2x-toy +NVIDIA (\w+).* ok\b", out, re.MULTILINE) == ["A100", "H100"]
    study = rows.read([tmp_path / "mlruns"], "collocation-rehearsal")
    assert study.num_planned == len(study.rows) == 4 and not study.left_out
    assert [(block.number, block.num_missing) for block in study.blocks] == [(1, 0), (1, 0)]
    assert len(study.devices) == len({row.gpu_uuid for row in study.rows}) == len({row.plan for row in study.rows}) == 2
    seen = read_overview(tmp_path / "mlruns", "collocation-rehearsal")
    assert [(shard.model, shard.state) for shard in seen.shards] == [
        ("NVIDIA A100-SXM4-40GB", "done"),
        ("NVIDIA H100 80GB HBM3", "done"),
    ]


@pytest.mark.slow
def test_a_worker_with_another_plan_is_refused(start, tmp_path):
    plan_file = tmp_path / "plan.json"
    process = start("shard=1", f"plan_file={plan_file}")
    assert process.communicate(timeout=300) and process.returncode == 0
    process = start("shard=2", f"plan_file={plan_file}", "degree=3")
    _, err = process.communicate(timeout=300)
    assert process.returncode == 2
    assert "have another plan (its options differ)" in err


@pytest.mark.slow
def test_a_shard_is_measured_alone_and_while_the_other_gpu_works(start, tmp_path):
    process = start("hydra/launcher=beside", "repeats=1", "window.seconds=0.5")
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    names = re.findall(r"^(\w+-.x\S*(?: \[other GPUs 1\])?) .*ok\b", out, re.MULTILINE)
    assert names == ["serial-1x-toy", "serial-1x-toy [other GPUs 1]", "naive-2x-toy", "naive-2x-toy [other GPUs 1]"]
    study = rows.read([tmp_path / "mlruns"], "collocation-rehearsal")
    assert study.num_planned == len(study.rows) == 4
    assert len({row.gpu_uuid for row in study.rows}) == len(study.blocks) == 1
    pairs = effects.compare_other_gpus(study, make_cells(study))
    assert [(pair.mode, effects.count_other_gpus(pair), pair.num_blocks) for pair in pairs] == [
        ("serial", 1, 1),
        ("naive", 1, 1),
    ]
    (company,) = {row.gpu_uuid for row in rows.read([tmp_path / "mlruns"], "collocation_company-rehearsal").rows}
    assert company != study.rows[0].gpu_uuid
    for dry in (["dry_run=true"], []):
        process = start("hydra/launcher=beside", "repeats=2", "window.seconds=0.5", "resume=true", *dry)
        _, err = process.communicate(timeout=600)
        assert process.returncode == 0, err
        assert re.findall("^resume: .*", err, re.MULTILINE) == ["resume: 2 of 4 groups are finished"] * 2
        assert "changed since" not in err
    # Also the block that the shorter study measured.
    assert read_overview(tmp_path / "mlruns", "collocation-rehearsal").is_done


@pytest.mark.slow
def test_what_failed_on_every_gpu_is_in_the_table_at_the_end(start, tmp_path):
    (script := tmp_path / "fails.py").write_text("import sys; sys.exit('no such dataset')\n")
    process = start("hydra/launcher=gpus", "workload=script", f"workload.script={script}", "degree=2", "repeats=2")
    out, err = process.communicate(timeout=300)
    assert process.returncode == 1, err
    assert re.findall(r"^(\S+) +2  failed\b", out, re.MULTILINE) == ["serial-1x-fails", "naive-2x-fails"]
    assert "ended with status 1: no such dataset\n" in out
    assert "4 of 4 groups without a result; to run them: " in err


@pytest.mark.slow
def test_ctrl_c_ends_the_workers_and_says_how_to_resume(start, worker_on):
    process = start("hydra/launcher=gpus", "window.seconds=60")
    waiting = {1, 2}
    for line in process.stderr:
        waiting -= {int(shard) for shard in re.findall(r"shard (\d) \| \[1/2\]", line)}
        if not waiting:
            break
    workers = [worker_on(process, index) for index in (0, 1)]
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 130, err
    assert not [worker for worker in workers if worker.is_running() and worker.status() != psutil.STATUS_ZOMBIE]
    assert len(re.findall(r"ended with exit status 130", err)) == 2, err
    assert err.count("hydra/launcher=gpus window.seconds=60 resume=true") == 1, err
    assert "2 groups: 2 not finished\n" in err


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["hydra.launcher.devices=[0,0]"], "names NVIDIA A100-SXM4-40GB GPU-.* twice"),
        (["hydra.launcher.devices=[2]"], "hydra.launcher.devices='2' matches 0 GPUs"),
        (["gpu.device=1"], "gpu.device=1 conflicts with hydra/launcher=gpus; name the GPUs"),
        (["shard=1"], "shard=1 conflicts with hydra/launcher=gpus, which assigns the shards"),
        (
            ["hydra/launcher=beside", "hydra.launcher.devices=[1]"],
            "needs two free GPUs, but only ",
        ),
        (["gpu.machine=null"], "needs a simulated machine that its workers share; add gpu.machine=FILE"),
    ],
)
def test_what_no_worker_can_run_is_refused_in_one_line(study_of, tmp_path, arguments, words):
    done = study_of(*STUDY, *MACHINE[1:], "hydra/launcher=gpus", *arguments, gpu="simulated_a100_40gb")
    assert done.status == 2, done.err
    assert re.search(f"^error: .*{words}", done.err, re.MULTILINE), done.err
    assert not (tmp_path / "mlruns/spool").exists()


@pytest.mark.slow
def test_devices_without_brackets_are_refused(start):
    process = start("hydra/launcher=gpus", "hydra.launcher.devices=0,1")
    _, err = process.communicate(timeout=300)
    assert process.returncode == 2, err
    assert "write a list as 'hydra.launcher.devices=[0,1]'" in err


@pytest.mark.slow
def test_a_single_configuration_has_nothing_to_hand_out(program):
    program.first = [*TOY, *MACHINE]
    assert program.run("hydra/launcher=gpus") == (2, "", "error: hydra/launcher=gpus is for sweeps; add -m\n")


WORKER_STUDY = ["-m", *TOY, *SHORT, "shard_of=case", "scenario=naive", "degree=1", "foreign_load=note", "listeners=[]"]
WORKER_STUDY += [
    "order=listed",
    "workload.args=[well],[dies_before_hello]",
    "gpu=simulated_a100_40gb",
    "hydra/launcher=worker",
]
VOLATILE = re.compile(r".*(_ns|spool_id|parentRunId|note\.content|rates|study|pid|invalid|commit|changed)")
"""Tags that two measurements of one program do not have alike."""
OF_THE_MOMENT = re.compile(r"\*? \(.*?\)")
"""Duration of a study, and whether the machine was quiet."""
OF_THE_MACHINE = re.compile(r"groups in|\bload\b")
FIGURES = re.compile(r"\d+([.:]\d+)*")


@dataclass(frozen=True)
class WorkerRecord:
    """Remains of a worker.

    Attributes:
        answers: exit status of each shard.
        messages: without figures, which differ.
        rows: params, tags and names of the figures of each group and job.
        states: of the process, when each study began.
    """

    answers: list[int]
    messages: list[str]
    rows: list[dict[str, str]]
    states: list[dict[str, Any]]


@pytest.fixture
def start_worker(tmp_path: Path, template_store: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., forks.Fork]:
    monkeypatch.setenv(TYPED, "run.py hydra/launcher=gpus")

    def begin(name: str, *arguments: str) -> forks.Fork:
        shutil.copytree(template_store, tmp_path / name / "mlruns")
        machine = [f"gpu.machine={tmp_path}/machine.json", f"gpu.lock_dir={tmp_path}"]
        return Program(tmp_path / name, first=[*WORKER_STUDY, *machine]).start(*arguments, has_stdin=True)

    return begin


@pytest.fixture
def run_in_worker(start_worker: Callable[..., forks.Fork], tmp_path: Path) -> Callable[..., WorkerRecord]:
    def run_shards(name: str, *shards: int) -> WorkerRecord:
        folder = tmp_path / name
        worker = start_worker(name, "exporter=meddler", f"exporter.file={folder}/states.jsonl")
        assert worker.stdin is not None
        worker.stdin.write("".join(f"{shard}\n" for shard in shards))
        out, err = worker.communicate(300)
        answers = [json.loads(line)["exit_status"] for line in out.splitlines()]
        assert worker.returncode == max(answers), err
        states = (folder / "states.jsonl").read_text().replace(str(folder), "FOLDER")
        messages = [FIGURES.sub("N", line) for line in err.replace(str(folder), "FOLDER").splitlines()]
        messages = [OF_THE_MOMENT.sub("", line) for line in messages if not OF_THE_MACHINE.search(line)]
        return WorkerRecord(answers, messages, read_rows(folder), [json.loads(line) for line in states.splitlines()])

    return run_shards


def read_rows(folder: Path) -> list[dict[str, str]]:
    from mlflow import MlflowClient

    rows = []
    for group, jobs in groups(MlflowClient(f"sqlite:///{folder}/mlruns/mlflow.db"), "collocation-rehearsal"):
        for run in (group, *sorted(jobs, key=lambda job: str(job.info.run_name))):
            tags = {key: value for key, value in run.data.tags.items() if not VOLATILE.fullmatch(key)}
            rows.append({**run.data.params, **tags, **dict.fromkeys(run.data.metrics, ""), "": run.info.status})
    return [{key: value.replace(str(folder), "FOLDER") for key, value in row.items()} for row in rows]


@pytest.mark.slow
def test_two_studies_in_one_worker_are_as_in_two(run_in_worker: Callable[..., WorkerRecord]) -> None:
    together, second, first = run_in_worker("together", 2, 1), run_in_worker("second", 2), run_in_worker("first", 1)
    assert together.answers == second.answers + first.answers and sorted(together.answers) == [0, 1]
    assert together.states == second.states + first.states
    pairs = list(zip(together.rows, second.rows + first.rows, strict=True))
    assert pairs and [(set(one.items()) - set(other.items()), other.keys() - one.keys()) for one, other in pairs] == [
        (set(), set())
    ] * len(pairs)
    assert together.messages == second.messages + first.messages


@pytest.mark.slow
def test_a_signal_ends_the_second_study_of_a_worker_as_it_ends_the_first(
    start_worker: Callable[..., forks.Fork], tmp_path: Path
) -> None:
    ends = []
    for name, shards in (("second", "2\n1\n"), ("first", "1\n")):
        folder = tmp_path / name
        worker = start_worker(name, "window.seconds=60")
        assert worker.stdin is not None
        worker.stdin.write(shards)
        worker.stdin.flush()
        wait_until(lambda: any(folder.glob("mlruns/spool/*/*_well/jobs/0/stdout.log")))  # noqa: B023
        children = psutil.Process(worker.pid).children(recursive=True)
        worker.send_signal(signal.SIGUSR1)
        _, err = worker.communicate(120)
        _, alive = psutil.wait_procs(children, 10)
        assert not [child for child in alive if child.status() != psutil.STATUS_ZOMBIE]
        lines = err[err.rindex("note: NVIDIA") :].replace(str(folder), "FOLDER").splitlines()
        last_study = [FIGURES.sub("N", line) for line in lines if not OF_THE_MACHINE.search(line)]
        ends.append((worker.returncode, last_study, [row for row in read_rows(folder) if row.get("args") == "well"]))
    assert ends[0] == ends[1] and ends[0][0] == 128 + signal.SIGUSR1
