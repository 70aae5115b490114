"""How far a study is, unit by unit, from what the store has of its newest plan: whoever ran it, wherever."""

from __future__ import annotations

import dataclasses
import itertools
import logging
import shlex
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from pipeline import outcome
from pipeline.base import layout, squeue, words
from pipeline.base.errors import CommandError, TrackingError
from pipeline.base.records import Result
from pipeline.base.tags import Tag
from pipeline.observe import endings
from pipeline.plan import user_command
from pipeline.record import group_folder
from pipeline.record.store import told
from pipeline.record.store.local import is_server
from pipeline.record.store.told import Told

DONE, RUNNING, WAITING, LOST = "done", "running", "waiting", "lost"
INCOMPLETE, NOT_BEGUN = "incomplete", "not begun"
_STATES = (DONE, RUNNING, WAITING, LOST, INCOMPLETE, NOT_BEGUN)
_FACTS = (
    *("plan", "plan_any_gpu", "plan_models", "plan_units", "plan_unit", "digest", "result", "spool_id"),
    *("device", "gpu_uuid", "boot_id", "host", "command_line", "slurm_task"),
)
Queue = Callable[[Collection[str]], Mapping[str, str]]
"""Asks Slurm for the tasks of some jobs (`squeue.states`)."""

log = logging.getLogger(__name__)
_HEAD = ("unit", "state", "groups", "results", "host", "GPU", "last sign of life")
_MODEL = "GPU model"


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """One unit, as far as its best attempt got.

    Attributes:
        model: of the GPU that it is for; empty of a model on which nothing was begun, which nobody knows.
        state: `LOST` if a group of it runs by what the store says, and its Slurm task has left the queue.
        num_groups: that it has.
        results: how many ended in each result; a group that ran twice counts once, with its finding.
        host, gpu: of the attempt; empty if it was not begun.
        last_ms: when a run of it began or ended last, in ms since the epoch.
        group: what runs, or did when it was lost, if anything does.
        reason: why its Slurm task waits, in Slurm's words.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """All units of a study, those for one GPU model after those for another.

    Attributes:
        plan: its digest; of several GPU models that of the newest.
        num_models: GPU models that it is measured on.
        seconds_left: what the missing groups will take on as many GPUs as are at work, as those that ended took; of
            several models the longest. `None` if no group has ended of a model that lacks some, 0 if none is missing.
        num_waiting: groups in the spool of the store's folder that were not sent.
        command: that began the newest of its groups: the launcher's, where one did.
    """

    experiment: str
    plan: str
    num_models: int
    units: Sequence[Unit]
    seconds_left: float | None
    num_waiting: int
    command: str

    @property
    def is_done(self) -> bool:
        return all(unit.state == DONE for unit in self.units)

    def as_dict(self) -> dict[str, Any]:
        """For programs."""
        return dataclasses.asdict(self)

    def as_text(self, now_s: float) -> str:
        """A table with a line a unit, units that were not begun together, and what is left."""
        shown = [list(alike) for _, alike in itertools.groupby(self.units, _shown_with)]
        lines = [_HEAD, *(_line(units, now_s) for units in shown)]
        if self.num_models > 1:
            models = (_MODEL, *(units[0].model or "-" for units in shown))
            lines = [(model, *line) for model, line in zip(models, lines, strict=True)]
        states = Counter(unit.state for unit in self.units)
        num_done = sum(sum(unit.results.values()) for unit in self.units)
        total = sum(unit.num_groups for unit in self.units)
        counts = ", ".join(f"{states[state]} {state}" for state in _STATES if states[state])
        left = "" if not self.seconds_left else f", about {words.duration(self.seconds_left)} left"
        said = [
            *words.aligned(lines, range(len(lines[0]))),
            f"units: {counts}; {num_done} of {total} groups ended{left}",
        ]
        if self.num_waiting:
            said.append(f"{words.counted(self.num_waiting, 'group')} in the spool, not sent yet")
        if not self.is_done and self.command:
            goes_on = states[RUNNING] or states[WAITING]
            said.append(f"begun by: {self.command}" if goes_on else _how_to_resume(self.command))
        return "\n".join(said)


def overview(where: Path | str, experiment: str, queue: Queue | None = None) -> Overview:
    """How far the newest plan of an experiment is, and with it those of the same study for other GPU models.

    With `queue`, what Slurm says of the tasks that ran groups of it, or are of their job arrays, counts as well.

    Raises:
        TrackingError: there is no such store or experiment, or no group of it says how many units its plan has.
    """
    ready = [] if is_server(where) else group_folder.survey(Path(where) / layout.SPOOL).ready
    interrupted = _interrupted(ready)
    planned = [
        _as_interrupted(run) if run.facts.get("spool_id") in interrupted else run
        for run in told.groups(where, experiment, _FACTS)
        if "plan_units" in run.facts
    ]
    if not planned:
        raise TrackingError(f"no group of experiment {experiment!r} in {where} says what was planned; has one begun?")
    newest = planned[-1].facts
    plans: dict[str, list[Told]] = defaultdict(list)
    for run in planned:
        if run.facts["plan"] == newest["plan"] or run.facts.get("plan_any_gpu", "") == newest.get("plan_any_gpu"):
            plans[run.facts["plan"]].append(run)
    num_models = max(len(plans), int(newest.get("plan_models", "1")))
    of_models = [*plans.values(), *[[]] * (num_models - len(plans))]
    sizes = sizes_of(newest["plan_units"])
    units: list[Unit] = []
    left_s: list[float | None] = []
    for runs in sorted(of_models, key=_model):
        mine = _units(sizes, runs, queue)
        units += mine
        left_s.append(_seconds_left(mine, runs))
    known_s = [seconds for seconds in left_s if seconds is not None]
    return Overview(
        experiment=experiment,
        plan=newest["plan"],
        num_models=num_models,
        units=units,
        seconds_left=max(known_s) if len(known_s) == len(left_s) else None,
        num_waiting=len(ready),
        command=newest.get("command_line", ""),
    )


def sizes_in_words(sizes: Sequence[int]) -> str:
    """The number of groups of each unit, equal ones together: `12x5`, `12x4,6x1`."""
    runs: list[tuple[int, int]] = []
    for size in sizes:
        times = runs.pop()[1] if runs and runs[-1][0] == size else 0
        runs.append((size, times + 1))
    return ",".join(f"{size}x{times}" for size, times in runs)


def sizes_of(text: str) -> list[int]:
    """The sizes that `sizes_in_words` wrote."""
    parts = (part.split("x") for part in text.split(","))
    return [int(size) for size, times in parts for _ in range(int(times))]


def _model(runs: Sequence[Told]) -> str:
    """The GPU model of the runs of one plan."""
    return runs[0].facts.get("device", "") if runs else ""


def _interrupted(ready: Sequence[Path]) -> set[str]:
    """The spool ids of groups that wait to be sent as interrupted: until then the store says that they run."""
    found = set()
    for folder in ready:
        with suppress(TrackingError):  # sent meanwhile
            record = group_folder.read(folder)
            if record.parent.tags.get(Tag.RESULT) == Result.INTERRUPTED:
                found.add(record.spool_id)
    return found


def _as_interrupted(run: Told) -> Told:
    ending = endings.without_owner()
    return dataclasses.replace(
        run, status=ending.result.mlflow_status, facts={**run.facts, "result": ending.result.value}
    )


def _units(sizes: Sequence[int], runs: Sequence[Told], queue: Queue | None) -> list[Unit]:
    by_unit: dict[int, list[Told]] = defaultdict(list)
    for run in runs:
        by_unit[int(run.facts["plan_unit"])].append(run)
    model = _model(runs)
    units = [_unit(number, model, size, by_unit[number]) for number, size in enumerate(sizes, start=1)]
    return units if queue is None else _as_queued(units, by_unit, queue)


def _as_queued(units: list[Unit], by_unit: Mapping[int, Sequence[Told]], queue: Queue) -> list[Unit]:
    """The units with the states of their tasks in Slurm's queue, as far as tasks ran them and Slurm answers."""
    tasks = {unit.number: {task for run in by_unit[unit.number] if (task := _task(run))} for unit in units}
    ran = [(squeue.job_of(task), task, number) for number, of_unit in tasks.items() for task in of_unit]
    try:
        states = queue({job for job, _, _ in ran}) if ran else None
    except CommandError as error:
        log.info("without Slurm's queue: %s", error)
        states = None
    if states is None:
        return units
    # The tasks of an array are the units of these numbers, unless somebody's own script numbers them otherwise.
    otherwise = {job for job, task, number in ran if task != squeue.task_of(job, number)}
    arrays = {job for job, _, _ in ran} - otherwise
    found = []
    for unit in units:
        own = tasks[unit.number] | {squeue.task_of(job, unit.number) for job in arrays}
        queued = [states[task] for task in sorted(own) if task in states]
        found.append(_as_of_task(unit, queued, by_unit[unit.number]))
    return found


def _as_of_task(unit: Unit, queued: Sequence[str], runs: Sequence[Told]) -> Unit:
    """A unit with the state of its task, of which the queue may hold several, or none if it has ended."""
    if unit.state == DONE:
        return unit
    if any(not state.startswith(squeue.PENDING) for state in queued):
        return dataclasses.replace(unit, state=RUNNING)
    if queued:
        return dataclasses.replace(unit, state=WAITING, group="", reason=queued[0].removeprefix(squeue.PENDING).strip())
    has_ended = all(_task(run) for run in runs if run.status == "RUNNING")
    return dataclasses.replace(unit, state=LOST) if unit.state == RUNNING and has_ended else unit


def _task(run: Told) -> str:
    """The Slurm task that ran a group; empty if none did."""
    return run.facts.get("slurm_task", "")


def _seconds_left(units: Sequence[Unit], runs: Sequence[Told]) -> float | None:
    num_left = sum(unit.num_groups - sum(unit.results.values()) for unit in units if unit.state != DONE)
    if not num_left:
        return 0.0
    took = [run.end_ms - run.start_ms for run in runs if run.end_ms and run.facts.get("result") == Result.OK]
    at_work = max(1, sum(unit.state == RUNNING for unit in units))
    return fmean(took) / 1000 * num_left / at_work if took else None


def _unit(number: int, model: str, size: int, runs: Sequence[Told]) -> Unit:
    attempts: dict[tuple[str | None, str | None], list[Told]] = defaultdict(list)
    for run in runs:
        attempts[run.facts.get("gpu_uuid"), run.facts.get("boot_id")].append(run)
    if not attempts:
        return Unit(number=number, model=model, state=NOT_BEGUN, num_groups=size, results={})
    ended = {origin: _endings(members) for origin, members in attempts.items()}

    def rank(origin: tuple[str | None, str | None]) -> tuple[int, int]:
        return _num_findings(ended[origin]), _last_ms(attempts[origin])

    best = max(attempts, key=rank)
    newest = attempts[best][-1].facts
    running = [run.name for run in attempts[best] if run.status == "RUNNING"]
    state = DONE if _num_findings(ended[best]) >= size else RUNNING if running else INCOMPLETE
    return Unit(
        number=number,
        model=model,
        state=state,
        num_groups=size,
        results=dict(Counter(ended[best].values())),
        host=newest.get("host", ""),
        gpu=newest.get("gpu_uuid", ""),
        last_ms=_last_ms(attempts[best]),
        group=running[-1] if running else "",
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


def _num_findings(ended: Mapping[str, str]) -> int:
    return sum(Result(result).is_finding for result in ended.values())


def _last_ms(members: Sequence[Told]) -> int:
    return max(run.end_ms or run.start_ms for run in members)


def _shown_with(unit: Unit) -> tuple[str, str, str, int]:
    """Neighbours for which this is equal have one line: units of one model that were not begun, and wait alike."""
    return unit.model, unit.state, unit.reason, 0 if unit.last_ms is None else unit.number


def _how_to_resume(recorded: str) -> str:
    """What to type to go on, from the command line that began a study."""
    try:
        typed = shlex.split(recorded)
    except ValueError:  # what stood in the place of a secret had a quotation mark
        return f"begun by: {recorded}"
    ours, theirs = user_command.divided(typed)
    whole = [word for word in ours if not word.startswith("unit=")]
    each, unit = ("", []) if whole == ours else (", with each K that is not done", ["unit=K"])
    return f"to run what is left{each}: {outcome.command_to_resume([*whole, *unit, *theirs])}"


def _line(units: Sequence[Unit], now_s: float) -> tuple[str, ...]:
    unit = units[0]
    numbers = str(unit.number) if len(units) == 1 else f"{unit.number} to {units[-1].number}"
    ended = ", ".join(f"{times} {result}" for result, times in unit.results.items())
    ago = "" if unit.last_ms is None else f"{words.duration(max(0.0, now_s - unit.last_ms / 1000))} ago"
    state = ": ".join(filter(None, (unit.state, unit.group or unit.reason)))
    groups = f"{sum(unit.results.values())}/{sum(each.num_groups for each in units)}"
    return (numbers, state, groups, ended or "-", unit.host or "-", unit.gpu[:12] or "-", ago or "-")
