"""Try models of slowdowns on published pairs and groups of three, and write their errors into a page of results.

    python -m benchmarks.pair_models [--write | --check]

The models `frozen` were written down on 2026-11-29, before the workloads of `sensitivity_ten` were measured.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import NamedTuple

from pipeline.base.domain.sharing_modes import SERIAL
from pipeline.base.domain.window import STRESSOR
from pipeline.base.system.paths import PROJECT_DIR
from pipeline.record.store import bundle_reader
from pipeline.report.evaluate.cells import make_cells
from pipeline.report.evaluate.predictions import (
    RESOURCES,
    STRENGTH,
    GroupName,
    Load,
    MeasuredGroup,
    PairInputs,
    Prediction,
    Vectors,
    collect_inputs,
    measure_load,
    predict_groups,
    predict_slowdowns,
)
from pipeline.report.evaluate.stressors import name_workload
from pipeline.report.read import rows

RESULTS = PROJECT_DIR / "docs" / "results"
PAGE = RESULTS / "sensitivity_ten_h200.md"
_LETTERS = {
    "resnet50_imagenet64": "M",
    "resnet18_imagenet": "R",
    "resnet152_imagenet": "L",
    "efficientnetv2_s_imagenet64": "F",
    "vit_b16_imagenet": "V",
    "cait_xxs24_imagenet64": "C",
    "bert_base bs8": "B",
    "bert_base bs64": "T",
    "gpt2_small": "G",
    "infer_resnet50": "Q",
}
# Of smaller losses, the constant of a model is mostly noise.
_LEAST_LOSS = 0.1
Model = Callable[[str, Sequence[str]], float]
"""The slowdown of a workload beside others."""
Known = Mapping[GroupName, tuple[float, ...]]
"""Measured slowdowns of the workloads of each group."""


class Data(NamedTuple):
    """The measurements of one study.

    Attributes:
        vectors: measurements beside stressors under MPS, by workload.
        counters: GRACT and SMACT of each workload alone.
    """

    inputs: PairInputs
    vectors: Mapping[str, Vectors]
    counters: Mapping[str, tuple[float, float]]

    def list_groups(self, size: int, mode: str = "MPS") -> Known:
        """Return the measured groups with a number of workloads."""
        return {
            name: tuple(slowdown.median for slowdown in group.slowdowns)
            for (of_mode, name), group in self.inputs.groups.items()
            if of_mode == mode and len(name) == size and group.slowdowns
        }


@cache
def read(name: str, experiment: str) -> Data:
    """Read a published bundle."""
    study = rows.read([RESULTS / f"{name}.tar.xz"], experiment)
    cells = make_cells(study)
    inputs = collect_inputs(study, cells)
    counters = {
        name_workload(cell.case.workloads[0], cell.case.setting): (
            cell.estimates["gract_mean_ratio"].median,
            cell.estimates["smact_mean_ratio"].median,
        )
        for cell in cells
        if cell.degree == 1 and cell.sharing == SERIAL and "smact_mean_ratio" in cell.estimates
    }
    return Data(inputs, inputs.vectors["MPS"], counters)


@cache
def list_answers() -> list[tuple[Prediction, MeasuredGroup]]:
    """Return what the planner prints for the measured groups of the ten workloads under MPS, and their measurements."""
    predictions = predict_groups(read("sensitivity_ten_h200", "sensitivity_ten").inputs)
    return [(one, one.measured) for one in predictions if one.mode == "MPS" and one.measured and one.measured.slowdowns]


def _list_answer_errors(size: int) -> list[float]:
    return [
        abs(predicted.middle / slowdown.median - 1)
        for one, measured in list_answers()
        if len(one.workloads) == size
        for predicted, slowdown in zip(one.slowdowns, measured.slowdowns, strict=True)
    ]


def list_errors(model: Model, known: Known) -> list[float]:
    """Return the relative error of each slowdown."""
    return [
        abs(model(name, [other for other in group if other != name]) / slowdown - 1)
        for group, slowdowns in known.items()
        for name, slowdown in zip(group, slowdowns, strict=True)
    ]


def fit(loads: Mapping[str, Load], known: Known) -> float:
    """Return the constant of the model: the median over the slowdowns of pairs."""
    return statistics.median(
        (slowdown - 1) / (loads[victim].sensitivity * loads[partner].pressure)
        for pair, slowdowns in known.items()
        for victim, partner, slowdown in zip(pair, pair[::-1], slowdowns, strict=True)
        if slowdown - 1 > _LEAST_LOSS
    )


def make_model(loads: Mapping[str, Load], strength: float) -> Model:
    """Return the model of waiting with a constant."""
    return lambda name, others: predict_slowdowns([name, *others], loads, strength)[0]


def leave_workloads_out(loads: Mapping[str, Load], known: Known) -> list[float]:
    """Return errors of predictions whose constant was fitted on the pairs of other workloads."""
    errors = []
    for left_out in loads:
        fitted = {pair: slowdowns for pair, slowdowns in known.items() if left_out not in pair}
        tested = {pair: slowdowns for pair, slowdowns in known.items() if left_out in pair}
        errors += list_errors(make_model(loads, fit(loads, fitted)), tested)
    return errors


def list_lines() -> Iterator[tuple[str, str, list[float]]]:
    """Yield groups, model and its errors for each line of the table."""
    ten, five = read("sensitivity_ten_h200", "sensitivity_ten"), read("sensitivity_pairs_h100", "sensitivity_pairs")
    pairs, loads = ten.list_groups(2), _measure_loads(ten)
    of_ten = "pairs, MPS"
    yield of_ten, "no slowdown", list_errors(lambda *_: 1.0, pairs)
    yield of_ten, "frozen: sensitivity and pressure", list_errors(_freeze(ten), pairs)
    memory = {name: members.pressure["memory_bandwidth"].median for name, members in ten.vectors.items()}
    yield of_ten, "frozen: memory only", list_errors(lambda _, others: 1.04 * memory[others[0]], pairs)
    smact = {name: of_name[1] for name, of_name in ten.counters.items()}
    yield of_ten, "frozen: counters only", list_errors(lambda _, others: math.exp(1.16 * smact[others[0]]), pairs)
    yield of_ten, "waiting", list_errors(make_model(loads, STRENGTH), pairs)
    yield of_ten, "waiting, fitted without the workload", leave_workloads_out(loads, pairs)
    yield of_ten, "waiting, corrected by the other pairs", _list_answer_errors(2)
    for resource in RESOURCES:
        one = _measure_loads(ten, (resource,))
        yield of_ten, f"waiting, from `{resource}` only, fitted", list_errors(make_model(one, fit(one, pairs)), pairs)
    threes = ten.list_groups(3)
    of_three = "groups of three, MPS"
    yield of_three, "frozen: three jobs", list_errors(_freeze(ten), threes)
    yield of_three, "waiting", list_errors(make_model(loads, STRENGTH), threes)
    yield of_three, "waiting, corrected by pairs", _list_answer_errors(3)
    gract = {name: of_name[0] for name, of_name in ten.counters.items()}
    naive = ten.list_groups(2, "naive")
    yield (
        "pairs, naive",
        "frozen: naive sharing",
        list_errors(lambda name, others: 1 + 1.1 * gract[name] * gract[others[0]], naive),
    )
    older = five.list_groups(2)
    of_five = "pairs of the five workloads on H100s, MPS"
    yield of_five, "frozen: sensitivity and pressure (fitted on them)", list_errors(_freeze(five), older)
    yield of_five, "waiting", list_errors(make_model(_measure_loads(five), STRENGTH), older)


def make_group_table() -> str:
    """Return the table of measured and predicted slowdowns, as Markdown."""
    lines = ["| group | measured | predicted, with its range | speed-up over serial |", "|---|---|---|---|"]
    for one, measured_group in list_answers():
        if measured_group.throughput is None:
            continue
        letters = [
            next(letter for name, letter in _LETTERS.items() if label.startswith(name)) for label in one.workloads
        ]
        measured = ", ".join(f"{slowdown.median:.2f}" for slowdown in measured_group.slowdowns)
        predicted = ", ".join(f"{it.middle:.2f} ({it.low:.2f} to {it.high:.2f})" for it in one.slowdowns)
        lines.append(f"| {'+'.join(letters)} | {measured} | {predicted} | {measured_group.throughput.median:.2f} |")
    return "\n".join(lines) + "\n"


def describe_ranges() -> str:
    """Return sentences about the ranges of predictions, naive pairs and groups that ran again, as a Markdown list."""
    ten = read("sensitivity_ten_h200", "sensitivity_ten")
    covers: dict[int, list[list[bool]]] = defaultdict(list)
    for one, measured in list_answers():
        of_group = zip(one.slowdowns, measured.slowdowns, strict=True)
        covers[len(one.workloads)].append([(it.low or 0) <= known.median <= (it.high or 0) for it, known in of_group])
    all_pairs, of_threes = list(map(all, covers[2])), [*itertools.chain(*covers[3])]
    naive = ten.list_groups(2, "naive")
    full: list[float] = []
    beside_gaps: list[float] = []
    with_gaps: list[float] = []
    for pair, slowdowns in naive.items():
        for name, slowdown in zip(pair, slowdowns, strict=True):
            is_service = name.startswith("infer")
            (with_gaps if is_service else beside_gaps if "infer" in "".join(pair) else full).append(slowdown)
    spans = _list_spans()
    return (
        f"- The ranges of {sum(all_pairs)} of {len(all_pairs)} pairs contain both slowdowns; of groups of three, "
        f"{sum(of_threes)} of {len(of_threes)} slowdowns are in their range.\n"
        f"- Naive sharing: two CUDA graphs that fill the GPU take {min(full):.2f} to {max(full):.2f} times as long.\n"
        f"  Q leaves gaps, so it takes up to {max(with_gaps):.2f} times as long, and its partners\n"
        f"  {min(beside_gaps):.2f} to {max(beside_gaps):.2f} times.\n"
        f"- {len(spans)} speeds were measured again within 18 minutes. They differ by\n"
        f"  {100 * statistics.median(spans):.1f} % in the median and by {100 * max(spans):.1f} % at most.\n"
    )


def _list_spans() -> list[float]:
    """Return the relative difference of the speeds of each job, without stressors, in groups that ran again."""
    _, records = bundle_reader.read_records(PAGE.with_suffix(".tar.xz"))
    speeds = defaultdict(list)
    for group in records:
        if all(job.params.get("workload") != STRESSOR for job in group.jobs):
            for job in group.jobs:
                name = next(name for name in job.metrics if name.startswith("throughput_"))
                speeds[group.key, job.index].append(job.metrics[name])
    return [max(of_job) / min(of_job) - 1 for of_job in speeds.values() if len(of_job) > 1]


def _measure_loads(data: Data, resources: Sequence[str] = RESOURCES) -> dict[str, Load]:
    return {name: measure_load(members, resources) for name, members in data.vectors.items()}


def _freeze(data: Data) -> Model:
    """Return the frozen model of pairs and of three jobs: ln slowdown = 2.19 s (p + ...) with logarithms s and p."""
    loads = _measure_loads(data)

    def predict(name: str, others: Sequence[str]) -> float:
        pressures = sum(math.log1p(loads[other].pressure) for other in others)
        return math.exp(2.19 * math.log1p(loads[name].sensitivity) * pressures)

    return predict


def make_table() -> str:
    """Return the table of the page, as Markdown."""
    lines = ["| groups | model | slowdowns | median error | largest error |", "|---|---|---|---|---|"]
    lines += [
        f"| {groups} | {model} | {len(errors)} | {100 * statistics.median(errors):.1f} % | {100 * max(errors):.1f} % |"
        for groups, model, errors in list_lines()
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Print the table, write it into the page or compare it with that of the page."""
    parser = argparse.ArgumentParser(description="Errors of models of slowdowns on published pairs.")
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--write", action="store_true", help=f"write the table into {PAGE.name}")
    choice.add_argument("--check", action="store_true", help=f"compare the table with that of {PAGE.name}")
    options = parser.parse_args()
    parts = {"models": make_table(), "groups": f"{make_group_table()}\n{describe_ranges()}"}
    if not (options.write or options.check):
        sys.stdout.write("\n".join(parts.values()))
        return 0
    page = PAGE.read_text()
    written = page
    for name, text in parts.items():
        begin = written.index(mark := f"<!-- made by python -m benchmarks.pair_models: {name} -->\n") + len(mark)
        written = written[:begin] + f"\n{text}\n" + written[written.index("<!-- end -->", begin) :]
    if options.write:
        PAGE.write_text(written)
        return 0
    sys.stdout.write("as published\n" if page == written else "the tables of the page differ; run with --write\n")
    return 0 if page == written else 1


if __name__ == "__main__":
    sys.exit(main())
