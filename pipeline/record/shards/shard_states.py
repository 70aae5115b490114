"""The state of each shard of a plan, from its groups and from Slurm's queue."""

from __future__ import annotations

import dataclasses
import os
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from pipeline.base.domain import group_names
from pipeline.base.domain.machine_state import MachineState, merge_same
from pipeline.base.domain.records import Result
from pipeline.base.domain.tags import Tag, stored_name
from pipeline.base.system import host_info, squeue
from pipeline.base.system.errors import CommandError
from pipeline.record.group_record import GroupRecord
from pipeline.record.shards.slurm_arrays import Submission
from pipeline.record.store import results, run_artifacts
from pipeline.record.store.content import RunContent, make_group_tags
from pipeline.record.store.local_store import Store, translate_errors

DONE, RUNNING, WAITING, LOST = "done", "running", "waiting", "lost"
INCOMPLETE, ENDED, NOT_BEGUN = "incomplete", "ended", "not begun"
STATES = (DONE, RUNNING, WAITING, LOST, INCOMPLETE, ENDED, NOT_BEGUN)
Queue = Callable[[str, Collection[str]], Mapping[str, str]]
"""Queries the Slurm of a cluster for the tasks of job arrays (`squeue.read_cluster_states`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """The progress of one shard in its best attempt.

    Attributes:
        model: model of the shard's GPU; empty for a model on which no group has begun.
        state: `LOST` if the store shows a group as running but its Slurm task has left the queue; `ENDED` if its task
            ended before a group began.
        results: number of groups by result; a group that ran twice counts once.
        last_ms: last begin or end of a run, since the epoch.
        group: the running group, or the group that was running when the shard was lost.
        reason: Slurm's reason why the shard's task is pending.
        tasks: the shard's Slurm tasks in the queue; empty if all its groups have a result.
        message: last error of a task that ended early, or the holder of the GPU for which a task waits.
        output: output file of that task.
    """

    number: int
    model: str
    state: str
    num_groups: int
    results: Mapping[Result, int]
    host: str = ""
    gpu: str = ""
    last_ms: int | None = None
    group: str = ""
    reason: str = ""
    tasks: Sequence[str] = ()
    message: str = ""
    output: str = ""

    @property
    def num_found(self) -> int:
        """Number of groups with a final result; the other groups run again."""
        return _count_findings(self.results)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueState:
    """State of a study's job arrays in Slurm's queue.

    Attributes:
        states: state of each task, by the task's name.
        arrays, new: the queried arrays, and the arrays of which no task has begun a group.
        unasked: reason why Slurm could not be queried.
    """

    states: Mapping[str, str] = field(default_factory=dict)
    arrays: Collection[str] = frozenset()
    new: Collection[str] = frozenset()
    unasked: str = ""

    @classmethod
    def read(cls, runs: Sequence[GroupRecord], queue: Queue | None, submitted: Submission | None = None) -> QueueState:
        """Query the arrays of these runs and of the submission; if there are several clusters, only the newest."""
        run_tasks = [task for run in sorted(runs, key=lambda run: run.start_ms) if (task := _parse_task(run))]
        tasks = [*run_tasks, *((submitted.cluster, array) for array in submitted.arrays)] if submitted else run_tasks
        if queue is None or not tasks:
            return cls()
        cluster = tasks[-1][0]
        arrays = {array for owner, array in tasks if owner == cluster}
        try:
            return cls(states=queue(cluster, arrays), arrays=arrays, new=arrays - {array for _, array in run_tasks})
        except CommandError as error:
            return cls(unasked=str(error))

    def update(self, shard: Shard, runs: Sequence[GroupRecord], arrays: Collection[str]) -> Shard:
        """Return a shard with the states of its tasks in these arrays; a resubmitted shard has several tasks."""
        tasks = (squeue.name_task(array, shard.number) for array in sorted(arrays))
        states = {task: self.states[task] for task in tasks if task in self.states}
        if shard.state == DONE and Result.SKIPPED not in shard.results:
            return shard
        if any(not state.startswith(squeue.PENDING) for state in states.values()):
            return dataclasses.replace(shard, state=RUNNING, tasks=tuple(states))
        if states:
            reason = next(iter(states.values())).removeprefix(squeue.PENDING).strip()
            return dataclasses.replace(shard, state=WAITING, group="", reason=reason, tasks=tuple(states))
        is_lost = shard.state == RUNNING and all(self.is_gone(run) for run in runs if run.status == "RUNNING")
        return dataclasses.replace(shard, state=LOST) if is_lost else shard

    def is_gone(self, run: GroupRecord) -> bool:
        """Return whether the task of a run has left the queue; Slurm may hide other users' tasks."""
        task = _parse_task(run)
        is_shown = os.getuid() == 0 or run.facts.get("user") == host_info.user_name()
        is_queued = run.facts.get("slurm_task", "").rpartition("/")[2] in self.states
        return task is not None and task[1] in self.arrays and is_shown and not is_queued


def _parse_task(run: GroupRecord) -> tuple[str, str] | None:
    """Return cluster and job array of the Slurm task that ran a group; `None` without Slurm."""
    cluster, is_given, task = run.facts.get("slurm_task", "").rpartition("/")
    return (cluster, task.partition("_")[0]) if is_given else None


def find_model(runs: Sequence[GroupRecord]) -> str:
    """Return the GPU model on which the runs of one plan ran."""
    return runs[0].device if runs else ""


def read_shards(sizes: Sequence[int], runs: Sequence[GroupRecord], queued: QueueState) -> list[Shard]:
    """Return the shards of a plan; `sizes` contains the number of groups of each shard."""
    by_shard: dict[int, list[GroupRecord]] = defaultdict(list)
    for run in runs:
        by_shard[int(run.facts["plan_shard"])].append(run)
    model = find_model(runs)
    arrays = select_arrays(runs, queued)
    shards = (_make_shard(number, model, size, by_shard[number]) for number, size in enumerate(sizes, start=1))
    return [queued.update(shard, by_shard[shard.number], arrays) for shard in shards]


def select_arrays(runs: Sequence[GroupRecord], queued: QueueState) -> set[str]:
    """Return the job arrays that may have tasks of a plan: arrays that ran its groups, and arrays without groups."""
    return {task[1] for run in runs if (task := _parse_task(run)) and task[1] in queued.arrays}.union(queued.new)


def estimate_seconds_left(shards: Sequence[Shard], runs: Sequence[GroupRecord]) -> float | None:
    """Estimate the time for a plan's missing groups on the GPUs that are busy now; `None` if no group has ended."""
    num_left = sum(shard.num_groups - shard.num_found for shard in shards if shard.state != DONE)
    if not num_left:
        return 0.0
    took = [run.end_ms - run.start_ms for run in runs if run.end_ms and run.result is Result.OK]
    at_work = max(1, sum(shard.state == RUNNING for shard in shards))
    return fmean(took) / 1000 * num_left / at_work if took else None


def _make_shard(number: int, model: str, size: int, runs: Sequence[GroupRecord]) -> Shard:
    states = merge_same(run.machine_state for run in runs)
    attempts: dict[MachineState, list[GroupRecord]] = defaultdict(list)
    counting = group_names.drop_superseded(reversed(runs), lambda run: (run.digest, run.result))
    for run in reversed(counting):
        attempts[states[run.machine_state]].append(run)
    if not attempts:
        return Shard(number=number, model=model, state=NOT_BEGUN, num_groups=size, results={})
    ended = {origin: Counter(_collect_results(members).values()) for origin, members in attempts.items()}

    def rank(origin: MachineState) -> tuple[int, int]:
        return _count_findings(ended[origin]), _find_last_ms(attempts[origin])

    best = max(attempts, key=rank)
    newest = attempts[best][-1]
    running = [run.name for run in runs if run.status == "RUNNING"]
    state = DONE if _count_findings(ended[best]) >= size else RUNNING if running else INCOMPLETE
    return Shard(
        number=number,
        model=model,
        state=state,
        num_groups=size,
        results=dict(ended[best]),
        host=newest.facts.get("host", ""),
        gpu=newest.gpu_uuid,
        last_ms=_find_last_ms(attempts[best]),
        group=running[-1] if running and state != DONE else "",
    )


def _collect_results(members: Sequence[GroupRecord]) -> dict[str, Result]:
    """Return the result of each group, by digest: the final result if the group has one, otherwise the newest."""
    results: dict[str, Result] = {}
    for run in members:
        is_settled = run.digest in results and results[run.digest].is_finding
        if run.result is not None and (run.result.is_finding or not is_settled):
            results[run.digest] = run.result
    return results


def _count_findings(results: Mapping[Result, int]) -> int:
    return sum(times for result, times in results.items() if result.is_finding)


def _find_last_ms(members: Sequence[GroupRecord]) -> int:
    return max(run.end_ms or run.start_ms for run in members)


_LOST = "its host was lost, or its orchestrator"


def close_shard(store: Store, experiment: str, plan: str, shard: int, programs: Collection[str]) -> list[str]:
    """Close the open runs of earlier attempts of a shard; return the names of the groups.

    An attempt that is still running later ends its run itself. Groups of another plan with these program digests are
    closed only if their Slurm task has left the queue, because the other plan may still be running.
    """
    running = _find_running(store, experiment, silent_s=0)
    of_plan = [group for group in running if (group.facts.get("plan"), group.shard) == (plan, shard)]
    alike = [group for group in running if group.program_digest in programs and group not in of_plan]
    queued = QueueState.read(alike, squeue.read_cluster_states)
    return _close(store, [*of_plan, *filter(queued.is_gone, alike)])


def close_silent(store: Store, experiment: str, silent_s: float) -> list[str]:
    """Close the open groups of an experiment that began more than `silent_s` ago; return their names."""
    return _close(store, _find_running(store, experiment, silent_s))


def _find_running(store: Store, experiment: str, silent_s: float) -> list[GroupRecord]:
    latest_ms = (time.time() - silent_s) * 1000
    groups = results.read_stored_groups(store, experiment)
    return [group for group in groups if group.result is None and group.start_ms <= latest_ms]


def _close(store: Store, running: Sequence[GroupRecord]) -> list[str]:
    result = Result.INTERRUPTED
    for group in running:
        end_ns = group.clock.to_monotonic_ns(int(time.time() * 1000))
        open_jobs = [job for job in group.jobs if job.result is None]
        jobs = (
            dataclasses.replace(job, result=result, end_ns=end_ns) if job.result is None else job for job in group.jobs
        )
        # No reason is set: if the group is still running, its end overwrites the record and the description.
        run_artifacts.log_record(store, dataclasses.replace(group, result=result, end_ns=end_ns, jobs=tuple(jobs)))
        for run in (*open_jobs, group):
            store.set_tag(run.run_id, Tag.RESULT, result.value)
            store.set_tag(run.run_id, Tag.DESCRIPTION, f"{result.value}: {_LOST}")
            store.client.set_terminated(run.run_id, result.mlflow_status)
    return [group.name for group in running]


def take_over(store: Store, shards: Mapping[str, int], facts: Mapping[str, str]) -> None:
    """Add a plan with these facts to the records of runs; `shards` maps run ids to shards of that plan.

    Raises:
        TrackingError: the store is not readable or writable.
    """
    for run_id, shard in shards.items():
        with translate_errors(f"could not mark run {run_id} in {store.uri}"):
            earlier = run_artifacts.read_record(store, run_id)
            plans = (*earlier.later_plans, {**facts, "plan_shard": str(shard)})
            group = dataclasses.replace(earlier, later_plans=plans)
            run_artifacts.log_record(store, group)
            content = RunContent()
            content.add_tag(Tag.TAKEN_OVER, make_group_tags(group)[Tag.TAKEN_OVER])
            store.set_tag(run_id, stored_name(Tag.TAKEN_OVER), content.tags[stored_name(Tag.TAKEN_OVER)])
