"""Synthetic rows and event files, for tests of computed figures."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from listeners.dcgm import DcgmListener
from listeners.gpm import GpmListener
from listeners.host import HostListener
from listeners.nvml import NvmlListener
from listeners.smi import SmiListener
from pipeline.base.domain.records import CpuPinning, GpuSettings, Group, Job, Limits, Result
from pipeline.base.domain.window import Window, WindowKind
from pipeline.base.domain.workload import Workload
from pipeline.base.system.factory import Spec
from pipeline.launch.job_state import JobEnd, JobState, ProcessStart, ProtocolReport
from pipeline.observe import group_row
from pipeline.observe.group_result import GroupResult, JobResult, Observation
from pipeline.observe.sample_figures import Fields
from tests.conftest import GPU

S = 1_000_000_000
FIELDS = Fields(
    listener(1000).table for listener in (DcgmListener, GpmListener, HostListener, NvmlListener, SmiListener)
)


def workload(name: str = "a", **changes: Any) -> Workload:
    values: dict[str, Any] = {
        "name": name,
        "script": __file__,
        "argv": ("x.py",),
        "ends_by_itself": False,
        "env": Spec(target="pipeline.prepare.env.current.CurrentEnv"),
        "digest": f"digest-{name}",
    }
    return Workload(**(values | changes))


def gpu_settings(**changes: Any) -> GpuSettings:
    values: dict[str, Any] = {"admin": (), "lock_dir": Path("/var/tmp"), "tolerate": (), "exclusive_process": False}
    values |= {"job_memory_mib": 512} | changes
    values["admin"] = None if values["admin"] is None else tuple(values["admin"])
    return GpuSettings(**values)


def group(
    *names: str,
    kind: WindowKind = WindowKind.STEADY,
    sequential: bool = False,
    block: int = 1,
    workloads: Mapping[str, Any] | Sequence[Mapping[str, Any]] = (),
    **changes: Any,
) -> Group:
    """Return a group of jobs with these names.

    Args:
        workloads: attributes of all workloads that differ, or those of each job's workload.
        changes: attributes of the group that differ.
    """
    differences = [workloads] * len(names) if isinstance(workloads, Mapping) else workloads or [{}] * len(names)
    pairs = zip(names, differences, strict=True)
    values: dict[str, Any] = {
        "number": 1,
        "name": "naive-" + "+".join(names),
        "experiment": "test",
        "scenario": "serial" if sequential else "naive",
        "sharing": Spec(target="pipeline.prepare.sharing.naive.Naive"),
        "jobs": tuple(Job(index=i, workload=workload(name, **options)) for i, (name, options) in enumerate(pairs)),
        "window": Window(kind=kind, seconds=10 * (kind is not WindowKind.LOGGED), settle_s=1, epochs=2),
        "limits": Limits(ready_s=5, group_s=5, stop_s=5),
        "block": block,
        "shard": block,
        "seed": 0,
        "sequential": sequential,
        "device": GPU,
        "listeners": (),
        "pin_cpus": CpuPinning.NONE,
        "digest": f"{block}-{sequential}-{names}-{kind}",
        "key": f"{sequential}-{names}-{kind}",
        "gpu": gpu_settings(),
        "config_text": lambda: "",
    }
    return Group(**(values | changes))


@dataclass(frozen=True)
class EndedProcess:
    """Return a process that has ended."""

    pid: int

    def status(self) -> int:
        return 0

    def reap(self) -> None:
        pass


def state(
    folder: Path,
    job: Job,
    events: list[dict[str, Any]] | None = None,
    *,
    status: int | None = 0,
    bye: str | None = "ok",
    **ended: Any,
) -> JobState:
    """Return the state of a job that ended with status 0; other arguments of `launch_state.Ended` override this."""
    folder = folder / str(job.index)
    folder.mkdir(parents=True, exist_ok=True)
    if events is not None:
        (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    return JobState(
        job=job,
        folder=folder,
        started=ProcessStart(process=EndedProcess(100 + job.index), at_ns=0),
        said=ProtocolReport(is_ready=True, bye=bye),
        ended=JobEnd(**({"status": status, "at_ns": 100 * S} | ended)),
    )


def steps(start_s: float, end_s: float, every_s: float, samples: int, epoch: int = 1) -> list[dict[str, Any]]:
    """Return a job that starts at `start_s` and completes a step of `samples` every `every_s` until `end_s`."""
    events: list[dict[str, Any]] = [{"event": "started", "t_ns": int(start_s * S)}]
    count = int((end_s - start_s) / every_s + 1e-9)
    for number in range(1, count + 1):
        t_ns = int((start_s + number * every_s) * S)
        events.append({"event": "step", "t_ns": t_ns, "samples": samples, "total": number * samples, "epoch": epoch})
    return events


def judge(judged_group: Group, *states: JobState, **seen: Any) -> GroupResult:
    """Return the row of a group whose jobs ended in these states; `seen` are further attributes of `Observation`."""
    return group_row.judge(judged_group, Observation(**({"batches": [states], "samples": (), "fields": FIELDS} | seen)))


def judge_events(
    folder: Path, judged_group: Group, *events: list[dict[str, Any]], told_s: float = 11.0, **seen: Any
) -> GroupResult:
    """Return the row of a group whose jobs were told to stop after 11 s: events of each job, or those of all jobs."""
    logs = events * len(judged_group.jobs) if len(events) == 1 else events
    pairs = zip(judged_group.jobs, logs, strict=True)
    return judge(judged_group, *(state(folder, job, log, told_ns=int(told_s * S)) for job, log in pairs), **seen)


def make_row(
    ended_group: Group,
    *figures: float,
    name: str = "throughput_samples_per_s",
    result: Result = Result.OK,
    **changes: Any,
) -> GroupResult:
    """Return the row of a group whose jobs have these figures of one name; without figures, they have none."""
    metrics = [{name: figure} for figure in figures] or [{}] * len(ended_group.jobs)
    jobs = tuple(
        JobResult(job=job, result=result, reason="", metrics=of_job)
        for job, of_job in zip(ended_group.jobs, metrics, strict=True)
    )
    return GroupResult(**({"group": ended_group, "result": result, "reason": "", "jobs": jobs} | changes))
