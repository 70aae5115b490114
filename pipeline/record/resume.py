"""Which groups of a plan are left to run, given what the store already holds."""

from __future__ import annotations

import json
from collections.abc import Sequence

from pipeline.base.records import Group, Plan
from pipeline.base.tags import Tag
from pipeline.observe.group_result import GroupResult, JobResult
from pipeline.record.original import FinishedGroup


def remaining(
    plan: Plan, finished: Sequence[FinishedGroup], boot_id: str
) -> tuple[tuple[Group, ...], list[GroupResult]]:
    """The groups to run, and the rows of those that need not be.

    A block is compared within itself, so it must come from one GPU and one boot of the machine: a block that was
    begun before a reboot, or on another GPU, begins again; a block that is complete stays.

    Args:
        plan: the whole study.
        finished: groups with a result in the store.
        boot_id: of this machine now.
    """
    found: dict[str, dict[tuple[str | None, str | None], FinishedGroup]] = {}
    for each in finished:
        if each.result.is_finding:
            found.setdefault(each.digest, {})[each.gpu_uuid, each.boot_id] = each
    blocks: dict[tuple[int, str], list[Group]] = {}
    for group in plan.groups:
        blocks.setdefault((group.block, group.device.uuid), []).append(group)
    done: dict[str, FinishedGroup] = {}
    for (_, gpu_uuid), members in blocks.items():
        here = (gpu_uuid, boot_id)
        origins = {origin for group in members for origin in found.get(group.digest, {})}
        in_order = sorted(origins, key=lambda origin: (origin != here, repr(origin)))
        # A complete block of any origin counts; of an incomplete one, only what was found here and since the boot.
        complete = (origin for origin in in_order if all(origin in found.get(g.digest, {}) for g in members))
        origin = next(complete, here)
        done |= {g.digest: found[g.digest][origin] for g in members if origin in found.get(g.digest, {})}
    left = tuple(group for group in plan.groups if group.digest not in done)
    return left, [_row(group, done[group.digest]) for group in plan.groups if group.digest in done]


def num_of_other_plans(plan: Plan, finished: Sequence[FinishedGroup]) -> int:
    """How many stored results were measured with settings that no group of the plan has, so that none of it uses them.

    Groups that the plan lacks for another reason (one more degree, another workload) are not counted: they belong
    beside its own.
    """
    known = {None, *(group.settings_digest for group in plan.groups)}
    return sum(each.result.is_finding and each.settings not in known for each in finished)


def _row(group: Group, stored: FinishedGroup) -> GroupResult:
    """A stored row, as far as comparisons and the table need it."""
    rates = json.loads(stored.tags.get(Tag.RATES, "{}"))
    return GroupResult(
        group=group,
        result=stored.result,
        reason=stored.reason or "",
        jobs=tuple(
            JobResult(job=job, result=stored.result, reason="", metrics=rates.get(str(job.index), {}))
            for job in group.jobs
        ),
        metrics=stored.metrics,
        tags=stored.tags | ({Tag.GPU_UUID: stored.gpu_uuid} if stored.gpu_uuid else {}),
        spool_id=stored.spool_id,
    )
