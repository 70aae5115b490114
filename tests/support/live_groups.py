"""A synthetic running group: jobs on GPU instances, and a value for every quantity of every listener."""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path

from pipeline.base.domain.protocols import RunningGroup
from pipeline.base.domain.records import Group, ListenerSpec, Required, Slot
from pipeline.base.domain.samples import Sample
from pipeline.base.system.factory import Spec
from tests.conftest import GPU
from tests.support.rows import FIELDS, group

# Quantities that listeners sample for each job, and for each GPU instance.
_OF_JOB = {"process_memory_mib", "cpu_pct", "rss_mib"}
_OF_INSTANCE = {"instance_memory_used_mib"}


def mig_group(**changes: object) -> Group:
    """Return a group of two jobs, with all listeners."""
    specs = [
        ListenerSpec(name=table.source, build=Spec(target="none"), interval_ms=1000, required=Required.YES)
        for table in FIELDS.tables
    ]
    return dataclasses.replace(group("a", "b", scenario="mig", name="mig-a+b"), listeners=tuple(specs), **changes)


def running_group(folder: Path) -> RunningGroup:
    """Return the group after each job has made a step, and before the first sample."""
    for index in range(2):
        events = folder / f"jobs/{index}/events.jsonl"
        events.parent.mkdir(parents=True)
        step(folder, index, 10)
    slots = [Slot(visible_devices="MIG", gpu_uuid=GPU.uuid, gi_id=gi_id) for gi_id in (3, 5)]
    return RunningGroup(
        device=GPU, slots=slots, folder=folder, samples=[], tables=FIELDS.tables, pids=lambda: {0: 1000, 1: 1001}
    )


def step(folder: Path, index: int, total: float) -> None:
    """Record a step of a job, now."""
    event = {"event": "step", "t_ns": time.monotonic_ns(), "total": total, "epoch": 1}
    with (folder / f"jobs/{index}/events.jsonl").open("a") as out:
        out.write(json.dumps(event) + "\n")


def sample_quantities() -> list[Sample]:
    """Return a current sample of every quantity of every listener; each value is 1.5."""
    t_ns, samples = time.monotonic_ns(), []
    for source, field in FIELDS:
        values = {field.name: 1.5}
        jobs = (0, 1) if field.name in _OF_JOB else (None,)
        instances = (3, 5) if field.name in _OF_INSTANCE else (None,)
        samples += [
            Sample(source=source, t_ns=t_ns, values=values, job=job, gi_id=gi_id) for job in jobs for gi_id in instances
        ]
    return samples
