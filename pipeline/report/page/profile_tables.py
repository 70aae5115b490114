"""Tables of one job on the whole GPU and on MIG profiles: throughput, time, and ratios."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from pipeline.base.domain import work_units
from pipeline.base.domain.records import CO_RUNNERS
from pipeline.base.domain.window import WindowKind
from pipeline.base.system.words import natural_key
from pipeline.report.evaluate import scaling
from pipeline.report.evaluate.cells import Case, Cell
from pipeline.report.evaluate.metrics import TOTAL_TIME
from pipeline.report.evaluate.publication import WHOLE_GPU
from pipeline.report.evaluate.statistics import Estimate
from pipeline.report.page.table_format import Table, Values, format_estimate

_NOTE = "One job alone; median over the blocks, with its 95 % t interval from three blocks on."
_IDEAL = (
    "Ideal: ratio of the multiprocessors, or, for memory bandwidth (micro_copy, micro_triad), of the memory slices; "
    "none for transfers and launches, which MIG does not divide."
)


def list_profile_tables(cells: Sequence[Cell]) -> list[Table]:
    """Return the tables of throughput, time, ratios and co-runners, and of every ratio with all digits."""
    return [
        throughput_table(cells),
        time_table(cells),
        ratio_table(cells),
        scaling_table(cells),
        co_runner_table(cells),
    ]


def throughput_table(cells: Sequence[Cell]) -> Table:
    """Return a table of throughput: a row for each case, a column for each profile."""

    def describe(case: Case, cell: Cell) -> tuple[str, Estimate | None]:
        return work_units.per_second(cell.unit), cell.estimates.get(cell.throughput)

    return _tabulate("profiles", "Throughput by MIG profile", cells, describe)


def time_table(cells: Sequence[Cell]) -> Table:
    """Return a table of the time of a fixed amount of work: a row for each case, a column for each profile."""
    fixed = [cell for cell in cells if cell.window is WindowKind.WORK]

    def describe(case: Case, cell: Cell) -> tuple[str, Estimate | None]:
        return "s", cell.estimates.get(TOTAL_TIME)

    return _tabulate("profile-times", "Time of a fixed amount of work by MIG profile", fixed, describe)


def _tabulate(
    name: str, title: str, cells: Sequence[Cell], describe: Callable[[Case, Cell], tuple[str, Estimate | None]]
) -> Table:
    cases = {case: places for case, places in scaling.group_by_profile(cells).items() if len(places) > 1}
    columns = scaling.sort_places({place for places in cases.values() for place in places})
    rows: list[Values] = []
    for case, places in cases.items():
        described = {place: describe(case, cell) for place, cell in places.items()}
        unit = next(iter(described.values()))[0]
        figures = [described.get(place, (unit, None))[1] for place in columns]
        if any(figures):
            texts = [None if figure is None else format_estimate(figure) for figure in figures]
            rows.append((case.label, unit, *texts))
    return Table(name, title, ("workload", "unit", *map(_name_place, columns)), tuple(rows), _NOTE)


def ratio_table(cells: Sequence[Cell]) -> Table:
    """Return a table of the ratios of throughput: a row for each case, a column for each pair of profiles."""
    steps: dict[Case, dict[tuple[str, str], scaling.Step]] = defaultdict(dict)
    for step in scaling.steps(cells):
        steps[step.case][step.larger, step.smaller] = step
    every_pair = set(itertools.chain(*steps.values()))
    sizes = scaling.sort_places(set(itertools.chain(*every_pair)))
    pairs = [pair for pair in itertools.combinations(sizes, 2) if pair in every_pair]
    rows: list[Values] = []
    for case, by_pair in steps.items():
        loss = next((f"{step.loss_pct:.1f}" for step in by_pair.values() if step.loss_pct is not None), None)
        rows.append((case.label, loss, *(_describe_ratio(by_pair, pair) for pair in pairs)))
    heads = [f"{_name_place(larger)} / {smaller}" for larger, smaller in pairs]
    note = f"Throughput on the larger profile, divided by that on the smaller, and its share of the ideal. {_IDEAL}"
    columns = ("workload", "loss by MIG (%)", *heads)
    return Table("profile-ratios", "Cost and scaling of MIG", columns, tuple(rows), note)


def _describe_ratio(by_pair: Mapping[tuple[str, str], scaling.Step], pair: tuple[str, str]) -> str | None:
    """Return `2.29 (2.28 to 2.30), 98 % of 2.33`."""
    if (step := by_pair.get(pair)) is None:
        return None
    ratio = format_estimate(step.ratio)
    return ratio if step.ideal is None else f"{ratio}, {100 * step.ratio.median / step.ideal:.0f} % of {step.ideal:.2f}"


def scaling_table(cells: Sequence[Cell]) -> Table:
    """Return a table of every ratio of two profiles, with ideal and published ratios."""
    rows: list[Values] = []
    for step in scaling.steps(cells):
        ideal_pct = None if step.ideal is None else 100 * step.ratio.median / step.ideal
        figures = (format_estimate(step.ratio), step.ideal, ideal_pct, step.loss_pct, step.published or None)
        rows.append((step.case.label, _name_place(step.larger), step.smaller, *figures))
    note = (
        "Throughput of one job on the larger profile, divided by its throughput on the smaller; median over the "
        f"blocks. {_IDEAL} Loss: on the profile with all slices, relative to the whole GPU. Published: for the GPU in "
        "parentheses."
    )
    columns = ("case", "larger", "smaller", "times as fast", "ideal", "of the ideal (%)", "loss (%)", "published")
    return Table("scaling", "Cost and scaling of MIG", columns, tuple(rows), note, is_for_machines=True)


def co_runner_table(cells: Sequence[Cell]) -> Table:
    """Return a table of the throughput of jobs with co-runners, relative to without."""
    rows: list[Values] = []
    for effect in scaling.compare_co_runners(cells):
        cell = effect.cell
        case = cell.case.label.removesuffix(f" [{CO_RUNNERS} {cell.co_runners}]")
        rows.append((case, cell.degree, cell.mode, cell.co_runners, format_estimate(effect.throughput_ratio)))
    rows.sort(key=lambda row: natural_key(str(row[0])))
    note = (
        "Throughput with co-runners, divided by the throughput of the same jobs in the same mode and block without "
        "co-runners."
    )
    columns = ("case", "jobs", "mode", "co-runners", "throughput kept")
    return Table("co-runners", "Throughput with co-runners", columns, tuple(rows), note)


def _name_place(place: str) -> str:
    return "whole GPU" if place == WHOLE_GPU else place
