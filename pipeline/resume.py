"""Which groups of a plan are left to run, given what the store already holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pipeline.compare import Baseline, comparable
from pipeline.types import Group, Plan, Result, WindowKind


def remaining(plan: Plan, finished: Sequence[dict[str, Any]], boot_id: str) -> tuple[tuple[Group, ...], list[Baseline]]:
    """The groups to run, and the baselines among those that need not be.

    A block is compared within itself, so it must come from one GPU and one boot of the machine: a block that was
    begun before a reboot, or on another GPU, begins again; a block that is complete stays (METHOD 4).

    Args:
        plan: the whole study.
        finished: groups with a result in the store: digest, result, gpu_uuid, boot_id, metrics.
        boot_id: of this machine now.
    """
    found: dict[str, dict[tuple[str, str], dict[str, Any]]] = {}
    for entry in finished:
        if Result(entry["result"]).is_finding:
            found.setdefault(entry["digest"], {})[(entry["gpu_uuid"], entry["boot_id"])] = entry
    blocks: dict[tuple[int, str], list[Group]] = {}
    for group in plan.groups:
        blocks.setdefault((group.block, group.device.uuid), []).append(group)
    done: dict[str, dict[str, Any]] = {}
    for (_, gpu_uuid), members in blocks.items():
        origins = {origin for group in members for origin in found.get(group.digest, {})}
        # A complete block of any origin counts; of an incomplete one, only what was found here and since the boot.
        complete = [origin for origin in origins if all(origin in found.get(g.digest, {}) for g in members)]
        origin = complete[0] if complete else (gpu_uuid, boot_id)
        for group in members:
            if origin in found.get(group.digest, {}):
                done[group.digest] = found[group.digest][origin]
    left = tuple(group for group in plan.groups if group.digest not in done)
    known = [_baseline(g, done[g.digest]["metrics"]) for g in plan.groups if g.digest in done and g.sequential]
    return left, known


def _baseline(group: Group, metrics: dict[str, float]) -> Baseline:
    is_steady = group.window.kind is WindowKind.STEADY
    solo = {}
    for job in group.jobs:
        name = "throughput_samples_per_s" if is_steady else "makespan_s"
        value = metrics.get(f"job_{job.index}_{name}")
        if value is not None:
            solo[job.workload.digest] = value
    return Baseline(
        key=comparable(group),
        solo=solo,
        jobs=tuple(sorted(job.workload.digest for job in group.jobs)),
        makespan_s=metrics.get("makespan_s"),
    )
