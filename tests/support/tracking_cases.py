"""Spool folders and a sender for tests of tracking, with real files and a real process."""

from __future__ import annotations

import dataclasses
import json
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pipeline.base.domain.layout import DATABASE
from pipeline.base.domain.tags import Tag, stored_name
from pipeline.record import group_folder
from pipeline.record.group_folder import ChildRecord, Clock, Record, RunRecord
from pipeline.record.store.local_store import make_database_uri
from tests.support import forks

PROJECT = Path(__file__).resolve().parents[2]
EXPERIMENT = "collocation"
CLOCK = Clock(wall_ns=1_700_000_000_000_000_000, monotonic_ns=5_000_000_000)
SECOND = 1_000_000_000
START = CLOCK.monotonic_ns


class Serve:
    """Start `python -m pipeline.tracking serve`; as a fork, unless a real process is requested."""

    def __init__(self, *arguments: object, is_real: bool = False) -> None:
        start = forks.start_real if is_real else forks.start
        self.process = start("-m", "pipeline.tracking", "serve", *arguments, has_stdin=True)

    def ask(self, op: str, **request: object) -> dict[str, Any]:
        self.tell(op, **request)
        return json.loads(self.process.stdout.readline())

    def tell(self, op: str, **request: object) -> None:
        self.process.stdin.write(json.dumps({"op": op, **request}, default=str) + "\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        for file in (self.process.stdin, self.process.stdout, self.process.stderr):
            file.close()


def client(root: Path) -> Any:
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=make_database_uri(root / DATABASE))


def runs_of(tracking: Any, experiment: str = EXPERIMENT) -> list[Any]:
    found = tracking.get_experiment_by_name(experiment)
    return [] if found is None else list(tracking.search_runs([found.experiment_id]))


def tags_of(role: str, number: int = 1, result: str | None = "ok") -> dict[str, str]:
    tags = {"collocation.role": role, "collocation.digest": f"digest{number}", "collocation.scenario": "mig"}
    return tags if result is None else tags | {"collocation.result": result}


def child(index: int, num_series: int = 1, num_points: int = 3, **changes: Any) -> ChildRecord:
    series = {
        f"series_{k}": [(step, START + step * SECOND, k + step / 10) for step in range(num_points)]
        for k in range(num_series)
    }
    fields: dict[str, Any] = {
        "name": f"{index}-toy",
        "status": "FINISHED",
        "start_ns": START,
        "end_ns": START + 60 * SECOND,
        "params": {"workload": "toy"},
        "tags": tags_of("job"),
        "metrics": {"throughput_samples_per_s": 10.5 + index},
        "index": index,
        "gi_id": None,
        "is_gpu": True,
        "series": series,
    }
    return ChildRecord(**fields | changes)


def record(children: tuple[ChildRecord, ...], number: int = 1, **changes: Any) -> Record:
    parent = RunRecord(
        name=f"group {number}",
        status="FINISHED",
        start_ns=START,
        end_ns=START + 61 * SECOND,
        params={"degree": str(len(children))},
        tags=tags_of("group", number),
        metrics={"makespan_s": 60.25},
    )
    fields: dict[str, Any] = {
        "spool_id": uuid.uuid4().hex,
        "experiment": EXPERIMENT,
        "clock": CLOCK,
        "parent": parent,
        "children": children,
        "state": "closed",
    }
    return Record(**fields | changes)


def as_running(ended: Record) -> Record:
    """Return the record as it was while the group ran."""
    of_its_end = ("collocation.result", "mlflow.note.content")
    tags = {key: value for key, value in ended.parent.tags.items() if key not in of_its_end}
    parent = dataclasses.replace(ended.parent, status="RUNNING", end_ns=None, metrics={}, tags=tags)
    return dataclasses.replace(ended, state="open", parent=parent)


def by_name(tracking: Any) -> dict[str, Any]:
    runs = runs_of(tracking)
    found = {run.info.run_name: run for run in runs}
    assert len(found) == len(runs), "a run exists twice"
    return found


def content(tracking: Any) -> dict[str, Any]:
    """Return all data of each run in the store, to compare two stores."""
    return {
        name: (
            run.info.status,
            run.info.start_time,
            run.info.end_time,
            run.data.params,
            {
                key: value
                for key, value in run.data.tags.items()
                if key not in ("mlflow.parentRunId", stored_name(Tag.SPOOL_ID))
            },
            {
                key: [(m.step, m.timestamp, m.value) for m in tracking.get_metric_history(run.info.run_id, key)]
                for key in run.data.metrics
            },
            sorted(item.path for item in tracking.list_artifacts(run.info.run_id)),
        )
        for name, run in by_name(tracking).items()
    }


def make_spool(root: Path, content: Record, name: str = "0001-mig") -> Path:
    """Create a spool folder without an owner, with the files that every job writes."""
    folder = root / "spool" / "study" / name
    for one in content.children:
        job = folder / one.folder
        job.mkdir(parents=True)
        (job / "job.json").write_text("{}")
        (job / "stdout.log").write_text("hello\n")
        (job / "stderr.log").write_text("")
        (job / "events.jsonl").write_text('{"event":"started","t_ns":5000000000}\n')
    (folder / "artifacts").mkdir(parents=True)
    (folder / "artifacts" / "config.yaml").write_text("degree: 2\n")
    (folder / "lock").touch()
    group_folder.write(folder, content)
    return folder


def sample(
    source: str, second: float, values: dict[str, float], job: int | None = None, gi_id: int | None = None
) -> str:
    t_ns = START + int(second * SECOND)
    return json.dumps({"source": source, "t_ns": t_ns, "job": job, "gi_id": gi_id, "values": values}) + "\n"


def wait_for(condition: Callable[[], bool], timeout_s: float = 120.0) -> None:
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "the condition did not become true in time"
        time.sleep(0.005)


class Recorded:
    """A replacement for the sender, which stores its calls."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Path]] = []

    def begin(self, folder):
        self.asked.append(("begin", folder))

    def send(self, folder):
        self.asked.append(("send", folder))
