"""The groups of a plan that remain to be run, given the results in the store."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from pipeline.base.domain.machine_state import MachineState, merge_same
from pipeline.base.domain.records import Device, Group, Plan, Result
from pipeline.base.domain.tags import Tag, fact_tag
from pipeline.base.system.errors import ConfigError
from pipeline.base.system.words import format_count
from pipeline.observe import live_rate
from pipeline.observe.group_result import GroupResult, JobResult
from pipeline.record.group_record import GroupRecord

_TAGS_OF_A_ROW = (Tag.FIRST_LOSSES, Tag.FIRST_LOSS_BITS, Tag.FIRST_OUTPUTS, Tag.RATES, Tag.RATE_PATTERN, Tag.SLICES)


def select_remaining(
    plan: Plan, finished: Sequence[GroupRecord], *, gpus: Sequence[Device] = (), accept_environment: bool = False
) -> tuple[tuple[Group, ...], list[GroupResult]]:
    """Return the groups to run, and the stored rows of the other groups.

    Groups of a shard are compared with each other, so they must be measured in the same machine state. A complete shard
    is reused; an incomplete shard starts again after a reboot, on another GPU, or with another driver or power limit.
    Without `gpus`, the plan's device runs the missing groups. With `accept_environment`, results that were measured
    with other packages are also reused.

    Raises:
        ConfigError: groups of the plan differ only in their packages.
    """
    keys = _make_keys(plan, accept_environment=accept_environment)
    can_run = {keys[group.digest] for group in plan.groups if group.skip_reason is None}
    current_states = {device: MachineState.read(device) for device in (*gpus, *(group.device for group in plan.groups))}
    states = merge_same([*current_states.values(), *(stored.machine_state for stored in finished)])
    stored_by_key: dict[str, dict[MachineState, GroupRecord]] = {}
    # Results with the same packages come last and therefore replace results with other packages.
    for stored in sorted(finished, key=lambda stored: stored.digest in keys):
        key = stored.program_digest if accept_environment else stored.digest
        was_in_the_way = stored.result is Result.SKIPPED and key in can_run  # skipped before, but can run now
        if _has_finding(stored) and not was_in_the_way:
            stored_by_key.setdefault(key, {})[states[stored.machine_state]] = stored
    shards: dict[tuple[int, str], list[Group]] = {}
    for group in plan.groups:
        shards.setdefault((group.shard, group.device.uuid), []).append(group)
    done: dict[str, GroupRecord] = {}
    for groups in shards.values():
        members = [keys[group.digest] for group in groups]
        origin = _choose_state(
            members, stored_by_key, [states[current_states[device]] for device in gpus or (groups[0].device,)]
        )
        done |= {key: stored_by_key[key][origin] for key in members if origin in stored_by_key.get(key, {})}
    missing = tuple(group for group in plan.groups if keys[group.digest] not in done)
    return missing, [_make_row(group, done[key]) for group in plan.groups if (key := keys[group.digest]) in done]


def _make_keys(plan: Plan, *, accept_environment: bool) -> dict[str, str]:
    keys = {group.digest: group.program_digest if accept_environment else group.digest for group in plan.groups}
    if len(set(keys.values())) < len(keys):
        raise ConfigError(
            "resume=accept_environment cannot distinguish groups that differ only in their environment; use resume=true"
        )
    return keys


def _choose_state(
    members: Sequence[str],
    stored_by_key: Mapping[str, Mapping[MachineState, GroupRecord]],
    present: Sequence[MachineState],
) -> MachineState:
    """Choose the machine state whose results a shard reuses.

    A state with all results is preferred, otherwise the present state of this machine with the most results.
    """
    began_ms: dict[MachineState, list[int]] = defaultdict(list)
    for state, stored in (pair for key in members for pair in stored_by_key.get(key, {}).items()):
        began_ms[state].append(stored.start_ms)
    in_order = sorted(began_ms, key=lambda state: (state not in present, -max(began_ms[state]), state))
    complete = (state for state in in_order if len(began_ms[state]) == len(members))
    return next(complete, max(present, key=lambda state: len(began_ms[state])))


def describe_restarts(
    missing: Sequence[Group], finished: Sequence[GroupRecord], *, gpus: Sequence[Device] = ()
) -> list[str]:
    """Return one line per change of the machine with the number of results of unfinished shards that are not reused."""
    counts: Counter[str] = Counter()
    by_digest = {group.digest: group for group in missing}
    for stored in finished:
        if _has_finding(stored) and (group := by_digest.get(stored.digest)) is not None:
            states = [MachineState.read(device) for device in gpus or (group.device,)]
            if not any(state.is_same(stored.machine_state) for state in states):
                counts[states[0].changes(stored.machine_state)] += 1
    return [
        f"resume: unfinished blocks start again without {format_count(number, 'earlier result')} ({change})"
        for change, number in counts.items()
    ]


def select_latest(groups: Sequence[Group], finished: Sequence[GroupRecord]) -> list[GroupResult]:
    """Return the newest stored row of each group, with any result."""
    newest = {stored.digest: stored for stored in finished}
    return [_make_row(group, newest[group.digest]) for group in groups if group.digest in newest]


def find_unused(plan: Plan, missing: Sequence[Group], finished: Sequence[GroupRecord]) -> list[GroupRecord]:
    """List stored results that this plan cannot use: with other settings, or of groups that run again; newest first.

    Results that this plan does not request, such as another degree, are not listed.
    """
    digests = {group.digest for group in plan.groups}
    settings = {group.settings_digest for group in plan.groups}
    repeated_groups = {(group.name, group.block) for group in missing}
    return [
        stored
        for stored in reversed(finished)
        if _has_finding(stored)
        and stored.digest not in digests
        and (stored.settings_digest not in settings or (stored.name, stored.block) in repeated_groups)
    ]


def _has_finding(stored: GroupRecord) -> bool:
    return stored.result is not None and stored.result.is_finding


def _make_row(group: Group, stored: GroupRecord) -> GroupResult:
    assert stored.result is not None
    rates = json.loads(stored.notes.get("rates", "{}"))
    tags = {tag: text for name, text in stored.notes.items() if (tag := fact_tag(name)) in _TAGS_OF_A_ROW}
    marks = {Tag.INVALID: stored.invalid, Tag.FLAG: stored.note}
    group = live_rate.apply_patterns(group, live_rate.read_tags(group, tags))
    return GroupResult(
        group=group,
        result=stored.result,
        reason=stored.reason,
        jobs=tuple(
            JobResult(job=job, result=stored.result, reason="", metrics=rates.get(str(job.index), {}))
            for job in group.jobs
        ),
        metrics=stored.metrics,
        tags=tags | {tag: text for tag, text in marks.items() if text},
        spool_id=stored.spool_id,
        origin=stored.machine_state,
    )
