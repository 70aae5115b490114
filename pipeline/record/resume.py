"""Which groups of a plan are left to run, given what the store already holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pipeline.base.records import Group, Plan, Result
from pipeline.base.tags import Tag
from pipeline.observe.group_result import GroupResult, JobResult
from pipeline.observe.measure import COMPARED


def remaining(
    plan: Plan, finished: Sequence[dict[str, Any]], boot_id: str
) -> tuple[tuple[Group, ...], list[GroupResult]]:
    """The groups to run, and the rows of those that need not be.

    A block is compared within itself, so it must come from one GPU and one boot of the machine: a block that was
    begun before a reboot, or on another GPU, begins again; a block that is complete stays.

    Args:
        plan: the whole study.
        finished: groups with a result in the store: digest, result, reason, gpu_uuid, boot_id, spool_id, metrics,
            first_losses.
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
        here = (gpu_uuid, boot_id)
        every = {origin for group in members for origin in found.get(group.digest, {})}
        origins = sorted(every, key=lambda origin: (origin != here, repr(origin)))
        # A complete block of any origin counts; of an incomplete one, only what was found here and since the boot.
        complete = [origin for origin in origins if all(origin in found.get(g.digest, {}) for g in members)]
        origin = complete[0] if complete else here
        for group in members:
            if origin in found.get(group.digest, {}):
                done[group.digest] = found[group.digest][origin]
    left = tuple(group for group in plan.groups if group.digest not in done)
    return left, [_row(group, done[group.digest]) for group in plan.groups if group.digest in done]


def num_of_other_plans(plan: Plan, finished: Sequence[dict[str, Any]]) -> int:
    """How many stored results were measured with settings that no group of the plan has, so that none of it uses them.

    Groups that the plan lacks for another reason (one more degree, another workload) are not counted: they belong
    beside its own.
    """
    settings = {group.settings_digest for group in plan.groups}
    stored = [entry.get("settings") for entry in finished if Result(entry["result"]).is_finding]
    return sum(each is not None and each not in settings for each in stored)


def _row(group: Group, entry: dict[str, Any]) -> GroupResult:
    """A stored row, as far as comparisons and the table need it."""
    metrics: dict[str, float] = entry["metrics"]
    result = Result(entry["result"])
    jobs = tuple(
        JobResult(
            job=job,
            result=result,
            reason="",
            metrics={
                name: metrics[f"job_{job.index}_{name}"] for name in COMPARED if f"job_{job.index}_{name}" in metrics
            },
        )
        for job in group.jobs
    )
    losses = entry.get("first_losses")
    return GroupResult(
        group=group,
        result=result,
        reason=entry.get("reason") or "",
        jobs=jobs,
        metrics=metrics,
        tags={Tag.FIRST_LOSSES: losses} if losses else {},
        spool_id=entry.get("spool_id"),
    )
