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
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

from pipeline.base.domain.normalisation import MEAN_SLOWDOWN, P99_SLOWDOWN, SPEEDUP, select_independent
from pipeline.base.domain.package_locks import compare_packages
from pipeline.base.domain.precision_goal import MIN_BLOCKS
from pipeline.base.domain.records import Result
from pipeline.base.domain.sharing_modes import SERIAL
from pipeline.base.domain.window import WindowKind
from pipeline.base.system.words import announce, format_count, list_first
from pipeline.report.evaluate import statistics
from pipeline.report.evaluate.case_matching import (
    MatchedCase,
    MeasuredCase,
    list_programs,
    match_cases,
    select_settings,
)
from pipeline.report.evaluate.cells import Cell, group_places, label_cases, list_metrics, make_cells
from pipeline.report.evaluate.contrasts import Contrast, Decision, Quantity, judge
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
from pipeline.report.evaluate.selector import name_cell
from pipeline.report.evaluate.statistics import MARGIN, MIN_GPUS, Estimate
from pipeline.report.evaluate.wording import describe_finding
from pipeline.report.read.environments import read_packages
from pipeline.report.read.rows import FACTS
from pipeline.report.read.study_records import Study

_INVERTED = (*TIMES, MEAN_SLOWDOWN, P99_SLOWDOWN)
"""Quantities whose lower value is the faster one."""
SIDES = ("before", "after")
_BROKEN = {Result.OOM, Result.WRONG_RESULTS, Result.FAILED, Result.TIMEOUT}

PACKAGES = "packages"
_NOT_COMPARED = {"command_line", "plan", "seed", "precision_goal_pct"}
"""Facts that differ between any two studies, or are settings of cases."""
_NOT_RECORDED = "not recorded"
_MOST_NAMED = 3
_NO_METRIC = Metric(name="", title="")
"""The quantity of a case in which nothing is compared."""
_LEAST_MOVED, _MOVED_SHARE = 3, 0.75
"""The least number and share of the cases that wait for the host, whose change shows that the host changed.

Not all change, because some cases that scatter like the host fill the GPU most of the time.
"""


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
    NO_FIGURE = "no figure now"
    NOT_COMPARED = "not compared"

    @property
    def is_regression(self) -> bool:
        """True if the newest study is worse than the reference in speed."""
        return self in (Change.SLOWER, Change.FAILS)


_OPEN = {Decision.EQUAL: Change.EQUAL, Decision.NO_VERDICT: Change.UNDECIDED}
_CHANGES = {
    Quantity.SPEED: {Decision.BETTER: Change.FASTER, Decision.WORSE: Change.SLOWER, **_OPEN},
    Quantity.ENERGY: {Decision.BETTER: Change.LESS_ENERGY, Decision.WORSE: Change.MORE_ENERGY, **_OPEN},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredCells(MeasuredCase):
    """A case with its cells, by sharing mode."""

    cells: Mapping[str, Cell]


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseChange:
    """The comparison of one case in one sharing mode between a reference and the newest study.

    Attributes:
        tolerance: the relative difference that is tolerated.
        metric: the compared quantity.
        figure: contrast of this quantity; `None` if it is missing on a side.
        gain: contrast of the quantity that decides instead.
        note: why nothing can be told or compared.
        p_adjusted: p value of the test that decides, after correction; `None` without a test.
    """

    case: MatchedCase[MeasuredCells]
    mode: str
    tolerance: float
    quantity: Quantity = Quantity.SPEED
    metric: Metric = _NO_METRIC
    figure: Contrast | None = None
    gain: Contrast | None = None
    change: Change = Change.NOT_COMPARED
    note: str = ""
    p_adjusted: float | None = None

    @property
    def name(self) -> str:
        """The case with its number of jobs and its mode: `7 x resnet26 bs32, MPS`."""
        return name_cell(self.case.label, self.case.degree, self.mode, is_mix=bool(self.case.consists))

    @property
    def cells(self) -> tuple[Cell, Cell]:
        """The cell of the reference, and that of the newest study."""
        return self.case.members[0].cells[self.mode], self.case.members[1].cells[self.mode]

    @property
    def ratio(self) -> Estimate | None:
        """The speed of the newest study over that of the reference, or energy over energy."""
        return None if self.figure is None else self.figure.ratio

    @property
    def is_tested(self) -> bool:
        """True if both sides have enough blocks or GPUs, on hosts that can be compared."""
        return self.p_adjusted is not None

    @property
    def is_drifting(self) -> bool:
        """True if the case waits for its host, so `DRIFT_BLOCKS` blocks count as one in `ratio`."""
        test = None if self.figure is None else self.figure.test
        return self.is_tested and test is not None and test.is_drifting

    @property
    def has_loss(self) -> bool:
        """True if the reference has a speed that the newest study could lose."""
        return self.quantity is Quantity.SPEED and self.change is not Change.NOT_COMPARED

    @property
    def loss_bound(self) -> float | None:
        """The largest loss of speed in the interval, as a share; `None` if no loss can be excluded."""
        low = self.ratio.low if self.ratio is not None and self.is_tested and self.has_loss else None
        return None if low is None else max(0.0, 1 - low)

    @property
    def before(self) -> Estimate | None:
        """The figure of the reference."""
        return self.cells[0].figures.get(self.metric.name)

    @property
    def after(self) -> Estimate | None:
        """The figure of the newest study."""
        return self.cells[1].figures.get(self.metric.name)

    @property
    def differs(self) -> str:
        """The settings in which the newest study differs."""
        return self.case.differs[1]

    def count_blocks(self, side: int) -> int:
        """Count the blocks with a figure of the reference (side 0) or of the newest study (side 1)."""
        return len(self.cells[side].values.get(self.metric.name, ()))


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

    @property
    def host_change(self) -> str:
        """The change of the host: `the host differs (0.72 times, 11 of 12 cases that wait for it), ...`.

        It is empty unless most cases that wait for the host changed in one direction, and no other case changed.
        """
        ratios: dict[bool, list[float]] = {True: [], False: []}
        for change in self.changes:
            # A ratio of a mix, to serial, holds for one host.
            if change.has_loss and change.is_tested and change.metric.unit and change.ratio:
                ratios[change.is_drifting].append(change.ratio.median)
        waiting, filling = ratios[True], ratios[False]
        slower, faster = ([r for r in waiting if r < 1 / (1 + MARGIN)], [r for r in waiting if r > 1 + MARGIN])
        moved = max(slower, faster, key=len)
        is_gpu_equal = filling and 1 / (1 + MARGIN) <= min(filling) <= max(filling) <= 1 + MARGIN
        if len(moved) < max(_LEAST_MOVED, _MOVED_SHARE * len(waiting)) or not is_gpu_equal:
            return ""
        cases = f"{len(moved)} of {len(waiting)} cases that wait for it"
        return f"the host differs ({median(moved):.2f} times, {cases}), not the GPU ({median(filling):.3f} times)"


def find_worst_bound(changes: Iterable[CaseChange]) -> CaseChange | None:
    """Return the case with the largest loss that its interval does not exclude; `None` without any bound.

    No case lost more than this, with the confidence of one interval and without a correction: the interval of the case
    that truly lost most fails with this probability, and the largest bound is not below its bound (an
    intersection-union test).
    """
    bounds = [change for change in changes if change.loss_bound is not None]
    return max(bounds, key=lambda change: change.loss_bound or 0.0, default=None)


class Side(NamedTuple):
    """The measured cases of a study, and its quantities by name."""

    cases: Sequence[MeasuredCells]
    metrics: Mapping[str, Metric]


def compare(references: Sequence[Study], newest: Study, tolerance: Callable[[str], float]) -> list[StudyComparison]:
    """Compare the newest study with each reference; correct all comparisons together.

    Args:
        references: earlier studies.
        newest: the study to judge.
        tolerance: returns the relative difference that is tolerated for a case, by its name.
    """
    return compare_sides([make_side(reference) for reference in references], make_side(newest), tolerance)


@announce("comparing the studies")
def compare_sides(references: Sequence[Side], newest: Side, tolerance: Callable[[str], float]) -> list[StudyComparison]:
    """Compare the sides of studies, as `compare` does."""
    drafts = [_pair_studies(reference, newest, tolerance) for reference in references]
    judged = iter(_judge([change for draft in drafts for change in draft.changes]))
    comparisons = []
    for draft in drafts:
        changes = list(itertools.islice(judged, len(draft.changes)))
        ordered = tuple(sorted(changes, key=lambda change: change.quantity is Quantity.ENERGY))
        comparisons.append(dataclasses.replace(draft, changes=ordered))
    return comparisons


def make_side(study: Study) -> Side:
    """Return the side of a study."""
    cells = make_cells(study)
    return Side(_list_cases(study, cells), METRICS | list_metrics(cells))


def _pair_studies(before: Side, after: Side, tolerance: Callable[[str], float]) -> StudyComparison:
    places = [(number, case) for number, side in enumerate((before, after)) for case in side.cases]
    metrics = {**before.metrics, **after.metrics}
    changes, missing, added = [], [], []
    for case in match_cases(places):
        modes = [case.members[number].cells if number in case.members else {} for number in (0, 1)]
        for mode in dict.fromkeys([*modes[0], *modes[1]]):
            name = name_cell(case.label, case.degree, mode, is_mix=bool(case.consists))
            if mode not in modes[1]:
                missing.append(name)
            elif mode not in modes[0]:
                added.append(name)
            else:
                changes += _compare_cells(CaseChange(case=case, mode=mode, tolerance=tolerance(name)), metrics)
    return StudyComparison(changes=tuple(changes), missing=tuple(missing), added=tuple(added))


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


def _compare_cells(draft: CaseChange, metrics: Mapping[str, Metric]) -> list[CaseChange]:
    """Return the change of speed, and that of energy if both cells have their energy."""
    before, after = draft.cells
    if not before.is_compared:
        return [dataclasses.replace(draft, note=f"{SIDES[0]}: {describe_finding(before)}")]
    if not after.is_compared:
        change = Change.FAILS if after.num_saturated or after.finding in _BROKEN else Change.NO_FIGURE
        return [dataclasses.replace(draft, change=change, note=f"{SIDES[1]}: {describe_finding(after)}")]
    names = {Quantity.SPEED: _list_speeds(before), Quantity.ENERGY: _list_energies(before)}
    changes = [
        _test(dataclasses.replace(draft, quantity=quantity, metric=metrics[name]))
        for quantity in Quantity
        if (name := _choose(names[quantity], before, after))
    ]
    return changes or [dataclasses.replace(draft, change=Change.NO_FIGURE, note="no common figure")]


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


def _test(draft: CaseChange) -> CaseChange:
    """Test a quantity; if a side drifts with its host, test the gain too, and let the narrower interval decide."""
    (before, after), name = draft.cells, draft.metric.name
    sides = [_select(cell, name) for cell in draft.cells]
    # The energy of a short window scatters by itself, so the speed shows whether the jobs wait for the host.
    speeds = [select_independent(cell.speeds, cell.gpus) if cell.speeds else [] for cell in draft.cells]
    is_energy = draft.quantity is Quantity.ENERGY and any(speeds)
    waits = name != SPEEDUP and statistics.follows_host(speeds if is_energy else sides)
    drifting = [_is_single(cell) and (waits or cell.has_drifting_baseline(name)) for cell in draft.cells]
    draft = dataclasses.replace(draft, figure=_contrast(draft, name, drifting))
    lacks = "; ".join(
        f"{side}: {format_count(len(values), 'block' if _is_single(cell) else 'GPU')} ({_count_least(cell)} needed)"
        for side, cell, values in zip(SIDES, draft.cells, sides, strict=True)
        if len(values) < _count_least(cell)
    )
    is_other_host = not before.shares_host(after)
    if is_other_host and name in (SPEEDUP, ENERGY_VS_ALONE) and (before.depends_on_host or after.depends_on_host):
        lacks = f"{METRICS[name].title} depends on the host, and the hosts differ"
    if lacks:
        return dataclasses.replace(draft, change=Change.TOO_FEW, note=lacks)
    gain = _choose(_list_gains(before), before, after) if draft.quantity is Quantity.SPEED else ""
    # A speed-up over a job that waits for the host holds for this host.
    if is_other_host or not any(drifting) or gain in ("", name):
        return draft
    if any(len(_select(cell, gain)) < _count_least(cell) for cell in draft.cells):
        return draft
    contrast = _contrast(draft, gain, [_is_single(cell) and cell.has_drifting_baseline(gain) for cell in draft.cells])
    return dataclasses.replace(draft, gain=contrast) if _is_narrower(contrast, draft.figure) else draft


def _is_single(cell: Cell) -> bool:
    """Return whether the blocks ran on one GPU; several GPUs are independent, and count once each."""
    return len(set(cell.gpus.values())) < 2


def _count_least(cell: Cell) -> int:
    return MIN_BLOCKS if _is_single(cell) else MIN_GPUS


def _is_narrower(contrast: Contrast | None, other: Contrast | None) -> bool:
    ratios = [pair.ratio for pair in (contrast, other) if pair is not None and pair.ratio is not None]
    widths = [width for ratio in ratios if (width := statistics.half_width(ratio)) is not None]
    return len(widths) == 2 and widths[0] < widths[1]


def _select(cell: Cell, name: str) -> list[float]:
    """Return the independent figures of a cell, for a time its inverse."""
    values = select_independent(cell.values.get(name, {}), cell.gpus)
    return [1 / value if name in _INVERTED else value for value in values if value > 0]


def _contrast(draft: CaseChange, name: str, is_drifting: Sequence[bool]) -> Contrast | None:
    """Return the contrast of both studies; `None` if a side has no figure."""
    before, after = (_select(cell, name) for cell in draft.cells)
    if not before or not after:
        return None
    test = statistics.compare_studies(before, after, draft.tolerance, is_drifting=(is_drifting[0], is_drifting[1]))
    other, cell = draft.cells
    return Contrast(
        cell=cell, against=SIDES[0], metric=name, ratio=test.ratio, other=other, quantity=draft.quantity, test=test
    )


def _judge(drafts: Sequence[CaseChange]) -> list[CaseChange]:
    """Decide all changes; a speed-up that decides must be confirmed by the figure, whatever the scatter of this."""
    tested = [draft for draft in drafts if draft.figure is not None and not draft.note]
    deciding = [contrast for draft in tested if (contrast := draft.gain or draft.figure) is not None]
    figures = [draft.figure if draft.gain is not None else None for draft in tested]
    verdicts = judge(deciding, [draft.tolerance for draft in tested], figures)
    judged = {
        id(draft): dataclasses.replace(
            draft, change=_CHANGES[draft.quantity][verdict.decision], p_adjusted=verdict.p_adjusted
        )
        for draft, verdict in zip(tested, verdicts, strict=True)
    }
    return [judged.get(id(draft), draft) for draft in drafts]


@dataclass(frozen=True, slots=True)
class Difference:
    """A fact with several values: what it is, and its values in the reference and in the newest study."""

    name: str
    before: str
    after: str


def list_differences(reference: Study, newest: Study) -> list[Difference]:
    """Return the facts in which two studies differ, or with several values in one of them, such as two commits."""
    facts = [("GPU model", reference.devices, newest.devices), ("GPU", _list_gpus(reference), _list_gpus(newest))]
    facts += [
        (words, reference.facts.get(name, ()), newest.facts.get(name, ()))
        for name, words in FACTS.items()
        if name not in _NOT_COMPARED
    ]
    return [
        Difference(name, _format(before), _format(after))
        for name, before, after in facts
        if set(before) != set(after) or len(set(before)) > 1
    ]


def compare_environments(reference: Study, newest: Study) -> str:
    """Return the packages that differ, as one line; empty if none differ."""
    before, after = read_packages(reference.rows), read_packages(newest.rows)
    if before and after:
        return compare_packages(before, after).removeprefix(f"{PACKAGES}: ")
    return "not available before" if after else "not available after" if before else ""


def list_setting_differences(comparison: StudyComparison) -> list[str]:
    """Return the settings in which cases differ, with the number of cases."""
    cases = {change.name: change.differs for change in comparison.changes}
    counts = Counter(differs for differs in cases.values() if differs)
    return [
        f"{differs} ({'all cases' if number == len(cases) else f'{number} of {len(cases)} cases'})"
        for differs, number in counts.items()
    ]


def _list_gpus(study: Study) -> tuple[str, ...]:
    return tuple(sorted({row.gpu_uuid for row in study.rows if row.gpu_uuid}))


def _format(values: Iterable[str]) -> str:
    distinct: Sequence[str] = list(dict.fromkeys(values))
    return list_first(distinct, _MOST_NAMED) if distinct else _NOT_RECORDED
