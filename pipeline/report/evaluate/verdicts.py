"""The fastest sharing mode of each case, by the verdicts on its contrasts with other modes."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from pipeline.base.domain.normalisation import SPEEDUP
from pipeline.base.domain.precision_goal import MIN_BLOCKS
from pipeline.base.domain.sharing_modes import SERIAL
from pipeline.base.system.words import group_by
from pipeline.report.evaluate.cells import Case, Cell, group_places
from pipeline.report.evaluate.contrasts import Contrast, Decision, Quantity
from pipeline.report.evaluate.metrics import BEST_SOLO
from pipeline.report.evaluate.statistics import MIN_FOR_INTERVAL, Estimate, format_interval
from pipeline.report.evaluate.wording import describe_gpus, describe_time, join_words

BLOCKS_IN_WORDS = f"intervals need {MIN_FOR_INTERVAL} blocks, verdicts {MIN_BLOCKS}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Winner:
    """The fastest mode of a case at a degree.

    Attributes:
        mode: the fastest mode; `None` if the verdicts do not show that one mode is faster than all others.
        tied: the mode with the best median, and the modes without a verdict against it.
        speedup: speed-up of the first mode in `tied` over serial.
        over_best_solo: speed-up of this mode over one job at a time in the best step mode, if several were measured.
        best_solo: this step mode, in words.
        is_enough: whether blocks and GPUs were enough for any verdict.
    """

    case: Case
    degree: int
    mode: str | None
    tied: tuple[str, ...]
    speedup: Estimate
    over_best_solo: Estimate | None
    best_solo: str
    num_gpus: int
    is_enough: bool
    sentence: str


def find_slower_pairs(comparisons: Iterable[Contrast]) -> set[tuple[str, str]]:
    """Return the pairs of a slower and a faster mode that the verdicts of one case and degree show."""
    comparisons = [pair for pair in comparisons if pair.quantity is Quantity.SPEED]
    slower = {(pair.mode, pair.against) for pair in comparisons if pair.decision is Decision.WORSE}
    # A mode that is faster than the best step mode alone is faster than serial, which is one of the step modes.
    better = [pair for pair in comparisons if pair.decision is Decision.BETTER]
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


def winners(cells: Sequence[Cell], comparisons: Sequence[Contrast]) -> list[Winner]:
    """Return the fastest mode of each case and degree at which several modes ran, including serial."""
    fastest = []
    judged = group_by(comparisons, lambda pair: (pair.case, pair.degree))
    for place, members in group_places([cell for cell in cells if not cell.has_stressor]).items():
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


def has_verdicts(comparisons: Iterable[Contrast]) -> bool:
    """Check that the blocks and GPUs were enough for a verdict on speed."""
    return any(v.p_adjusted is not None for v in comparisons if v.quantity is Quantity.SPEED)


def has_too_few_blocks(best: Iterable[Winner]) -> bool:
    """Check that a case is open only because it has too few blocks on its one GPU."""
    return any(not (winner.is_enough or winner.mode) and winner.num_gpus == 1 < winner.degree for winner in best)


def describe_cases(cells: Sequence[Cell], comparisons: Iterable[Contrast], best: Iterable[Winner]) -> list[str]:
    """Return sentences on each case and number of jobs: the fastest mode, or what the best mode gains and means.

    Marks are `*`, because a table or list beside the sentences has their text, as for comparisons without a ratio.
    """
    of_case = {(winner.case, winner.degree): winner for winner in best}
    with_figure = [pair for pair in comparisons if pair.degree > 1 and pair.ratio is not None]
    by_case = group_by(with_figure, lambda pair: (pair.case, pair.degree))
    return [" ".join(filter(None, _describe_case(of_case.get(case), by_case[case], cells))) for case in by_case]


def _describe_case(winner: Winner | None, comparisons: Sequence[Contrast], cells: Sequence[Cell]) -> list[str]:
    by_quantity = group_by(comparisons, lambda pair: pair.quantity)
    if winner is None:  # no baseline, or services at a given rate
        return [pair.sentence for pair in by_quantity.get(Quantity.SPEED, comparisons)]
    modes = dict.fromkeys(pair.mode for pair in comparisons)
    mode = next((mode for mode in winner.tied if mode != SERIAL.label), next(iter(modes)))
    speeds = by_quantity.get(Quantity.SPEED, [])
    gain = [pair for pair in speeds if (pair.mode, pair.against) == (mode, SERIAL.label)]
    sentences = [pair.sentence for pair in gain]
    times = [f"They {time}." for pair in gain if (time := describe_time(pair.cell, cells))]
    details = describe_details(comparisons, mode)
    # If there is no verdict against serial either, the sentence on the gain is enough.
    is_open = winner.mode is None and SERIAL.label in winner.tied
    # Nothing is called fastest that is marked, or the only mode.
    if is_open or (winner.mode == mode and (len(modes) == 1 or any(pair.cell.marks for pair in gain))):
        return [*sentences, *times, details]
    if winner.mode == mode:
        return [winner.sentence, *times]
    return [winner.sentence, *sentences, *times, details if mode != winner.tied[0] else ""]


def describe_details(comparisons: Iterable[Contrast], mode: str) -> str:
    """Return the speed of a mode over the best step mode alone, and its energy over both baselines; empty if unknown.

    For example: `MPS: 1.36 x CUDA graph alone; energy 0.36 x serial (0.34 to 0.39), 1.00 x CUDA graph alone.`
    """
    contrasts = [
        pair
        for pair in comparisons
        if pair.mode == mode and pair.ratio is not None and (pair.against == SERIAL.label or pair.is_against_best_solo)
    ]
    speeds = [v for v in contrasts if v.quantity is Quantity.SPEED and v.is_against_best_solo]
    energies = [pair for pair in contrasts if pair.quantity is Quantity.ENERGY]
    texts = [_brief(speeds), f"energy {_brief(energies)}" if energies else ""]
    return f"{mode}: {'; '.join(filter(None, texts))}." if speeds or energies else ""


def _brief(comparisons: Sequence[Contrast]) -> str:
    parts = []
    for pair in comparisons:
        assert pair.ratio is not None
        is_open = pair.decision in (Decision.NO_VERDICT, Decision.EQUAL)
        details = [format_interval(pair.ratio, ".2f").strip(" ()"), pair.decision.value if is_open else ""]
        words = "; ".join(filter(None, details))
        parts.append(f"{pair.ratio.median:.2f} x {pair.baseline}" + (f" ({words})" if words else ""))
    return ", ".join(parts)


def _winner(cells: Sequence[Cell], speeds: dict[str, Estimate], comparisons: Sequence[Contrast]) -> Winner:
    case, degree = cells[0].case, cells[0].degree
    is_slower = find_slower_pairs(comparisons)
    tied, slower = rank_modes({mode: -estimate.median for mode, estimate in speeds.items()}, is_slower)
    best = tied[0]
    mode = best if len(tied) == 1 else None
    num_gpus = max((pair.num_gpus for pair in comparisons), default=1)
    name = case.label if case.is_mix else f"{degree} x {case.label}"
    jobs, speedup = name + describe_gpus(num_gpus), speeds[best]
    first = next((cell for cell in cells if cell.mode == best), None)
    star = "*" if first is not None and first.marks else ""
    if mode == SERIAL.label:
        sentence = f"{jobs}: serial is fastest."
    elif mode is not None:
        serial = next((v.baseline for v in comparisons if (v.mode, v.against) == (mode, SERIAL.label)), SERIAL.label)
        sentence = f"{jobs}: {mode} is fastest, {speedup.median:.2f}{star} x {serial}{format_interval(speedup, '.2f')}."
    else:
        sentence = f"{jobs}: no verdict between {join_words(tied)}"
        if slower:
            subject = "all" if is_slower >= set(itertools.product(slower, tied)) else best
            sentence += f"; {subject} faster than {join_words(slower)}"
        sentence += "."
    sentence = f"{sentence} {describe_details(comparisons, best)}".strip()
    if mode is not None and first is not None and first.sharing.gives_up:
        sentence += f" It gives up {first.sharing.gives_up}."
    simulated = " (simulated)" if any(cell.is_simulated for cell in cells) else ""
    return Winner(
        case=case,
        degree=degree,
        mode=mode,
        tied=tied,
        speedup=speedup,
        over_best_solo=first.estimates.get(BEST_SOLO) if first is not None else None,
        best_solo=first.best_solo if first is not None else "",
        num_gpus=num_gpus,
        is_enough=has_verdicts(comparisons),
        sentence=f"{sentence}{simulated}",
    )
