"""The tables of stressors alone, of workloads beside stressors, and of the pairs that these measurements explain."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from pipeline.report.evaluate.cells import Cell
from pipeline.report.evaluate.pair_inputs import collect_inputs
from pipeline.report.evaluate.pair_prediction import PairPrediction, predict_pairs
from pipeline.report.evaluate.statistics import MARGIN_IN_WORDS
from pipeline.report.evaluate.stressor_effects import StressorEffect
from pipeline.report.evaluate.stressor_leaks import COUNTER_OF, LEAK, list_loads, name_leaks
from pipeline.report.evaluate.wording import join_words
from pipeline.report.page.table_format import Table, Values, list_ends
from pipeline.report.read.stressor_counters import COUNTERS
from pipeline.report.read.study_records import Study

_DIGITS = 4
"""Decimals of counters; smaller values, such as 0.000006 of the bandwidth of an idle GPU, tell nothing."""


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


def make_counter_table(study: Study) -> Table:
    """Return a table of the hardware counters of stressors alone, with the other resources that they load."""
    loads = list_loads(study)
    counters = [counter for counter in COUNTERS if any(counter.field in load.counters for load in loads)]
    has_several = len(study.devices) > 1
    rows: list[Values] = []
    for load in loads:
        title = COUNTER_OF[load.place[0]].title if load.place[0] in COUNTER_OF else None
        leaks = ", ".join(name_leaks(load.leaks)) or "nothing"
        means = (round(load.counters[c.field], _DIGITS) if c.field in load.counters else None for c in counters)
        place = (*((load.device,) if has_several else ()), *load.place, load.num_blocks)
        rows.append((*place, title, *means, leaks if load.is_checked else None))
    measures = (
        ("effect of the stressor of that resource at the same dial", [load.to_effect for load in loads]),
        ("peak, where that stressor was not measured", [load.to_peak for load in loads]),
    )
    compared = [
        f"{measure} ({join_words(titles)})"
        for measure, checked in measures
        if (titles := [counter.title for counter in counters if any(counter in of for of in checked)])
    ]
    note = (
        "Mean over the samples that lie wholly in a turn, after its time to settle; median over the blocks. Also "
        f"loads: other counters that rise above the idle turns (without these, above 0) by more than {100 * LEAK:g} % "
        f"of the {' or of the '.join(compared) or 'effect of their stressor'}. SMACT is not checked, because any "
        "kernel raises it; the peak of PCIe is unknown."
    )
    heads = (f"{counter.title} ({counter.unit})" if counter.unit else counter.title for counter in counters)
    places = (*(("device",) if has_several else ()), "resource", "dial", "blocks")
    columns = (*places, "own counter", *heads, "also loads")
    return Table("stressors", "Stressors alone, by hardware counters", columns, tuple(rows), note)


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
