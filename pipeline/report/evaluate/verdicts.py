"""Which mode is better than which, by how much, and in a sentence.

A verdict needs five blocks, a ratio beyond the margin of 2 %, and a p value that survives the correction over the
whole table, that of equality within the margin included (`statistics.corrected`).
"""

from __future__ import annotations

import dataclasses
import enum
import itertools
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from pipeline.base.modes import MPS, NAIVE, SERIAL
from pipeline.base.words import counted
from pipeline.report.evaluate import statistics
from pipeline.report.evaluate.cells import Case, Cell, speed_ratios
from pipeline.report.evaluate.metrics import BEST_SOLO, SPEEDUP, THROUGHPUT, TOTAL_TIME
from pipeline.report.evaluate.statistics import MARGIN, MIN_BLOCKS, Estimate, Test, blocks_needed, corrected, paired
from pipeline.report.evaluate.wording import finding_in_words, jobs_in_words, listed, times_in_words

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

LEVEL = 1 - statistics.CONFIDENCE
REFERENCES = (SERIAL, NAIVE, MPS)
"""What each mode is compared with, as far as it comes after it in this order."""

_AS_FAST_AS = {SERIAL.label: "one after another", NAIVE.label: "naive sharing", MPS.label: "MPS"}


class Decision(enum.StrEnum):
    """What a comparison comes to."""

    BETTER = "better"
    WORSE = "worse"
    EQUAL = "equal within 2 %"
    NO_VERDICT = "no verdict"
    NOT_RANKED = "not ranked"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A mode against another one, in one case at one degree.

    Attributes:
        against: the mode that it is compared with.
        metric: what the ratio is of: the speed-up over serial where that is known, else throughput or total time.
        ratio: speed of the mode over that of the other, by block; above 1 is faster. `None` if it is not ranked.
        p: of "they are equally fast"; `p_adjusted` for all claims of the table, `None` below five blocks.
        p_equal_adjusted: of "they differ by more than the margin", likewise.
        num_blocks: blocks that have both.
        blocks_needed: about how many would give a verdict; `None` if there is one, or it cannot be told.
    """

    case: Case
    degree: int
    mode: str
    against: str
    metric: str
    ratio: Estimate | None
    p: float | None
    p_adjusted: float | None
    p_equal_adjusted: float | None
    num_blocks: int
    decision: Decision
    blocks_needed: int | None
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Winner:
    """Which mode is the fastest in a case at a degree.

    Attributes:
        mode: the mode that is better than every other one; `None` if no single one is.
        tied: modes of which none was shown to be slower than the first of them, the fastest median first.
        speedup: of the first of them over serial.
        over_best_solo: over one job at a time in its best step mode; `None` if not several step modes were measured.
    """

    case: Case
    degree: int
    mode: str | None
    tied: tuple[str, ...]
    speedup: Estimate
    over_best_solo: Estimate | None
    sentence: str


class _Pair(NamedTuple):
    cell: Cell
    against: str
    metric: str = ""
    test: Test | None = None  # unless the cell is not ranked

    @property
    def num_blocks(self) -> int:
        return 0 if self.test is None else self.test.ratio.n


def verdicts(cells: Sequence[Cell]) -> list[Verdict]:
    """Each mode against serial, naive and MPS, in the order of the cells."""
    places = _by_place(cells)
    pairs = [pair for cell in cells for pair in _pairs(cell, places[cell.case, cell.degree])]
    tested = [pair.test for pair in pairs if pair.test is not None and pair.num_blocks >= MIN_BLOCKS]
    p_different = [test.p_different for test in tested if test.p_different is not None]
    p_equal = [test.p_equal for test in tested if test.p_equal is not None]
    different, equal = corrected(p_different, p_equal)
    decisions = decided([test.ratio.median for test in tested], different, equal)
    judged = dict(zip(map(id, tested), zip(decisions, different.tolist(), equal.tolist(), strict=True), strict=True))
    num_tests = sum(pair.test is not None for pair in pairs)
    undecided = (Decision.NO_VERDICT, None, None)
    return [_verdict(pair, judged.get(id(pair.test), undecided), num_tests) for pair in pairs]


def decided(ratio: ArrayLike, different: ArrayLike, equal: ArrayLike) -> list[Decision]:
    """What comparisons of enough blocks come to, from the median of each and its adjusted p values (`corrected`)."""
    import numpy as np

    ratio, is_different = np.asarray(ratio), np.less(different, LEVEL)
    index = np.select(
        [is_different & (ratio > 1 + MARGIN), is_different & (ratio < 1 / (1 + MARGIN)), np.less(equal, LEVEL)],
        [0, 1, 2],
        default=3,
    )
    outcomes = (Decision.BETTER, Decision.WORSE, Decision.EQUAL, Decision.NO_VERDICT)
    return [outcomes[number] for number in index.ravel()]


def winners(cells: Sequence[Cell], found: Sequence[Verdict]) -> list[Winner]:
    """The fastest mode of each case and degree at which several ran, serial among them."""
    made = []
    judged: dict[tuple[Case, int], list[Verdict]] = defaultdict(list)
    for verdict in found:
        judged[verdict.case, verdict.degree].append(verdict)
    for place, here in _by_place(cells).items():
        speeds = {cell.mode: cell.estimates[SPEEDUP] for cell in here if cell.is_ranked and SPEEDUP in cell.estimates}
        is_serial_unranked = any(cell.mode == SERIAL.label and not cell.is_ranked for cell in here)
        if speeds and SERIAL.label not in speeds and not is_serial_unranked:
            n = max(estimate.n for estimate in speeds.values())
            speeds[SERIAL.label] = Estimate(median=1.0, low=1.0, high=1.0, n=n)  # the unit of all the others
        if len(speeds) > 1:
            made.append(_winner(here, speeds, judged[place]))
    return made


def _by_place(cells: Sequence[Cell]) -> dict[tuple[Case, int], list[Cell]]:
    places: dict[tuple[Case, int], list[Cell]] = defaultdict(list)
    for cell in cells:
        places[cell.case, cell.degree].append(cell)
    return places


def _pairs(cell: Cell, here: Sequence[Cell]) -> list[_Pair]:
    if cell.mode == SERIAL.label:
        return []
    if not cell.is_ranked:
        return [_Pair(cell, SERIAL.label)]
    others = {other.mode: other for other in here}
    found = []
    for reference in REFERENCES:
        other = others.get(reference.label)
        comes_after = cell.mode != reference.label and cell.sharing.order >= reference.order
        if not comes_after or (other is not None and not other.is_ranked):
            continue
        if reference == SERIAL and SPEEDUP in cell.values:
            # Already a ratio to the baseline of its block, also where that is no cell of its own (steady mixes).
            ratios, metric = list(cell.values[SPEEDUP].values()), SPEEDUP
        elif other is not None:
            # Samples of different jobs do not add up to anything.
            names = (SPEEDUP, TOTAL_TIME) if cell.case.is_mix else (SPEEDUP, THROUGHPUT, TOTAL_TIME)
            ratios, metric = speed_ratios(cell, other, names)
        else:
            continue
        if ratios:
            found.append(_Pair(cell, reference.label, metric, paired(ratios)))
    return found


def _verdict(pair: _Pair, judged: tuple[Decision, float | None, float | None], num_tests: int) -> Verdict:
    cell, test = pair.cell, pair.test
    decision, p_adjusted, p_equal_adjusted = judged
    if test is None:
        decision = Decision.NOT_RANKED
    needed = None
    if decision is Decision.NO_VERDICT and test is not None and pair.num_blocks >= statistics.MIN_FOR_INTERVAL:
        needed = blocks_needed(test, num_tests)
        if needed is not None and needed <= pair.num_blocks:
            needed = pair.num_blocks + 1  # the spread was kind, the verdict just missed
    verdict = Verdict(
        case=cell.case,
        degree=cell.degree,
        mode=cell.mode,
        against=pair.against,
        metric=pair.metric,
        ratio=None if test is None else test.ratio,
        p=None if test is None else test.p_different,
        p_adjusted=p_adjusted,
        p_equal_adjusted=p_equal_adjusted,
        num_blocks=pair.num_blocks,
        decision=decision,
        blocks_needed=needed,
        sentence="",
    )
    # What a reader must not overlook.
    flag = f" ({cell.flags[0]})" if cell.flags and cell.is_ranked else ""
    simulated = " (simulated)" if cell.is_simulated else ""
    return dataclasses.replace(verdict, sentence=_sentence(verdict, cell) + flag + simulated)


def _sentence(verdict: Verdict, cell: Cell) -> str:
    what = jobs_in_words(verdict.case, verdict.degree)
    if verdict.ratio is None:
        return f"{what} under {verdict.mode}: {finding_in_words(cell)}."
    against = _AS_FAST_AS[verdict.against]
    if verdict.against == SERIAL.label and verdict.degree == 1:
        against = "the serial baseline"
    times, blocks = times_in_words(verdict.ratio), counted(verdict.num_blocks, "block")
    if verdict.decision in (Decision.BETTER, Decision.WORSE):
        return f"{verdict.mode} runs {what} {times} as fast as {against}, {blocks}."
    if verdict.decision is Decision.EQUAL:
        return f"{verdict.mode} runs {what} as fast as {against} within 2 %: {times}, {blocks}."
    return f"No verdict: {verdict.mode} runs {what} {times} as fast as {against}, {blocks}; {_more_blocks(verdict)}."


def _more_blocks(verdict: Verdict) -> str:
    if verdict.blocks_needed is not None:
        return f"about {verdict.blocks_needed} would give one"
    if verdict.num_blocks < MIN_BLOCKS:
        return f"a verdict needs {MIN_BLOCKS} at least"
    return f"more than {statistics.MOST_BLOCKS} would be needed"


def _winner(cells: Sequence[Cell], speeds: dict[str, Estimate], found: Sequence[Verdict]) -> Winner:
    case, degree = cells[0].case, cells[0].degree
    order = sorted(speeds, key=lambda mode: -speeds[mode].median)
    best = order[0]
    is_slower = {(v.mode, v.against) for v in found if v.decision is Decision.WORSE}
    is_slower |= {(v.against, v.mode) for v in found if v.decision is Decision.BETTER}
    beaten = {loser for loser, faster in is_slower if faster == best}
    tied = tuple(mode for mode in order if mode not in beaten)
    mode = best if len(tied) == 1 else None
    what, speedup = jobs_in_words(case, degree), speeds[best]
    if mode == SERIAL.label:
        sentence = f"{what}: one after another is fastest."
    elif mode is not None:
        sentence = f"{what}: {mode} is fastest, {times_in_words(speedup)} as fast as one after another."
    else:
        sentence = f"{what}: {listed(tied)} are not told apart"
        slower = sorted(beaten, key=order.index)
        if slower:
            ahead = "all" if is_slower >= set(itertools.product(slower, tied)) else best
            sentence += f"; {ahead} ahead of {listed(slower)}"
        sentence += "."
    over_best_solo = next((cell.estimates.get(BEST_SOLO) for cell in cells if cell.mode == best), None)
    if over_best_solo is not None:
        sentence += f" Against the best step mode, one at a time: {times_in_words(over_best_solo)}."
    if any(cell.is_simulated for cell in cells):
        sentence += " (simulated)"
    return Winner(
        case=case,
        degree=degree,
        mode=mode,
        tied=tied,
        speedup=speedup,
        over_best_solo=over_best_solo,
        sentence=sentence,
    )
