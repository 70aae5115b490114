"""The comparison of a study with reference studies, case by case and sharing mode by sharing mode.

Figures of two studies are not paired: they come from other blocks, often on another day. All comparisons of one call
are corrected together, those of speed and of energy (`correct_p_values`).

A case that fills the GPU is decided by its own figure. A case that waits for the host has the speed of its host, which
drifts within minutes, so `DRIFT_BLOCKS` blocks of a study count as one. If its speed-up over serial, in which the drift
cancels, has the narrower interval, this decides instead. The figure itself must confirm such a verdict, because a
speed-up also changes with its baseline.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pipeline.base.domain.normalisation import MEAN_SLOWDOWN, P99_SLOWDOWN, SPEEDUP, select_independent
from pipeline.base.domain.precision_goal import MIN_BLOCKS
from pipeline.base.domain.records import Result
from pipeline.base.domain.sharing_modes import SERIAL
from pipeline.base.domain.window import WindowKind
from pipeline.base.system.words import format_count
from pipeline.report.evaluate import statistics
from pipeline.report.evaluate.case_matching import MeasuredCase, list_programs, match_cases, select_settings
from pipeline.report.evaluate.cells import Cell, group_places, label_cases, list_metrics, make_cells
from pipeline.report.evaluate.contrasts import Decision, Quantity, decide
from pipeline.report.evaluate.metrics import (
    BEST_SOLO,
    ENERGY_VS_ALONE,
    MEAN_LATENCY,
    METRICS,
    P99_LATENCY,
    TIMES,
    TOTAL_TIME,
    Metric,
)
from pipeline.report.evaluate.statistics import MIN_GPUS, Estimate, Test
from pipeline.report.evaluate.wording import finding_in_words
from pipeline.report.read.study_records import Study

_INVERTED = (*TIMES, MEAN_SLOWDOWN, P99_SLOWDOWN)
"""Quantities whose lower value is the faster one."""
_BROKEN = {Result.OOM, Result.WRONG_RESULTS, Result.FAILED, Result.TIMEOUT}


class Change(enum.StrEnum):
    """The verdict on one case in one sharing mode."""

    FASTER = "faster"
    SLOWER = "slower"
    LESS_ENERGY = "less energy"
    MORE_ENERGY = "more energy"
    EQUAL = "equal"
    UNDECIDED = "undecided"
    TOO_FEW = "nothing can be told"
    FAILS = "fails now"
    NOT_COMPARED = "not compared"

    @property
    def is_regression(self) -> bool:
        """True if the newest study is worse than the reference in speed."""
        return self in (Change.SLOWER, Change.FAILS)


_SPEEDS = {Decision.BETTER: Change.FASTER, Decision.WORSE: Change.SLOWER}
_ENERGIES = {Decision.BETTER: Change.LESS_ENERGY, Decision.WORSE: Change.MORE_ENERGY}
_OPEN = {Decision.EQUAL: Change.EQUAL, Decision.NO_VERDICT: Change.UNDECIDED}


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The figures of one case in one mode and one study; a figure that was not measured is `None`."""

    figure: Estimate | None
    over_serial: Estimate | None
    over_best_solo: Estimate | None
    num_blocks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseChange:
    """The comparison of one case in one sharing mode between a reference and the newest study.

    Attributes:
        consists: the workloads of a mix.
        measure: title of the compared figure; empty if nothing is compared.
        unit: its unit; empty for a ratio.
        ratio: speed of the newest study over that of the reference, or energy over energy.
        decided_by: title of the quantity that decides, if it is not the figure, and its ratio.
        is_drifting: whether `DRIFT_BLOCKS` blocks count as one in `ratio`.
        tolerance: the relative difference that is tolerated.
        p_adjusted: p value of the test that decides, after correction; `None` without a test.
        blocks_needed: estimated number of blocks of each study for a verdict; `None` if decided or unknown.
        note: why nothing can be told or compared.
        differs: settings in which the newest study differs.
    """

    label: str
    degree: int
    consists: str
    mode: str
    quantity: Quantity
    measure: str
    unit: str
    before: Figures
    after: Figures
    ratio: Estimate | None
    decided_by: str
    decided_by_ratio: Estimate | None
    is_drifting: bool
    tolerance: float
    p_adjusted: float | None
    blocks_needed: int | None
    change: Change
    note: str
    differs: str

    @property
    def name(self) -> str:
        """The case with its number of jobs and its mode: `7 x resnet26 bs32, MPS`."""
        return name_case(self.label, self.degree, self.consists, self.mode)


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyComparison:
    """The comparison of the newest study with one reference.

    Attributes:
        changes: comparisons of speed, then of energy, in the order of cases.
        missing, added: names of the cases that only the reference has, or only the newest study.
    """

    changes: tuple[CaseChange, ...]
    missing: tuple[str, ...]
    added: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredCells(MeasuredCase):
    """A case with its cells, by sharing mode."""

    cells: Mapping[str, Cell]


class Side(NamedTuple):
    """The measured cases of a study, and the titles of its quantities."""

    cases: Sequence[MeasuredCells]
    titles: Mapping[str, Metric]


class _Pair(NamedTuple):
    """The tests of two cells.

    Attributes:
        test: of the figure; `None` if it is missing on a side.
        gain: name of the quantity that decides instead; empty if the figure decides.
        lacks: the blocks or GPUs that a verdict lacks, in words.
    """

    change: CaseChange
    test: Test | None = None
    gain: str = ""
    gain_test: Test | None = None
    lacks: str = ""

    @property
    def deciding(self) -> Test | None:
        return self.gain_test if self.gain else self.test


def name_case(label: str, degree: int, consists: str, mode: str) -> str:
    """Return `7 x resnet26 bs32, MPS`; `M+2S, MPS` for a mix."""
    return f"{label}, {mode}" if consists else f"{degree} x {label}, {mode}"


def compare(references: Sequence[Study], newest: Study, tolerance: Callable[[str], float]) -> list[StudyComparison]:
    """Compare the newest study with each reference; correct all comparisons together.

    Args:
        references: earlier studies.
        newest: the study to judge.
        tolerance: returns the relative difference that is tolerated for a case, by its name.
    """
    return compare_sides([make_side(reference) for reference in references], make_side(newest), tolerance)


def compare_sides(references: Sequence[Side], newest: Side, tolerance: Callable[[str], float]) -> list[StudyComparison]:
    """Compare the sides of studies, as `compare` does."""
    drafts = [_compare_cases(reference, newest, tolerance) for reference in references]
    pairs = [pair for comparison, _ in drafts for pair in comparison]
    judged = _judge(pairs)
    return [
        dataclasses.replace(sides, changes=tuple(sorted((judged[id(pair)] for pair in comparison), key=_order)))
        for comparison, sides in drafts
    ]


def _order(change: CaseChange) -> bool:
    return change.quantity is Quantity.ENERGY


def make_side(study: Study) -> Side:
    """Return the side of a study."""
    cells = make_cells(study)
    return Side(_list_cases(study, cells), METRICS | list_metrics(cells))


def _compare_cases(before: Side, after: Side, tolerance: Callable[[str], float]) -> tuple[list[_Pair], StudyComparison]:
    places = [(number, case) for number, side in enumerate((before, after)) for case in side.cases]
    titles = {**before.titles, **after.titles}
    pairs, missing, added = [], [], []
    for case in match_cases(places):
        modes = [case.members[number].cells if number in case.members else {} for number in (0, 1)]
        for mode in dict.fromkeys([*modes[0], *modes[1]]):
            name = name_case(case.label, case.degree, case.consists, mode)
            if mode not in modes[1]:
                missing.append(name)
            elif mode not in modes[0]:
                added.append(name)
            else:
                about = (case.label, case.degree, case.consists, mode, case.differs[1])
                pairs += _pair_cells(about, modes[0][mode], modes[1][mode], tolerance(name), titles)
    return pairs, StudyComparison(changes=(), missing=tuple(missing), added=tuple(added))


def _list_cases(study: Study, cells: Sequence[Cell]) -> list[MeasuredCells]:
    cases = label_cases(study)
    first = {(cases[row.run_id], row.degree): row for row in reversed(study.rows)}
    return [
        MeasuredCells(
            label=case.label,
            degree=degree,
            programs=list_programs(first[case, degree].jobs),
            settings=select_settings(first[case, degree]),
            cells=measured,
        )
        for (case, degree), members in group_places(cells).items()
        if (measured := {cell.mode: cell for cell in members if not cell.is_derived})
    ]


_About = tuple[str, int, str, str, str]


def _pair_cells(
    about: _About, before: Cell, after: Cell, tolerance: float, titles: Mapping[str, Metric]
) -> list[_Pair]:
    """Return the pair of speed, and that of energy if both cells have their energy."""
    label, degree, consists, mode, differs = about
    empty = CaseChange(
        label=label,
        degree=degree,
        consists=consists,
        mode=mode,
        quantity=Quantity.SPEED,
        measure="",
        unit="",
        before=_figures(before, ""),
        after=_figures(after, ""),
        ratio=None,
        decided_by="",
        decided_by_ratio=None,
        is_drifting=False,
        tolerance=tolerance,
        p_adjusted=None,
        blocks_needed=None,
        change=Change.NOT_COMPARED,
        note="",
        differs=differs,
    )
    for cell, place in ((before, "before"), (after, "after")):
        if not cell.is_compared:
            fails = place == "after" and (cell.num_saturated or cell.finding in _BROKEN)
            verdict = Change.FAILS if fails else Change.NOT_COMPARED
            return [_Pair(dataclasses.replace(empty, change=verdict, note=f"{place}: {finding_in_words(cell)}"))]
    pairs = []
    for quantity, names, gains in (
        (Quantity.SPEED, _list_speeds(before), _list_gains(before)),
        (Quantity.ENERGY, _list_energies(before), ()),
    ):
        if name := _choose(names, before, after):
            metric = titles[name]
            change = dataclasses.replace(
                empty,
                quantity=quantity,
                measure=metric.title,
                unit=metric.unit,
                before=_figures(before, name),
                after=_figures(after, name),
            )
            pairs.append(_test(change, name, _choose(gains, before, after), before, after))
    return pairs or [_Pair(dataclasses.replace(empty, note="no common figure"))]


def _list_speeds(cell: Cell) -> tuple[str, ...]:
    """Return the figures of a group itself, the preferred one first; those of a mix are relative to serial."""
    if cell.num_given:
        return () if cell.case.is_mix else (P99_LATENCY, MEAN_LATENCY)
    total_time = (TOTAL_TIME,) if cell.window is WindowKind.WORK else ()
    # Work of different jobs cannot be added.
    return (*total_time, SPEEDUP) if cell.case.is_mix else (*total_time, cell.throughput)


def _list_gains(cell: Cell) -> tuple[str, ...]:
    """Return the quantities in which the drift of the host cancels, for a case that follows its host."""
    if cell.num_given:
        return (P99_SLOWDOWN, MEAN_SLOWDOWN) if cell.degree > 1 and not cell.case.is_mix else ()
    if cell.sharing == SERIAL:
        return ()
    return (BEST_SOLO,) if SPEEDUP in _list_speeds(cell)[:1] else (SPEEDUP,)


def _list_energies(cell: Cell) -> tuple[str, ...]:
    # In a steady window, the jobs of a mix do different shares of its work in each study.
    has_same_work = not cell.case.is_mix or cell.window is WindowKind.WORK
    return (*((cell.energy,) if has_same_work else ()), ENERGY_VS_ALONE)


def _choose(names: Sequence[str], before: Cell, after: Cell) -> str:
    """Return the quantity that both cells have in most blocks, the first of equals; empty if there is none."""
    numbers = {name: min(len(cell.values.get(name, ())) for cell in (before, after)) for name in names if name}
    return max(numbers, key=numbers.__getitem__) if any(numbers.values()) else ""


def _figures(cell: Cell, name: str) -> Figures:
    return Figures(
        figure=cell.figures.get(name),
        over_serial=cell.figures.get(SPEEDUP) if cell.degree > 1 else None,
        over_best_solo=cell.figures.get(BEST_SOLO) if cell.degree > 1 else None,
        num_blocks=len(cell.values.get(name, ())),
    )


def _test(change: CaseChange, name: str, gain: str, before: Cell, after: Cell) -> _Pair:
    sides = [_select(cell, name) for cell in (before, after)]
    # GPUs are independent, and count once each.
    is_single = [len(set(cell.gpus.values())) < 2 for cell in (before, after)]
    # The energy of a short window scatters by itself, so the speed shows whether the jobs wait for the host.
    speeds = [select_independent(cell.speeds, cell.gpus) if cell.speeds else [] for cell in (before, after)]
    is_energy = change.quantity is Quantity.ENERGY and any(speeds)
    waits = name != SPEEDUP and statistics.follows_host(speeds if is_energy else sides)
    drifting = [
        single and (waits or cell.has_drifting_baseline(name))
        for single, cell in zip(is_single, (before, after), strict=True)
    ]
    test = _compare(sides, change.tolerance, (drifting[0], drifting[1]))
    least = [MIN_BLOCKS if single else MIN_GPUS for single in is_single]
    lacks = "; ".join(
        f"{place}: {format_count(len(values), 'block' if single else 'GPU')} ({number} needed)"
        for place, values, single, number in zip(("before", "after"), sides, is_single, least, strict=True)
        if len(values) < number
    )
    is_other_host = not before.shares_host(after)
    if is_other_host and name in (SPEEDUP, ENERGY_VS_ALONE) and (before.depends_on_host or after.depends_on_host):
        lacks = f"{METRICS[name].title} depends on the host, and the hosts differ"
    pair = _Pair(change, test, lacks=lacks)
    # A speed-up over a job that waits for the host holds for this host.
    if is_other_host or not any(drifting) or not gain or gain == name:
        return pair
    gains = [_select(cell, gain) for cell in (before, after)]
    if any(len(values) < number for values, number in zip(gains, least, strict=True)):
        return pair
    flags = [
        single and cell.has_drifting_baseline(gain) for single, cell in zip(is_single, (before, after), strict=True)
    ]
    gain_test = _compare(gains, change.tolerance, (flags[0], flags[1]))
    if test is None or gain_test is None or not _is_narrower(gain_test.ratio, test.ratio):
        return pair
    return pair._replace(gain=gain, gain_test=gain_test)


def _is_narrower(ratio: Estimate, other: Estimate) -> bool:
    widths = statistics.half_width(ratio), statistics.half_width(other)
    return widths[0] is not None and widths[1] is not None and widths[0] < widths[1]


def _select(cell: Cell, name: str) -> list[float]:
    """Return the independent figures of a cell, for a time its inverse."""
    values = select_independent(cell.values.get(name, {}), cell.gpus)
    return [1 / value if name in _INVERTED else value for value in values if value > 0]


def _compare(sides: Sequence[Sequence[float]], tolerance: float, is_drifting: tuple[bool, bool]) -> Test | None:
    if not all(sides):
        return None
    return statistics.compare_studies(sides[0], sides[1], tolerance, is_drifting=is_drifting)


def _judge(pairs: Sequence[_Pair]) -> dict[int, CaseChange]:
    """Decide all pairs; the key of each change is the id of its pair."""
    tested = [pair for pair in pairs if pair.deciding is not None and not pair.lacks]
    changes = {id(pair): _describe_lack(pair) for pair in pairs}
    if not tested:
        return changes  # without importing numpy
    tests = [pair.deciding for pair in tested if pair.deciding is not None]
    p_different = [test.p_different for test in tests if test.p_different is not None]
    p_equal = [test.p_equal for test in tests if test.p_equal is not None]
    different, equal = statistics.correct_p_values(p_different, p_equal)
    margins = [pair.change.tolerance for pair in tested]
    decisions = decide([_gain(pair, pair.deciding) for pair in tested], different, equal, margins)
    # A speed-up that decides must be confirmed by the figure, whatever the scatter of the figure.
    certain = [0.0] * len(tested)
    medians = decide([_gain(pair, pair.test) for pair in tested], certain, [0.0] * len(tested), margins)
    for pair, decision, median, *p in zip(tested, decisions, medians, different.tolist(), equal.tolist(), strict=True):
        agreed = decision if decision is median or not pair.gain else Decision.NO_VERDICT
        changes[id(pair)] = _decide(pair, agreed, p[agreed is Decision.EQUAL], len(tests))
    return changes


def _gain(pair: _Pair, test: Test | None) -> float:
    assert test is not None
    return test.ratio.median if pair.change.quantity is Quantity.SPEED else 1 / test.ratio.median


def _describe_lack(pair: _Pair) -> CaseChange:
    ratio = pair.test.ratio if pair.test is not None else None
    if not pair.lacks:
        return dataclasses.replace(pair.change, ratio=ratio)
    return dataclasses.replace(pair.change, ratio=ratio, change=Change.TOO_FEW, note=pair.lacks)


def _decide(pair: _Pair, decision: Decision, p: float, num_tests: int) -> CaseChange:
    assert pair.test is not None and pair.deciding is not None
    needed = None
    if decision is Decision.NO_VERDICT:
        needed = statistics.blocks_needed(pair.deciding, num_tests, pair.change.tolerance)
        needed = needed if needed is not None and needed > pair.deciding.ratio.n else None
    words = _SPEEDS if pair.change.quantity is Quantity.SPEED else _ENERGIES
    return dataclasses.replace(
        pair.change,
        ratio=pair.test.ratio,
        decided_by=METRICS[pair.gain].title if pair.gain else "",
        decided_by_ratio=pair.deciding.ratio if pair.gain else None,
        is_drifting=pair.test.is_drifting,
        p_adjusted=p,
        blocks_needed=needed,
        change=(words | _OPEN)[decision],
    )
