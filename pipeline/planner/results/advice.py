"""Advice on the sharing mode of jobs that were measured together, from the cells and verdicts of the report.

A mode is recommended if it is better than every other mode. If several modes are equal within the margin and better
than the rest, the simplest of these modes is recommended. Otherwise, a reason is returned in place of advice.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pipeline.base.domain import service_figures, work_units
from pipeline.base.domain.normalisation import MEMORY_PEAK, SLOWDOWN, SPEEDUP, select_independent
from pipeline.base.domain.precision_goal import MIN_BLOCKS
from pipeline.base.domain.sharing_modes import SERIAL
from pipeline.base.system.words import format_count
from pipeline.report.evaluate import sweeps
from pipeline.report.evaluate.cells import Case, Cell, group_places, ratios, speed_ratios
from pipeline.report.evaluate.contrasts import Contrast, Decision, Quantity, judge
from pipeline.report.evaluate.metrics import MEAN_LATENCY, P99_LATENCY
from pipeline.report.evaluate.statistics import (
    MARGIN_IN_WORDS,
    MIN_GPUS,
    Estimate,
    blocks_needed,
    compare_pairs,
    format_interval,
    format_times,
)
from pipeline.report.evaluate.verdicts import find_slower_pairs
from pipeline.report.evaluate.wording import describe_finding, describe_gpus, join_words
from pipeline.report.page.table_format import format_estimate


@dataclass(frozen=True, slots=True)
class Aim:
    """The metric by which the modes of a case are compared, with its table heading."""

    metric: str
    words: str
    is_less_better: bool = False


SPEED = Aim(SPEEDUP, "speed-up over serial")
TAIL = Aim(P99_LATENCY, "p99 latency in ms", True)
MEAN = Aim(MEAN_LATENCY, "mean latency in ms", True)
KEPT = Aim(SLOWDOWN, "slowdown next to the services", True)
"""The aim for a mix of services and other jobs: the slowdown of the slowest other job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """The recommended mode of one case at one degree.

    Attributes:
        mode: recommended mode; `None` without a recommendation.
        aim: metric by which modes are compared; `None` if no metric is comparable.
        figure: figure of the recommended mode for the aim.
        runner_up: second-best mode.
        over_runner_up: speed of the recommended mode relative to the runner-up in the same block.
        because: reason for the recommendation, or reason why no mode is recommended.
        changes: conditions under which another mode would be recommended, one sentence each.
        not_considered: modes that cannot be recommended, with the reason.
        undecided: modes that more blocks might separate; empty with a recommendation, or if blocks would not help.
        blocks_needed: number of blocks that might separate the undecided modes; `None` if unknown.
    """

    case: Case
    degree: int
    device: str
    mode: str | None = None
    aim: Aim | None = None
    figure: Estimate | None = None
    runner_up: str | None = None
    over_runner_up: Estimate | None = None
    because: str = ""
    changes: tuple[str, ...] = ()
    not_considered: tuple[str, ...] = ()
    undecided: tuple[str, ...] = ()
    blocks_needed: int | None = None


@dataclass(slots=True)
class _Place:
    """A case at a degree.

    Attributes:
        candidates: cells that can be recommended, the best first.
        compared: contrasts of the best candidate with each other candidate, by mode.
    """

    cells: Sequence[Cell]
    aim: Aim | None
    candidates: list[Cell]
    not_considered: list[str]
    compared: dict[str, Contrast] = field(default_factory=dict)

    def find_ratio(self, mode: str) -> Estimate:
        """Return the speed of the best candidate over that of another one."""
        ratio = self.compared[mode].ratio
        assert ratio is not None
        return ratio


def advise(cells: Sequence[Cell], verdicts: Sequence[Contrast]) -> list[Advice]:
    """Return advice for each case of several jobs at each degree, in the order of the cells of a study.

    Pairs of modes for which the report has no verdict, such as MIG and MPS with limits, are compared here.
    """
    verdicts_at: dict[tuple[Case, int], list[Contrast]] = defaultdict(list)
    for verdict in verdicts:
        verdicts_at[verdict.case, verdict.degree].append(verdict)
    places = {key: _place(ranked) for key, ranked in group_places(cells).items() if key[1] > 1}
    tested: list[tuple[_Place, Contrast]] = []
    for key, place in places.items():
        slower_pairs = find_slower_pairs(verdicts_at[key])
        for other in place.candidates[1:]:
            best = place.candidates[0]
            if (reported := _find_verdict(place, other, verdicts_at[key])) is not None:
                is_slower = (other.mode, best.mode) in slower_pairs
                place.compared[other.mode] = replace(reported, decision=Decision.BETTER) if is_slower else reported
            elif by_block := _compare_speed(place, other):
                test = compare_pairs(select_independent(by_block, best.gpus))
                pair = Contrast(
                    cell=best, against=other.mode, ratios=by_block, ratio=test.ratio, other=other, test=test
                )
                tested.append((place, pair))
    _compare(tested)
    advices = {key: _advice(place) for key, place in places.items()}
    kinds = {(cell.case, cell.degree, cell.mode): cell.sharing.label for cell in cells}
    return [
        replace(advice, changes=(*advice.changes, *_list_elsewhere(advice, advices, cells, kinds)))
        for advice in advices.values()
    ]


def _place(cells: Sequence[Cell]) -> _Place:
    aim = _aim_of(cells)
    no_figure = [] if aim is None else [cell for cell in cells if cell.is_ranked and aim.metric not in cell.estimates]
    not_considered = [f"{cell.mode}: {describe_finding(cell)}" for cell in cells if not cell.is_ranked]
    not_considered += [f"{cell.mode}: its baseline is missing" for cell in no_figure if cell.mode != SERIAL.label]
    if aim is None:
        return _Place(cells, None, [], not_considered)
    candidates = [cell for cell in cells if cell.is_ranked and aim.metric in cell.estimates]
    if aim is not SPEED:
        # Serial is excluded, because services must run at the same time.
        candidates = [cell for cell in candidates if cell.mode != SERIAL.label]
        missed = {cell.mode: words for cell in candidates if (words := _describe_shortfall(cell))}
        not_considered += [f"{mode}: {words}" for mode, words in missed.items()]
        candidates = [cell for cell in candidates if cell.mode not in missed]
    elif not any(cell.mode == SERIAL.label for cell in cells) and candidates:
        candidates.append(_make_serial(candidates))
    sign = 1 if aim.is_less_better else -1
    return _Place(cells, aim, sorted(candidates, key=lambda c: sign * c.estimates[aim.metric].median), not_considered)


def _aim_of(cells: Sequence[Cell]) -> Aim | None:
    metrics = {name for cell in cells for name in cell.estimates}
    if not any(cell.num_given for cell in cells):
        return SPEED if SPEEDUP in metrics else None
    if cells[0].case.is_mix and SLOWDOWN in metrics:
        # Without an objective, latency and throughput cannot be weighed against each other.
        return KEPT if service_figures.OBJECTIVE_MET_WORST in metrics else None
    return TAIL if P99_LATENCY in metrics else MEAN if MEAN_LATENCY in metrics else None


def _make_serial(candidates: Sequence[Cell]) -> Cell:
    """Make the serial cell, which steady mixes lack; all speed-ups are relative to serial."""
    values = {block: 1.0 for cell in candidates for block in cell.values.get(SPEEDUP, {})}
    first = candidates[0]
    one = Estimate(median=1.0, low=1.0, high=1.0, n=len(values))
    return replace(
        first,
        mode=SERIAL.label,
        sharing=SERIAL,
        detail="",
        profiles=(),
        values={SPEEDUP: values},
        estimates={SPEEDUP: one},
    )


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


def _compare_speed(place: _Place, other: Cell) -> dict[int, float]:
    best, aim = place.candidates[0], place.aim
    assert aim is not None
    if aim.is_less_better:
        return ratios(other, best, aim.metric)
    return speed_ratios(best, other, best.speed)[0]


def _find_verdict(place: _Place, other: Cell, verdicts: Iterable[Contrast]) -> Contrast | None:
    """Return the contrast of the best candidate with another one, from the verdicts of the report."""
    best = place.candidates[0].mode
    if place.aim is KEPT:  # the report has no verdicts on mixes with services
        return None
    opposite = {Decision.BETTER: Decision.WORSE, Decision.WORSE: Decision.BETTER}
    for verdict in verdicts:
        if verdict.ratio is None or verdict.quantity is not Quantity.SPEED:
            continue
        if (verdict.mode, verdict.against) == (best, other.mode):
            return verdict
        if (verdict.mode, verdict.against) == (other.mode, best):
            decision = opposite.get(verdict.decision, verdict.decision)
            return replace(verdict, ratio=_inverse(verdict.ratio), decision=decision)
    return None


def _compare(tested: Sequence[tuple[_Place, Contrast]]) -> None:
    """Decide the pairs of modes without a verdict, with a separate p-value correction."""
    tests = {pair: pair.test for _, pair in tested if pair.test is not None}
    enough = [pair for pair, test in tests.items() if test.ratio.n >= (MIN_BLOCKS if pair.num_gpus == 1 else MIN_GPUS)]
    judged = dict(zip(enough, judge(enough), strict=True))
    for place, pair in tested:
        decided = judged.get(pair, pair)
        is_open = decided.decision is Decision.NO_VERDICT and pair.num_gpus == 1
        num_blocks = blocks_needed(tests[pair], len(tested)) if is_open else None
        place.compared[pair.against] = replace(decided, blocks_needed=num_blocks)


def _advice(place: _Place) -> Advice:
    first = place.cells[0]
    advice = Advice(
        case=first.case,
        degree=first.degree,
        device=first.device,
        aim=place.aim,
        not_considered=tuple(place.not_considered),
    )
    collocated_cells = [cell for cell in place.candidates if cell.mode != SERIAL.label]
    if place.aim is None or len(place.candidates) < 2:
        return replace(
            advice, because=_explain_no_comparison(place), undecided=tuple(cell.mode for cell in collocated_cells)
        )
    best = place.candidates[0]
    open_, equal = [], [best]
    for cell in place.candidates[1:]:
        compared = place.compared.get(cell.mode)
        if compared is None or compared.decision in (Decision.NO_VERDICT, Decision.WORSE):
            open_.append(cell)
        elif compared.decision is Decision.EQUAL:
            equal.append(cell)
    if open_:
        return _refuse(advice, place, open_)
    recommended = min(equal, key=lambda cell: cell.sharing.order)
    return _recommend(advice, place, recommended, equal)


def _explain_no_comparison(place: _Place) -> str:
    ranked = [cell.mode for cell in place.cells if cell.is_ranked]
    if not ranked:
        return "no mode has a valid result"
    if place.aim is None and any(cell.num_given for cell in place.cells):
        if any(SLOWDOWN in cell.estimates for cell in place.cells):
            return "latency and throughput cannot be weighed against each other; set an objective for the services"
        return "no latency was measured, because requests were not answered or baselines are missing"
    if place.aim is None:
        return "the baselines are missing; measure with baseline=always"
    if not place.candidates:
        return "no mode sustains the rates and meets the objectives"
    return f"only {place.candidates[0].mode} has a comparable result; measure another mode"


def _refuse(advice: Advice, place: _Place, open_: Sequence[Cell]) -> Advice:
    """Add the reason why no mode is recommended: the first mode that was not separated from the best mode."""
    best = place.candidates[0].mode
    names = [best, *(cell.mode for cell in open_)]
    compared = [cell.mode for cell in open_ if cell.mode in place.compared]
    if not compared:
        return replace(advice, because=f"{join_words(names)} have no block in common", undecided=tuple(names))
    first, ratio = place.compared[compared[0]], place.find_ratio(compared[0])
    by = f"{best} is {format_times(ratio)} as fast as {open_[0].mode}"
    if first.num_gpus > 1 and ratio.n < MIN_GPUS:
        reason = f"{first.num_gpus} GPUs, advice needs {MIN_GPUS}"
    elif first.num_gpus == 1 and first.num_blocks < MIN_BLOCKS:
        reason = f"{format_count(first.num_blocks, 'block')}, advice needs {MIN_BLOCKS}"
    else:
        blocks = format_count(first.num_blocks, "block") + describe_gpus(first.num_gpus)
        reason = f"no verdict between {join_words(names)} after {blocks}"
    beaten = [mode for mode, pair in place.compared.items() if pair.decision is Decision.BETTER]
    if beaten:
        by += f"; {best} is better than {join_words(beaten)}"
    block_counts = [place.compared[mode].blocks_needed for mode in compared]
    at_least = MIN_BLOCKS if first.num_blocks < MIN_BLOCKS else None
    return replace(
        advice,
        because=f"{reason}: {by}",
        undecided=tuple(names),
        blocks_needed=at_least if None in block_counts else max([at_least or 0, *filter(None, block_counts)]),
    )


def _recommend(advice: Advice, place: _Place, recommended: Cell, equal: Sequence[Cell]) -> Advice:
    best, aim = place.candidates[0], place.aim
    assert aim is not None
    rivals = [cell for cell in place.candidates if cell is not recommended]
    second = rivals[0]
    over = place.find_ratio(second.mode) if recommended is best else _inverse(place.find_ratio(recommended.mode))
    alike = [cell.mode for cell in equal if cell is not recommended]
    if alike:
        because = f"as fast as {join_words(alike)} within {MARGIN_IN_WORDS}, and simpler"
    else:
        because = f"{format_times(over)} as fast as {second.mode}"
    return replace(
        advice,
        mode=recommended.mode,
        figure=recommended.estimates[aim.metric],
        runner_up=second.mode,
        over_runner_up=over,
        because=because,
        changes=tuple(_list_changes(recommended, second, over, rivals, is_equal=second.mode in alike)),
    )


def _list_changes(
    recommended: Cell, second: Cell, over: Estimate, rivals: Sequence[Cell], *, is_equal: bool
) -> Iterable[str]:
    """Yield conditions under which another measured mode would be recommended."""
    if recommended.sharing.gives_up:
        isolated = next((cell for cell in rivals if not cell.sharing.gives_up and cell.mode != SERIAL.label), None)
        other = "another mode" if isolated is None else isolated.mode
        yield f"{other} instead, if the jobs need {recommended.sharing.gives_up.partition(',')[0]}"
    if is_equal:
        yield f"{second.mode} instead, if it gains {MARGIN_IN_WORDS} on {recommended.mode}"
    else:
        low, high = (None if bound is None else 100 * (1 - 1 / bound) for bound in (over.low, over.high))
        loss_pct = Estimate(median=100 * (1 - 1 / over.median), low=low, high=high, n=over.n)
        interval = format_interval(loss_pct, ".0f")
        yield f"{second.mode} instead, if {recommended.mode} loses {loss_pct.median:.0f} %{interval} of its speed"
    energy = work_units.energy_of(recommended.unit) if recommended.unit else ""
    energy_words = f"energy per {work_units.format_singular(recommended.unit)}, in J" if recommended.unit else ""
    for name, words in (
        (energy, energy_words),
        (SLOWDOWN, "slowdown of the slowest job"),
        (MEMORY_PEAK, "memory, in MiB"),
    ):
        # Serial is excluded for slowdown and memory, because its figures are those of one job.
        eligible = [cell for cell in rivals if name in cell.estimates and (name == energy or cell.mode != SERIAL.label)]
        estimate = recommended.estimates.get(name)
        less = min(eligible, key=lambda cell: cell.estimates[name].median, default=None)
        if estimate is None or less is None:
            continue
        least = less.estimates[name]
        if least.high is not None and estimate.low is not None and least.high < estimate.low:
            yield f"{less.mode} for the least {words}: {format_estimate(least)} against {format_estimate(estimate)}"


def _list_elsewhere(
    advice: Advice,
    advices: Mapping[tuple[Case, int], Advice],
    cells: Sequence[Cell],
    kinds: Mapping[tuple[Case, int, str], str],
) -> Iterable[str]:
    """Yield other degrees, and values of one parameter, for which the study recommends another sharing mode."""
    if (best_mode := advice.mode) is None:
        return
    place = (advice.case, advice.degree)

    def other_kind(key: tuple[Case, int]) -> str | None:
        other_advice = advices.get(key)
        if other_advice is None or other_advice.mode is None:
            return None
        kind, other = (kinds.get((*at, mode), mode) for at, mode in ((place, best_mode), (key, other_advice.mode)))
        return None if kind == other else other_advice.mode

    for case, degree in advices:
        if case == advice.case and (mode := other_kind((case, degree))) is not None:
            yield f"{mode} for {degree} jobs"
    of_degree = [cell for cell in cells if cell.degree == advice.degree and not cell.is_derived]
    for swept in sweeps.numbers(of_degree, 2):
        if not any(cell.case == advice.case for group in swept.cells.values() for cell in group):
            continue
        for tick, group in swept.cells.items():
            if (mode := other_kind((group[0].case, advice.degree))) is not None:
                yield f"{mode} at {swept.axis} {swept.ticks[tick]}"


def _inverse(ratio: Estimate) -> Estimate:
    low, high = (None if bound is None else 1 / bound for bound in (ratio.high, ratio.low))
    return Estimate(median=1 / ratio.median, low=low, high=high, n=ratio.n)
