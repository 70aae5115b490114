"""The slowdowns behind claims on workloads beside stressors, and on pairs of workloads and their predictions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pipeline.report.evaluate.pair_inputs import FULL, PairInputs, PairName, Vectors
from pipeline.report.evaluate.pair_prediction import PairPrediction, compute_error
from pipeline.report.evaluate.statistics import Estimate

ERRORS = ("prediction_error_median", "prediction_error_largest")
"""Quantities of all measured pairs of a mode."""


def find_slowdown(
    inputs: PairInputs, predictions: Sequence[PairPrediction], mode: str, pair: PairName, quantity: str
) -> Estimate | None:
    """Return a quantity of the first program of a pair beside the second, a workload or the resource of a stressor.

    The quantities are `sensitivity` and `pressure` (beside a stressor at dial 1), and of a measured pair `slowdown`,
    `predicted_slowdown` and `prediction_error`.
    """
    workload, other = pair
    vectors = inputs.vectors.get(mode, {}).get(workload)
    if vectors is not None and vectors.has(other):
        return _list_beside_stressor(vectors, other).get(quantity)
    for prediction in predictions:
        if prediction.mode == mode and {*prediction.workloads} == {*pair}:
            return _list_of_pair(prediction, prediction.workloads.index(workload)).get(quantity)
    return None


def find_error(predictions: Sequence[PairPrediction], mode: str, quantity: str) -> Estimate | None:
    """Return the median or largest error of the predicted slowdowns of a mode."""
    for prediction in predictions:
        if prediction.mode == mode and (error := prediction.error) is not None:
            return _make_estimate(error.median if quantity == ERRORS[0] else error.largest)
    return None


def _list_beside_stressor(vectors: Vectors, resource: str) -> Mapping[str, Estimate]:
    return {"sensitivity": vectors.sensitivity[resource][FULL], "pressure": vectors.pressure[resource]}


def _list_of_pair(prediction: PairPrediction, index: int) -> Mapping[str, Estimate]:
    measured = prediction.measured
    if measured is None or not measured.slowdowns or not prediction.slowdowns:
        return {}
    slowdown, predicted = measured.slowdowns[index], prediction.slowdowns[index]
    return {
        "slowdown": slowdown,
        "predicted_slowdown": _make_estimate(predicted.middle),
        "prediction_error": _make_estimate(compute_error(predicted, slowdown)),
    }


def _make_estimate(figure: float) -> Estimate:
    return Estimate(median=figure, low=None, high=None, n=1)
