"""Which groups of a plan are left to run, given what the store already holds."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from pipeline.base.domain.machine_state import MachineState, merge_same
from pipeline.base.domain.records import Device, Group, Plan, Result
from pipeline.base.domain.tags import Tag
from pipeline.base.system.errors import ConfigError
from pipeline.base.system.words import counted
from pipeline.observe.group_result import GroupResult, JobResult
from pipeline.record.original import FinishedGroup


def remaining(
    plan: Plan, finished: Sequence[FinishedGroup], *, gpus: Sequence[Device] = (), accept_environment: bool = False
) -> tuple[tuple[Group, ...], list[GroupResult]]:
    """The groups to run, and the rows of those that need not be.

    A unit is compared within itself, so it must come from one state of the machine: one that was begun before a reboot,
    on another GPU, or with another driver or power limit begins again; one that is complete stays.

    Args:
        plan: the whole study; its devices are as this machine has them now.
        finished: groups with a result in the store.
        gpus: those on which what is left of a unit may be run; that of the plan if there are none.
        accept_environment: whether a result counts that was measured with other packages.

    Raises:
        ConfigError: results cannot be told apart without the packages.
    """
    keys = _keys(plan, accept_environment=accept_environment)
    can_run = {keys[group.digest] for group in plan.groups if group.skip_reason is None}
    now = {device: MachineState.read(device) for device in (*gpus, *(group.device for group in plan.groups))}
    states = merge_same([*now.values(), *(each.machine_state for each in finished)])
    found: dict[str, dict[MachineState, FinishedGroup]] = {}
    # What was measured with the very packages comes last, and wins.
    for each in sorted(finished, key=lambda each: each.digest in keys):
        key = each.program_digest if accept_environment else each.digest
        was_in_the_way = each.result is Result.SKIPPED and key in can_run  # what no longer is
        if each.result.is_finding and key is not None and not was_in_the_way:
            found.setdefault(key, {})[states[each.machine_state]] = each
    units: dict[tuple[int, str], list[Group]] = {}
    for group in plan.groups:
        units.setdefault((group.unit, group.device.uuid), []).append(group)
    done: dict[str, FinishedGroup] = {}
    for groups in units.values():
        members = [keys[group.digest] for group in groups]
        origin = _origin(members, found, [states[now[device]] for device in gpus or (groups[0].device,)])
        done |= {key: found[key][origin] for key in members if origin in found.get(key, {})}
    left = tuple(group for group in plan.groups if keys[group.digest] not in done)
    return left, [_row(group, done[key]) for group in plan.groups if (key := keys[group.digest]) in done]


def _keys(plan: Plan, *, accept_environment: bool) -> dict[str, str]:
    """What tells each group from others in the store, by its digest."""
    keys = {group.digest: group.program_digest if accept_environment else group.digest for group in plan.groups}
    if len(set(keys.values())) < len(keys):
        raise ConfigError(
            "resume=accept_environment: groups of this plan differ in their environment alone, so that it cannot be "
            "left out of account; use resume=true"
        )
    return keys


def _origin(
    members: Sequence[str], found: Mapping[str, Mapping[MachineState, FinishedGroup]], here: Sequence[MachineState]
) -> MachineState:
    """The state whose results count for a unit, which has these members.

    A complete unit of any state counts; of an incomplete one, only what was found in a state that this machine is in.
    """
    began_ms: dict[MachineState, list[int]] = defaultdict(list)
    for state, each in (pair for key in members for pair in found.get(key, {}).items()):
        began_ms[state].append(each.start_ms)
    in_order = sorted(began_ms, key=lambda state: (state not in here, -max(began_ms[state]), state))
    complete = (state for state in in_order if len(began_ms[state]) == len(members))
    return next(complete, max(here, key=lambda state: len(began_ms[state])))


def begun_again(left: Sequence[Group], finished: Sequence[FinishedGroup], *, gpus: Sequence[Device] = ()) -> list[str]:
    """Say, in a line for each change of the machine, how many findings of groups that are left count no more."""
    counts: Counter[str] = Counter()
    by_digest = {group.digest: group for group in left}
    for each in finished:
        if each.result.is_finding and (group := by_digest.get(each.digest)) is not None:
            states = [MachineState.read(device) for device in gpus or (group.device,)]
            if not any(state.is_same(each.machine_state) for state in states):
                counts[states[0].changes(each.machine_state)] += 1
    return [
        f"resume: {counted(number, 'result')} of unfinished blocks not used, these begin again: {change}"
        for change, number in counts.items()
    ]


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
    return GroupResult(
        group=group,
        result=stored.result,
        reason=stored.reason or "",
        jobs=tuple(
            JobResult(job=job, result=stored.result, reason="", metrics=rates.get(str(job.index), {}))
            for job in group.jobs
        ),
        metrics=stored.metrics,
        tags=dict(stored.tags),
        spool_id=stored.spool_id,
        origin=stored.machine_state,
    )
