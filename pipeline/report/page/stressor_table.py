"""The tables of workloads beside stressors, and of the pairs that these measurements explain."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from pipeline.report.evaluate.cells import Cell
from pipeline.report.evaluate.pair_inputs import collect_inputs
from pipeline.report.evaluate.pair_prediction import PairPrediction, predict_pairs
from pipeline.report.evaluate.statistics import MARGIN_IN_WORDS
from pipeline.report.evaluate.stressor_effects import StressorEffect
from pipeline.report.page.table_format import Table, Values, list_ends
from pipeline.report.read.study_records import Study


def make_stressor_table(effects: Sequence[StressorEffect]) -> Table:
    """Return a table of the slowdowns of each workload and of the stressor beside it."""
    rows = [
        (
            *(effect.workload, effect.mode, effect.resource, effect.dial),
            *list_ends(effect.sensitivity),
            *list_ends(effect.pressure),
        )
        for effect in effects
    ]
    slowdowns = ("slowdown", "low", "high", "slowdown of the stressor", "low of the stressor", "high of the stressor")
    note = (
        "Speed alone over speed together, in the same block; median over the blocks and 95 % t interval (with three "
        "blocks or more). Beside a stressor that takes turns, the speed alone is that in its idle turns of the same "
        "launch. Slowdown: of the workload beside the stressor (sensitivity). Dial: share of time in which the "
        "stressor works."
    )
    columns = ("workload", "mode", "resource", "dial", *slowdowns)
    return Table("sensitivity", "Workloads beside stressors", columns, tuple(rows), note)


def make_pair_table(study: Study, cells: Sequence[Cell]) -> Table:
    """Return a table of the measured pairs with the resource that explains most of their slowdowns."""
    predictions = [p for p in predict_pairs(collect_inputs(study, cells)) if p.measured and p.measured.slowdowns]
    rows = [line for prediction in predictions for line in _list_lines(prediction)]
    errors = {p.mode: p.error for p in predictions if p.error}
    note = (
        f"Resource: the one with the largest predicted loss of both workloads; none below {MARGIN_IN_WORDS}. "
        "Predicted: from the measurements beside stressors; the pair itself is left out of the choice of the model. "
        + " ".join(
            f"{mode}: the median error is {100 * error.median:.1f} %, the largest {100 * error.largest:.1f} %."
            for mode, error in errors.items()
        )
    )
    columns = ("pair", "mode", "workload", "slowdown", "low", "high", "predicted", "resource", "model")
    return Table("pairs", "Pairs explained by stressors", columns, tuple(rows), note)


def _list_lines(prediction: PairPrediction) -> Iterator[Values]:
    assert prediction.measured is not None
    for name, measured, predicted in itertools.zip_longest(
        prediction.workloads, prediction.measured.slowdowns, prediction.slowdowns
    ):
        pair = " + ".join(prediction.workloads)
        explained = (predicted and predicted.middle, prediction.resource or None, prediction.model)
        yield (pair, prediction.mode, name, *list_ends(measured), *explained)
