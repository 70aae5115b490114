"""The tables of effects on jobs: of MIG profiles, co-runners, services, shares of the GPU, stressors and other GPUs."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from pipeline.base.domain import work_units
from pipeline.base.domain.normalisation import MEAN_SLOWDOWN, P99_SLOWDOWN, SLOWDOWN
from pipeline.base.domain.records import CO_RUNNERS
from pipeline.base.domain.window import WindowKind
from pipeline.base.system.words import group_by, natural_key
from pipeline.report.evaluate import effects, services, stressors
from pipeline.report.evaluate.cells import Case, Cell
from pipeline.report.evaluate.contrasts import Contrast
from pipeline.report.evaluate.effects import ProfileStep
from pipeline.report.evaluate.metrics import JOULE, P95_LATENCY, P99_LATENCY, TOTAL_TIME, choose_prefix, scale_estimate
from pipeline.report.evaluate.predictions import Predicted, Prediction, collect_inputs, predict_groups
from pipeline.report.evaluate.publication import WHOLE_GPU
from pipeline.report.evaluate.quantities import (
    name_energy_alone,
    name_memory_share,
    name_modelled_energy,
    name_modelled_share,
    name_share,
)
from pipeline.report.evaluate.services import Fraction
from pipeline.report.evaluate.statistics import Estimate, Scale
from pipeline.report.evaluate.stressors import COUNTER_OF, LEAK, StressorEffect, StressorLoad, name_leaks
from pipeline.report.evaluate.wording import join_words
from pipeline.report.page.table_format import (
    Column,
    Table,
    Value,
    format_estimate,
    list_columns,
    list_end_columns,
    make_table,
)
from pipeline.report.read.stressor_counters import COUNTERS, Counter
from pipeline.report.read.study_records import Study

_IDEAL = (
    "Ideal: ratio of the multiprocessors, or, for memory bandwidth (micro_copy, micro_triad), of the memory slices; "
    "none for transfers and launches, which MIG does not divide."
)
_NUM_DECIMALS = 4
"""Decimals of counters; smaller values, such as 0.000006 of the bandwidth of an idle GPU, tell nothing."""


def list_profile_tables(cells: Sequence[Cell]) -> list[Table]:
    """Return the tables of throughput, time, ratios and co-runners, and of every ratio with all digits."""
    fixed = [cell for cell in cells if cell.window is WindowKind.WORK]
    time_title = "Time of a fixed amount of work by MIG profile"
    steps = list(effects.steps(cells))
    return [
        _tabulate_profiles("profiles", "Throughput by MIG profile", cells, lambda cell: cell.throughput),
        _tabulate_profiles("profile-times", time_title, fixed, lambda _: TOTAL_TIME),
        _tabulate_ratios(steps),
        _tabulate_steps(steps),
        _tabulate_co_runners(cells),
    ]


def _tabulate_profiles(name: str, title: str, cells: Sequence[Cell], choose: Callable[[Cell], str]) -> Table:
    """Make a table of a quantity of one job: a row for each case, a column for each profile."""
    cases = {case: places for case, places in effects.group_by_profile(cells).items() if len(places) > 1}
    figures = {
        case: {place: cell.estimates.get(choose(cell)) for place, cell in places.items()}
        for case, places in cases.items()
    }

    def name_unit(case: Case) -> str:
        cell = next(iter(cases[case].values()))
        return "s" if choose(cell) == TOTAL_TIME else work_units.per_second(cell.unit)

    def make_column(place: str) -> Column[Case]:
        return Column(_name_place(place), lambda case: figures[case].get(place))

    every_place = effects.sort_places({place for places in cases.values() for place in places})
    columns: list[Column[Case]] = [Column("workload", lambda case: case.label), Column("unit", name_unit)]
    columns += map(make_column, every_place)
    note = "One job alone; median over the blocks, with its 95 % t interval from three blocks on."
    return make_table(name, title, columns, [case for case in cases if any(figures[case].values())], note)


def _tabulate_ratios(every_step: Sequence[ProfileStep]) -> Table:
    """Make a table of the ratios of throughput: a row for each case, a column for each pair of profiles."""
    steps: dict[Case, dict[tuple[str, str], ProfileStep]] = defaultdict(dict)
    for step in every_step:
        steps[step.pair.case][step.larger, step.smaller] = step
    every_pair = set(itertools.chain(*steps.values()))
    sizes = effects.sort_places(set(itertools.chain(*every_pair)))

    def find_loss(case: Case) -> str | None:
        return next((f"{step.loss_pct:.1f}" for step in steps[case].values() if step.loss_pct is not None), None)

    def make_column(pair: tuple[str, str]) -> Column[Case]:
        return Column(f"{_name_place(pair[0])} / {pair[1]}", lambda case: steps[case].get(pair), _format_step)

    columns = [
        Column("workload", lambda case: case.label),
        Column("loss by MIG (%)", find_loss),
        *(make_column(pair) for pair in itertools.combinations(sizes, 2) if pair in every_pair),
    ]
    note = f"Throughput on the larger profile, divided by that on the smaller, and its share of the ideal. {_IDEAL}"
    return make_table("profile-ratios", "Cost and scaling of MIG", columns, steps, note)


def _format_step(step: ProfileStep) -> str:
    """Return `2.29 (2.28 to 2.30), 98 % of 2.33`."""
    assert step.pair.ratio is not None
    ratio = format_estimate(step.pair.ratio)
    return ratio if step.ideal is None else f"{ratio}, {100 * step.median / step.ideal:.0f} % of {step.ideal:.2f}"


def _tabulate_steps(steps: Sequence[ProfileStep]) -> Table:
    """Make a table of every ratio of two profiles, with ideal and published ratios."""
    columns: list[Column[ProfileStep]] = [
        Column("case", lambda step: step.pair.case.label),
        Column("larger", lambda step: _name_place(step.larger)),
        *list_columns({"smaller": "smaller", "times as fast": "pair.ratio", "ideal": "ideal"}),
        Column("of the ideal (%)", lambda step: None if step.ideal is None else 100 * step.median / step.ideal),
        Column("loss (%)", lambda step: step.loss_pct),
        Column("published", lambda step: step.published or None),
    ]
    note = (
        "Throughput of one job on the larger profile, divided by its throughput on the smaller; median over the "
        f"blocks. {_IDEAL} Loss: on the profile with all slices, relative to the whole GPU. Published: for the GPU in "
        "parentheses."
    )
    return make_table("scaling", "Cost and scaling of MIG", columns, steps, note, is_for_machines=True)


def _tabulate_co_runners(cells: Sequence[Cell]) -> Table:
    """Make a table of the throughput of jobs with co-runners, relative to without."""

    def name_case(cell: Cell) -> str:
        return cell.case.label.removesuffix(f" [{CO_RUNNERS} {cell.co_runners}]")

    pairs = sorted(effects.compare_co_runners(cells), key=lambda pair: natural_key(name_case(pair.cell)))
    columns: list[Column[Contrast]] = [
        Column("case", lambda pair: name_case(pair.cell)),
        *list_columns({"jobs": "degree", "mode": "mode", "co-runners": "cell.co_runners"}),
        *list_columns({"throughput kept": "ratio"}),
    ]
    note = (
        "Throughput with co-runners, divided by the throughput of the same jobs in the same mode and block without "
        "co-runners."
    )
    return make_table("co-runners", "Throughput with co-runners", columns, pairs, note)


def _name_place(place: str) -> str:
    return "whole GPU" if place == WHOLE_GPU else place


def make_other_gpu_table(study: Study, cells: Sequence[Cell], note: str) -> Table:
    """Make a table of the speed of groups while other GPUs of the host work, relative to without."""
    columns: list[Column[Contrast]] = [
        Column("case", lambda pair: effects.find_reference(pair).case.label),
        Column("jobs", lambda pair: pair.degree),
        Column("mode", lambda pair: effects.find_reference(pair).mode),
        Column("other GPUs", effects.count_other_gpus),
        *list_end_columns("speed in company", lambda pair: pair.ratio),
        Column("blocks", lambda pair: pair.num_blocks),
        Column("in words", effects.describe_other_gpus),
    ]
    note += " Ratios are computed within a block and machine state; 1 means that other GPUs have no effect."
    pairs = effects.compare_other_gpus(study, cells)
    return make_table("other-gpus", "Speed while other GPUs of the host work", columns, pairs, note)


def list_service_tables(cells: Sequence[Cell]) -> list[Table]:
    """Return the tables of the highest rates within an objective, of fractions of a GPU, and of mixes."""
    return [_tabulate_limits(cells), _tabulate_fractions(cells), _tabulate_mixes(cells)]


def _tabulate_limits(cells: Sequence[Cell]) -> Table:
    columns: list[Column[services.RateLimit]] = [
        *list_columns({"case": "what", "jobs": "degree", "mode": "mode", "objective": "objective"}),
        *list_columns({"highest rate of a job (requests/s)": "highest", "of all jobs": "total"}),
        *list_columns({"latency there (ms)": "latency", "lowest rate that misses it": "missed"}),
    ]
    note = (
        "A rate meets the objective if, in most blocks, every job sustained the rate and its latency at the percentile "
        "was within the objective, and if no lower rate misses the objective. A p99 needs at least 1,200 requests in "
        "the window, and more under load."
    )
    limits = services.find_rate_limits(cells)
    return make_table("objective", "The highest rate that meets the objective", columns, limits, note)


class _PartOfUsers(NamedTuple):
    """A fraction of a GPU with one of its numbers of users."""

    part: Fraction
    users: int
    served: Estimate | str | None

    @property
    def cell(self) -> Cell:
        return self.part.cells[self.users]

    def read(self, name: str) -> Estimate | None:
        """Return a figure of the cell; `None` unless the cell is ranked."""
        return self.cell.figures.get(name)


def _tabulate_fractions(cells: Sequence[Cell]) -> Table:
    """Make a table of services on fractions of a GPU, with idle and with loaded rest."""
    items = [
        _PartOfUsers(part, users, served)
        for part in services.list_fractions(cells)
        for served in [part.estimate_users()]
        for users in sorted(part.cells)
    ]

    def find_throughput(item: _PartOfUsers) -> Estimate | str | None:
        if not item.cell.is_ranked:
            return item.cell.finding.value
        pair = item.part.compare_throughput(item.users)
        return None if pair is None else pair.ratio

    columns: list[Column[_PartOfUsers]] = [
        *list_columns({"service": "part.service", "of a GPU": "part.name", "mode": "cell.mode"}),
        Column("rest of the GPU", lambda item: item.part.rest or None),
        Column("users", lambda item: item.users),
        Column("throughput, whole GPU = 1", find_throughput),
        Column("p95 (ms)", lambda item: item.read(P95_LATENCY)),
        Column("p99 (ms)", lambda item: item.read(P99_LATENCY)),
        Column("energy per request (J)", lambda item: item.read(item.cell.energy)),
        Column("users within objective", lambda item: item.served if item.cell.is_ranked else None),
    ]
    note = (
        "Throughput and users of one service; latency of the slowest service; energy of the whole GPU, over the "
        "requests of all services. Users within the objective: interpolated between the measured numbers of users."
    )
    return make_table("fractions", "Services on fractions of a GPU", columns, items, note)


def _tabulate_mixes(cells: Sequence[Cell]) -> Table:
    """Make a table of the throughput and latency of each workload of a mix, relative to alone."""
    pairs = list(services.compare_services(cells))
    ratios = {(id(pair.cell), pair.subject, pair.metric): pair.ratio for pair in pairs}
    mixes = {id(pair.cell): pair.cell for pair in pairs}.values()
    items = [(cell, name) for cell in mixes for name in services.name_workloads(cell).values()]

    def make_column(title: str, metric: str) -> Column[tuple[Cell, str]]:
        return Column(title, lambda item: ratios.get((id(item[0]), item[1], metric)))

    columns = [
        Column("mix", lambda item: item[0].case.label),
        Column("mode", lambda item: item[0].mode),
        Column("workload", lambda item: item[1]),
        make_column("throughput kept", SLOWDOWN),
        make_column("mean latency, times alone", MEAN_SLOWDOWN),
        make_column("p99 latency, times alone", P99_SLOWDOWN),
    ]
    note = (
        "If a mix has several jobs of a workload, the figures are those of the worst job. Services at a given rate "
        "have no throughput to compare."
    )
    return make_table("beside", "Training and inference together, relative to alone", columns, items, note)


class _WorkloadShare(NamedTuple):
    """The share of the time, measured or modelled, and the energies of one job of a workload in a cell."""

    cell: Cell
    label: str
    unit: str
    share: Estimate
    basis: str
    energies: Sequence[str | None]


def make_share_table(cells: Sequence[Cell]) -> Table:
    """Make a table of the share and energy of one job of each workload of a group."""
    items = []
    for cell in (cell for cell in cells if cell.degree > 1 and cell.is_ranked):
        for label, params in dict(zip(cell.case.workloads, cell.case.params, strict=True)).items():
            shares = {
                "measured": cell.estimate_quantity(name_share(label), Scale.AMOUNT),
                "model": cell.estimate_quantity(name_modelled_share(label), Scale.AMOUNT),
            }
            unit = work_units.format_singular(params.get(work_units.PARAM, ""))
            items += [
                _WorkloadShare(cell, label, unit, share, basis, _format_energies(cell, label))
                for basis, share in shares.items()
                if share is not None
            ][:1]
    columns: list[Column[_WorkloadShare]] = [
        *list_columns({"case": "cell.case.label", "jobs": "cell.degree", "mode": "cell.mode"}),
        *list_columns({"one job of": "label", "share of time (%)": "share", "share from": "basis"}),
        Column(
            "memory traffic (%)",
            lambda item: item.cell.estimate_quantity(name_memory_share(item.label), Scale.AMOUNT),
        ),
        Column("energy per", lambda item: item.unit),
        Column("alone", lambda item: item.energies[0]),
        Column("in the group (model)", lambda item: item.energies[1]),
    ]
    note = (
        "Median over the blocks of the mean over the jobs of a workload. Measured: share of the time with kernels of "
        "the job on multiprocessors, which NVML averages over up to 1 s. Model: time that the job's steps take the "
        "GPU when it runs alone, as a share of the time; the shares of jobs whose kernels overlap may exceed 100 % "
        "together. Energy is that of the whole GPU, idle power included. Energy in the group is a model: idle power "
        "is divided equally among the jobs, the energy above it by share."
    )
    return make_table("shares", "What each job takes", columns, items, note)


def _format_energies(cell: Cell, label: str) -> list[str | None]:
    """Return energies in J as estimates with a common unit."""
    estimates = [cell.estimate_quantity(name(label)) for name in (name_energy_alone, name_modelled_energy)]
    scale, prefix = choose_prefix(estimate.median for estimate in estimates if estimate is not None)
    return [
        None if estimate is None else f"{format_estimate(scale_estimate(estimate, scale))} {prefix}{JOULE}"
        for estimate in estimates
    ]


def make_stressor_table(every_effect: Sequence[StressorEffect]) -> Table:
    """Make a table of the slowdowns of each workload and of the stressor beside it."""
    columns: list[Column[StressorEffect]] = [
        *list_columns({"workload": "workload", "mode": "mode", "resource": "resource", "dial": "dial"}),
        *list_end_columns("slowdown", lambda effect: effect.sensitivity),
        *list_end_columns(
            "slowdown of the stressor", lambda effect: effect.pressure, "low of the stressor", "high of the stressor"
        ),
    ]
    note = (
        "Speed alone over speed together, in the same block; median over the blocks and 95 % t interval (with three "
        "blocks or more). Beside a stressor that takes turns, the speed alone is that in its idle turns of the same "
        "launch. Slowdown: of the workload beside the stressor (sensitivity). Dial: share of time in which the "
        "stressor works."
    )
    return make_table("sensitivity", "Workloads beside stressors", columns, every_effect, note)


def make_counter_table(study: Study) -> Table:
    """Make a table of the hardware counters of stressors alone, with the other resources that they load."""
    loads = stressors.list_loads(study)
    counters = [counter for counter in COUNTERS if any(counter.field in load.counters for load in loads)]
    devices: list[Column[StressorLoad]] = [Column("device", lambda load: load.device)]
    columns = [
        *(devices if len(study.devices) > 1 else ()),
        Column("resource", lambda load: load.place[0]),
        Column("dial", lambda load: load.place[1]),
        Column("blocks", lambda load: load.num_blocks),
        Column("own counter", lambda load: COUNTER_OF.get(load.place[0]), lambda counter: str(counter.title)),
        *map(_make_counter_column, counters),
        Column("also loads", lambda load: ", ".join(name_leaks(load.leaks)) or "nothing" if load.is_checked else None),
    ]
    measures: tuple[tuple[str, list[Mapping[Counter, float]]], ...] = (
        ("effect of the stressor of that resource at the same dial", [load.to_effect for load in loads]),
        ("peak, where that stressor was not measured", [load.to_peak for load in loads]),
    )
    compared = [
        f"{measure} ({join_words(titles)})"
        for measure, checked in measures
        if (titles := [counter.title for counter in counters if any(counter in ratios for ratios in checked)])
    ]
    note = (
        "Mean over the samples that lie wholly in a turn, after its time to settle; median over the blocks. Also "
        f"loads: other counters that rise above the idle turns (without these, above 0) by more than {100 * LEAK:g} % "
        f"of the {' or of the '.join(compared) or 'effect of their stressor'}. SMACT is not checked, because any "
        "kernel raises it; the peak of PCIe is unknown."
    )
    return make_table("stressors", "Stressors alone, by hardware counters", columns, loads, note)


def _make_counter_column(counter: Counter) -> Column[StressorLoad]:
    title = f"{counter.title} ({counter.unit})" if counter.unit else counter.title
    return Column(title, lambda load: load.counters.get(counter.field), lambda mean: round(mean, _NUM_DECIMALS))


class _PairLine(NamedTuple):
    """One workload of a measured pair or group of three, with its predicted slowdown."""

    prediction: Prediction
    workload: str
    slowdown: Estimate
    predicted: Predicted | None
    by_stressors: float | None


def make_pair_table(study: Study, cells: Sequence[Cell]) -> Table:
    """Make a table of the measured pairs and groups of three with their predicted slowdowns."""
    predictions = predict_groups(collect_inputs(study, cells))
    lines = [
        _PairLine(prediction, *line)
        for prediction in predictions
        if prediction.measured and prediction.measured.slowdowns
        for line in itertools.zip_longest(
            prediction.workloads, prediction.measured.slowdowns, prediction.slowdowns, prediction.by_stressors
        )
    ]
    errors = {
        f"{mode}, {num_workloads} workloads": members[0].prediction.error
        for (mode, num_workloads), members in group_by(lines, _get_kind).items()
    }
    note = (
        "Predicted: from the measurements beside stressors and the other measured pairs, with the range that would "
        "have contained nine of ten measured slowdowns of groups of other workloads. "
        + " ".join(
            f"{kind}: the median error is {100 * error.median:.1f} %, the largest {100 * error.largest:.1f} %."
            for kind, error in errors.items()
            if error is not None
        )
    )
    columns: list[Column[_PairLine]] = [
        Column("pair", lambda line: " + ".join(line.prediction.workloads)),
        Column("mode", _get_mode),
        Column("workload", lambda line: line.workload),
        *list_end_columns("slowdown", lambda line: line.slowdown),
        Column("predicted", lambda line: line.predicted and line.predicted.middle),
        Column("predicted low", lambda line: line.predicted and line.predicted.low),
        Column("predicted high", lambda line: line.predicted and line.predicted.high),
        Column("predicted from stressors alone", lambda line: line.by_stressors),
    ]
    return make_table("pairs", "Pairs, measured and predicted", columns, lines, note)


def _get_mode(line: _PairLine) -> Value:
    return line.prediction.mode


def _get_kind(line: _PairLine) -> tuple[str, int]:
    return line.prediction.mode, len(line.prediction.workloads)
