"""`python -m pipeline.planner pairs`: predicted slowdowns of pairs of workloads, and which to put together."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import Any

from pipeline.base.system import entry_points, words
from pipeline.base.system.command_parser import CommandAnswer
from pipeline.base.system.errors import ConfigError
from pipeline.base.system.words import format_count
from pipeline.planner.profile_table import MEASURED_SIMULATED
from pipeline.planner.results.pairing import Pairing, choose_pairs
from pipeline.report.evaluate.cells import make_cells
from pipeline.report.evaluate.pair_inputs import collect_inputs, normalise_model
from pipeline.report.evaluate.pair_prediction import PairError, PairPrediction, Predicted, predict_pairs
from pipeline.report.page.table_format import MISSING, format_estimate, round_value
from pipeline.report.read import rows
from pipeline.report.read.stores import add_store_arguments, named_stores
from pipeline.report.read.study_records import Study

_UNKNOWN = "not known"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that name the study and the GPU."""
    add_store_arguments(parser)
    parser.add_argument(
        "--device", metavar="GPU", help="GPU model to predict for, such as h100_80gb or simulated_h100_80gb"
    )
    parser.add_argument("--driver-branch", type=int, metavar="N", help="driver branch to predict for, such as 580")


def answer(arguments: argparse.Namespace) -> CommandAnswer:
    """Return the predictions; status 1 if no pair has a prediction."""
    if arguments.driver_branch is not None and arguments.driver_branch < 1:
        raise ConfigError(f"--driver-branch {arguments.driver_branch}: must be above 0; write 580 for driver 580.65.06")
    study = rows.read(named_stores(arguments), arguments.experiment)
    return answer_of(study, arguments.device, arguments.driver_branch)


def answer_of(study: Study, device: str | None = None, driver_branch: int | None = None) -> CommandAnswer:
    """Return the predictions of a study.

    Raises:
        ConfigError: the study has fewer than two workloads, or none that ran beside a stressor.
    """
    inputs = collect_inputs(study, make_cells(study))
    remedy = f"measure: {entry_points.spell('run', '+experiment=sensitivity', 'workload=NAME')}"
    if not inputs.vectors:
        raise ConfigError(f"experiment {study.experiment!r} has no workload with a result beside a stressor; {remedy}")
    if len(inputs.workloads) < 2:
        raise ConfigError(
            f"experiment {study.experiment!r} has {inputs.workloads[0]} only, but a pair needs two workloads; {remedy}"
        )
    predictions = predict_pairs(inputs, None if device is None else normalise_model(device), driver_branch)
    known = [prediction for prediction in predictions if prediction.slowdowns]
    pairing = choose_pairs(predictions) if known else None
    text = [*_table(predictions), "", *_describe_pairing(pairing), *_list_notes(predictions)]
    if study.is_simulated:
        text.append(MEASURED_SIMULATED)
    data = {
        "experiment": study.experiment,
        "is_simulated": study.is_simulated,
        "pairs": list(map(_to_json, predictions)),
        "pairing": pairing and _pairing_to_json(pairing),
    }
    return CommandAnswer(data=data, text="\n".join(text), status=0 if known else 1)


def _table(predictions: list[PairPrediction]) -> list[str]:
    heads = ["pair", "mode", "slowdowns", "measured", "speed-up over serial", "measured", "most on", "model", "error"]
    lines = [
        [
            " + ".join(prediction.workloads),
            prediction.mode,
            ", ".join(map(_format, prediction.slowdowns)) or _UNKNOWN,
            ", ".join(map(format_estimate, prediction.measured.slowdowns if prediction.measured else ())) or MISSING,
            _format(prediction.throughput) if prediction.throughput else _UNKNOWN,
            format_estimate(pair.throughput) if (pair := prediction.measured) and pair.throughput else MISSING,
            prediction.resource or MISSING,
            prediction.model or MISSING,
            _describe_error(prediction.error) if prediction.slowdowns else MISSING,
        ]
        for prediction in predictions
    ]
    return words.align_table([heads, *lines], left_columns=range(len(heads)))


def _format(predicted: Predicted) -> str:
    if predicted.low is None or predicted.high is None:
        return round_value(predicted.middle)
    return f"{round_value(predicted.middle)} ({round_value(predicted.low)} to {round_value(predicted.high)})"


def _describe_error(error: PairError | None) -> str:
    if error is None:
        return _UNKNOWN
    pairs = format_count(error.num_pairs, "pair")
    return f"median {100 * error.median:.1f} %, at most {100 * error.largest:.1f} % ({pairs})"


def _describe_pairing(pairing: Pairing | None) -> list[str]:
    if pairing is None:
        return []
    return [
        f"Put together, for {100 * pairing.gpu_time_ratio:.0f} % of the GPU time of all one after another:",
        *(
            f"    {' + '.join(pair.workloads)}: {pair.mode}, {round_value(pair.throughput.middle)} x serial"
            for pair in pairing.pairs
            if pair.throughput is not None
        ),
        *(f"    {name}: alone" for name in pairing.alone),
    ]


def _list_notes(predictions: list[PairPrediction]) -> list[str]:
    reasons = [f"{' + '.join(p.workloads)}, {p.mode}: {_UNKNOWN}: {p.reason}" for p in predictions if p.reason]
    exceeded = dict.fromkeys((p.mode, *pressure) for p in predictions for pressure in p.exceeded)
    notes = [
        f"{name}, {mode}: presses more on {resource} than a full stressor, and counts as one; slowdowns beside it may "
        "be higher"
        for mode, name, resource in exceeded
    ]
    return [*reasons, *notes]


def _to_json(prediction: PairPrediction) -> dict[str, Any]:
    measured = prediction.measured
    return {
        "workloads": list(prediction.workloads),
        "mode": prediction.mode,
        "slowdowns": [predicted._asdict() for predicted in prediction.slowdowns] or None,
        "throughput_over_serial": prediction.throughput and prediction.throughput._asdict(),
        "largest_common_resource": prediction.resource or None,
        "above_full_pressure": [{"workload": name, "resource": resource} for name, resource in prediction.exceeded],
        "model": prediction.model,
        "error": prediction.error and prediction.error._asdict(),
        "measured": measured
        and {
            "slowdowns": list(map(asdict, measured.slowdowns)) or None,
            "throughput_over_serial": measured.throughput and asdict(measured.throughput),
        },
        "reason": prediction.reason or None,
    }


def _pairing_to_json(pairing: Pairing) -> dict[str, Any]:
    together = [{"workloads": list(pair.workloads), "mode": pair.mode} for pair in pairing.pairs]
    return {
        "gpu_time_over_serial": pairing.gpu_time_ratio,
        "pairs": together,
        "alone": list(pairing.alone),
    }
