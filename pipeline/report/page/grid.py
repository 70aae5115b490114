"""The grids of a page: one row for each case, one column for each sharing mode."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pipeline.base.domain.normalisation import SLOWDOWN, SPEEDUP
from pipeline.base.domain.precision_goal import MIN_BLOCKS
from pipeline.base.domain.sharing_modes import SERIAL, SharingMode
from pipeline.base.system.words import format_count, group_by
from pipeline.report.evaluate import services
from pipeline.report.evaluate.cells import Case, Cell, group_places, label_cases, list_metrics, list_modes
from pipeline.report.evaluate.contrasts import BASELINES_NOTE, Contrast, Decision, Quantity
from pipeline.report.evaluate.metrics import ENERGY_VS_ALONE, is_latency
from pipeline.report.evaluate.statistics import MIN_FOR_INTERVAL, Estimate
from pipeline.report.evaluate.verdicts import Winner
from pipeline.report.evaluate.wording import describe_absence
from pipeline.report.figures.bar_charts import NOT_SUSTAINED
from pipeline.report.page.table_format import round_value
from pipeline.report.read.study_records import Study

BEST, OPEN = "best", "open"
"""States of entries: the fastest mode (or a better one), and a mode without a verdict."""
_RATIOS = {Quantity.SPEED: "speed-up", Quantity.ENERGY: "energy"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """An entry of a grid.

    Attributes:
        text: the figure, `6.80 (6.44-7.29)`, or why there is none, `oom`.
        detail: detail of the sharing mode.
        state: `BEST`, `OPEN` or empty.
    """

    text: str
    detail: str = ""
    state: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A case, with the entries of each sharing mode.

    Attributes:
        consists: the workloads of a mix.
        measure: title of the figures, if different from the title of the grid.
    """

    case: str
    consists: str
    degree: int
    measure: str = ""
    entries: tuple[tuple[Entry, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Lines with entries for each sharing mode."""

    title: str
    modes: tuple[SharingMode, ...]
    lines: tuple[Line, ...]
    note: str

    @property
    def has_measures(self) -> bool:
        """True if a line has a measure."""
        return any(line.measure for line in self.lines)

    @property
    def by_case(self) -> list[tuple[tuple[str, str], list[Line]]]:
        """The lines of each case."""
        cases = itertools.groupby(self.lines, key=lambda line: (line.case, line.consists))
        return [(case, list(lines)) for case, lines in cases]


def grids(study: Study, cells: Sequence[Cell], verdicts: Sequence[Contrast], winners: Sequence[Winner]) -> list[Grid]:
    """Return the grids that have lines: speed in each mode, and mixes of services and other jobs."""
    consists = _describe_mixes(study)
    every_grid = (
        _speed(cells, verdicts, winners, consists),
        _compare_further(verdicts, consists),
        _compare_mixes(cells, consists),
    )
    return [grid for grid in every_grid if grid.lines]


def _speed(
    cells: Sequence[Cell], verdicts: Sequence[Contrast], winners: Sequence[Winner], consists: Mapping[Case, str]
) -> Grid:
    best = {(winner.case, winner.degree): winner for winner in winners}
    shown_cells = [cell for cell in cells if not (cell.is_derived and cell.num_given)]
    places = {
        place: members
        for place, members in group_places(shown_cells).items()
        if any(cell.sharing != SERIAL for cell in members)
    }
    modes = tuple(list_modes([cell for members in places.values() for cell in members]))
    lines = []
    for (case, degree), members in places.items():
        winner, name = best.get((case, degree)), _measure(members)
        if not name and any(cell.is_ranked for cell in members):
            continue  # work of different jobs cannot be added, and some jobs have a given rate
        entries = [[_entry(cell, name, winner) for cell in members if cell.sharing == mode] for mode in modes]
        if winner is not None and SERIAL in modes and not entries[modes.index(SERIAL)]:
            entries[modes.index(SERIAL)] = [Entry(text="1", state=_state(SERIAL.label, winner))]
        lines.append(
            Line(
                case=case.label,
                consists=consists.get(case, ""),
                degree=degree,
                measure="" if name in ("", SPEEDUP) else list_metrics(members)[name].heading(),
                entries=tuple(map(tuple, entries)),
            )
        )
    return Grid(title="Speed-up over serial", modes=modes, lines=tuple(lines), note=_note(verdicts))


def _compare_further(verdicts: Sequence[Contrast], consists: Mapping[Case, str]) -> Grid:
    """Return a grid of the speed-up over the best step mode alone, and of the energy over both baselines.

    Mixes of services and other jobs are left out, because `_compare_mixes` has their energy.
    """
    pairs = [
        pair
        for pair in verdicts
        if pair.is_against_best_solo or (pair.quantity is Quantity.ENERGY and pair.against == SERIAL.label)
    ]
    pairs = [pair for pair in pairs if not (pair.case.is_mix and pair.cell.num_given)]
    modes = tuple(list_modes([pair.cell for pair in pairs]))
    cases = {case: number for number, case in enumerate(dict.fromkeys(pair.case for pair in pairs))}
    pairs.sort(key=lambda pair: (cases[pair.case], pair.quantity != Quantity.SPEED, pair.is_against_best_solo))
    by_line = group_by(pairs, lambda pair: (pair.case, pair.degree, pair.quantity, pair.is_against_best_solo))
    lines = [
        Line(
            case=case.label,
            consists=consists.get(case, ""),
            degree=degree,
            measure=f"{_RATIOS[quantity]} over {' or '.join(dict.fromkeys(pair.against for pair in members))}",
            entries=tuple(
                tuple(_judged_entry(pair) for pair in members if pair.cell.sharing == mode) for mode in modes
            ),
        )
        for (case, degree, quantity, _), members in by_line.items()
    ]
    has_best_solo = any(pair.is_against_best_solo for pair in pairs)
    note = "Bold: a verdict that the mode is faster, or uses less energy for the same work. Grey: no verdict."
    return Grid(
        title="Speed-up over the best step mode alone, and energy" if has_best_solo else "Energy for the same work",
        modes=modes,
        lines=tuple(lines),
        note=f"{note} {BASELINES_NOTE}" if has_best_solo else note,
    )


def _judged_entry(pair: Contrast) -> Entry:
    assert pair.ratio is not None
    state = {Decision.BETTER: BEST, Decision.NO_VERDICT: OPEN}.get(pair.decision, "")
    return Entry(text=f"{_figure(pair.ratio)}{'*' if pair.cell.marks else ''}", detail=pair.cell.detail, state=state)


def _measure(cells: Sequence[Cell]) -> str:
    ranked = [cell for cell in cells if cell.is_ranked]
    names = dict.fromkeys([SPEEDUP, *(name for cell in ranked for name in cell.speed)])
    return next((name for name in names if any(name in cell.estimates for cell in ranked)), "")


def _entry(cell: Cell, name: str, winner: Winner | None) -> Entry:
    if not cell.is_ranked:
        return Entry(text=describe_absence(cell), detail=cell.detail)
    if is_latency(name) and cell.num_saturated:
        return Entry(text=NOT_SUSTAINED, detail=cell.detail)
    if name not in cell.estimates:
        return Entry(text="", detail=cell.detail)
    figure = _figure(cell.estimates[name], is_ratio=name == SPEEDUP)
    return Entry(text=f"{figure}*" if cell.marks else figure, detail=cell.detail, state=_state(cell.mode, winner))


def _state(mode: str, winner: Winner | None) -> str:
    if winner is None:
        return ""
    if winner.mode is None:
        return OPEN if mode in winner.tied else ""
    return BEST if mode == winner.mode else ""


def _figure(estimate: Estimate, *, is_ratio: bool = True) -> str:
    low, high = estimate.low, estimate.high
    form: Callable[[float], str] = "{:.2f}".format if is_ratio else round_value
    if low is None or high is None or low == high:
        return "1" if estimate.median == 1 else form(estimate.median)
    return f"{form(estimate.median)} ({form(low)}-{form(high)})"


def _note(verdicts: Sequence[Contrast]) -> str:
    number = sum(verdict.ratio is not None for verdict in verdicts)
    corrected = (
        f"Verdicts (with {MIN_BLOCKS} blocks or more) are corrected for {format_count(number, 'comparison')}, so an "
        "interval may exclude 1 without a verdict."
    )
    return (
        "Speed of all jobs, relative to the same jobs one at a time. Bold: faster than every other mode of the row. "
        "Grey: no verdict against the highest median of the row. Intervals (with "
        f"{MIN_FOR_INTERVAL} blocks or more) are 95 %. "
        + (corrected if number else "No two modes have figures of the same block, so there is no verdict.")
    )


def _compare_mixes(cells: Sequence[Cell], consists: Mapping[Case, str]) -> Grid:
    by_case = group_by(services.compare_services(cells), lambda pair: pair.case)
    modes = tuple(list_modes([pair.cell for members in by_case.values() for pair in members]))
    lines = [
        Line(
            case=case.label,
            consists=consists.get(case, ""),
            degree=len(case.workloads),
            measure=measure,
            entries=tuple(tuple(entry for sharing, entry in entries if sharing == mode) for mode in modes),
        )
        for case, members in by_case.items()
        for measure, entries in _list_measures(members)
    ]
    note = (
        "Figures of each job, relative to the job alone in the same block: medians and 95 % t intervals; 1 means no "
        "change. Energy: energy of the whole GPU, relative to the same work with each job alone."
    )
    return Grid(title="Services and other jobs together, relative to alone", modes=modes, lines=tuple(lines), note=note)


def _list_measures(pairs: Sequence[Contrast]) -> Iterator[tuple[str, list[tuple[SharingMode, Entry]]]]:
    """Yield the measures of one case, each with an entry for every cell."""
    mixes = list({id(pair.cell): pair.cell for pair in pairs}.values())
    for workload in services.name_workloads(mixes[0]).values():
        members = [pair for pair in pairs if pair.subject == workload]
        if throughputs := {id(pair.cell): pair.ratio for pair in members if pair.metric == SLOWDOWN}:
            yield (
                f"throughput kept by {workload}",
                [_make_kept_entry(cell, throughputs.get(id(cell))) for cell in mixes],
            )
        if latencies := services.prefer_latency(members):
            ratios = {id(pair.cell): pair.ratio for pair in latencies}
            yield (
                f"{services.LATENCIES[latencies[0].metric]} latency of {workload}",
                [
                    _make_kept_entry(cell, ratios.get(id(cell)), NOT_SUSTAINED if cell.num_saturated else "")
                    for cell in mixes
                ],
            )
    if any(ENERGY_VS_ALONE in cell.estimates for cell in mixes):
        yield "energy of all", [_make_kept_entry(cell, cell.estimates.get(ENERGY_VS_ALONE)) for cell in mixes]


def _make_kept_entry(cell: Cell, estimate: Estimate | None, missing: str = "") -> tuple[SharingMode, Entry]:
    if estimate is None:
        return cell.sharing, Entry(text=missing, detail=cell.detail)
    return cell.sharing, Entry(text=f"{_figure(estimate)}{'*' if cell.marks else ''}", detail=cell.detail)


def _describe_mixes(study: Study) -> dict[Case, str]:
    """Return the workload of each size in a mix: `L: resnet152_imagenet bs32; S: resnet26_cifar10 bs128`."""
    case_of = label_cases(study)
    letters: dict[Case, dict[str, str]] = defaultdict(dict)
    for row in study.rows:
        for job in row.jobs if row.is_mix else ():
            if job.size:
                letters[case_of[row.run_id]][job.size] = job.label
    return {case: "; ".join(f"{size}: {sizes[size]}" for size in sorted(sizes)) for case, sizes in letters.items()}
