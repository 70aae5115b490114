"""The commands that read results: `profile`, `advise`, `check` and `pairs`."""

from __future__ import annotations

import argparse
import dataclasses
import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pipeline.base.system import entry_points, json_decoder, words
from pipeline.base.system.command_parser import CommandAnswer
from pipeline.base.system.errors import ConfigError
from pipeline.base.system.host_info import CPU_PREFIX
from pipeline.base.system.words import align_table, format_count
from pipeline.planner import pictures, profile_table
from pipeline.planner.deployment import Plan
from pipeline.planner.profile_table import MEASURED_SIMULATED
from pipeline.planner.results import follow_up_sweep, plan_check, profile_measurement
from pipeline.planner.results.advice import WIDTH, Advice, Answer, advise, choose_degree, describe_advice
from pipeline.planner.results.plan_check import Check
from pipeline.planner.training import schedule
from pipeline.report import publish
from pipeline.report.evaluate.cells import make_cells
from pipeline.report.evaluate.predictions import (
    GroupError,
    Predicted,
    Prediction,
    collect_inputs,
    normalise_model,
    predict_groups,
)
from pipeline.report.evaluate.statistics import format_times
from pipeline.report.figures.drawing import draw
from pipeline.report.page.page import make_content
from pipeline.report.page.table_format import MISSING, Table, format_estimate, format_value, round_value
from pipeline.report.read import rows
from pipeline.report.read.rows import add_store_arguments, named_stores
from pipeline.report.read.study_records import Study

_UNKNOWN = "not known"


def add_profile_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the source and the path of the profile."""
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--from-parvagpu", type=Path, metavar="DIR", help="the tables that ParvaGPU published (A100 80GB)"
    )
    rows.add_store_arguments(parser, source)
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the profile to write, in CSV")


def answer_profile(arguments: argparse.Namespace) -> CommandAnswer:
    """Write the profile and describe it."""
    if arguments.from_parvagpu is not None:
        table = profile_table.read_parvagpu(arguments.from_parvagpu)
    else:
        study = rows.read(rows.named_stores(arguments), arguments.experiment)
        table = profile_measurement.measure_profile(study, f"experiment {arguments.experiment!r}")
    profile_table.write(arguments.out, table)
    workloads = list(dict.fromkeys(row.workload for row in table.rows))
    data = {
        "profile": str(arguments.out),
        "digest": table.digest,
        "num_rows": len(table.rows),
        "gpu_models": list(table.gpu_models),
        "workloads": workloads,
        "is_simulated": table.is_simulated,
    }
    text = f"{arguments.out}: {format_count(len(table.rows), 'row')}, {format_count(len(workloads), 'workload')}"
    text += f", measured on {', '.join(table.gpu_models)}"
    marks = profile_table.list_marks(is_simulated=table.is_simulated)
    return CommandAnswer(data=data, text="\n".join([text, *marks]))


def add_advise_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that name the study."""
    add_store_arguments(parser)


def answer_advise(arguments: argparse.Namespace) -> CommandAnswer:
    """Return an answer for each case of several jobs; status 1 if whether to share is open for a case."""
    return answer_advice(rows.read(named_stores(arguments), arguments.experiment))


def answer_advice(study: Study) -> CommandAnswer:
    """Return the advice for a study.

    Raises:
        ConfigError: the study has no group of several jobs.
    """
    advices = advise(make_cells(study))
    if not advices:
        raise ConfigError(
            f"experiment {study.experiment!r} has no group of several jobs; measure groups: "
            f"{entry_points.spell('run', '-m', 'scenario=naive,mps', 'degree=2,3', 'repeats=5')}"
        )
    commands = [follow_up_sweep.build_command(study, advice) for advice in advices]
    follow_ups = follow_up_sweep.build_follow_ups(study, advices)
    missing = {
        command: choice
        for command in [*commands, *follow_ups]
        if command is not None and (choice := follow_up_sweep.find_missing_choice(command))
    }
    commands = [None if command in missing else command for command in commands]
    follow_ups = [command for command in follow_ups if command not in missing]
    text = [_count_answers(advices)]
    for advice, command in zip(advices, commands, strict=True):
        text += ["", describe_advice(advice)]
        text += ["    to measure it:", words.wrap_command(command, " " * 6)] if command else []
    text += ["", "To answer what is open:", *map(words.wrap_command, follow_ups)] if follow_ups else []
    text += ["", *_describe_degrees(advices), *_describe_worth(study)]
    gone = sorted(set(missing.values()))
    text += [f"to get commands, measure again without {', '.join(gone)}, not in conf/ any more"] if gone else []
    data = {
        "experiment": study.experiment,
        "is_simulated": study.is_simulated,
        "cases": [
            _advice_to_json(advice) | {"command": typed} for advice, typed in zip(advices, commands, strict=True)
        ],
        "follow_ups": follow_ups,
    }
    status = 1 if any(advice.answer is Answer.OPEN for advice in advices) else 0
    return CommandAnswer(data=data | {"follow_ups": follow_ups}, text="\n".join(text).rstrip(), status=status)


def _count_answers(advices: Sequence[Advice]) -> str:
    counts = Counter(advice.answer for advice in advices)
    answers = [f"{answer} in {counts[answer]}" for answer in Answer if counts[answer]]
    return f"{format_count(len(advices), 'case')}: {', '.join(answers)}"


def _describe_degrees(advices: Sequence[Advice]) -> list[str]:
    """Describe how many copies to run, for each case that was measured with several numbers of jobs."""
    lines = []
    for members in words.group_by(advices, lambda advice: advice.case).values():
        if len(members) > 1 and (best := choose_degree(members)) is not None and best.speedup is not None:
            line = f"{best.case.label}: {best.degree} jobs, {best.mode}: {format_times(best.speedup)} serial"
            is_most = best.degree == max(advice.degree for advice in members)
            line += "; more were not measured" if is_most else "; more are not shown to do more work"
            lines.append(textwrap.fill(line, WIDTH, subsequent_indent=" " * 4))
    return lines


def _describe_worth(study: Study) -> list[str]:
    if study.is_simulated:
        return [MEASURED_SIMULATED]
    if any(row.gpu_uuid.startswith(CPU_PREFIX) for row in study.rows):
        return ["measured on a CPU: the answers say nothing about a GPU"]
    return []


def _advice_to_json(advice: Advice) -> dict[str, Any]:
    names = ("answer", "mode", "figure", "speedup", "slowdown", "energy", "alike", "reason", "changes")
    data = {name: getattr(advice, name) for name in (*names, "not_considered", "open_modes", "blocks_needed")}
    metric = advice.aim.metric if advice.aim else None
    return {"case": advice.case.label, "jobs": advice.degree, "metric": metric, **json_decoder.encode(data)}


def add_check_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the plan, its experiment, the profile and the report."""
    parser.add_argument("plan", type=Path, help="plan of `serve` or `train`, in JSON")
    add_store_arguments(parser)
    parser.add_argument(
        "--profile",
        type=Path,
        action="append",
        metavar="FILE",
        help="profile of the plan, for energy and the intervals of predictions; may be repeated",
    )
    parser.add_argument("--report", action="store_true", help="write the experiment's report with this comparison")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder of the report (default reports/NAME)")


def answer_check(arguments: argparse.Namespace) -> CommandAnswer:
    """Compare plan and experiment; status 1 if a GPU was not measured or a requirement was not met."""
    if arguments.out is not None and not arguments.report:
        raise ConfigError("--out has no effect without --report; add --report")
    plan, is_training = schedule.read_plan(arguments.plan)
    table = profile_table.read(arguments.profile) if arguments.profile else None
    study = rows.read(named_stores(arguments), arguments.experiment)
    outcome = plan_check.check(plan, study, table, arguments.plan.name, by_group=is_training)
    planned = plan_check.build_table(outcome, arguments.plan.name)
    text = describe_check(outcome, planned)
    if plan.is_simulated:
        text += f"\nplanned: {profile_table.SIMULATED}"
    if arguments.report:
        folder = arguments.out or publish.default_folder(arguments.experiment)
        text += f"\nreport: {_write_report(study, planned, None if is_training else plan, folder).absolute()}"
    return CommandAnswer(data=_check_to_json(outcome), text=text, status=0 if outcome.holds else 1)


def describe_check(check: Check, table: Table) -> str:
    """Format the table, and list GPUs without measurement and requirements that were not met or not checked."""
    lines = align_table(
        [list(table.columns), *([format_value(cell) for cell in row] for row in table.rows)], left_columns=(0, 1, 2, 3)
    )
    lines += [f"not measured: {gap}" for gap in check.missing]
    lines += [f"not met: {fault}" for fault in check.broken]
    lines += [f"not checked: {gap}" for gap in check.unchecked]
    lines += plan_check.describe_held_by_mean(check)
    if check.is_simulated:
        lines.append(profile_table.MEASURED_SIMULATED)
    return "\n".join(lines)


def _write_report(study: Study, table: Table, plan: Plan | None, folder: Path) -> Path:
    content = make_content(study)
    figures = list(content.figures)
    if plan is not None:
        sketch = pictures.sketch_gpus(plan, "planned-gpus")
        figures.append(draw(sketch, sketch.name, is_simulated=plan.is_simulated, has_columns=True))
    added = dataclasses.replace(content, tables=[table, *content.tables], figures=figures)
    return publish.write(added, folder).page


def _check_to_json(check: Check) -> dict[str, Any]:
    return {
        "holds": check.holds,
        "is_simulated": check.is_simulated,
        "not_measured": list(check.missing),
        "not_kept": list(check.broken),
        "not_checked": list(check.unchecked),
        "held_by_mean": list(check.held_by_mean),
        "compared": [
            {
                "service": compared.service,
                "quantity": compared.quantity,
                "predicted": compared.predicted,
                "predicted_low": compared.low,
                "predicted_high": compared.high,
                "measured": getattr(compared.measured, "median", None),
                "measured_low": getattr(compared.measured, "low", None),
                "measured_high": getattr(compared.measured, "high", None),
                "num_blocks": getattr(compared.measured, "n", None),
                "error_ratio": compared.error_ratio,
                "is_within": compared.is_within,
            }
            for compared in check.compared
        ],
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairing:
    """The best pairing.

    Attributes:
        groups: pairs and groups of three to put together, each in its best mode.
        alone: workloads that run alone.
        gpu_time_ratio: GPU time relative to all workloads one after another.
    """

    groups: tuple[Prediction, ...]
    alone: tuple[str, ...]
    gpu_time_ratio: float


def choose_pairs(predictions: Sequence[Prediction]) -> Pairing:
    """Choose the groups with the least GPU time, if each workload has one hour of work alone.

    A group of n with throughput S relative to serial takes n / S hours for n hours of work. This is a set partition
    of minimum weight, solved as an integer programme.
    """
    import numpy as np
    from scipy.optimize import Bounds, LinearConstraint, milp

    names = list(dict.fromkeys(name for prediction in predictions for name in prediction.workloads))
    best: dict[tuple[str, ...], tuple[float, Prediction]] = {}
    for prediction in predictions:
        if prediction.throughput is not None:
            group, num_hours = prediction.workloads, float(len(prediction.workloads))
            hours = num_hours / prediction.throughput.middle
            if hours < best.get(group, (num_hours,))[0]:  # a group that gains nothing is better apart
                best[group] = hours, prediction
    groups: list[tuple[str, ...]] = [*best, *((name,) for name in names)]
    costs = [*(hours for hours, _ in best.values()), *(1.0 for _ in names)]
    contains = [[float(name in group) for group in groups] for name in names]
    optimum = milp(
        costs,
        constraints=LinearConstraint(np.array(contains), 1, 1),
        integrality=np.ones(len(costs)),
        bounds=Bounds(0, 1),
    )
    selection = [group for group, count in zip(groups, np.rint(optimum.x), strict=True) if count]
    return Pairing(
        groups=tuple(best[group][1] for group in selection if len(group) > 1),
        alone=tuple(group[0] for group in selection if len(group) == 1),
        gpu_time_ratio=float(optimum.fun) / len(names),
    )


def add_pairs_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that name the study and the GPU."""
    add_store_arguments(parser)
    parser.add_argument(
        "--device", metavar="GPU", help="GPU model to predict for, such as h100_80gb or simulated_h100_80gb"
    )
    parser.add_argument("--driver-branch", type=int, metavar="N", help="driver branch to predict for, such as 580")


def answer_pairs(arguments: argparse.Namespace) -> CommandAnswer:
    """Return the predictions; status 1 if no pair has a prediction."""
    if arguments.driver_branch is not None and arguments.driver_branch < 1:
        raise ConfigError(f"--driver-branch {arguments.driver_branch}: must be above 0; write 580 for driver 580.65.06")
    study = rows.read(named_stores(arguments), arguments.experiment)
    return answer_predictions(study, arguments.device, arguments.driver_branch)


def answer_predictions(study: Study, device: str | None = None, driver_branch: int | None = None) -> CommandAnswer:
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
    predictions = predict_groups(inputs, None if device is None else normalise_model(device), driver_branch)
    predicted = [prediction for prediction in predictions if prediction.slowdowns]
    pairing = choose_pairs(predictions) if predicted else None
    named = _shorten(predictions, inputs.workloads)
    text = [*_format_pairs(named), "", *_rank_partners([one for one in named if one.slowdowns])]
    text += _describe_pairing(choose_pairs(named) if predicted else None)
    text += _list_notes(named)
    if study.is_simulated:
        text.append(MEASURED_SIMULATED)
    data = {
        "experiment": study.experiment,
        "is_simulated": study.is_simulated,
        "pairs": list(map(_pair_to_json, predictions)),
        "pairing": pairing and _pairing_to_json(pairing),
    }
    return CommandAnswer(data=data, text="\n".join(text), status=0 if predicted else 1)


def _shorten(predictions: Sequence[Prediction], workloads: Sequence[str]) -> list[Prediction]:
    """Leave the options in parentheses out of the names of workloads if these differ without them."""
    short = {name: name.partition(" (")[0] for name in workloads}
    if len(set(short.values())) < len(short):
        return list(predictions)
    return [replace(one, workloads=tuple(short[name] for name in one.workloads)) for one in predictions]


def _format_pairs(predictions: list[Prediction]) -> list[str]:
    heads = ["pair", "mode", "slowdowns", "measured", "speed-up over serial", "measured", "error"]
    lines = [
        [
            " + ".join(prediction.workloads),
            prediction.mode,
            ", ".join(map(_format_predicted, prediction.slowdowns)) or _UNKNOWN,
            ", ".join(map(format_estimate, prediction.measured.slowdowns if prediction.measured else ())) or MISSING,
            _format_predicted(prediction.throughput) if prediction.throughput else _UNKNOWN,
            format_estimate(group.throughput) if (group := prediction.measured) and group.throughput else MISSING,
            _format_error(prediction.error) if prediction.slowdowns else MISSING,
        ]
        for prediction in predictions
    ]
    return words.align_table([heads, *lines], left_columns=range(len(heads)))


def _format_predicted(predicted: Predicted) -> str:
    if predicted.low is None or predicted.high is None:
        return round_value(predicted.middle)
    return f"{round_value(predicted.middle)} ({round_value(predicted.low)} to {round_value(predicted.high)})"


def _format_error(error: GroupError | None) -> str:
    if error is None:
        return _UNKNOWN
    groups = format_count(error.num_groups, "group")
    return f"median {100 * error.median:.1f} %, at most {100 * error.largest:.1f} % ({groups})"


def _rank_partners(predictions: Sequence[Prediction]) -> list[str]:
    """Return a line for each workload with several partners: the best and the worst one, each in its better mode."""
    speeds: dict[str, dict[str, float]] = {}
    for prediction in predictions:
        if prediction.is_pair and prediction.throughput is not None:
            first, second = prediction.workloads
            for name, partner in ((first, second), (second, first)):
                speed = max(prediction.throughput.middle, speeds.setdefault(name, {}).get(partner, 0.0))
                speeds[name][partner] = speed
    lines = []
    for name, partners in sorted(speeds.items()):
        best, worst = max(partners, key=partners.__getitem__), min(partners, key=partners.__getitem__)
        if best != worst:
            lines.append(
                f"    {name}: best with {best} ({partners[best]:.2f} x serial), "
                f"worst with {worst} ({partners[worst]:.2f} x)"
            )
    return ["Partners:", *lines] if lines else []


def _describe_pairing(pairing: Pairing | None) -> list[str]:
    if pairing is None:
        return []
    return [
        f"Put together, for {100 * pairing.gpu_time_ratio:.0f} % of the GPU time of all one after another:",
        *(
            f"    {' + '.join(group.workloads)}: {group.mode}, {round_value(group.throughput.middle)} x serial"
            for group in pairing.groups
            if group.throughput is not None
        ),
        *(f"    {name}: alone" for name in pairing.alone),
    ]


def _list_notes(predictions: list[Prediction]) -> list[str]:
    return [f"{' + '.join(p.workloads)}, {p.mode}: {_UNKNOWN}: {p.reason}" for p in predictions if p.reason]


def _pair_to_json(prediction: Prediction) -> dict[str, Any]:
    measured = prediction.measured
    return {
        "workloads": list(prediction.workloads),
        "mode": prediction.mode,
        "slowdowns": [predicted._asdict() for predicted in prediction.slowdowns] or None,
        "throughput_over_serial": prediction.throughput and prediction.throughput._asdict(),
        "slowdowns_by_stressors": list(prediction.by_stressors) or None,
        "error": prediction.error and prediction.error._asdict(),
        "measured": measured
        and {
            "slowdowns": list(map(asdict, measured.slowdowns)) or None,
            "throughput_over_serial": measured.throughput and asdict(measured.throughput),
        },
        "reason": prediction.reason or None,
    }


def _pairing_to_json(pairing: Pairing) -> dict[str, Any]:
    groups = [{"workloads": list(group.workloads), "mode": group.mode} for group in pairing.groups]
    return {
        "gpu_time_over_serial": pairing.gpu_time_ratio,
        "groups": groups,
        "alone": list(pairing.alone),
    }
