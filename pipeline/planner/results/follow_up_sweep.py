"""The command line that completes undecided advice: the study's command with enough blocks of the undecided groups."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from hydra.core.override_parser.types import Quote, QuotedString

from pipeline.base.domain.config_choices import list_choices
from pipeline.base.domain.precision_goal import MIN_BLOCKS
from pipeline.base.domain.sharing_modes import MPS, NAIVE, SERIAL
from pipeline.base.system import entry_points, user_command
from pipeline.planner.results.advice import Advice
from pipeline.record.store import content
from pipeline.report.evaluate.cells import label_cases
from pipeline.report.evaluate.statistics import MIN_GPUS
from pipeline.report.read.study_records import Row, Study

# Keys that the new command sets or must not inherit.
_DECIDED = ("repeats", "resume", "only", "shard", "time_limit_s", "dry_run", "plan_file", "reproduce")
_BASELINE = ("baseline",)  # a study without baselines could never compare a mode with serial
_WHICH_GPU = ("hydra/launcher", "hydra.launcher", "gpu.device")


def build_command(study: Study, advice: Advice) -> str | None:
    """Return the command that completes the advice; `None` if a mode is recommended, or no sweep would help."""
    cases = label_cases(study)
    rows = [row for row in study.rows if cases[row.run_id] == advice.case and row.degree == advice.degree]
    collocated_rows = [row for row in rows if not row.is_sequential]
    if advice.mode is not None or not collocated_rows:
        return None
    if len(advice.undecided) < 2:
        return _add_modes(advice, collocated_rows)
    undecided = [row for row in collocated_rows if row.mode in advice.undecided]
    names = dict.fromkeys(row.name for row in undecided)
    only = f"only=[{','.join(map(_quote, names))}]"
    scenarios = list(dict.fromkeys(row.scenario for row in undecided))
    without = _BASELINE if SERIAL.label in advice.undecided else ()
    num_gpus = len({row.gpu_uuid for row in rows})
    if 1 < num_gpus < MIN_GPUS:  # use one more GPU and a separate store, because a block has one GPU
        decided = [f"repeats={MIN_BLOCKS}", only, f"tracking.root=mlruns_{num_gpus + 1}"]
        return _compose(collocated_rows, decided, without=(*_WHICH_GPU, *without), scenarios=scenarios)
    if advice.blocks_needed is None:
        return None
    decided = [f"repeats={advice.blocks_needed}", "resume=true", only]
    return _compose(collocated_rows, decided, without=without, scenarios=scenarios)


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


def _add_modes(advice: Advice, collocated_rows: Sequence[Row]) -> str | None:
    """Sweep further modes if too few modes can be compared; leave out modes that cannot be recommended."""
    repeats = f"repeats={MIN_BLOCKS}"
    if advice.aim is None:
        is_of_services = any(job.is_rate_given for row in collocated_rows for job in row.jobs)
        return None if is_of_services else _compose(collocated_rows, ["baseline=always", repeats, "resume=true"])
    bad = {row.scenario for row in collocated_rows if row.mode not in advice.undecided}
    good = {row.scenario for row in collocated_rows} - bad
    new = [mode.name for mode in (NAIVE, MPS) if mode.name not in good | bad]
    if not new:
        return None
    return _compose(collocated_rows, [f"scenario={','.join([*sorted(good), *new])}", repeats, "resume=true"])


def _compose(
    rows: Sequence[Row], decided: Sequence[str], without: Sequence[str] = (), scenarios: Sequence[str] = ()
) -> str | None:
    """Return the newest command line of the rows with other overrides.

    If several commands measured the rows, the newest one may lack some of `scenarios`, which are then set.
    """
    recorded = max(rows, key=lambda row: row.start_ms).facts.get("command_line", "")
    words = content.split_command(recorded)
    if not words:
        return None
    start, words = entry_points.divide(words)
    overrides, command_line = user_command.divide(words)
    typed = [word.partition("=")[2].split(",") for word in overrides if user_command.key_of(word) == "scenario"]
    if typed and not set(scenarios) <= set(typed[-1]):
        decided = [f"scenario={','.join(scenarios)}", *decided]
    keys = {user_command.key_of(word) for word in decided}
    unchanged = [
        word
        for word in overrides
        if user_command.key_of(word) not in keys and not user_command.sets(word, (*_DECIDED, *without))
    ]
    is_sweep = any(word in ("-m", "--multirun") or word.lstrip("+").startswith("experiment=") for word in unchanged)
    swept = [] if is_sweep or "," not in decided[0] else ["-m"]
    return entry_points.spell_again(start, *swept, *unchanged, *decided, *command_line)


def _quote(name: str) -> str:
    is_plain = re.fullmatch(r"[A-Za-z][\w.-]*", name)
    return name if is_plain else str(QuotedString(name, Quote.double).with_quotes())
