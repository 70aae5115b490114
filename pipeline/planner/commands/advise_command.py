"""`python -m pipeline.planner advise`: the recommended sharing mode of each case of a study."""

from __future__ import annotations

import argparse
from dataclasses import fields
from typing import Any

from pipeline.base.system import entry_points, json_decoder, words
from pipeline.base.system.command_parser import CommandAnswer
from pipeline.base.system.errors import ConfigError
from pipeline.planner.profile_table import MEASURED_SIMULATED
from pipeline.planner.results import follow_up_sweep
from pipeline.planner.results.advice import Advice, advise
from pipeline.report.evaluate.cells import make_cells
from pipeline.report.evaluate.verdicts import verdicts
from pipeline.report.evaluate.wording import jobs_in_words
from pipeline.report.page.table_format import MISSING, format_estimate
from pipeline.report.read import rows
from pipeline.report.read.stores import add_store_arguments, named_stores
from pipeline.report.read.study_records import Study


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that name the study."""
    add_store_arguments(parser)


def answer(arguments: argparse.Namespace) -> CommandAnswer:
    """Return advice for each case of several jobs; status 1 if a case has no advice."""
    return answer_of(rows.read(named_stores(arguments), arguments.experiment))


def answer_of(study: Study) -> CommandAnswer:
    """Return the advice for a study.

    Raises:
        ConfigError: the study has no group of several jobs.
    """
    cells = make_cells(study)
    advices = advise(cells, verdicts(cells))
    if not advices:
        raise ConfigError(
            f"experiment {study.experiment!r} has no group of several jobs; measure groups: "
            f"{entry_points.spell('run', '-m', 'scenario=naive,mps', 'degree=2,3', 'repeats=5')}"
        )
    commands = [follow_up_sweep.build_command(study, advice) for advice in advices]
    missing = [command and follow_up_sweep.find_missing_choice(command) for command in commands]
    sweeps = [None if choice else command for command, choice in zip(commands, missing, strict=True)]
    described = [line for parts in zip(advices, sweeps, missing, strict=True) for line in _describe(*parts)]
    text = "\n".join([*_table(advices), "", *described])
    if study.is_simulated:
        text += f"\n{MEASURED_SIMULATED}"
    cases = list(map(_to_json, advices, sweeps))
    status = 0 if all(advice.mode for advice in advices) else 1
    data = {"experiment": study.experiment, "is_simulated": study.is_simulated, "cases": cases}
    return CommandAnswer(data=data, text=text, status=status)


def _table(advices: list[Advice]) -> list[str]:
    heads = ["case", "jobs", "use", "figure", "compared by", "runner-up", "speed-up over runner-up"]
    lines = [
        [
            advice.case.label,
            str(advice.degree),
            advice.mode or MISSING,
            format_estimate(advice.figure) if advice.figure else MISSING,
            advice.aim.words if advice.mode and advice.aim else "",
            advice.runner_up or MISSING,
            format_estimate(advice.over_runner_up) if advice.over_runner_up else MISSING,
        ]
        for advice in advices
    ]
    return words.align_table([heads, *lines], left_columns=(0, 2, 3, 4, 5, 6))


def _describe(advice: Advice, sweep: str | None, missing: str | None) -> list[str]:
    taken = f"use {advice.mode}" if advice.mode else "no advice"
    return [
        f"{jobs_in_words(advice.case, advice.degree)}: {taken}: {advice.because}",
        *(f"    {change}" for change in advice.changes),
        *(f"    not considered: {mode}" for mode in advice.not_considered),
        *([f"    to get advice, run: {sweep}"] if sweep else []),
        *([f"    to get advice, measure again without {missing}, which does not exist any more"] if missing else []),
    ]


def _to_json(advice: Advice, sweep: str | None) -> dict[str, Any]:
    data = {field.name: json_decoder.encode(getattr(advice, field.name)) for field in fields(advice)}
    for key in ("case", "degree", "aim"):
        del data[key]
    estimates = {
        key: estimate and {"median": estimate.median, "low": estimate.low, "high": estimate.high}
        for key, estimate in (("figure", advice.figure), ("over_runner_up", advice.over_runner_up))
    }
    metric = advice.aim.metric if advice.aim else None
    return {"case": advice.case.label, "jobs": advice.degree, "metric": metric, **data, **estimates, "sweep": sweep}
