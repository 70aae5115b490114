"""The number of jobs and the sharing mode for one case, from the cells of a study (`collocate advise`).

Candidates are serial, and each number of jobs in each mode that isolates them. A candidate that gives up isolation is
only reported. The fastest candidate is recommended, or a simpler one that is at most `TOLERANCE` slower: serial is
simpler than naive, naive than MPS, MPS than MIG, and few jobs are simpler than many.
"""

from __future__ import annotations

import dataclasses
import math
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from pipeline.base.domain.normalisation import MEMORY_PEAK, SLOWDOWN, SPEEDUP
from pipeline.base.domain.records import Result
from pipeline.base.domain.service_figures import OBJECTIVE_MET_WORST
from pipeline.base.domain.sharing_modes import NAIVE, SERIAL
from pipeline.base.system.words import group_by
from pipeline.observe.row_marks import FOREIGN_LOAD
from pipeline.report.evaluate.block_fit import BlockFit
from pipeline.report.evaluate.cells import Cell, speed_ratios
from pipeline.report.evaluate.metrics import ENERGY_VS_ALONE
from pipeline.report.evaluate.statistics import CONFIDENCE, MARGIN, MIN_FOR_INTERVAL, Estimate, format_interval

TOLERANCE = 0.05
"""A simpler candidate is recommended if it loses no more than this share of the speed; decided if by its interval."""
_MUCH_SLOWER = (1.3, 1.2)
"""Ratios to the fastest candidate that leave a candidate out: of one block, or of each of two or more."""
BOUND = 0.15
"""The most that another candidate may gain by its interval, after `_BLOCKS_FOR_BOUND`, if an answer is decided."""
_BLOCKS_FOR_BOUND = 2
"""Blocks after which `BOUND` applies."""
_LEVEL = 0.01
"""Level of each test for a difference: a study tests after every block, so that the level of a verdict is too high."""
_LEVEL_OF_LOSS = 0.25
"""Level of the test that a simpler candidate loses more than `TOLERANCE`, or the simpler one is taken."""
_WIDTH = 80
_ORDINALS = ("", "", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")


@dataclass(frozen=True)
class Recommendation:
    """The candidates of a case, and what their intervals decide.

    Attributes:
        candidates: cells with a speed-up over serial, the simplest first; serial itself is the first.
        without_isolation: cells of modes that give up isolation, with a speed-up.
        without_figure: cells that ran out of memory, were skipped or have no valid block.
        too_slow: cells of services that missed their objective in a block.
        is_slow_alone: whether the service alone missed it.
        enough_blocks: blocks after which a candidate is chosen, and a simpler one that seems slower is passed over.
    """

    candidates: tuple[Cell, ...]
    without_isolation: tuple[Cell, ...]
    without_figure: tuple[Cell, ...]
    too_slow: tuple[Cell, ...] = ()
    is_slow_alone: bool = False
    enough_blocks: int = 3

    @cached_property
    def _fit(self) -> BlockFit:
        of_modes = group_by(range(1, len(self.candidates)), lambda place: self.candidates[place].mode)
        # One at a time is one job of each mode.
        curves = [
            [(place, math.log2(self.candidates[place].degree)) for place in (0, *of_mode)]
            for of_mode in of_modes.values()
        ]
        return BlockFit([cell.values[SPEEDUP] for cell in self.candidates], curves)

    @cached_property
    def _known(self) -> list[Cell]:
        """The candidates that were measured in enough blocks; the others may be better, but are not chosen."""
        least = min(self.enough_blocks, max((len(cell.values[SPEEDUP]) for cell in self.candidates[1:]), default=0))
        return [cell for cell in self.candidates if len(cell.values[SPEEDUP]) >= least]

    @cached_property
    def fastest(self) -> Cell:
        return max(self._known, key=lambda cell: self.compare(cell, self.candidates[0]).median)

    @cached_property
    def choice(self) -> Cell:
        """The simplest candidate that is hardly slower than the fastest.

        If another one may be better although it was measured in enough blocks, the simplest without such a rival.
        """
        alike = [cell for cell in self._known if self._is_alike(cell)]
        rivals = self._list_open(alike[0])
        if any(len(rival.values[SPEEDUP]) < self.enough_blocks for rival in rivals):
            return alike[0]
        return next((cell for cell in alike if not self._list_open(cell)), alike[0])

    @cached_property
    def open(self) -> tuple[Cell, ...]:
        """The candidates, other than the choice, that may still be the better choice."""
        return self._list_open(self.choice)

    def _list_open(self, choice: Cell) -> tuple[Cell, ...]:
        order = self.candidates.index(choice)
        simpler, harder = self.candidates[:order], self.candidates[order + 1 :]
        # A simpler one that is slower by its median is no loss; but one at a time must be proven slower.
        unproven = [cell for cell in simpler if not self.is_slower(cell) and not self._is_passed(cell, choice)]
        faster = [cell for cell in harder if not self.is_slower(cell) and self._may_be_faster(cell, choice)]
        return (*unproven, *faster)

    @property
    def has_intervals(self) -> bool:
        return self._fit.has_intervals

    @property
    def is_decided(self) -> bool:
        """True if the choice and the fastest candidate were measured in enough blocks, and no other may be better."""
        least = min(len(cell.values[SPEEDUP]) for cell in (self.choice, self.fastest))
        return least >= self.enough_blocks and self.has_intervals and not self.open

    @cached_property
    def rises_at_end(self) -> bool:
        """True if the most jobs of the fastest mode are faster than the next fewer ones by more than `TOLERANCE`."""
        fastest, cells = self.fastest, (*self.candidates, *self.too_slow, *self.without_figure)
        if fastest.sharing == SERIAL or any(c.mode == fastest.mode and c.degree > fastest.degree for c in cells):
            return False
        below = [cell for cell in self.candidates if cell.mode in (fastest.mode, SERIAL.label) and cell is not fastest]
        return self.compare(fastest, max(below, key=_degree)).median > 1 + TOLERANCE

    @property
    def best_of_modes(self) -> list[Cell]:
        """The fastest number of jobs of each mode."""
        modes = group_by([*self.candidates[1:], *self.without_isolation], lambda cell: cell.mode)
        return [max(cells, key=_speedup) for cells in modes.values()]

    def compare(
        self, cell: Cell, other: Cell, *, is_one_sided: bool = False, level: float = 1 - CONFIDENCE
    ) -> Estimate:
        """Return the speed of a candidate over that of another, by a fit to all of them."""
        places = self.candidates.index(cell), self.candidates.index(other)
        return self._fit.compare(*places, is_one_sided=is_one_sided, level=level)

    def estimate_gain(self, cell: Cell) -> Estimate:
        """Return the speed-up over serial, with the interval of the fit, if there is one."""
        gain = cell.estimates[SPEEDUP]
        fitted = self.compare(cell, self.candidates[0]) if cell in self.candidates else gain
        if fitted.low is None or fitted.high is None:
            return gain
        low, high = min(fitted.low, gain.median), max(fitted.high, gain.median)
        return dataclasses.replace(gain, low=low, high=high)

    def _is_alike(self, cell: Cell) -> bool:
        ratio = self.compare(self.fastest, cell, is_one_sided=True, level=_LEVEL_OF_LOSS)
        return cell is self.fastest or (ratio.median if ratio.low is None else ratio.low) <= 1 + TOLERANCE

    def is_slower(self, cell: Cell) -> bool:
        """Return whether a candidate is slower than the fastest, by its interval and by more than the margin.

        Of a drifting host, few blocks have no narrow interval; but a candidate that is much slower in each is slower.
        """
        ratio = self.compare(self.fastest, cell, level=_LEVEL)
        if ratio.n < MIN_FOR_INTERVAL:
            return ratio.median > _MUCH_SLOWER[max(0, ratio.n - 1)]
        by_block, _ = speed_ratios(self.fastest, cell, (SPEEDUP,))
        if min(by_block.values(), default=0.0) > _MUCH_SLOWER[-1]:
            return True
        return ratio.median > 1 + MARGIN and ratio.low is not None and ratio.low > 1

    def _is_passed(self, cell: Cell, choice: Cell) -> bool:
        if cell.sharing == SERIAL:
            return False
        ratio = self.compare(cell, choice, is_one_sided=True)
        return ratio.n >= self.enough_blocks or (ratio.high is not None and ratio.high < 1 - TOLERANCE)

    def _may_be_faster(self, cell: Cell, choice: Cell) -> bool:
        ratio = self.compare(cell, choice, is_one_sided=True)
        has_enough = ratio.n >= _BLOCKS_FOR_BOUND or self._is_between(cell)
        return ratio.high is None or ratio.high > 1 + (BOUND if has_enough else TOLERANCE)

    def _is_between(self, cell: Cell) -> bool:
        """Return whether fewer and more jobs of its mode were measured in enough blocks: it is like them."""
        known = [
            other.degree
            for other in self.candidates
            if other.mode == cell.mode and len(other.values[SPEEDUP]) >= self.enough_blocks
        ]
        return bool(known) and min(known) < cell.degree < max(known)


def recommend(cells: Iterable[Cell]) -> Recommendation | None:
    """Return the recommendation for the jobs of a study with one case; `None` without a speed-up."""
    all_cells = list(cells)
    shared = [cell for cell in all_cells if cell.sharing != SERIAL and cell.degree > 1]
    with_figure = [cell for cell in shared if cell.is_compared and SPEEDUP in cell.estimates]
    if not with_figure:
        return None
    in_time = [cell for cell in with_figure if not _misses_objective(cell)]
    candidates = sorted(
        [cell for cell in in_time if not cell.sharing.gives_up],
        key=lambda cell: (cell.sharing.order, cell.degree, cell.mode),
    )
    return Recommendation(
        candidates=(_make_serial(with_figure), *candidates),
        without_isolation=tuple(cell for cell in in_time if cell.sharing.gives_up),
        without_figure=tuple(cell for cell in shared if cell not in with_figure),
        too_slow=tuple(cell for cell in with_figure if _misses_objective(cell)),
        is_slow_alone=any(_misses_objective(cell) for cell in all_cells if cell.sharing == SERIAL and cell.degree == 1),
    )


def _misses_objective(cell: Cell) -> bool:
    return any(is_met < 1 for is_met in cell.values.get(OBJECTIVE_MET_WORST, {}).values())


def _make_serial(cells: Sequence[Cell]) -> Cell:
    values = {block: 1.0 for cell in cells for block in cell.values[SPEEDUP]}
    one = Estimate(median=1.0, low=1.0, high=1.0, n=len(values))
    return dataclasses.replace(
        cells[0], degree=1, mode=SERIAL.label, sharing=SERIAL, values={SPEEDUP: values}, estimates={SPEEDUP: one}
    )


def _degree(cell: Cell) -> int:
    return cell.degree


def _speedup(cell: Cell) -> float:
    return cell.estimates[SPEEDUP].median


def describe_recommendation(
    recommendation: Recommendation, *, memory_mib: float | None, is_decided: bool, is_cut_off: bool = False
) -> list[str]:
    """Return the answer in sentences and as a table, in lines of at most 80 characters.

    `is_cut_off` is true if more jobs, which may be faster, are planned and were not tried.
    """
    sentences = list(_list_sentences(recommendation, memory_mib, is_decided=is_decided, is_cut_off=is_cut_off))
    return [*textwrap.wrap(" ".join(sentences), _WIDTH), "", *_list_table(recommendation)]


def _list_sentences(
    recommendation: Recommendation, memory_mib: float | None, *, is_decided: bool, is_cut_off: bool
) -> Iterator[str]:
    choice, candidates = recommendation.choice, recommendation.candidates
    rivals = recommendation.open
    if is_decided:
        start = "Decided: run"
    elif choice.sharing == SERIAL or candidates[0] in rivals:
        start = "Not decided. So far: run"
    else:
        subject = "number or mode" if any(rival.mode != choice.mode for rival in rivals) else "number"
        start = f"Sharing gains; the {subject} is not decided. So far: run"
    if choice.sharing == SERIAL:
        best = max(candidates[1:], key=_speedup, default=None)
        rival = (
            "" if best is None else f" The best, {_name(best)}, does {_format_gain(recommendation, best, ' the work')}."
        )
        yield f"{start} one job at a time; sharing gains nothing.{rival}"
    else:
        details = [_format_gain(recommendation, choice, " the work an hour"), *_list_costs(choice, memory_mib)]
        yield f"{start} {_name(choice)}: {'; '.join(details)}."
        yield from _describe_next(recommendation)
        yield from _explain_fewer(recommendation)
    for cell in recommendation.best_of_modes:
        if cell.mode != choice.mode and not cell.sharing.gives_up and choice.sharing != SERIAL:
            yield f"{_name(cell, is_start=True)}: {_format_gain(recommendation, cell)}."
    for cell in recommendation.best_of_modes:
        if cell.sharing.gives_up and _speedup(cell) > _speedup(choice):
            yield f"Same user, no isolation: {_name(cell)}, {_format_gain(recommendation, cell)}."
    if rivals and not is_decided:
        yield f"As good or better may be {_list_rivals(rivals)}."
    yield from _describe_untried(recommendation, is_cut_off=is_cut_off)
    if recommendation.is_slow_alone:
        yield "The service misses its objective alone, too."
    if doubt := choice.marks_of_rows or (choice.notes_on_gain[0] if choice.exceeds_ideal else ""):
        remedy = "; repeat it on an idle machine" if FOREIGN_LOAD in doubt else ""
        yield f"Doubt: {textwrap.shorten(doubt, 120)}{remedy}."


def _describe_untried(recommendation: Recommendation, *, is_cut_off: bool) -> Iterator[str]:
    choice, cells = recommendation.choice, (*recommendation.candidates, *recommendation.too_slow)
    of_mode = [cell.degree for cell in (*cells, *recommendation.without_figure) if cell.mode == choice.mode]
    if is_cut_off:
        yield "More copies were not tried in these minutes, and may gain more."
    elif choice.sharing != SERIAL and not choice.case.is_mix and choice.degree == max(of_mode):
        numbers = sorted({max(2, factor * choice.degree // 2) for factor in (1, 2, 3, 4)})
        yield f"More than {choice.degree} copies were not tried; to try them, add degree={','.join(map(str, numbers))}."


def _list_rivals(rivals: Sequence[Cell]) -> str:
    """Name candidates, those of one mode together: `2, 3 or 5 copies under MPS`."""
    names = []
    for cells in group_by(rivals, lambda cell: cell.mode).values():
        *numbers, last = sorted({cell.degree for cell in cells})
        before = f"{', '.join(map(str, numbers))} or " if numbers else ""
        names.append(f"{before}{_name(next(cell for cell in cells if cell.degree == last))}")
    return "; ".join(names)


def _list_costs(cell: Cell, memory_mib: float | None) -> Iterator[str]:
    if (slowdown := cell.estimates.get(SLOWDOWN)) is not None:
        yield f"each takes up to {slowdown.median:.2f} times as long as alone"
    if (peak := cell.estimates.get(MEMORY_PEAK)) is not None:
        of_device = "" if memory_mib is None else f" of {memory_mib / 1024:.0f}"
        yield f"{peak.median / 1024:.1f}{of_device} GiB"
    if (energy := cell.estimates.get(ENERGY_VS_ALONE)) is not None:
        yield f"{energy.median:.2f} of the energy"


def _describe_next(recommendation: Recommendation) -> Iterator[str]:
    """Say what one more job under the same mode does."""
    choice = recommendation.choice
    number = choice.degree + 1
    if choice.case.is_mix or number >= len(_ORDINALS):
        return
    subject = f"A{'n' if number == 8 else ''} {_ORDINALS[number]}"
    for cell in (*recommendation.candidates, *recommendation.without_figure, *recommendation.too_slow):
        if (cell.mode, cell.degree) != (choice.mode, number) or cell in recommendation.open:
            continue
        if cell in recommendation.too_slow:
            yield f"{subject} misses the objective."
        elif cell in recommendation.without_figure:
            if not cell.is_wholly_invalid:
                yield f"{subject}: {cell.reason or cell.finding.value}."
        else:
            yield f"{subject} {_describe_gain(recommendation.compare(cell, choice))}."


def _explain_fewer(recommendation: Recommendation) -> Iterator[str]:
    """Say why a larger number with a larger figure is not recommended."""
    choice, fastest = recommendation.choice, recommendation.fastest
    is_next = fastest.degree == choice.degree + 1
    if fastest is not choice and fastest.mode == choice.mode and fastest not in recommendation.open and not is_next:
        ratio = recommendation.compare(fastest, choice)
        if (ratio.high or ratio.median) > 1 + 2 * TOLERANCE:
            comparison = "may be faster"
        else:
            comparison = "are hardly faster" if ratio.median > 1 + MARGIN else "are about as fast"
        yield f"{_name(fastest, is_start=True)} {comparison} ({_describe_most(ratio)}); fewer cost less."


def _describe_most(ratio: Estimate) -> str:
    return f"{100 * (ratio.median - 1):+.0f} %" + (
        "" if ratio.high is None else f", at most {100 * (ratio.high - 1):+.0f} %"
    )


def _describe_gain(ratio: Estimate) -> str:
    """Say what a further job does to the speed of all."""
    middle, low, high = (
        None if speed is None else 100 * (speed - 1) for speed in (ratio.median, ratio.low, ratio.high)
    )
    if ratio.median > 1 + MARGIN:
        return f"adds {middle:.0f} %" + ("" if low is None or high is None else f" ({low:.0f} to {high:.0f} %)")
    return "adds nothing" if high is None or high < 1 else f"adds nothing, or at most {high:.0f} %"


def _name(cell: Cell, *, is_start: bool = False) -> str:
    if cell.sharing == SERIAL:
        return "One at a time" if is_start else "one at a time"
    if cell.sharing.gives_up:
        label = "in one process"
    else:
        label = "side by side (naive)" if cell.sharing == NAIVE else f"under {cell.mode}"
    jobs = "the mix" if cell.case.is_mix else f"{cell.degree} copies"
    return f"{jobs[0].upper() if is_start else jobs[0]}{jobs[1:]} {label}"


def _format_gain(recommendation: Recommendation, cell: Cell, noun: str = "") -> str:
    gain = recommendation.estimate_gain(cell)
    return f"{gain.median:.2f} times{noun}{format_interval(gain, '.2f')}"


def _list_table(recommendation: Recommendation) -> Iterator[str]:
    """Yield a row for each number of jobs, with the speed-up over serial in each mode."""
    with_figure = (*recommendation.candidates[1:], *recommendation.without_isolation, *recommendation.too_slow)
    cells = (*with_figure, *recommendation.without_figure)
    modes = list(dict.fromkeys(cell.mode for cell in sorted(cells, key=lambda cell: cell.sharing.order)))
    by_place = {(cell.degree, cell.mode): cell for cell in cells}
    most = max((_speedup(cell) for cell in cells if SPEEDUP in cell.estimates), default=1.0)
    yield "jobs  " + "".join(f"{mode:<24}" for mode in modes).rstrip()
    yield "   1  1.00"
    for degree in sorted({cell.degree for cell in cells}):
        row = "".join(f"{_format_entry(by_place.get((degree, mode)), recommendation, most):<24}" for mode in modes)
        yield f"{degree:>4}  {row}".rstrip()


def _format_entry(cell: Cell | None, recommendation: Recommendation, most: float) -> str:
    if cell is None:
        return ""
    if cell in recommendation.without_figure:
        words = {Result.OK: "not compared", Result.OOM: "out of memory"}  # without the job alone in its block
        return "invalid" if cell.is_wholly_invalid else words.get(cell.finding, cell.finding.value)
    bar = "▏▎▍▌▋▊▉█"
    eighths = max(1, round(_speedup(cell) / most * 64))
    if cell in recommendation.too_slow:
        return f"{_speedup(cell):.2f} too slow"
    most_blocks = max((len(one.values[SPEEDUP]) for one in recommendation.candidates[1:]), default=0)
    is_once = len(cell.values[SPEEDUP]) == 1 < most_blocks
    mark = " <" * (cell is recommendation.choice) + " once" * is_once
    return f"{_speedup(cell):.2f} {'█' * (eighths // 8)}{bar[eighths % 8 - 1] if eighths % 8 else ''}{mark}"
