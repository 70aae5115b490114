"""How far a study is, unit by unit, from what the store has of its newest plan: whoever ran it, wherever."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.base.domain import layout, machine_state
from pipeline.base.domain.records import Result
from pipeline.base.domain.tags import Tag, list_facts_by_plan
from pipeline.base.system import secrets, squeue, user_command, words
from pipeline.base.system.errors import CommandError, TrackingError
from pipeline.record import group_folder
from pipeline.record.group_folder import RunRecord
from pipeline.record.invocation import command_to_resume
from pipeline.record.shards import group_runs, shard_states, slurm_arrays, task_messages
from pipeline.record.shards.group_runs import Told
from pipeline.record.shards.shard_states import DONE, LOST, RUNNING, STATES, WAITING, Queue, Queued, Unit
from pipeline.record.shards.slurm_arrays import Submitted
from pipeline.record.store import content
from pipeline.record.store.local import is_server

_FACTS = (
    *("plan", "plan_any_gpu", "plan_models", "plan_units", "plan_unit", "taken_over_by", "digest", "result"),
    *("device", "host", "user", "command_line", "slurm_task", "unit", "beside", "simulated", "spool_id"),
    *machine_state.FACTS,
)
_BESIDE = "hydra/launcher=beside"
_HEAD = ("unit", "state", "groups", "results", "host", "GPU", "last sign of life")
_MODEL = "GPU model"
TaskEnds = Callable[[Collection[str]], Mapping[str, str]]
"""Asks Slurm how the tasks of some job arrays ended (`squeue.list_end_states`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """All units of a study, those for one GPU model after those for another.

    Attributes:
        plan: its digest; of several GPU models that of the newest.
        plan_any_gpu: of the same without the GPU models; empty if the store does not say.
        num_models: GPU models that it is measured on.
        seconds_left: what the missing groups will take on as many GPUs as are at work, as those that ended took; of
            several models the longest, of a GPU alone and in company the sum. `None` if no group
            has ended of a model that lacks some, 0 if none is missing.
        simulated: the GPU models that are simulated.
        num_unsent: groups of the experiment in the spool of the store's folder that were not sent.
        command: that began the newest of its groups: the launcher's, where one did.
        is_asked: whether Slurm was asked for its tasks.
        unasked: why Slurm said nothing of the tasks that ran its groups; empty if it did, or none ran any.
    """

    experiment: str
    plan: str
    plan_any_gpu: str
    num_models: int
    units: Sequence[Unit]
    seconds_left: float | None
    simulated: Sequence[str]
    num_unsent: int
    command: str
    is_asked: bool
    unasked: str

    @property
    def is_done(self) -> bool:
        return not self.num_unsent and all(unit.state == DONE for unit in self.units)

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
        num_found = sum(unit.num_found for unit in self.units)
        total = sum(unit.num_groups for unit in self.units)
        counts = ", ".join(f"{states[state]} {state}" for state in STATES if states[state])
        left = "" if not self.seconds_left else f", about {words.duration(self.seconds_left)} left"
        said = [
            *words.aligned(lines, range(len(lines[0]))),
            f"units: {counts}; {num_found} of {total} groups have a result{left}",
        ]
        if num_skipped := sum(unit.results.get(Result.SKIPPED, 0) for unit in self.units):
            said.append(f"{words.counted(num_skipped, 'group')} skipped: resume=true runs what can run now")
        said += task_messages.describe(self.units)
        if self.simulated:
            said.append(f"simulated: {', '.join(self.simulated)}")
        if self.num_unsent:
            said.append(f"{words.counted(self.num_unsent, 'group')} in the spool, not sent yet")
        if self.unasked:
            said.append(f"as the store says, without Slurm's queue: {self.unasked}")
        if not self.is_done and self.command:
            goes_on = states[RUNNING] or states[WAITING]
            said.append(f"begun by: {self.command}" if goes_on else self._how_to_resume())
        return "\n".join(said)

    def _how_to_resume(self) -> str:
        """What to type to go on."""
        typed = content.words_of(self.command)
        if typed is None:
            return f"begun by: {self.command}"
        ours, theirs = user_command.divide(typed)
        whole = [word for word in ours if not user_command.sets(word, ["unit"])]
        conditions = ["with each K that is not done"] if whole != ours else []
        if "hydra/launcher=slurm" in ours and not self.is_asked:
            conditions.append("if no job array of it waits")
        if secrets.HIDDEN in self.command:
            conditions.append(f"with your own values for {secrets.HIDDEN}")
        command = command_to_resume([*whole, *(["unit=K"] if whole != ours else []), *theirs])
        return f"{', '.join(['to run what is left', *conditions])}: {command}"


def overview(
    where: Path | str, experiment: str, queue: Queue | None = None, ends: TaskEnds = squeue.list_end_states
) -> Overview:
    """How far the newest plan of an experiment is, and with it those of the same study for other GPU models.

    With `queue`, what Slurm says of the tasks that ran groups of it, or are of their job arrays, counts as well; of
    tasks that ended without a result, `ends` is asked how.

    Raises:
        TrackingError: there is no such store or experiment, or nothing in it says how many units a study has.
    """
    spooled = {} if is_server(where) else _spooled(Path(where), experiment)
    of_models = _of_models(where, experiment, spooled)
    given = slurm_arrays.of(str(where), experiment) if is_server(where) and queue is not None else None
    if not of_models and given is None:
        raise TrackingError(f"no group of experiment {experiment!r} in {where} says what was planned; has one begun?")
    newest = max(itertools.chain(*of_models), key=lambda run: run.start_ms, default=None)
    if given is not None and (newest is None or _is_another(given, newest, queue)):
        of_models, newest = [], _not_begun(given)
    assert newest is not None
    given = given if given is not None and given.study == _typed(newest) else None
    queued = Queued.of([*itertools.chain(*of_models)], queue, given)
    parts = _parts(of_models or [[]], newest, queued)
    if any(unit.state == LOST for units, _ in parts for unit in units):  # unless it ended between the two questions
        of_models = _of_models(where, experiment, spooled)
        parts = _parts(of_models, newest, queued)
    if queued.arrays:
        all_units = [unit for units, _ in parts for unit in units]
        known = _list_end_states(queued.arrays, ends) if task_messages.has_unexplained(all_units) else {}
        folder = given.folder if given else ""
        parts = [
            (task_messages.add_messages(units, shard_states.select_arrays(runs, queued), folder, known), seconds)
            for runs, (units, seconds) in zip(of_models or [[]], parts, strict=True)
        ]
    left_s = [seconds for _, seconds in parts if seconds is not None]
    return Overview(
        experiment=experiment,
        plan=newest.facts["plan"],
        plan_any_gpu=newest.facts.get("plan_any_gpu", ""),
        num_models=len(parts),
        units=[unit for units, _ in parts for unit in units],
        seconds_left=(sum if _is_of_beside(newest.facts) else max)(left_s) if len(left_s) == len(parts) else None,
        simulated=sorted({run.facts["device"] for run in itertools.chain(*of_models) if "simulated" in run.facts}),
        num_unsent=len(spooled),
        command=newest.facts.get("command_line", ""),
        is_asked=bool(queued.arrays),
        unasked=queued.unasked,
    )


def _list_end_states(arrays: Collection[str], ends: TaskEnds) -> Mapping[str, str]:
    try:
        return ends(arrays)
    except CommandError:  # Slurm has just answered; without it the output of the tasks still tells
        return {}


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


def _spooled(root: Path, experiment: str) -> dict[str, RunRecord]:
    """By spool id, the ended groups of an experiment that were not sent: the store says that they run, or nothing."""
    ended = group_folder.ended(root / layout.SPOOL)
    return {record.spool_id: record.parent for record in ended if record.experiment == experiment}


def _of_models(where: Path | str, experiment: str, spooled: Mapping[str, RunRecord]) -> list[list[Told]]:
    """The groups of the newest plan and of the same study for other GPU models, each oldest first, by model.

    A model of which none was begun has none; without any that says how many units its plan has, there is no model.
    Where a GPU is measured alone and in company, each is a plan, and has its place as a model has.
    """
    planned = [
        _as_spooled(dataclasses.replace(run, facts=facts), spooled.get(run.facts.get("spool_id", "")))
        for run in group_runs.groups(where, experiment, _FACTS)
        for facts in _by_study(run)
    ]
    if not planned:
        return []
    newest = planned[-1].facts
    is_beside = _is_of_beside(newest)
    if is_beside and "unit" not in newest:
        raise TrackingError(
            f"experiment {experiment!r} holds what kept a GPU company, of which nothing is left to run; what that GPU "
            "measured is in the experiment without _company"
        )
    study = _study_of(newest)
    plans: dict[str, list[Told]] = defaultdict(list)
    for run in planned:
        if run.facts["plan"] == newest["plan"] or _study_of(run.facts) == study:
            plans[run.facts["plan"]].append(run)
    num_others = (2 if is_beside else int(newest.get("plan_models", "1"))) - len(plans)
    return sorted([*plans.values(), *([] for _ in range(num_others))], key=shard_states.model_of)


def _by_study(run: Told) -> Collection[Mapping[str, str]]:
    """The facts of a run in each study that has it; of plans of one study in the last one."""
    planned = (facts for facts in list_facts_by_plan(run.facts) if "plan_units" in facts)
    return {_study_of(facts): facts for facts in planned}.values()


def _is_of_beside(facts: Mapping[str, str]) -> bool:
    command = facts.get("command_line", "")
    return _BESIDE in command and _BESIDE in (content.words_of(command) or [])  # the first look costs no time


def _study_of(facts: Mapping[str, str]) -> str:
    """What the plans of one study have in common."""
    if _is_of_beside(facts):
        return slurm_arrays.study_of(facts["command_line"])
    return facts.get("plan_any_gpu", facts["plan"])


def _typed(run: Told) -> str:
    """The command line of the study that a group is of."""
    return slurm_arrays.study_of(run.facts.get("command_line", ""))


def _is_another(given: Submitted, newest: Told, queue: Queue | None) -> bool:
    """Whether what was submitted last is another study than that of the newest group, or it with another program."""
    if given.time_ms <= newest.start_ms:
        return False
    if given.study != _typed(newest):
        return True
    has_changed = given.plan_any_gpu not in ("", newest.facts.get("plan_any_gpu"))
    # No group tells of tasks that found all done, as where the plan is another one on the nodes than where it is typed.
    return has_changed and bool(Queued.of([], queue, given).states)


def _not_begun(given: Submitted) -> Told:
    """What a group would say of a study of which none has begun."""
    facts = {"plan": "", "plan_any_gpu": given.plan_any_gpu, "command_line": given.command_line}
    facts |= {"plan_units": sizes_in_words([0] * given.num_units)}
    return Told(name="", status="", start_ms=0, end_ms=None, facts=facts)


def _parts(of_models: Sequence[Sequence[Told]], newest: Told, queued: Queued) -> list[tuple[list[Unit], float | None]]:
    """By GPU model the units, and the seconds left."""
    sizes = sizes_of(newest.facts["plan_units"])
    parts = []
    for runs in of_models:
        units = shard_states.of_plan(sizes, runs, queued)
        left_s = shard_states.seconds_left(units, runs)
        if runs and _is_of_beside(newest.facts):
            how = "in company" if runs[0].facts.get("beside", "0") != "0" else "alone"
            units = [dataclasses.replace(unit, model=f"{unit.model} {how}") for unit in units]
        parts.append((units, left_s))
    return parts


def _as_spooled(run: Told, record: RunRecord | None) -> Told:
    if record is None:
        return run
    return dataclasses.replace(
        run, status=record.status, facts={**run.facts, "result": record.tags.get(Tag.RESULT, "")}
    )


def _shown_with(unit: Unit) -> tuple[str, str, str, int]:
    """Neighbours for which this is equal have one line: units of one model that were not begun, and wait alike."""
    return unit.model, unit.state, unit.reason, 0 if unit.last_ms is None else unit.number


def _line(units: Sequence[Unit], now_s: float) -> tuple[str, ...]:
    unit = units[0]
    numbers = str(unit.number) if len(units) == 1 else f"{unit.number} to {units[-1].number}"
    ended = ", ".join(f"{times} {result}" for result, times in unit.results.items())
    ago = "" if unit.last_ms is None else f"{words.duration(max(0.0, now_s - unit.last_ms / 1000))} ago"
    state = ": ".join(filter(None, (unit.state, unit.group or unit.reason)))
    groups = f"{unit.num_found}/{sum(each.num_groups for each in units)}"
    return (numbers, state, groups, ended or "-", unit.host or "-", unit.gpu[:12] or "-", ago or "-")
