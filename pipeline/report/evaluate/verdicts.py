"""The comparison of sharing modes by speed and energy, with verdicts and the fastest mode of each case.

A verdict needs five blocks (three GPUs if blocks ran on several), a ratio beyond the margin, and a p value below the
level after the correction for all claims of the table, including those of equality (`correct_p_values`).
"""

from __future__ import annotations

import dataclasses
import enum
import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from pipeline.base.domain.normalisation import MEAN_SLOWDOWN, P99_SLOWDOWN, SPEEDUP
from pipeline.base.domain.precision_goal import MIN_BLOCKS
from pipeline.base.domain.sharing_modes import SERIAL
from pipeline.base.system.grouping import group_by
from pipeline.base.system.words import format_count
from pipeline.report.evaluate import statistics
from pipeline.report.evaluate.cells import Case, Cell, group_places
from pipeline.report.evaluate.metrics import (
    BEST_SOLO,
    ENERGY_VS_BEST_SOLO,
    MEAN_LATENCY,
    METRICS,
    P99_LATENCY,
)
from pipeline.report.evaluate.pairs import Pair, Quantity, pair_cell
from pipeline.report.evaluate.statistics import (
    MARGIN,
    MARGIN_IN_WORDS,
    MIN_GPUS,
    Estimate,
    blocks_needed,
    correct_p_values,
    interval_in_words,
)
from pipeline.report.evaluate.stressor_effects import runs_stressor
from pipeline.report.evaluate.wording import describe_gpus, finding_in_words, join_words, marks_in_words

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

LEVEL = 1 - statistics.CONFIDENCE


class Decision(enum.StrEnum):
    """The outcome of a comparison."""

    BETTER = "better"
    WORSE = "worse"
    EQUAL = f"equal within {MARGIN_IN_WORDS}"
    NO_VERDICT = "no verdict"
    NOT_RANKED = "not ranked"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The comparison of a mode with another mode or with the best step mode alone, in one case at one degree.

    Attributes:
        quantity: whether speed or energy is compared.
        metric: for speed, the speed-up if known, else throughput or total time; for services at a given rate, latency.
            For energy, that against the same work alone if known, else the energy per work unit.
        ratio: figure of the mode over the figure of the other: speed above 1 and energy below 1 are better. `None` if
            the mode is not ranked.
        p: p value of the test for equality if the decision is "equal", else of the test for a difference.
        p_adjusted: `p` after correction for all claims of the table; `None` with too few blocks or GPUs.
        num_blocks, num_gpus: number of blocks and GPUs with figures of both modes.
        blocks_needed: estimated number of blocks for a verdict; `None` if decided or unknown.
        holds_for: the hosts for which the ratio holds; empty unless it depends on the host.
    """

    case: Case
    degree: int
    mode: str
    against: str
    metric: str
    ratio: Estimate | None
    p: float | None
    p_adjusted: float | None
    num_blocks: int
    num_gpus: int
    decision: Decision
    blocks_needed: int | None
    sentence: str
    quantity: Quantity = Quantity.SPEED
    holds_for: str = ""

    @property
    def baseline(self) -> str:
        """The baseline in words, with the hosts for which the ratio holds."""
        return f"{self.against} {self.holds_for}".strip()

    @property
    def is_against_best_solo(self) -> bool:
        """True if the mode is compared with the best step mode alone."""
        return self.metric in (BEST_SOLO, ENERGY_VS_BEST_SOLO)


@dataclass(frozen=True, slots=True, kw_only=True)
class Winner:
    """The fastest mode of a case at a degree.

    Attributes:
        mode: the fastest mode; `None` if the verdicts do not show that one mode is faster than all others.
        tied: the mode with the best median, and the modes without a verdict against it.
        speedup: speed-up of the first mode in `tied` over serial.
        over_best_solo: speed-up of this mode over one job at a time in the best step mode, if several were measured.
        best_solo: this step mode, in words.
        energies: energy of the first mode in `tied` over that of each baseline for the same work, by baseline.
        is_enough: whether blocks and GPUs were enough for any verdict.
        marks: doubts to show after `speedup`: ` (MPS: NOTE)`.
    """

    case: Case
    degree: int
    mode: str | None
    tied: tuple[str, ...]
    speedup: Estimate
    over_best_solo: Estimate | None
    best_solo: str
    energies: Mapping[str, Estimate]
    num_gpus: int
    is_enough: bool
    sentence: str
    marks: str = ""


class _Judgement(NamedTuple):
    decision: Decision
    p_different: float | None = None
    p_equal: float | None = None


def verdicts(cells: Sequence[Cell]) -> list[Verdict]:
    """Compare each mode with serial, the best step mode alone, naive and MPS, in the order of the cells.

    All comparisons, of speed and of energy, are corrected together.
    """
    places = group_places(cells)
    pairs = [pair for cell in cells for pair in pair_cell(cell, places[cell.case, cell.degree])]
    enough = [pair for pair in pairs if pair.is_enough]
    judged = _judge(enough) if enough else {}  # import numpy only if there are tests
    num_tests = sum(pair.test is not None for pair in pairs)
    undecided = _Judgement(Decision.NO_VERDICT)
    return [_verdict(pair, judged.get(id(pair), undecided), num_tests) for pair in pairs]


def _judge(pairs: Sequence[Pair]) -> dict[int, _Judgement]:
    tested = [pair.test for pair in pairs if pair.test is not None]
    p_different = [test.p_different for test in tested if test.p_different is not None]
    p_equal = [test.p_equal for test in tested if test.p_equal is not None]
    different, equal = correct_p_values(p_different, p_equal)
    decisions = decide([pair.gain for pair in pairs], different, equal)
    outcomes = map(_Judgement, decisions, different.tolist(), equal.tolist())
    return dict(zip(map(id, pairs), outcomes, strict=True))


def decide(ratio: ArrayLike, different: ArrayLike, equal: ArrayLike, margin: ArrayLike = MARGIN) -> list[Decision]:
    """Decide comparisons with enough blocks by their medians and adjusted p values (`correct_p_values`)."""
    import numpy as np

    ratio, highest, is_different = np.asarray(ratio), 1 + np.asarray(margin), np.less(different, LEVEL)
    index = np.select(
        [is_different & (ratio > highest), is_different & (ratio < 1 / highest), np.less(equal, LEVEL)],
        [0, 1, 2],
        default=3,
    )
    outcomes = (Decision.BETTER, Decision.WORSE, Decision.EQUAL, Decision.NO_VERDICT)
    return [outcomes[number] for number in index.ravel()]


def find_slower_pairs(comparisons: Iterable[Verdict]) -> set[tuple[str, str]]:
    """Return the pairs of a slower and a faster mode that the verdicts of one case and degree show."""
    comparisons = [verdict for verdict in comparisons if verdict.quantity is Quantity.SPEED]
    slower = {(verdict.mode, verdict.against) for verdict in comparisons if verdict.decision is Decision.WORSE}
    # A mode that is faster than the best step mode alone is faster than serial, which is one of the step modes.
    better = [verdict for verdict in comparisons if verdict.decision is Decision.BETTER]
    return slower | {(SERIAL.label if v.is_against_best_solo else v.against, v.mode) for v in better}


def rank_modes(
    by_mode: Mapping[str, float], is_slower: Collection[tuple[str, str]]
) -> tuple[tuple[str, ...], list[str]]:
    """Return the tied modes and the modes slower than the first tied one, each with the lowest figure first.

    The tied modes are the first mode and all modes without a verdict against it. No verdict shows the first mode to be
    slower than another, even if another median is lower, because verdicts use common blocks only.
    """
    order = sorted(by_mode, key=by_mode.__getitem__)
    beaten = {slower for slower, faster in is_slower if faster in by_mode}
    first = next((mode for mode in order if mode not in beaten), order[0] if order else "")
    tied = [mode for mode in order if mode != first and (mode, first) not in is_slower]
    return (first, *tied) if order else (), [mode for mode in order if (mode, first) in is_slower]


def winners(cells: Sequence[Cell], comparisons: Sequence[Verdict]) -> list[Winner]:
    """Return the fastest mode of each case and degree at which several modes ran, including serial."""
    fastest = []
    judged = group_by(comparisons, lambda verdict: (verdict.case, verdict.degree))
    for place, members in group_places([cell for cell in cells if not runs_stressor(cell)]).items():
        speeds = {
            cell.mode: cell.estimates[SPEEDUP] for cell in members if cell.is_ranked and SPEEDUP in cell.estimates
        }
        is_serial_unranked = any(cell.mode == SERIAL.label and not cell.is_ranked for cell in members)
        if speeds and SERIAL.label not in speeds and not is_serial_unranked:
            n = max(estimate.n for estimate in speeds.values())
            speeds[SERIAL.label] = Estimate(median=1.0, low=1.0, high=1.0, n=n)
        if len(speeds) > 1:
            fastest.append(_winner(members, speeds, judged.get(place, [])))
    return fastest


def _verdict(pair: Pair, judged: _Judgement, num_tests: int) -> Verdict:
    cell, test = pair.cell, pair.test
    decision = judged.decision if test is not None else Decision.NOT_RANKED
    is_equal = decision is Decision.EQUAL
    p = None if test is None else test.p_equal if is_equal else test.p_different
    verdict = Verdict(
        case=cell.case,
        degree=cell.degree,
        mode=cell.mode,
        against=pair.against,
        metric=pair.metric,
        ratio=None if test is None else test.ratio,
        p=p,
        p_adjusted=judged.p_equal if is_equal else judged.p_different,
        num_blocks=len(pair.ratios),
        num_gpus=pair.num_gpus,
        decision=decision,
        blocks_needed=_blocks_needed(pair, num_tests) if decision is Decision.NO_VERDICT else None,
        quantity=pair.quantity,
        holds_for=pair.holds_for,
        sentence="",
    )
    both = [cell, *([pair.other] if pair.other is not None else [])]
    marks = marks_in_words(both, only_of_rows=pair.against != SERIAL.label) if test is not None else ""
    simulated = " (simulated)" if cell.is_simulated else ""
    is_drifting = test is not None and test.is_drifting
    return dataclasses.replace(verdict, sentence=_sentence(verdict, cell, is_drifting) + marks + simulated)


def _blocks_needed(pair: Pair, num_tests: int) -> int | None:
    num_blocks = len(pair.ratios)
    if pair.test is None or pair.num_gpus > 1 or num_blocks < statistics.MIN_FOR_INTERVAL:
        return None
    needed = blocks_needed(pair.test, num_tests)
    return None if needed is None else max(needed, num_blocks + 1)


def _sentence(verdict: Verdict, cell: Cell, is_drifting: bool) -> str:
    jobs = f"{_name_jobs(verdict.case, verdict.degree)}, {verdict.mode}"
    if verdict.ratio is None:
        return f"{jobs}: {finding_in_words(cell)}."
    against = verdict.baseline
    if verdict.against == SERIAL.label and verdict.degree == 1:
        against = f"the serial baseline {verdict.holds_for}".strip()
    if verdict.metric in (MEAN_SLOWDOWN, P99_SLOWDOWN):
        percentile = "p99" if verdict.metric == P99_SLOWDOWN else "mean"
        against = f"the same job alone by the {percentile} latency under the same arrivals"
    elif verdict.metric in (MEAN_LATENCY, P99_LATENCY):
        against += f" by the {METRICS[verdict.metric].title}"
    if verdict.quantity is Quantity.ENERGY:
        is_alone = cell.num_given and verdict.against == SERIAL.label
        against = f"the energy of {'the same work alone' if is_alone else against}"
    blocks = format_count(verdict.num_blocks, "block") + describe_gpus(verdict.num_gpus)
    details = [interval_in_words(verdict.ratio, ".2f").strip(" ()"), blocks]
    if is_drifting and verdict.against != SERIAL.label:  # against serial, the cell has a note
        details += [f"one of the two drifts with its host, so {statistics.DRIFT_BLOCKS} blocks count as one"]
    details += [_describe_need(verdict)] if verdict.decision is Decision.NO_VERDICT else []
    equal = f", equal within {MARGIN_IN_WORDS}" if verdict.decision is Decision.EQUAL else ""
    return f"{jobs}: {verdict.ratio.median:.2f} x {against}{equal} ({'; '.join(filter(None, details))})."


def has_verdicts(comparisons: Iterable[Verdict]) -> bool:
    """Check that the blocks and GPUs were enough for a verdict on speed."""
    return any(v.p_adjusted is not None for v in comparisons if v.quantity is Quantity.SPEED)


def describe_details(comparisons: Iterable[Verdict], mode: str) -> str:
    """Return the speed of a mode over the best step mode alone, and its energy over both baselines; empty if unknown.

    For example: `MPS: 1.36 x CUDA graph alone; energy 0.36 x serial (0.34 to 0.39), 1.00 x CUDA graph alone.`
    """
    known = _compare_with_baselines(comparisons, mode)
    speeds = [v for v in known if v.quantity is Quantity.SPEED and v.is_against_best_solo]
    energies = [verdict for verdict in known if verdict.quantity is Quantity.ENERGY]
    texts = [_brief(speeds), f"energy {_brief(energies)}" if energies else ""]
    return f"{mode}: {'; '.join(filter(None, texts))}." if speeds or energies else ""


def _compare_with_baselines(comparisons: Iterable[Verdict], mode: str) -> list[Verdict]:
    return [
        verdict
        for verdict in comparisons
        if verdict.mode == mode
        and verdict.ratio is not None
        and (verdict.against == SERIAL.label or verdict.is_against_best_solo)
    ]


def _brief(comparisons: Sequence[Verdict]) -> str:
    parts = []
    for verdict in comparisons:
        assert verdict.ratio is not None
        is_open = verdict.decision in (Decision.NO_VERDICT, Decision.EQUAL)
        details = [interval_in_words(verdict.ratio, ".2f").strip(" ()"), verdict.decision.value if is_open else ""]
        words = "; ".join(filter(None, details))
        parts.append(f"{verdict.ratio.median:.2f} x {verdict.baseline}" + (f" ({words})" if words else ""))
    return ", ".join(parts)


def _name_jobs(case: Case, degree: int) -> str:
    return case.label if case.is_mix else f"{degree} x {case.label}"


def _describe_need(verdict: Verdict) -> str:
    if verdict.holds_for == "on these hosts":
        return "no verdict over several hosts"
    if verdict.num_gpus > 1:
        needed = f"{MIN_GPUS} GPUs" if verdict.num_gpus < MIN_GPUS else "more GPUs (or less scatter)"
        return f"no verdict: each GPU counts once, and {needed} are needed"
    if verdict.blocks_needed is not None:
        return f"no verdict: about {verdict.blocks_needed} blocks are needed"
    if verdict.num_blocks < statistics.MIN_FOR_INTERVAL:
        return f"no interval below {statistics.MIN_FOR_INTERVAL} blocks, no verdict below {MIN_BLOCKS}"
    if verdict.num_blocks < MIN_BLOCKS:
        return f"no verdict below {MIN_BLOCKS} blocks"
    return f"no verdict: more than {statistics.MOST_BLOCKS} blocks are needed"


def _winner(cells: Sequence[Cell], speeds: dict[str, Estimate], comparisons: Sequence[Verdict]) -> Winner:
    case, degree = cells[0].case, cells[0].degree
    is_slower = find_slower_pairs(comparisons)
    tied, slower = rank_modes({mode: -estimate.median for mode, estimate in speeds.items()}, is_slower)
    best = tied[0]
    mode = best if len(tied) == 1 else None
    num_gpus = max((verdict.num_gpus for verdict in comparisons), default=1)
    jobs, speedup = _name_jobs(case, degree) + describe_gpus(num_gpus), speeds[best]
    if mode == SERIAL.label:
        sentence = f"{jobs}: serial is fastest."
    elif mode is not None:
        serial = next((v.baseline for v in comparisons if (v.mode, v.against) == (mode, SERIAL.label)), SERIAL.label)
        sentence = f"{jobs}: {mode} is fastest, {speedup.median:.2f} x {serial}{interval_in_words(speedup, '.2f')}."
    else:
        sentence = f"{jobs}: no verdict between {join_words(tied)}"
        if slower:
            ahead = "all" if is_slower >= set(itertools.product(slower, tied)) else best
            sentence += f"; {ahead} faster than {join_words(slower)}"
        sentence += "."
    first = next((cell for cell in cells if cell.mode == best), None)
    sentence = f"{sentence} {describe_details(comparisons, best)}".strip()
    if mode is not None and first is not None and first.sharing.gives_up:
        sentence += f" It gives up {first.sharing.gives_up}."
    # The marks of a mode without a valid block are shown too, because this mode may be the fastest.
    marks = marks_in_words([cell for cell in cells if cell.mode in (best, SERIAL.label) or cell.is_wholly_invalid])
    sentence += marks + (" (simulated)" if any(cell.is_simulated for cell in cells) else "")
    return Winner(
        case=case,
        degree=degree,
        mode=mode,
        tied=tied,
        speedup=speedup,
        over_best_solo=first.estimates.get(BEST_SOLO) if first is not None else None,
        best_solo=first.best_solo if first is not None else "",
        energies={
            verdict.against: verdict.ratio
            for verdict in _compare_with_baselines(comparisons, best)
            if verdict.quantity is Quantity.ENERGY and verdict.ratio is not None
        },
        num_gpus=num_gpus,
        is_enough=has_verdicts(comparisons),
        marks=marks,
        sentence=sentence,
    )
