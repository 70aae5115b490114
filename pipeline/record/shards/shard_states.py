"""The state of each unit of a plan, from the rows of its groups and from what Slurm's queue says of its tasks."""

from __future__ import annotations

import dataclasses
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from pipeline.base.domain import skips
from pipeline.base.domain.machine_state import MachineState, merge_same
from pipeline.base.domain.records import Result
from pipeline.base.system import host, squeue
from pipeline.base.system.errors import CommandError
from pipeline.record.shards.group_runs import Told
from pipeline.record.shards.slurm_arrays import Submitted

DONE, RUNNING, WAITING, LOST = "done", "running", "waiting", "lost"
INCOMPLETE, ENDED, NOT_BEGUN = "incomplete", "ended", "not begun"
STATES = (DONE, RUNNING, WAITING, LOST, INCOMPLETE, ENDED, NOT_BEGUN)
Queue = Callable[[str, Collection[str]], Mapping[str, str]]
"""Asks the Slurm of a cluster for the tasks of some job arrays (`squeue.states_on`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """One unit, as far as its best attempt got.

    Attributes:
        model: of the GPU that it is for; empty of a model on which nothing was begun, which nobody knows.
        state: `LOST` if a group of it runs by what the store says, and its Slurm task has left the queue; `ENDED` if
            its task ended before a group of it began.
        num_groups: that it has.
        results: how many ended in each result; a group that ran twice counts once, with its finding.
        host, gpu: of the attempt; empty if it was not begun.
        last_ms: when a run of it began or ended last, in ms since the epoch.
        group: what runs, or did when it was lost, if anything does.
        reason: why its Slurm task waits, in Slurm's words.
        tasks: of a unit that may have groups to run, its Slurm tasks in the queue.
        message: the last error of a task that ended and left groups to run, or for whom one waits that runs.
        output: the file of that task's output.
    """

    number: int
    model: str
    state: str
    num_groups: int
    results: Mapping[str, int]
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
        """How many groups have their answer; of the others, those that ended are run again."""
        return _num_findings(self.results)


@dataclass(frozen=True, slots=True, kw_only=True)
class Queued:
    """What Slurm's queue holds of the job arrays of a study.

    Attributes:
        states: by task.
        arrays: that it was asked for.
        new: those of which no task has begun a group.
        unasked: why it was not.
    """

    states: Mapping[str, str] = field(default_factory=dict)
    arrays: Collection[str] = frozenset()
    new: Collection[str] = frozenset()
    unasked: str = ""

    @classmethod
    def of(cls, runs: Sequence[Told], queue: Queue | None, given: Submitted | None = None) -> Queued:
        """Ask for the arrays of these runs and those that were submitted; of several clusters, on the newest."""
        begun = [task for run in sorted(runs, key=lambda run: run.start_ms) if (task := _task(run))]
        tasks = [*begun, *((given.cluster, array) for array in given.arrays)] if given else begun
        if queue is None or not tasks:
            return cls()
        cluster = tasks[-1][0]
        arrays = {array for each, array in tasks if each == cluster}
        try:
            return cls(states=queue(cluster, arrays), arrays=arrays, new=arrays - {array for _, array in begun})
        except CommandError as error:
            return cls(unasked=str(error))

    def seen(self, unit: Unit, runs: Sequence[Told], arrays: Collection[str]) -> Unit:
        """A unit with the state of its task in these arrays: several, if it was submitted again, or none any more."""
        own = (squeue.name_task(array, unit.number) for array in sorted(arrays))
        states = {task: self.states[task] for task in own if task in self.states}
        if unit.state == DONE and Result.SKIPPED not in unit.results:
            return unit
        if any(not state.startswith(squeue.PENDING) for state in states.values()):
            return dataclasses.replace(unit, state=RUNNING, tasks=tuple(states))
        if states:
            reason = next(iter(states.values())).removeprefix(squeue.PENDING).strip()
            return dataclasses.replace(unit, state=WAITING, group="", reason=reason, tasks=tuple(states))
        is_lost = unit.state == RUNNING and all(self.is_gone(run) for run in runs if run.status == "RUNNING")
        return dataclasses.replace(unit, state=LOST) if is_lost else unit

    def is_gone(self, run: Told) -> bool:
        """Whether a task ran this that has left the queue; what others submit may be hidden from whoever asks."""
        task = _task(run)
        is_shown = os.getuid() == 0 or run.facts.get("user") == host.user_name()
        is_queued = run.facts.get("slurm_task", "").rpartition("/")[2] in self.states
        return task is not None and task[1] in self.arrays and is_shown and not is_queued


def _task(run: Told) -> tuple[str, str] | None:
    """Cluster and job array of the Slurm task that ran a group; the task's number is its unit's. `None` if none did."""
    cluster, is_given, task = run.facts.get("slurm_task", "").rpartition("/")
    return (cluster, task.partition("_")[0]) if is_given else None


def model_of(runs: Sequence[Told]) -> str:
    """The GPU model of the runs of one plan."""
    return runs[0].facts.get("device", "") if runs else ""


def of_plan(sizes: Sequence[int], runs: Sequence[Told], queued: Queued) -> list[Unit]:
    """The units of a plan that has units of so many groups, of which these were begun."""
    by_unit: dict[int, list[Told]] = defaultdict(list)
    for run in runs:
        by_unit[int(run.facts["plan_unit"])].append(run)
    model = model_of(runs)
    arrays = select_arrays(runs, queued)
    units = (_unit(number, model, size, by_unit[number]) for number, size in enumerate(sizes, start=1))
    return [queued.seen(unit, by_unit[unit.number], arrays) for unit in units]


def select_arrays(runs: Sequence[Told], queued: Queued) -> set[str]:
    """Return the job arrays that may have tasks of a plan: those that ran groups of it, and those that ran none yet."""
    return {task[1] for run in runs if (task := _task(run)) and task[1] in queued.arrays}.union(queued.new)


def seconds_left(units: Sequence[Unit], runs: Sequence[Told]) -> float | None:
    """What the missing groups of a plan will take on as many GPUs as are at work; `None` if no group has ended."""
    num_left = sum(unit.num_groups - unit.num_found for unit in units if unit.state != DONE)
    if not num_left:
        return 0.0
    took = [run.end_ms - run.start_ms for run in runs if run.end_ms and run.facts.get("result") == Result.OK]
    at_work = max(1, sum(unit.state == RUNNING for unit in units))
    return fmean(took) / 1000 * num_left / at_work if took else None


def _unit(number: int, model: str, size: int, runs: Sequence[Told]) -> Unit:
    states = merge_same(MachineState.from_facts(run.facts) for run in runs)
    attempts: dict[MachineState, list[Told]] = defaultdict(list)
    counting = skips.drop_superseded(reversed(runs), lambda run: (run.facts.get("digest"), run.facts.get("result")))
    for run in reversed(counting):
        attempts[states[MachineState.from_facts(run.facts)]].append(run)
    if not attempts:
        return Unit(number=number, model=model, state=NOT_BEGUN, num_groups=size, results={})
    ended = {origin: Counter(_endings(members).values()) for origin, members in attempts.items()}

    def rank(origin: MachineState) -> tuple[int, int]:
        return _num_findings(ended[origin]), _last_ms(attempts[origin])

    best = max(attempts, key=rank)
    newest = attempts[best][-1].facts
    running = [run.name for run in runs if run.status == "RUNNING"]
    state = DONE if _num_findings(ended[best]) >= size else RUNNING if running else INCOMPLETE
    return Unit(
        number=number,
        model=model,
        state=state,
        num_groups=size,
        results=dict(ended[best]),
        host=newest.get("host", ""),
        gpu=newest.get("gpu_uuid", ""),
        last_ms=_last_ms(attempts[best]),
        group=running[-1] if running and state != DONE else "",
    )


def _endings(members: Sequence[Told]) -> dict[str, str]:
    """The result of each group, by digest: of several runs a finding, else the newest."""
    found: dict[str, str] = {}
    for run in members:
        result, digest = run.facts.get("result", ""), run.facts.get("digest", "")
        if run.status != "RUNNING" and result in set(Result):
            is_settled = digest in found and Result(found[digest]).is_finding
            if not is_settled or Result(result).is_finding:
                found[digest] = result
    return found


def _num_findings(results: Mapping[str, int]) -> int:
    return sum(times for result, times in results.items() if Result(result).is_finding)


def _last_ms(members: Sequence[Told]) -> int:
    return max(run.end_ms or run.start_ms for run in members)
