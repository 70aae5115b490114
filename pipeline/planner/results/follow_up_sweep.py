"""The command lines of an advice: one that runs the recommended mode, or one that answers the open question.

A command is the recorded one of the study, for one case, some modes and a number of blocks.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from pipeline.base.domain.precision_goal import MIN_BLOCKS
from pipeline.base.domain.sharing_modes import MPS, NAIVE
from pipeline.base.system import entry_points, user_command
from pipeline.base.system.paths import DEFAULT_ROOT, list_choices
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
_FOREIGN_FOLDER = re.compile(r"\$[A-Z]+_[A-Z0-9_a-z]+")


def build_command(study: Study, advice: Advice) -> str | None:
    """Return the command that measures the recommended mode again, in an experiment of its own; `None` without one."""
    rows = [row for row in _select_rows(study, advice) if row.mode == advice.mode]
    if advice.answer is not Answer.SHARE or not rows:
        return None
    return _compose(rows, [rows[0].scenario], [f"repeats={MIN_BLOCKS}", "tracking.experiment=advised"])


def build_follow_up(study: Study, advice: Advice) -> str | None:
    """Return the command that answers what is open; `None` if nothing is open, or if `MOST_BLOCKS` would not do."""
    rows = _select_rows(study, advice)
    scenarios: list[str] = []
    if advice.blocks_needed is not None:
        scenarios += dict.fromkeys(row.scenario for row in rows if row.mode in advice.open_modes)
    if advice.answer is not Answer.SHARE and advice.aim is SPEED:  # a mode that was not measured may gain
        measured = {row.scenario for row in rows}
        scenarios += [mode.name for mode in (NAIVE, MPS) if mode.name not in measured]
    if not scenarios:
        return None
    decided = [f"repeats={advice.blocks_needed or MIN_BLOCKS}", *([] if advice.aim else ["baseline=always"])]
    num_gpus = len({row.gpu_uuid for row in rows})
    if 1 < num_gpus < MIN_GPUS:  # use one more GPU and a separate store, because a block has one GPU
        return _compose(rows, scenarios, [*decided, f"tracking.root=mlruns_{num_gpus + 1}"], _WHICH_GPU)
    return _compose(rows, scenarios, [*decided, "resume=true"])


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


def _compose(
    rows: Sequence[Row], scenarios: Sequence[str], decided: Sequence[str], without: Sequence[str] = ()
) -> str | None:
    """Return the newest command line of the rows for these sharing modes, with other overrides.

    `None` if the command line is not recorded in full, or names folders of another machine.
    """
    newest = max(rows, key=lambda row: row.start_ms)
    recorded = content.split_command(newest.facts.get("command_line", ""))
    words = [portable_paths.expand(word) for word in recorded or ()]
    if not words or any(_FOREIGN_FOLDER.search(word) for word in words):
        return None
    start, words = entry_points.divide(words)
    overrides, command_line = user_command.divide(words)
    if isinstance(newest.store, Path) and is_bundle(newest.store):  # other blocks would be of another GPU
        decided, without = [word for word in decided if word != "resume=true"], (*without, *_WHICH_GPU)
    elif isinstance(newest.store, Path) and newest.store.resolve() != DEFAULT_ROOT.resolve():
        decided = [f"tracking.root={newest.store.resolve()}", *decided]
    decided = [f"scenario={','.join(scenarios)}", *_select_jobs(newest, command_line), *decided]
    keys = {user_command.key_of(word) for word in decided}
    unchanged = [
        _select_value(word, newest)
        for word in overrides
        if user_command.key_of(word) not in keys and not user_command.sets(word, (*_DECIDED, *without))
    ]
    is_sweep = any(word in ("-m", "--multirun") or word.lstrip("+").startswith("experiment=") for word in unchanged)
    swept = [] if is_sweep or len(scenarios) == 1 else ["-m"]
    return entry_points.spell_again(start, *swept, *unchanged, *decided, *command_line)


def _select_jobs(row: Row, command_line: Sequence[str]) -> list[str]:
    """Return the overrides that select the jobs of a row among those of its study."""
    sizes = [job.size for job in row.jobs]
    if all(sizes):
        return [f"mix={format_list(sizes)}"]
    if row.is_mix:
        return []
    workload = row.jobs[0].params.get("workload", "")
    return [*([] if command_line or not workload else [f"workload={workload}"]), f"degree={row.degree}"]


def _select_value(word: str, row: Row) -> str:
    """Return an override of a workload's key with the value of a row, if it sweeps over several values."""
    key, _, values = word.partition("=")
    value = row.jobs[0].params.get(key.removeprefix("workload."), "")
    return f"{key}={value}" if key.startswith("workload.") and value in values.split(",") else word
