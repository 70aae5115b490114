"""Progress of a study by shard, from the newest plan in the store, regardless of who ran it."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pipeline.base.domain import layout
from pipeline.base.domain.records import Result
from pipeline.base.system import secrets, squeue, user_command, words
from pipeline.base.system.errors import CommandError, TrackingError
from pipeline.record import group_folder
from pipeline.record.group_record import Clock, GroupRecord
from pipeline.record.invocation import spell_resume_command
from pipeline.record.shards import shard_states, slurm_arrays, task_messages
from pipeline.record.shards.shard_states import DONE, LOST, RUNNING, STATES, WAITING, Queue, QueueState, Shard
from pipeline.record.shards.slurm_arrays import Submission
from pipeline.record.store import content, results
from pipeline.record.store.local_store import is_server

_BESIDE = "hydra/launcher=beside"
_HEAD = ("shard", "state", "groups", "results", "host", "GPU", "last sign of life")
_MODEL = "GPU model"


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """All shards of a study, grouped by GPU model.

    Attributes:
        plan, plan_any_gpu: digest of the newest plan, with and without the GPU models; the latter is empty if unknown.
        seconds_left: time for the missing groups on the GPUs that are busy now: the longest time of several GPU models,
            or the sum of the times alone and with other busy GPUs. `None` if unknown, 0 if no group is missing.
        simulated: simulated GPU models.
        num_unsent: number of groups of the experiment that are still in the spool.
        command: command that started the newest group, or the command of its launcher.
        is_asked: whether Slurm was queried for the study's tasks.
        unasked: reason why Slurm could not be queried; empty if it was queried, or if no Slurm task ran a group.
    """

    experiment: str
    plan: str
    plan_any_gpu: str
    num_models: int
    shards: Sequence[Shard]
    seconds_left: float | None
    simulated: Sequence[str]
    num_unsent: int
    command: str
    is_asked: bool
    unasked: str

    @property
    def is_done(self) -> bool:
        return not self.num_unsent and all(shard.state == DONE for shard in self.shards)

    def as_text(self, now_s: float) -> str:
        """Format a table with one line per shard, or per range of shards not started, and the remaining work.

        If the study is one shard, the text calls it the study.
        """
        shown = [list(alike) for _, alike in itertools.groupby(self.shards, _make_line_key)]
        lines = [_HEAD, *(_format_line(shards, now_s) for shards in shown)]
        if self.num_models > 1:
            models = (_MODEL, *(shards[0].model or "-" for shards in shown))
            lines = [(model, *line) for model, line in zip(models, lines, strict=True)]
        is_one = len(self.shards) == 1
        if is_one:
            lines = [line[1:] for line in lines]
        states = Counter(shard.state for shard in self.shards)
        num_found = sum(shard.num_found for shard in self.shards)
        total = sum(shard.num_groups for shard in self.shards)
        counts = ", ".join(f"{states[state]} {state}" for state in STATES if states[state])
        summary = f"study: {self.shards[0].state}" if is_one else f"shards: {counts}"
        remaining = "" if not self.seconds_left else f", about {words.format_duration(self.seconds_left)} left"
        text = [
            *words.align_table(lines, range(len(lines[0]))),
            f"{summary}; {num_found} of {total} groups have a result{remaining}",
        ]
        if num_skipped := sum(shard.results.get(Result.SKIPPED, 0) for shard in self.shards):
            text.append(
                f"{words.format_count(num_skipped, 'group')} skipped: resume=true runs the groups that can run now"
            )
        text += task_messages.describe(self.shards)
        if self.simulated:
            text.append(f"simulated: {', '.join(self.simulated)}")
        if self.num_unsent:
            text.append(f"{words.format_count(self.num_unsent, 'group')} in the spool, not sent yet")
        if self.unasked:
            text.append(f"states are from the store only; Slurm's queue is unknown: {self.unasked}")
        if not self.is_done and self.command:
            goes_on = states[RUNNING] or states[WAITING]
            text.append(f"started by: {self.command}" if goes_on else self._describe_resume())
        return "\n".join(text)

    def _describe_resume(self) -> str:
        typed = content.split_command(self.command)
        if typed is None:
            return f"started by: {self.command}"
        options, arguments = user_command.divide(typed)
        options_of_study = [word for word in options if not user_command.sets(word, ["shard"])]
        conditions = ["with each unfinished K"] if options_of_study != options else []
        if "hydra/launcher=slurm" in options and not self.is_asked:
            conditions.append("unless one of its job arrays is pending")
        if secrets.HIDDEN in self.command:
            conditions.append(f"with your own values for {secrets.HIDDEN}")
        command = spell_resume_command(
            [*options_of_study, *(["shard=K"] if options_of_study != options else []), *arguments]
        )
        return f"{', '.join(['to run the rest', *conditions])}: {command}"


def read_overview(location: Path | str, experiment: str, queue: Queue | None = None) -> Overview:
    """Return the progress of the newest plan of an experiment, and of the same study on other GPU models.

    With `queue`, the states of Slurm tasks are included, also of tasks that ended without a result.

    Raises:
        TrackingError: the store or experiment does not exist, or does not contain the number of shards.
    """
    spooled = {} if is_server(location) else _read_spooled(Path(location), experiment)
    of_models = _select_plans(location, experiment, spooled)
    submitted = slurm_arrays.read(str(location), experiment) if is_server(location) and queue is not None else None
    if not of_models and submitted is None:
        raise TrackingError(
            f"experiment {experiment!r} in {location} has no planned group; check whether its study has started"
        )
    newest = max(itertools.chain(*of_models), key=lambda run: run.start_ms, default=None)
    if submitted is not None and (newest is None or _is_another(submitted, newest, queue)):
        of_models, newest = [], _make_pending_run(submitted)
    assert newest is not None
    submitted = submitted if submitted is not None and submitted.study == _find_study_command(newest) else None
    queued = QueueState.read([*itertools.chain(*of_models)], queue, submitted)
    parts = _make_parts(of_models or [[]], newest, queued)
    # A shard that ended between the query of the store and the query of Slurm looks lost: read the store again.
    if any(shard.state == LOST for shards, _ in parts for shard in shards):
        of_models = _select_plans(location, experiment, spooled)
        parts = _make_parts(of_models, newest, queued)
    if queued.arrays:
        is_unfinished = any(shard.state in task_messages.UNFINISHED for shards, _ in parts for shard in shards)
        end_states: Mapping[str, str] = {}
        with suppress(CommandError):  # without Slurm's reply, only the output of the tasks is used
            end_states = squeue.list_end_states(queued.arrays) if is_unfinished else {}
        folder = submitted.folder if submitted else ""
        parts = [
            (task_messages.add_messages(shards, shard_states.select_arrays(runs, queued), folder, end_states), seconds)
            for runs, (shards, seconds) in zip(of_models or [[]], parts, strict=True)
        ]
    left_s = [seconds for _, seconds in parts if seconds is not None]
    return Overview(
        experiment=experiment,
        plan=newest.facts["plan"],
        plan_any_gpu=newest.facts.get("plan_any_gpu", ""),
        num_models=len(parts),
        shards=[shard for shards, _ in parts for shard in shards],
        seconds_left=(sum if _has_company(newest.facts) else max)(left_s) if len(left_s) == len(parts) else None,
        simulated=sorted({run.device for run in itertools.chain(*of_models) if run.is_simulated}),
        num_unsent=len(spooled),
        command=newest.facts.get("command_line", ""),
        is_asked=bool(queued.arrays),
        unasked=queued.unasked,
    )


def format_sizes(sizes: Sequence[int]) -> str:
    """Format the number of groups of each shard; equal numbers are combined: `12x5`, `12x4,6x1`."""
    runs: list[tuple[int, int]] = []
    for size in sizes:
        times = runs.pop()[1] if runs and runs[-1][0] == size else 0
        runs.append((size, times + 1))
    return ",".join(f"{size}x{times}" for size, times in runs)


def parse_sizes(text: str) -> list[int]:
    """Parse the text of `format_sizes`."""
    parts = (part.split("x") for part in text.split(","))
    return [int(size) for size, times in parts for _ in range(int(times))]


def _read_spooled(root: Path, experiment: str) -> dict[str, GroupRecord]:
    """Return the ended groups of an experiment in the spool, by spool id; the store may show them as running."""
    ended = group_folder.read_ended(root / layout.SPOOL)
    return {record.spool_id: record for record in ended if record.experiment == experiment}


def _select_plans(location: Path | str, experiment: str, spooled: Mapping[str, GroupRecord]) -> list[list[GroupRecord]]:
    """Return the groups of the newest plan, and of the same study on other GPU models, oldest first, by model.

    A model without a group has an empty list. A GPU alone and the same GPU with other busy GPUs count as two models.
    """
    planned = [
        dataclasses.replace(run, facts=facts, result=spooled.get(run.spool_id, run).result)
        for run in results.read_groups(location, experiment)
        for facts in _split_by_study(run)
    ]
    if not planned:
        return []
    newest = planned[-1].facts
    is_beside = _has_company(newest)
    if is_beside and "shard" not in newest:
        raise TrackingError(
            f"experiment {experiment!r} contains only groups that load the other GPUs during a study; specify the "
            "experiment of the study, whose name has no _company"
        )
    study = _identify_study(newest)
    plans: dict[str, list[GroupRecord]] = defaultdict(list)
    for run in planned:
        if run.facts["plan"] == newest["plan"] or _identify_study(run.facts) == study:
            plans[run.facts["plan"]].append(run)
    num_others = (2 if is_beside else int(newest.get("plan_models", "1"))) - len(plans)
    return sorted([*plans.values(), *([] for _ in range(num_others))], key=shard_states.find_model)


def _split_by_study(run: GroupRecord) -> Collection[dict[str, str]]:
    newest_first = reversed([facts for facts in run.plan_facts if "plan_shards" in facts])
    by_study: dict[str, dict[str, str]] = {}
    for facts in newest_first:
        by_study.setdefault(_identify_study(facts), facts)
    return [*by_study.values()][::-1]


def _has_company(facts: Mapping[str, str]) -> bool:
    command = facts.get("command_line", "")
    return _BESIDE in command and _BESIDE in (content.split_command(command) or [])  # parse only if necessary


def _identify_study(facts: Mapping[str, str]) -> str:
    if _has_company(facts):
        return slurm_arrays.identify_study(facts["command_line"])
    return facts.get("plan_any_gpu", facts["plan"])


def _find_study_command(run: GroupRecord) -> str:
    return slurm_arrays.identify_study(run.facts.get("command_line", ""))


def _is_another(submitted: Submission, newest: GroupRecord, queue: Queue | None) -> bool:
    """Return whether the newest submission is another study than the newest group's, or has a changed program."""
    if submitted.time_ms <= newest.start_ms:
        return False
    if submitted.study != _find_study_command(newest):
        return True
    has_changed = submitted.plan_any_gpu not in ("", newest.facts.get("plan_any_gpu"))
    # Tasks that had no group to run record no group, and the plan on a node may differ from the submitted plan.
    return has_changed and bool(QueueState.read([], queue, submitted).states)


def _make_pending_run(submitted: Submission) -> GroupRecord:
    """Return a placeholder run for a study of which no group has begun."""
    facts = {"plan": "", "plan_any_gpu": submitted.plan_any_gpu, "command_line": submitted.command_line}
    facts |= {"plan_shards": format_sizes([0] * submitted.num_shards)}
    clock = Clock(wall_ns=0, monotonic_ns=0)
    return GroupRecord(name="", spool_id="", experiment="", clock=clock, start_ns=0, jobs=(), facts=facts)


def _make_parts(
    of_models: Sequence[Sequence[GroupRecord]], newest: GroupRecord, queued: QueueState
) -> list[tuple[list[Shard], float | None]]:
    sizes = parse_sizes(newest.facts["plan_shards"])
    parts = []
    for runs in of_models:
        shards = shard_states.read_shards(sizes, runs, queued)
        left_s = shard_states.estimate_seconds_left(shards, runs)
        if runs and _has_company(newest.facts):
            surroundings = "in company" if runs[0].facts.get("other_gpus", "0") != "0" else "alone"
            shards = [dataclasses.replace(shard, model=f"{shard.model} {surroundings}") for shard in shards]
        parts.append((shards, left_s))
    return parts


def _make_line_key(shard: Shard) -> tuple[str, str, str, int]:
    """Return a key that is equal for adjacent shards that share a line."""
    return shard.model, shard.state, shard.reason, 0 if shard.last_ms is None else shard.number


def _format_line(shards: Sequence[Shard], now_s: float) -> tuple[str, ...]:
    shard = shards[0]
    numbers = str(shard.number) if len(shards) == 1 else f"{shard.number} to {shards[-1].number}"
    ended = ", ".join(f"{times} {result}" for result, times in shard.results.items())
    ago = "" if shard.last_ms is None else f"{words.format_duration(max(0.0, now_s - shard.last_ms / 1000))} ago"
    state = ": ".join(filter(None, (shard.state, shard.group or shard.reason)))
    groups = f"{shard.num_found}/{sum(shard.num_groups for shard in shards)}"
    return (numbers, state, groups, ended or "-", shard.host or "-", shard.gpu[:12] or "-", ago or "-")
