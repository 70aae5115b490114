"""Which groups of a plan are left to run, given what the store already holds."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Sequence

from pipeline.base.errors import ConfigError
from pipeline.base.records import Group, Plan, Result
from pipeline.base.tags import Tag
from pipeline.observe.group_result import GroupResult, JobResult
from pipeline.record.original import FinishedGroup


def remaining(
    plan: Plan,
    finished: Sequence[FinishedGroup],
    boot_id: str,
    *,
    gpus: Collection[str] = (),
    accept_environment: bool = False,
) -> tuple[tuple[Group, ...], list[GroupResult]]:
    """The groups to run, and the rows of those that need not be.

    A unit is compared within itself, so it must come from one GPU and one boot of the machine: one that was begun
    before a reboot, or on another GPU, begins again; one that is complete stays.

    Args:
        plan: the whole study.
        finished: groups with a result in the store.
        boot_id: of this machine now.
        gpus: UUIDs of the GPUs on which what is left of a unit may be run; that of the plan if there are none.
        accept_environment: whether a result counts that was measured with other packages.

    Raises:
        ConfigError: results cannot be told apart without the packages.
    """
    keys = {group.digest: group.program_digest if accept_environment else group.digest for group in plan.groups}
    if len(set(keys.values())) < len(keys):
        raise ConfigError(
            "resume=accept_environment: groups of this plan differ in their environment alone, so that it cannot be "
            "left out of account; use resume=true"
        )
    can_run = {keys[group.digest] for group in plan.groups if group.skip_reason is None}
    found: dict[str, dict[tuple[str | None, str | None], FinishedGroup]] = {}
    # What was measured with the very packages comes last, and wins.
    for each in sorted(finished, key=lambda each: each.digest in keys):
        key = each.program_digest if accept_environment else each.digest
        was_in_the_way = each.result is Result.SKIPPED and key in can_run  # what no longer is
        if each.result.is_finding and key is not None and not was_in_the_way:
            found.setdefault(key, {})[each.gpu_uuid, each.boot_id] = each
    units: dict[tuple[int, str], list[str]] = {}
    for group in plan.groups:
        units.setdefault((group.unit, group.device.uuid), []).append(keys[group.digest])
    done: dict[str, FinishedGroup] = {}
    for (_, gpu_uuid), members in units.items():
        here = [(each, boot_id or None) for each in gpus or (gpu_uuid,)]  # where none is known, a run says nothing
        began_ms: dict[tuple[str | None, str | None], list[int]] = defaultdict(list)
        for each in (each for key in members for each in found.get(key, {}).values()):
            began_ms[each.gpu_uuid, each.boot_id].append(each.start_ms)
        in_order = sorted(began_ms, key=lambda origin: (origin not in here, -max(began_ms[origin]), repr(origin)))
        # A complete unit of any origin counts; of an incomplete one, only what one GPU of these found since the boot.
        complete = (origin for origin in in_order if len(began_ms[origin]) == len(members))
        origin = next(complete, max(here, key=lambda origin: len(began_ms[origin])))
        done |= {key: found[key][origin] for key in members if origin in found.get(key, {})}
    left = tuple(group for group in plan.groups if keys[group.digest] not in done)
    return left, [_row(group, done[key]) for group in plan.groups if (key := keys[group.digest]) in done]


def latest(groups: Sequence[Group], finished: Sequence[FinishedGroup]) -> list[GroupResult]:
    """The row of each of some groups that began last and ended, whatever its result; none of a group without one."""
    newest = {each.digest: each for each in finished}
    return [_row(group, newest[group.digest]) for group in groups if group.digest in newest]


def unused(plan: Plan, left: Sequence[Group], finished: Sequence[FinishedGroup]) -> list[FinishedGroup]:
    """The stored results, newest first, of another plan: with other settings, or of a group that is to be run anew.

    What the plan lacks for another reason (one more degree, another workload) is not among them: it belongs beside it.
    """
    digests = {group.digest for group in plan.groups}
    settings = {None, *(group.settings_digest for group in plan.groups)}
    again = {(group.name, str(group.block)) for group in left}
    return [
        each
        for each in reversed(finished)
        if each.result.is_finding
        and each.digest not in digests
        and (each.settings not in settings or (each.name, each.block) in again)
    ]


def _row(group: Group, stored: FinishedGroup) -> GroupResult:
    """A stored row, as far as comparisons and the table need it."""
    rates = json.loads(stored.tags.get(Tag.RATES, "{}"))
    origin = ((Tag.GPU_UUID, stored.gpu_uuid), (Tag.BOOT_ID, stored.boot_id))
    return GroupResult(
        group=group,
        result=stored.result,
        reason=stored.reason or "",
        jobs=tuple(
            JobResult(job=job, result=stored.result, reason="", metrics=rates.get(str(job.index), {}))
            for job in group.jobs
        ),
        metrics=stored.metrics,
        tags=stored.tags | {tag: value for tag, value in origin if value},
        spool_id=stored.spool_id,
    )
