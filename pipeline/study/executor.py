"""Runs the launches of a plan one after another, and records the row of each group.

A failed group becomes a row with its reason, and the study continues; only a signal from the user ends it early.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from pipeline.base.domain.machine_state import MachineState
from pipeline.base.domain.records import Group, Interpreter, Slot
from pipeline.base.system import interrupts
from pipeline.base.system.errors import ConfigError
from pipeline.base.system.factory import Spec
from pipeline.base.system.interrupts import Interrupted
from pipeline.launch.warm_start import WarmStart
from pipeline.observe import endings, live_rate
from pipeline.observe.group_result import GroupResult
from pipeline.prepare.device import nvml
from pipeline.prepare.device.nvml import NvmlError
from pipeline.study.group_execution import GroupExecution, StudyResources


@contextmanager
def warm_start(
    groups: Iterable[Group], interpreters: Mapping[Spec, Interpreter], *, is_enabled: bool
) -> Iterator[WarmStart]:
    """Start the fork servers for jobs of these groups; they end with the context."""
    with WarmStart(enabled=is_enabled) as servers:
        to_fork = [
            group for group in groups if group.skip_reason is None and group.profiler.is_none and not group.pin_cpus
        ]
        for workload in (job.workload for group in to_fork for job in group.jobs):
            servers.begin(workload, interpreters[workload.env])
        yield servers


def run(launch: Sequence[Group], resources: StudyResources) -> Iterator[GroupResult]:
    """Run the groups of a launch, most jobs first, and record the row of each.

    The first group that succeeds also measures the following ones, in its slices. A group that fails, for example out
    of memory, gets its own row; the next group is then launched.

    Raises:
        Interrupted: the user sent a signal; the row is recorded as interrupted.
    """
    while launch:
        row, hosted, slots = _run(launch, resources)
        yield row
        yield from (_record(hosted_row, slots, resources) for hosted_row in hosted)
        launch = launch[1 + len(hosted) :]


def _record(row: GroupResult, slots: Sequence[Slot], resources: StudyResources) -> GroupResult:
    """Record the row of a group that was measured in the launch of another group."""
    with resources.spool.open(row.group) as record:
        record.place(slots)
        row = dataclasses.replace(row, spool_id=record.spool_id)
        record.close(row)
    return row


def _run(launch: Sequence[Group], resources: StudyResources) -> tuple[GroupResult, list[GroupResult], Sequence[Slot]]:
    """Run the first group of a launch; return its row, the rows of the others if it measured them, and its slots."""
    interrupts.check()
    group = live_rate.apply_patterns(_refresh_device(launch[0], resources), resources.patterns)
    with resources.spool.open(group) as record:
        if (skipped := endings.make_skipped_row(group)) is not None:
            record.close(skipped)
            return skipped, [], ()
        execution = GroupExecution(group, record, resources, launch)
        row: GroupResult | None = None
        hosted: list[GroupResult] = []
        interrupted: Interrupted | None = None
        with interrupts.hold_interrupts():  # the row must be recorded even after a signal
            try:
                with interrupts.allow():
                    execution.run()
                    execution.tags |= live_rate.make_tags(launch[0], resources.patterns)
                    row = execution.judge()  # takes long if the jobs wrote much output
                    hosted = execution.judge_others(row)  # before the sender moves the files of the jobs
                    execution.remove_partial_files()
            except Interrupted as error:
                interrupted = error
            row = row or execution.judge_interrupted()
            record.close(dataclasses.replace(row, spool_id=record.spool_id))
    if interrupted is not None:
        raise interrupted
    return dataclasses.replace(row, spool_id=record.spool_id), hosted, execution.slots


def _refresh_device(group: Group, resources: StudyResources) -> Group:
    if not group.device.is_gpu or group.skip_reason is not None:
        return group
    try:
        device = nvml.refresh_state(group.device)
    except (ConfigError, NvmlError):  # the group fails with the same error, which its row reports
        return group
    if change := MachineState.read(device).changes(MachineState.read(group.device)):
        resources.warn_once(
            f"the state of {device.name} has changed since the study began ({change}), so rows before and after the "
            "change are not compared; repeat the command with resume=true to run unfinished blocks again"
        )
    return dataclasses.replace(group, device=device)
