"""Spool folders and a sender for tests of tracking, with real files and a real process."""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipeline.base.domain.layout import DATABASE
from pipeline.base.domain.records import Result
from pipeline.base.domain.tags import Tag, stored_name
from pipeline.base.domain.window import Window, WindowKind
from pipeline.record import group_folder, group_record
from pipeline.record.group_record import Clock, GroupRecord, JobRecord
from pipeline.record.store import results, upload
from pipeline.record.store.local_store import make_database_uri, open_store
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
    stored_experiment = tracking.get_experiment_by_name(experiment)
    return [] if stored_experiment is None else list(tracking.search_runs([stored_experiment.experiment_id]))


def child(index: int, **changes: Any) -> JobRecord:
    """Return the record of a job that ended well after a minute."""
    fields: dict[str, Any] = {
        "name": f"{index}-toy",
        "result": Result.OK,
        "start_ns": START,
        "end_ns": START + 60 * SECOND,
        "params": {"workload": "toy"},
        "digest": "workload",
        "metrics": {"throughput_samples_per_s": 10.5 + index},
        "index": index,
    }
    return JobRecord(**fields | changes)


def record(children: tuple[JobRecord, ...], number: int = 1, **changes: Any) -> GroupRecord:
    """Return the record of a group that ended well after its jobs."""
    fields: dict[str, Any] = {
        "name": f"group {number}",
        "result": Result.OK,
        "start_ns": START,
        "end_ns": START + 61 * SECOND,
        "params": {"degree": str(len(children)), "scenario": "mig", "jobs": "toy"},
        "metrics": {"makespan_s": 60.25},
        "spool_id": uuid.uuid4().hex,
        "experiment": EXPERIMENT,
        "clock": CLOCK,
        "jobs": children,
        "scenario": "mig",
        "digest": f"digest{number}",
        "key": f"key{number}",
        "settings": {"device": "GPU", "window": "steady, 5 s after 1 s"},
        "window": Window(kind=WindowKind.STEADY, seconds=5, settle_s=1),
    }
    return GroupRecord(**fields | changes)


def as_running(ended: GroupRecord) -> GroupRecord:
    """Return the record as it was while the group ran."""
    return replace(ended, result=None, end_ns=None, metrics={})


def series(num_series: int = 1, num_points: int = 3) -> group_record.Series:
    """Return series with a point a second."""
    return {
        f"series_{k}": [(step, START + step * SECOND, k + step / 10) for step in range(num_points)]
        for k in range(num_series)
    }


def store_groups(root: Path, *groups: GroupRecord) -> list[GroupRecord]:
    """Send groups to a local store, and return their records as they are stored."""
    store = open_store(root)
    for number, group in enumerate(groups, 1):
        folder = make_spool(root, group, f"{number:04d}-stored")
        if group.is_closed:
            upload.send(lambda _: store, folder, series_points=100)
        else:
            upload.begin(lambda _: store, folder)
            shutil.rmtree(folder)
    by_id = {group.spool_id: group for group in results.read_stored_groups(store, groups[0].experiment)}
    return [by_id[group.spool_id] for group in groups]


def by_name(tracking: Any) -> dict[str, Any]:
    runs = runs_of(tracking)
    runs_by_name = {run.info.run_name: run for run in runs}
    assert len(runs_by_name) == len(runs), "a run exists twice"
    return runs_by_name


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


def make_spool(
    root: Path,
    content: GroupRecord,
    name: str = "0001-mig",
    all_series: Mapping[str, group_record.Series] | None = None,
) -> Path:
    """Create a spool folder without an owner, with the files that every job writes, and series by the job's index."""
    folder = root / "spool" / "study" / name
    for one in content.jobs:
        job = folder / one.folder
        job.mkdir(parents=True)
        (job / "job.json").write_text("{}")
        (job / "stdout.log").write_text("hello\n")
        (job / "stderr.log").write_text("")
        (job / "events.jsonl").write_text('{"event":"started","t_ns":5000000000}\n')
    (folder / "artifacts").mkdir(parents=True)
    (folder / "artifacts" / "config.yaml").write_text("degree: 2\n")
    (folder / "lock").touch()
    if all_series:
        group_folder.write_json(folder / "series.json", all_series)
        jobs = (
            replace(job, metrics=group_record.collect_metrics(job.metrics, all_series.get(str(job.index), {})))
            for job in content.jobs
        )
        content = replace(content, jobs=tuple(jobs))
    group_folder.write(folder, content)
    return folder


def sample(
    source: str, second: float, values: dict[str, float], job: int | None = None, gi_id: int | None = None
) -> str:
    t_ns = START + int(second * SECOND)
    return json.dumps({"source": source, "t_ns": t_ns, "job": job, "gi_id": gi_id, "values": values}) + "\n"


class Recorded:
    """A replacement for the sender, which stores its calls."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Path]] = []

    def begin(self, folder):
        self.asked.append(("begin", folder))

    def send(self, folder):
        self.asked.append(("send", folder))
