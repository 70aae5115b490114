"""The command lines of an advice: one that runs the recommended mode, or one that answers the open question.

A command is the recorded one of the study, for one case, some modes and a number of blocks.
"""

from __future__ import annotations

import re
import shlex
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from pipeline.base.domain.config_choices import list_choices
from pipeline.base.domain.precision_goal import MIN_BLOCKS
from pipeline.base.domain.sharing_modes import MPS, NAIVE, mode_of
from pipeline.base.system import entry_points, user_command
from pipeline.base.system.host_info import CPU_PREFIX
from pipeline.base.system.paths import DEFAULT_ROOT
from pipeline.base.system.words import format_list
from pipeline.planner.results.advice import SPEED, Advice, Answer
from pipeline.record.store import content, portable_paths
from pipeline.record.store.bundle_reader import is_bundle
from pipeline.report.evaluate.cells import label_cases
from pipeline.report.evaluate.statistics import MIN_GPUS
from pipeline.report.read.study_records import Row, Study

# Keys that the new command sets or must not inherit.
_DECIDED = (
    *("repeats", "resume", "only", "shard", "time_limit_s", "dry_run", "plan_file", "reproduce", "baseline"),
    *("scenario", "tracking.root"),
)
_WHICH_GPU = ("hydra/launcher", "hydra.launcher", "gpu.device")
_RESUME = "resume=true"
_FOREIGN_FOLDER = re.compile(r"\$(ENVIRONMENT\b|[A-Z]+_\w)")


def build_command(study: Study, advice: Advice) -> str | None:
    """Return the command that measures the recommended mode again, in an experiment of its own; `None` without one."""
    rows = [row for row in _select_rows(study, advice) if row.mode == advice.mode]
    if advice.answer is not Answer.SHARE or not rows:
        return None
    return _compose(rows, [rows[0].scenario], [f"repeats={MIN_BLOCKS}", "tracking.experiment=advised"])


def build_follow_ups(study: Study, advices: Sequence[Advice]) -> list[str]:
    """Return the commands that answer what is open, where `MOST_BLOCKS` would do; one for cases that need the same."""
    cases: dict[tuple[tuple[str, ...], tuple[str, ...], bool, bool, str], list[Row]] = defaultdict(list)
    for advice in advices:
        if not (rows := _select_rows(study, advice)):
            continue
        scenarios = {row.scenario for row in rows if row.mode in advice.open_modes and advice.blocks_needed}
        if advice.answer is not Answer.SHARE and advice.aim is SPEED:  # a mode that was not measured may gain
            usable_modes = {NAIVE.name} if rows[0].gpu_uuid.startswith(CPU_PREFIX) else {NAIVE.name, MPS.name}
            scenarios |= usable_modes - {row.scenario for row in rows}
        ordered = tuple(sorted(scenarios, key=lambda scenario: mode_of(scenario).order))
        num_gpus = len({row.gpu_uuid for row in rows})
        decided = [f"repeats={advice.blocks_needed or MIN_BLOCKS}", *([] if advice.aim else ["baseline=always"])]
        # One more GPU needs a store of its own, because a block has one GPU.
        decided += [f"tracking.root=mlruns_{num_gpus + 1}"] if 1 < num_gpus < MIN_GPUS else [_RESUME]
        if ordered:
            cases[ordered, tuple(decided), bool(_list_sizes(rows)), advice.case.is_mix, _find_command(rows)] += rows
    commands = (_compose(rows, scenarios, decided) for (scenarios, decided, *_), rows in cases.items())
    return [command for command in commands if command is not None]


def find_missing_choice(command: str) -> str | None:
    """Return the first choice of a command line, as `listeners=pressure`, that no configuration folder has any longer.

    The recorded command line of a study may name a file that was removed later.
    """
    overrides, _ = user_command.divide(shlex.split(command))
    for word in overrides:
        key, _, value = word.partition("=")
        group = key.lstrip("+").partition("@")[0]
        choices = [] if "(" in value else list_choices(group, overrides)
        for name in re.findall(r"[\w.-]+", value) if choices else ():
            if name not in choices and name != "null":
                return f"{group}={name}"
    return None


def _select_rows(study: Study, advice: Advice) -> list[Row]:
    cases = label_cases(study)
    return [
        row
        for row in study.rows
        if cases[row.run_id] == advice.case and row.degree == advice.degree and not row.is_sequential
    ]


def _find_command(rows: Sequence[Row]) -> str:
    """Return the newest recorded command line of rows."""
    return max(rows, key=lambda row: row.start_ms).facts.get("command_line", "")


def _compose(rows: Sequence[Row], scenarios: Sequence[str], decided: Sequence[str]) -> str | None:
    """Return the newest command line of rows for their jobs and these sharing modes, with other overrides.

    `None` if the command line is not recorded in full, or names folders of another machine.
    """
    words = [portable_paths.expand(word) for word in content.split_command(_find_command(rows)) or ()]
    if not words or any(_FOREIGN_FOLDER.search(word) for word in words):
        return None
    start, words = entry_points.divide(words)
    overrides, command_line = user_command.divide(words)
    if isinstance(store := rows[0].store, Path) and _RESUME in decided:
        if is_bundle(store):
            decided = [word for word in decided if word != _RESUME]
        elif store.resolve() != DEFAULT_ROOT.resolve():
            decided = [*decided, f"tracking.root={store}"]
    # Blocks that do not continue the study can run on any GPU.
    without = _DECIDED if _RESUME in decided else (*_DECIDED, *_WHICH_GPU)
    decided = [f"scenario={','.join(scenarios)}", *_select_jobs(rows, command_line), *decided]
    keys = {user_command.key_of(word) for word in decided}
    unchanged = [
        _select_values(word, rows)
        for word in overrides
        if user_command.key_of(word) not in keys and not user_command.sets(word, without) and _has_effect(word, rows)
    ]
    is_sweep = any(word in ("-m", "--multirun") or word.lstrip("+").startswith("experiment=") for word in unchanged)
    is_swept = any("," in re.sub(r"\[.*?\]", "", word) for word in decided)
    swept = ["-m"] if is_swept and not is_sweep else []
    return entry_points.spell_again(start, *swept, *unchanged, *decided, *command_line)


def _list_sizes(rows: Sequence[Row]) -> list[str]:
    """Return the mixes that rows ran, such as `[M,S]`; empty if they ran copies, or a job has no name in the mix."""
    names = [job.size for row in rows for job in row.jobs]
    return list(dict.fromkeys(format_list(job.size for job in row.jobs) for row in rows)) if all(names) else []


def _select_jobs(rows: Sequence[Row], command_line: Sequence[str]) -> list[str]:
    """Return the overrides that select the jobs of rows among those of their study."""
    if sizes := _list_sizes(rows):
        return [_list_values("mix", sizes)]
    if rows[0].is_mix:
        return []
    names = {row.jobs[0].params.get("workload", "") for row in rows}
    workloads = [] if command_line or not all(names) else [_list_values("workload", sorted(names))]
    return [*workloads, _list_values("degree", sorted({row.degree for row in rows}))]


def _has_effect(word: str, rows: Sequence[Row]) -> bool:
    """Return whether an override of a job of a mix concerns one of the jobs of rows."""
    place = user_command.place_of(user_command.key_of(word)).split(".")
    return place[0] != "sizes" or not _list_sizes(rows) or place[1] in {job.size for row in rows for job in row.jobs}


def _select_values(word: str, rows: Sequence[Row]) -> str:
    """Return an override of a workload's key without the values that no row has, if it sweeps over several values."""
    key, _, text = word.partition("=")
    measured = {row.jobs[0].params.get(key.removeprefix("workload.")) for row in rows}
    values = [value for value in text.split(",") if value in measured]
    return _list_values(key, values) if key.startswith("workload.") and values else word


def _list_values(key: str, values: Iterable[object]) -> str:
    return f"{key}={','.join(map(str, values))}"
