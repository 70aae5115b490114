"""Advice: whether the jobs of a case should share a GPU, in which mode, and what they gain.

The 95 % interval of one ratio, paired in blocks, decides each question: to share or not by the speed-up of a mode over
serial, and between two modes by the ratio of their speeds. Of modes that differ little, the simplest is recommended.
"""

from __future__ import annotations

import enum
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from pipeline.base.domain import service_figures, work_units
from pipeline.base.domain.normalisation import MEMORY_PEAK, SLOWDOWN, SPEEDUP, select_independent
from pipeline.base.domain.precision_goal import MIN_BLOCKS
from pipeline.base.domain.sharing_modes import NAIVE, SERIAL, TIMESLICE
from pipeline.base.system.words import format_count
from pipeline.report.evaluate.cells import Case, Cell, group_places
from pipeline.report.evaluate.contrasts import Contrast, contrast_cells, is_best_solo_serial, name_best_solo
from pipeline.report.evaluate.metrics import BEST_SOLO, ENERGY_VS_ALONE, MEAN_LATENCY, P99_LATENCY
from pipeline.report.evaluate.statistics import (
    MARGIN,
    MIN_FOR_INTERVAL,
    MIN_GPUS,
    Estimate,
    blocks_needed,
    compare_pairs,
    format_interval,
    format_times,
)
from pipeline.report.evaluate.wording import describe_finding, describe_jobs, join_words
from pipeline.report.page.table_format import format_estimate

ALIKE = 0.2
"""The largest difference between two modes at which the simpler one is recommended."""
MOST_BLOCKS = 20
"""The largest number of blocks that advice proposes to measure."""
WIDTH = 100


class Answer(enum.StrEnum):
    """The answer to the question whether jobs should share a GPU."""

    SHARE = "share"
    ALONE = "one at a time"
    OPEN = "open"


@dataclass(frozen=True, slots=True)
class Aim:
    """The metric by which the modes of a case are compared, in words."""

    metric: str
    words: str
    is_less_better: bool = False


SPEED = Aim(SPEEDUP, "times serial")
TAIL = Aim(P99_LATENCY, "ms of p99 latency", True)
MEAN = Aim(MEAN_LATENCY, "ms of mean latency", True)
RETAINED = Aim(SLOWDOWN, "times as long as alone, next to the services", True)
"""The aim for a mix of services and other jobs: the slowdown of the slowest other job."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Advice:
    """The answer for one case at one degree.

    Attributes:
        aim: metric by which modes are compared; `None` if no metric is comparable.
        cell: the recommended mode, or the best mode if none is recommended; `None` without a comparable mode.
        rivals: contrasts of the recommended mode with each other mode, the fastest first.
        reason: why no mode is comparable or fast enough; empty if the figures of `cell` say it.
        changes: conditions under which another measured mode is better.
        not_considered: modes that are never recommended, with the reason.
        open_modes: modes to measure again, because a question is open that blocks could answer.
        blocks_needed: number of blocks that would answer it; `None` if it is more than `MOST_BLOCKS` or unknown.
    """

    case: Case
    degree: int
    answer: Answer
    aim: Aim | None = None
    cell: Cell | None = None
    rivals: tuple[Contrast, ...] = ()
    reason: str = ""
    changes: tuple[str, ...] = ()
    not_considered: tuple[str, ...] = ()
    open_modes: tuple[str, ...] = ()
    blocks_needed: int | None = None

    @property
    def mode(self) -> str | None:
        """The recommended mode: a sharing mode or serial; `None` if the question is open."""
        if self.answer is Answer.SHARE and self.cell is not None:
            return self.cell.mode
        return SERIAL.label if self.answer is Answer.ALONE else None

    @property
    def speedup(self) -> Estimate | None:
        """The speed-up of `cell` over serial."""
        return self._estimate(SPEEDUP)

    @property
    def slowdown(self) -> Estimate | None:
        """The time of the slowest job relative to that of the same job alone."""
        return self._estimate(SLOWDOWN)

    @property
    def energy(self) -> Estimate | None:
        """The energy relative to that of the same work alone."""
        return self._estimate(ENERGY_VS_ALONE)

    @property
    def figure(self) -> Estimate | None:
        """The figure of `cell` for the aim."""
        return self._estimate(self.aim.metric) if self.aim is not None else None

    @property
    def alike(self) -> dict[str, float]:
        """The modes that differ little from the recommended one, with the largest possible difference."""
        pairs = {pair.against: pair.ratio for pair in self.rivals if pair.ratio is not None}
        bounds = {mode: bound_difference(ratio) for mode, ratio in pairs.items() if not is_above(ratio)}
        return {mode: bound for mode, bound in bounds.items() if bound is not None and bound <= ALIKE}

    def _estimate(self, name: str) -> Estimate | None:
        return None if self.cell is None else self.cell.estimates.get(name)


def is_above(ratio: Estimate | None) -> bool:
    """Return whether the interval of a ratio is above 1, and its median by more than the margin."""
    return ratio is not None and ratio.low is not None and ratio.low > 1 and ratio.median > 1 + MARGIN


def bound_difference(ratio: Estimate) -> float | None:
    """Return the largest difference that the interval of a ratio allows, such as 0.14; `None` without an interval."""
    return None if not ratio.low or ratio.high is None else max(ratio.high, 1 / ratio.low) - 1


def advise(cells: Sequence[Cell]) -> list[Advice]:
    """Return an answer for each case of several jobs at each degree, in the order of the cells of a study.

    Cells with a stressor are left out, because a stressor has no work that could gain.
    """
    places = group_places([cell for cell in cells if not cell.has_stressor])
    return [_advise_place(members) for (_, degree), members in places.items() if degree > 1]


def choose_degree(advices: Sequence[Advice]) -> Advice | None:
    """Return the advice with the fewest jobs whose speed-up no larger number of jobs exceeds, of one case of copies.

    `None` if the question is open for a number of jobs, if the jobs should not share, or if they are a mix.
    """
    best: Advice | None = None
    for advice in sorted(advices, key=lambda advice: advice.degree):
        if advice.answer is Answer.OPEN or advice.case.is_mix or advice.aim is not SPEED:
            return None
        if advice.answer is Answer.SHARE and (best is None or _does_more_work(advice, best)):
            best = advice
    return best


def _does_more_work(advice: Advice, other: Advice) -> bool:
    assert advice.cell is not None and other.cell is not None
    pair = contrast_cells(advice.cell, other.cell, SPEEDUP)
    return pair is not None and is_above(pair.ratio)


def _advise_place(cells: Sequence[Cell]) -> Advice:
    aim = _find_aim(cells)
    obstacles = {cell.mode: _find_obstacle(cell, aim) for cell in cells if cell.mode != SERIAL.label}
    advice = Advice(
        case=cells[0].case,
        degree=cells[0].degree,
        answer=Answer.OPEN,
        aim=aim,
        not_considered=tuple(f"{mode}: {obstacle}" for mode, obstacle in obstacles.items() if obstacle),
    )
    candidates = [cell for cell in cells if cell.mode in obstacles and not obstacles[cell.mode]]
    if aim is None or not candidates:
        return _explain_no_comparison(advice, cells)
    sign = 1 if aim.is_less_better else -1
    candidates.sort(key=lambda cell: sign * cell.estimates[aim.metric].median)
    # Services must run at the same time, so serial is no choice for them.
    measured = [cell for cell in candidates if cell.estimates[aim.metric].low is not None]
    if faster := [cell for cell in measured if aim is not SPEED or _beats_serial(cell)]:
        return _recommend(advice, aim, candidates, faster)
    advice = replace(advice, cell=candidates[0])
    if aim is SPEED and all(_gains_nothing(cell) for cell in candidates):
        return replace(advice, answer=Answer.ALONE)
    needed = _estimate_blocks(candidates[0], candidates[0].values[aim.metric], MARGIN)
    return replace(advice, open_modes=tuple(cell.mode for cell in candidates), blocks_needed=needed)


def _find_aim(cells: Sequence[Cell]) -> Aim | None:
    metrics = {name for cell in cells for name in cell.estimates}
    if not any(cell.num_given for cell in cells):
        return SPEED if SPEEDUP in metrics else None
    if cells[0].case.is_mix and SLOWDOWN in metrics:
        # Without an objective, latency and throughput cannot be weighed against each other.
        return RETAINED if service_figures.OBJECTIVE_MET_WORST in metrics else None
    return TAIL if P99_LATENCY in metrics else MEAN if MEAN_LATENCY in metrics else None


def _find_obstacle(cell: Cell, aim: Aim | None) -> str:
    """Return why a mode cannot be recommended; empty if it can."""
    if not cell.is_ranked:
        return describe_finding(cell)
    if aim is None:
        return ""
    if aim.metric not in cell.estimates:
        return "its baseline is missing"
    if aim is SPEED:
        return cell.notes_on_gain[0] if cell.exceeds_ideal else ""
    return _describe_shortfall(cell)


def _describe_shortfall(cell: Cell) -> str:
    shortfalls = {
        service_figures.SUSTAINED_WORST: "does not sustain the rate",
        service_figures.OBJECTIVE_MET_WORST: "misses the objective",
    }
    for name, words in shortfalls.items():
        by_block = cell.values.get(name, {})
        if number := sum(ratio < 1 for ratio in by_block.values()):
            return f"{words} in {number} of {format_count(len(by_block), 'block')}"
    return ""


def _explain_no_comparison(advice: Advice, cells: Sequence[Cell]) -> Advice:
    ranked = [cell for cell in cells if cell.is_ranked and cell.mode != SERIAL.label]
    modes = tuple(cell.mode for cell in ranked)
    if not ranked:
        return replace(advice, reason="no sharing mode has a valid result")
    if not any(cell.num_given for cell in cells):
        if advice.aim is not None:
            return replace(advice, reason="no mode has a valid speed-up", open_modes=modes)
        reason = "the baselines are missing; measure with baseline=always"
        return replace(advice, reason=reason, open_modes=modes, blocks_needed=MIN_BLOCKS)
    if advice.aim is not None and all(map(_describe_shortfall, ranked)):
        reason = "no mode sustains the rates and meets the objectives in every block; use more GPUs or lower rates"
        return replace(advice, answer=Answer.ALONE, reason=reason)
    if advice.aim is None and any(SLOWDOWN in cell.estimates for cell in cells):
        reason = "latency and throughput cannot be weighed against each other; set an objective for the services"
        return replace(advice, reason=reason)
    reason = "no latency was measured, because requests were not answered or baselines are missing"
    return replace(advice, reason=reason)


def _beats_serial(cell: Cell) -> bool:
    # The best step mode alone is at least as fast as serial, which is one of the step modes.
    return is_above(cell.estimates.get(SPEEDUP)) or is_above(cell.estimates.get(BEST_SOLO))


def _gains_nothing(cell: Cell) -> bool:
    high = cell.estimates[SPEEDUP].high
    return high is not None and high < 1 + MARGIN


def _compare(cell: Cell, other: Cell, aim: Aim) -> Contrast | None:
    """Return how many times as good a mode is as another one for the aim."""
    if aim is RETAINED:
        pair = contrast_cells(other, cell, aim.metric)
        return None if pair is None else replace(pair, cell=cell, other=other, against=other.mode)
    return contrast_cells(cell, other, *(cell.speed if aim is SPEED else (aim.metric,)))


def _estimate_blocks(cell: Cell, by_block: Mapping[int, float], margin: float, *, is_pair: bool = False) -> int | None:
    """Estimate the number of blocks that tell whether ratios differ from 1 or are within a margin of it."""
    if len(by_block) < MIN_FOR_INTERVAL:
        return MIN_BLOCKS
    num_gpus = len({cell.gpus.get(block) for block in by_block})
    if num_gpus > 1:
        return MIN_BLOCKS if num_gpus < MIN_GPUS else None
    is_drifting = cell.is_drifting(by_block, is_symmetric=is_pair)
    test = compare_pairs(select_independent(by_block, cell.gpus), is_drifting=is_drifting)
    needed = blocks_needed(test, 1, margin)
    return None if needed is None or needed > MOST_BLOCKS else max(needed, len(by_block) + 1)


def _recommend(advice: Advice, aim: Aim, candidates: Sequence[Cell], faster: Sequence[Cell]) -> Advice:
    """Recommend the simplest of the modes that no other mode beats, if they differ little from the best one."""
    pairs = {
        (cell.mode, other.mode): pair
        for cell in candidates
        for other in candidates
        if cell is not other and (pair := _compare(cell, other, aim)) is not None
    }
    ratios = {modes: pair.ratio for modes, pair in pairs.items()}
    unbeaten = [
        cell for cell in faster if not any(is_above(ratios.get((other.mode, cell.mode))) for other in faster)
    ] or list(faster)
    similar = replace(advice, rivals=tuple(pair for (mode, _), pair in pairs.items() if mode == unbeaten[0].mode)).alike
    cell = min(
        (cell for cell in unbeaten if cell is unbeaten[0] or cell.mode in similar), key=lambda cell: cell.sharing.order
    )
    rivals = tuple(pair for (mode, _), pair in pairs.items() if mode == cell.mode)
    advice = replace(advice, answer=Answer.SHARE, cell=cell, rivals=rivals)
    unclear = [pair for pair in rivals if not is_above(pair.ratio) and pair.against not in advice.alike]
    blocks = [_estimate_blocks(cell, pair.ratios, ALIKE, is_pair=True) for pair in unclear]
    return replace(
        advice,
        open_modes=(cell.mode, *(pair.against for pair in unclear)) if unclear else (),
        blocks_needed=None if None in blocks else max(filter(None, blocks), default=None),
        changes=tuple(_list_changes(cell, [other for other in candidates if other is not cell])),
    )


def _list_changes(recommended: Cell, rivals: Sequence[Cell]) -> Iterator[str]:
    """Yield conditions under which another measured mode is better."""
    if recommended.sharing.gives_up:
        isolated = next((cell.mode for cell in rivals if not cell.sharing.gives_up), "another mode")
        yield f"{isolated}, if the jobs need {recommended.sharing.gives_up.partition(',')[0]}"
    energy = work_units.energy_of(recommended.unit) if recommended.unit else ""
    energy_words = f"energy per {work_units.format_singular(recommended.unit)}, in J" if recommended.unit else ""
    for name, words in (
        (energy, energy_words),
        (SLOWDOWN, "slowdown of the slowest job"),
        (MEMORY_PEAK, "memory, in MiB"),
    ):
        eligible = [cell for cell in rivals if name in cell.estimates]
        estimate = recommended.estimates.get(name)
        less = min(eligible, key=lambda cell: cell.estimates[name].median, default=None)
        if estimate is None or less is None or estimate.low is None:
            continue
        least = less.estimates[name]
        if least.high is not None and least.high * (1 + MARGIN) < estimate.low:
            yield f"{less.mode} for the least {words}: {format_estimate(least)} against {format_estimate(estimate)}"


def describe_advice(advice: Advice) -> str:
    """Describe an answer in plain words: the answer, then indented lines, of at most `WIDTH` columns."""
    jobs, answer = describe_jobs(advice.case, advice.degree), _describe_answer(advice)
    details = [*_describe_costs(advice), *_describe_rivals(advice)]
    details += [f"instead: {'; '.join(advice.changes)}"] if advice.changes else []
    details += [textwrap.shorten(f"not considered: {mode}", WIDTH - 4) for mode in advice.not_considered]
    if advice.cell is not None and (doubt := advice.cell.marks_of_rows):
        details.append(textwrap.shorten(f"doubt: {doubt}", WIDTH - 4))
    details += filter(None, [_describe_outlook(advice)])
    is_short = len(f"{jobs}: {answer}") <= WIDTH
    lines = [f"{jobs}: {answer}"] if is_short else [f"{jobs}:", wrap_line(answer)]
    return "\n".join([*lines, *map(wrap_line, details)])


def wrap_line(text: str) -> str:
    """Indent a text and break it into lines of at most `WIDTH` columns."""
    wrapper = textwrap.TextWrapper(WIDTH, " " * 4, " " * 6, break_long_words=False, break_on_hyphens=False)
    return wrapper.fill(text)


def _describe_answer(advice: Advice) -> str:
    cell, figure = advice.cell, advice.figure
    if advice.reason or cell is None or figure is None or advice.aim is None:
        return f"{advice.answer}: {advice.reason}"
    num_gpus = len(set(cell.gpus.values()))
    basis = f"{num_gpus} GPUs" if num_gpus > 1 else format_count(figure.n, "block")
    interval = format_interval(figure, ".2f").strip(" ()")
    text = f"{figure.median:.2f} {advice.aim.words}"
    if advice.aim is SPEED and cell.depends_on_host:
        text += " on these hosts" if cell.has_several_hosts else " on this host"
    text += f" ({'; '.join(filter(None, (interval, basis)))})"
    if advice.answer is Answer.SHARE:
        return f"{Answer.SHARE}, {cell.mode}: {text}"
    return f"{advice.answer}: at best {cell.mode}, {text}"


def _describe_costs(advice: Advice) -> Iterator[str]:
    """Describe slowdown and energy, and one job at a time in a faster step mode."""
    cell = advice.cell
    if cell is None or advice.answer is not Answer.SHARE:
        return
    parts = []
    if (slowdown := advice.slowdown) is not None and advice.aim is SPEED:
        parts.append(f"the slowest job takes {format_times(slowdown)} as long as alone")
    if (energy := advice.energy) is not None:
        parts.append(f"energy {format_times(energy)} that of the same work alone")
    if parts:
        yield "; ".join(parts)
    if BEST_SOLO in cell.estimates and not is_best_solo_serial(cell):
        yield from _describe_best_solo(
            cell.estimates[BEST_SOLO], cell.estimate_inverse(BEST_SOLO), name_best_solo(cell)
        )


def _describe_best_solo(speed: Estimate, inverse: Estimate | None, name: str) -> Iterator[str]:
    if is_above(speed):
        yield f"{format_times(speed)} as fast as {name}, one job at a time"
    elif inverse is not None and is_above(inverse):
        yield f"still faster: {name}, one job at a time, {format_times(inverse)} as fast"


def _describe_rivals(advice: Advice) -> Iterator[str]:
    if advice.cell is None or advice.answer is not Answer.SHARE:
        return
    mode, alike = advice.cell.mode, advice.alike
    if alike:
        needs = ", and needs no daemon" if advice.cell.sharing in (NAIVE, TIMESLICE) else ""
        names = " or ".join([mode, *alike])
        yield f"{names}: at most {100 * max(alike.values()):.0f} % apart; {mode} is the simplest{needs}"
    ratios = {pair.against: pair.ratio for pair in advice.rivals if pair.ratio is not None}
    slower = [f"{format_times(ratio)} as fast as {name}" for name, ratio in ratios.items() if is_above(ratio)]
    if slower:
        yield f"{mode} is {join_words(slower)}"
    for name, ratio in ratios.items():
        if name not in alike and not is_above(ratio):
            yield f"{mode} or {name} is open: {mode} is {format_times(ratio)} as fast"


def _describe_outlook(advice: Advice) -> str:
    """Describe what more blocks would tell about the open question; empty without one."""
    if not advice.open_modes:
        return ""
    question = "which mode is faster" if advice.answer is Answer.SHARE else "whether to share"
    if advice.blocks_needed is not None:
        return f"{advice.blocks_needed} blocks would probably tell {question}"
    text, figure = f"{MOST_BLOCKS} blocks would not tell {question}", advice.figure
    if advice.answer is Answer.SHARE or advice.aim is not SPEED or figure is None or figure.high is None:
        return text
    return f"{text}; {advice.open_modes[0]} gains at most {100 * (figure.high - 1):.0f} %"
