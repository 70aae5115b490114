"""Studies in one worker, one after another, are as in workers of their own."""

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

from pipeline.record.invocation import STUDY as TYPED
from tests.support import forks
from tests.support.run_cases import SHORT, TOY, groups
from tests.support.run_program import Program
from tests.support.waiting import wait_until

pytestmark = pytest.mark.covers("pipeline/scale")

pytest_plugins = ["tests.support.tracking_fixtures"]

STUDY = ["-m", *TOY, *SHORT, "shard_of=case", "scenario=naive", "degree=1", "foreign_load=note", "listeners=[]"]
STUDY += [
    "order=listed",
    "workload.args=[well],[dies_before_hello]",
    "gpu=simulated_a100_40gb",
    "hydra/launcher=worker",
]
VOLATILE = re.compile(r".*(_ns|spool_id|parentRunId|note\.content|rates|study|pid|invalid|commit|changed)")
"""Tags that two measurements of one program do not have alike."""
OF_THE_MOMENT = re.compile(r"\*? \(.*?\)")
"""How long a study takes, and whether the machine was quiet."""
OF_THE_MACHINE = re.compile(r"groups in|\bload\b")
FIGURES = re.compile(r"\d+([.:]\d+)*")


@dataclass(frozen=True)
class WorkerRecord:
    """What is left of a worker.

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
def start(tmp_path: Path, template_store: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., forks.Fork]:
    monkeypatch.setenv(TYPED, "run.py hydra/launcher=gpus")

    def begin(name: str, *arguments: str) -> forks.Fork:
        shutil.copytree(template_store, tmp_path / name / "mlruns")
        machine = [f"gpu.machine={tmp_path}/machine.json", f"gpu.lock_dir={tmp_path}"]
        return Program(tmp_path / name, first=[*STUDY, *machine]).start(*arguments, has_stdin=True)

    return begin


@pytest.fixture
def run(start: Callable[..., forks.Fork], tmp_path: Path) -> Callable[..., WorkerRecord]:
    def run_shards(name: str, *shards: int) -> WorkerRecord:
        folder = tmp_path / name
        worker = start(name, "exporter=meddler", f"exporter.file={folder}/states.jsonl")
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
def test_two_studies_in_one_worker_are_as_in_two(run: Callable[..., WorkerRecord]) -> None:
    together, second, first = run("together", 2, 1), run("second", 2), run("first", 1)
    assert together.answers == second.answers + first.answers and sorted(together.answers) == [0, 1]
    assert together.states == second.states + first.states
    pairs = list(zip(together.rows, second.rows + first.rows, strict=True))
    assert pairs and [(set(one.items()) - set(other.items()), other.keys() - one.keys()) for one, other in pairs] == [
        (set(), set())
    ] * len(pairs)
    assert together.messages == second.messages + first.messages


@pytest.mark.slow
def test_a_signal_ends_the_second_study_of_a_worker_as_it_ends_the_first(
    start: Callable[..., forks.Fork], tmp_path: Path
) -> None:
    ends = []
    for name, shards in (("second", "2\n1\n"), ("first", "1\n")):
        folder = tmp_path / name
        worker = start(name, "window.seconds=60")
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
