"""`python -m pipeline.planner advise`: which sharing mode the results of a study recommend for each of its cases."""

from __future__ import annotations

import argparse
from typing import Any

from pipeline.base.domain.answer import Answer
from pipeline.base.system import entry_points, words
from pipeline.base.system.errors import ConfigError
from pipeline.planner.results import settle
from pipeline.planner.results.advice import Advice, advise
from pipeline.report.evaluate.cells import cells_of
from pipeline.report.evaluate.statistics import Estimate
from pipeline.report.evaluate.verdicts import verdicts
from pipeline.report.evaluate.wording import jobs_in_words
from pipeline.report.page.table_format import MISSING, format_estimate
from pipeline.report.read import rows
from pipeline.report.read.stores import add_store_arguments, named_stores
from pipeline.report.read.study_records import Study


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The study."""
    add_store_arguments(parser)


def answer(arguments: argparse.Namespace) -> Answer:
    """Advice for each case of several jobs; status 1 where there is none for one of them."""
    return answer_of(rows.read(named_stores(arguments), arguments.experiment))


def answer_of(study: Study) -> Answer:
    """The same for a study that was read.

    Raises:
        ConfigError: no jobs ran together in it.
    """
    cells = cells_of(study)
    found = advise(cells, verdicts(cells))
    if not found:
        raise ConfigError(
            f"experiment {study.experiment!r} has no group of several jobs with a result, so there is nothing to "
            "advise; measure some, as with "
            f"{entry_points.spell('run', '-m', 'scenario=naive,mps', 'degree=2,3', 'repeats=5')}"
        )
    sweeps = [settle.command(study, advice) for advice in found]
    text = "\n".join([*_table(found), "", *(line for each in zip(found, sweeps, strict=True) for line in _said(*each))])
    if study.is_simulated:
        text += "\nsimulated: says nothing about a real GPU"
    cases = [_data(*each) for each in zip(found, sweeps, strict=True)]
    status = 0 if all(advice.mode for advice in found) else 1
    data = {"experiment": study.experiment, "is_simulated": study.is_simulated, "cases": cases}
    return Answer(data=data, text=text, status=status)


def _table(found: list[Advice]) -> list[str]:
    heads = ["case", "jobs", "take", "figure", "", "runner-up", "times as fast"]
    lines = [
        [
            advice.case.label,
            str(advice.degree),
            advice.mode or MISSING,
            _figure(advice.figure),
            advice.aim.words if advice.mode and advice.aim else "",
            advice.runner_up or MISSING,
            _figure(advice.over_runner_up),
        ]
        for advice in found
    ]
    return words.aligned([heads, *lines], left=(0, 2, 3, 4, 5, 6))


def _figure(estimate: Estimate | None) -> str:
    return MISSING if estimate is None else format_estimate(estimate)


def _said(advice: Advice, sweep: str | None) -> list[str]:
    """Why, and what would change it or settle it."""
    what = f"take {advice.mode}" if advice.mode else "no advice"
    lines = [f"{jobs_in_words(advice.case, advice.degree)}: {what}: {advice.because}"]
    lines += [f"    {change}" for change in advice.changes]
    lines += [f"    not considered: {mode}" for mode in advice.not_considered]
    return [*lines, f"    to settle it: {sweep}"] if sweep else lines


def _data(advice: Advice, sweep: str | None) -> dict[str, Any]:
    return {
        "case": advice.case.label,
        "jobs": advice.degree,
        "device": advice.device,
        "mode": advice.mode,
        "metric": advice.aim.metric if advice.aim else None,
        "figure": _estimate(advice.figure),
        "runner_up": advice.runner_up,
        "over_runner_up": _estimate(advice.over_runner_up),
        "because": advice.because,
        "changes": list(advice.changes),
        "not_considered": list(advice.not_considered),
        "undecided": list(advice.undecided),
        "blocks_needed": advice.blocks_needed,
        "sweep": sweep,
    }


def _estimate(estimate: Estimate | None) -> dict[str, float | None] | None:
    if estimate is None:
        return None
    return {"median": estimate.median, "low": estimate.low, "high": estimate.high}
