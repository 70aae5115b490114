"""Contrasts: a quantity of a cell over that of a reference, paired in blocks, with an interval and a decision.

Every ratio of a report is a contrast: of two sharing modes, of a job on two MIG profiles, with and without co-runners
or work on other GPUs, on a part of the GPU and on the whole, and of jobs together and alone (`contrast`). Sharing modes
are also tested (`compare_modes`): a verdict needs five blocks (three GPUs if blocks ran on several), a ratio beyond the
margin, and a p value below the level after the correction for all claims of the table, including those of equality
(`correct_p_values`).
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pipeline.base.domain.normalisation import MEAN_SLOWDOWN, P99_SLOWDOWN, SPEEDUP, select_independent
from pipeline.base.domain.precision_goal import MIN_BLOCKS
from pipeline.base.domain.sharing_modes import MPS, NAIVE, SERIAL
from pipeline.base.domain.window import WindowKind
from pipeline.base.system.words import announce, format_count
from pipeline.report.evaluate import statistics
from pipeline.report.evaluate.cells import Case, Cell, group_places, invert, ratios, speed_ratios
from pipeline.report.evaluate.metrics import (
    BEST_SOLO,
    ENERGY_VS_ALONE,
    ENERGY_VS_BEST_SOLO,
    MEAN_LATENCY,
    METRICS,
    P99_LATENCY,
)
from pipeline.report.evaluate.statistics import (
    MARGIN,
    MARGIN_IN_WORDS,
    MIN_GPUS,
    Estimate,
    Test,
    blocks_needed,
    compare_pairs,
    correct_p_values,
    format_interval,
)
from pipeline.report.evaluate.wording import describe_finding, describe_gpus

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

LEVEL = 1 - statistics.CONFIDENCE
REFERENCES = (SERIAL, NAIVE, MPS)
"""Modes with which every later mode is compared."""
BASELINES_NOTE = (
    "A speed-up over the best step mode alone (usually a CUDA graph) is a property of the GPU and the programs, if the "
    "jobs fill the GPU; a speed-up over serial eager jobs also depends on the host, which launches their kernels."
)
HOST_NOTE = "Figures over a serial job that waits for the host hold for this host."


class Quantity(enum.StrEnum):
    """The quantity of a comparison: a ratio above 1 is better for speed, a ratio below 1 for energy."""

    SPEED = "speed"
    ENERGY = "energy"


class Decision(enum.StrEnum):
    """The outcome of a comparison."""

    BETTER = "better"
    WORSE = "worse"
    EQUAL = f"equal within {MARGIN_IN_WORDS}"
    NO_VERDICT = "no verdict"
    NOT_RANKED = "not ranked"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Contrast:
    """A quantity of a cell over the same quantity of a reference, in the blocks that have both.

    Attributes:
        against: the reference in words: another mode, `CUDA graph alone`, `the whole GPU`.
        metric: name of the quantity: for a speed, the speed-up if known, else throughput or total time (inverted); for
            services at a given rate, latency; for energy, that against the same work alone if known, else the energy
            per work unit.
        ratios: ratio of each block; empty if the cell is not ranked.
        ratio: their median and interval; `None` without ratios.
        other: the reference cell; `None` if the quantity is itself relative to a baseline.
        subject: the workload that the ratios are about; empty if they are about all jobs of the cell.
        test: the test of equality and difference; `None` unless sharing modes are compared.
        p_adjusted: p value of the decision after the correction for all claims; `None` with too few blocks or GPUs.
        blocks_needed: estimated number of blocks for a verdict; `None` if decided or unknown.
    """

    cell: Cell
    against: str
    metric: str = ""
    ratios: Mapping[int, float] = field(default_factory=dict)
    ratio: Estimate | None = None
    other: Cell | None = None
    subject: str = ""
    quantity: Quantity = Quantity.SPEED
    test: Test | None = None
    decision: Decision = Decision.NO_VERDICT
    p_adjusted: float | None = None
    blocks_needed: int | None = None

    @property
    def case(self) -> Case:
        return self.cell.case

    @property
    def degree(self) -> int:
        return self.cell.degree

    @property
    def mode(self) -> str:
        return self.cell.mode

    @property
    def num_blocks(self) -> int:
        """The number of blocks with figures of both sides."""
        return len(self.ratios)

    @property
    def num_gpus(self) -> int:
        """The number of GPUs with figures of both sides."""
        return len({self.cell.gpus.get(block) for block in self.ratios})

    @property
    def p(self) -> float | None:
        """The p value of the test for equality if the decision is "equal", else of the test for a difference."""
        if self.test is None:
            return None
        return self.test.p_equal if self.decision is Decision.EQUAL else self.test.p_different

    @property
    def holds_for(self) -> str:
        """The hosts for which a speed or energy over serial holds, in words; empty for any other contrast."""
        if self.against != SERIAL.label or not self.cell.depends_on_host:
            return ""
        return "on these hosts" if self.cell.has_several_hosts else "on this host"

    @property
    def baseline(self) -> str:
        """The reference in words, with the hosts for which the ratio holds."""
        return f"{self.against} {self.holds_for}".strip()

    @property
    def is_against_best_solo(self) -> bool:
        """True if the mode is compared with the best step mode alone."""
        return self.metric in (BEST_SOLO, ENERGY_VS_BEST_SOLO)

    @property
    def is_enough(self) -> bool:
        """True if there are enough blocks or GPUs for a verdict, and it does not depend on several hosts."""
        least = MIN_BLOCKS if self.num_gpus == 1 else MIN_GPUS
        depends_on_hosts = bool(self.holds_for) and self.cell.has_several_hosts
        return self.test is not None and self.test.ratio.n >= least and not depends_on_hosts

    @property
    def gain(self) -> float:
        """The median ratio, or its inverse for energy: above 1 is better."""
        assert self.ratio is not None
        return self.ratio.median if self.quantity is Quantity.SPEED else 1 / self.ratio.median

    @property
    def sentence(self) -> str:
        """The comparison as a sentence, such as `7 x tiny, MPS: 1.36* x serial (1.34 to 1.38; 5 blocks)`.

        A `*` stands for marks, whose text is beside the sentence.
        """
        simulated = " (simulated)" if self.cell.is_simulated else ""
        if self.ratio is None:
            return f"{self.jobs}, {self.mode}: {describe_finding(self.cell)}.{simulated}"
        cells = [self.cell, *([self.other] if self.other is not None else [])]
        is_marked = any(cell.marks if self.against == SERIAL.label else cell.marks_of_rows for cell in cells)
        number = f"{self.ratio.median:.2f}{'*' * is_marked}"
        return f"{self.jobs}, {self.mode}: {number} x {_describe_comparison(self)}{simulated}"

    @property
    def jobs(self) -> str:
        """The jobs with their number: `7 x tiny`, `M+2S`."""
        return self.case.label if self.case.is_mix else f"{self.degree} x {self.case.label}"


def _describe_comparison(pair: Contrast) -> str:
    assert pair.ratio is not None
    against = pair.baseline
    if pair.against == SERIAL.label and pair.degree == 1:
        against = f"the serial baseline {pair.holds_for}".strip()
    if pair.metric in (MEAN_SLOWDOWN, P99_SLOWDOWN):
        percentile = "p99" if pair.metric == P99_SLOWDOWN else "mean"
        against = f"the same job alone by the {percentile} latency under the same arrivals"
    elif pair.metric in (MEAN_LATENCY, P99_LATENCY):
        against += f" by the {METRICS[pair.metric].title}"
    if pair.quantity is Quantity.ENERGY:
        is_alone = pair.cell.num_given and pair.against == SERIAL.label
        against = f"the energy of {'the same work alone' if is_alone else against}"
    blocks = format_count(pair.num_blocks, "block") + describe_gpus(pair.num_gpus)
    details = [format_interval(pair.ratio, ".2f").strip(" ()"), blocks]
    if pair.test is not None and pair.test.is_drifting and pair.against != SERIAL.label:  # else the cell has a note
        details += [f"one of the two drifts with its host, so {statistics.DRIFT_BLOCKS} blocks count as one"]
    details += [_describe_need(pair)] if pair.decision is Decision.NO_VERDICT else []
    equal = f", equal within {MARGIN_IN_WORDS}" if pair.decision is Decision.EQUAL else ""
    return f"{against}{equal} ({'; '.join(filter(None, details))})."


def _describe_need(pair: Contrast) -> str:
    if pair.holds_for == "on these hosts":
        return "no verdict over several hosts"
    if pair.num_gpus > 1:
        requirement = f"{MIN_GPUS} GPUs" if pair.num_gpus < MIN_GPUS else "more GPUs (or less scatter)"
        return f"no verdict: each GPU counts once, and {requirement} are needed"
    if not pair.is_enough:
        return ""  # of all such comparisons, said once
    if pair.blocks_needed is not None:
        return f"no verdict: about {pair.blocks_needed} blocks are needed"
    return f"no verdict: more than {statistics.MOST_BLOCKS} blocks are needed"


def contrast(
    cells: Iterable[Cell],
    select: Callable[[Cell], bool],
    against: Callable[[Cell], Cell | None],
    quantity: str | Callable[[Cell], Sequence[str]] = "",
) -> list[Contrast]:
    """Return the contrast of each selected cell with its reference, for the pairs that share a block.

    Args:
        cells: cells of one study.
        select: says for which cells there is a contrast.
        against: returns the reference of a cell; `None` if it has none.
        quantity: names of the quantities to compare, of which the one with most common blocks is used; the default is
            the throughput. The ratio of a time is inverted, so it is one of speeds.
    """
    contrasts = []
    for cell in filter(select, cells):
        if (other := against(cell)) is not None:
            names = (quantity or cell.throughput,) if isinstance(quantity, str) else quantity(cell)
            by_block, metric = speed_ratios(cell, other, names)
            contrasts += [_make_contrast(cell, other.mode, by_block, metric, other=other)] if by_block else []
    return contrasts


def contrast_cells(cell: Cell, other: Cell, *names: str) -> Contrast | None:
    """Return the contrast of two cells (`contrast`); `None` if they share no block with one of the quantities."""
    contrasts = contrast([cell], lambda _: True, lambda _: other, lambda _: names or (cell.throughput,))
    return contrasts[0] if contrasts else None


def contrast_with_alone(
    cell: Cell, name: str, *, subject: str = "", metric: str = "", is_inverted: bool = False
) -> Contrast | None:
    """Return the contrast that a quantity of a cell is by itself, such as a slowdown; `None` if no block has it.

    An inverted slowdown is the share of the throughput that the jobs keep. `metric` names the quantity if `name` is
    that of one workload.
    """
    values = cell.values.get(name, {})
    by_block = invert(values) if is_inverted else values
    if not by_block:
        return None
    estimate = cell.estimate(by_block, is_drifting=cell.has_drifting_baseline(name))
    return Contrast(cell=cell, against="alone", metric=metric or name, ratios=by_block, ratio=estimate, subject=subject)


def contrast_per_job(cell: Cell, other: Cell) -> Contrast | None:
    """Return the contrast of the throughput of one job of a cell with that of all jobs of another cell."""
    by_block = {block: ratio / cell.degree for block, ratio in ratios(cell, other, cell.throughput).items()}
    return _make_contrast(cell, other.mode, by_block, cell.throughput, other=other) if by_block else None


def _make_contrast(cell: Cell, against: str, by_block: Mapping[int, float], metric: str, other: Cell) -> Contrast:
    estimate = cell.estimate(by_block, is_drifting=cell.is_drifting(by_block, is_symmetric=True))
    return Contrast(cell=cell, against=against, metric=metric, ratios=by_block, ratio=estimate, other=other)


@announce("comparing the sharing modes")
def compare_modes(cells: Sequence[Cell]) -> list[Contrast]:
    """Compare each mode with serial, the best step mode alone, naive and MPS, in the order of the cells.

    All comparisons, of speed and of energy, are corrected together.
    """
    places = group_places(cells)
    contrasts = [pair for cell in cells for pair in _pair_cell(cell, places[cell.case, cell.degree])]
    num_tests = sum(pair.test is not None for pair in contrasts)
    enough = [pair for pair in contrasts if pair.is_enough]
    judged = dict(zip(contrasts, contrasts, strict=True)) | dict(zip(enough, judge(enough), strict=True))
    return [
        dataclasses.replace(pair, blocks_needed=_estimate_blocks(pair, num_tests))
        if pair.decision is Decision.NO_VERDICT
        else pair
        for pair in judged.values()
    ]


def judge(
    contrasts: Sequence[Contrast], margin: ArrayLike = MARGIN, confirmed_by: Sequence[Contrast | None] = ()
) -> list[Contrast]:
    """Decide tested contrasts with enough blocks, corrected together.

    Args:
        contrasts: contrasts with their tests.
        margin: the relative difference that counts as equal, of all contrasts or of each.
        confirmed_by: contrasts whose medians must agree with the decision, whatever their scatter.
    """
    if not contrasts:
        return []  # without importing numpy
    tests = [pair.test for pair in contrasts if pair.test is not None]
    p_different = [test.p_different for test in tests if test.p_different is not None]
    p_equal = [test.p_equal for test in tests if test.p_equal is not None]
    different, equal = correct_p_values(p_different, p_equal)
    decisions = decide([pair.gain for pair in contrasts], different, equal, margin)
    if any(other is not None for other in confirmed_by):
        certain = [0.0] * len(contrasts)
        gains = [(other or pair).gain for pair, other in zip(contrasts, confirmed_by, strict=True)]
        medians = decide(gains, certain, certain, margin)
        decisions = [
            decision if other is None or decision is median else Decision.NO_VERDICT
            for decision, median, other in zip(decisions, medians, confirmed_by, strict=True)
        ]
    outcomes = zip(contrasts, decisions, different.tolist(), equal.tolist(), strict=True)
    return [
        dataclasses.replace(pair, decision=decision, p_adjusted=p_equal if decision is Decision.EQUAL else p)
        for pair, decision, p, p_equal in outcomes
    ]


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


def _estimate_blocks(pair: Contrast, num_tests: int) -> int | None:
    if pair.test is None or pair.num_gpus > 1 or pair.num_blocks < statistics.MIN_FOR_INTERVAL:
        return None
    num_blocks = blocks_needed(pair.test, num_tests)
    return None if num_blocks is None else max(num_blocks, pair.num_blocks + 1)


def _pair_cell(cell: Cell, members: Sequence[Cell]) -> list[Contrast]:
    """Return the contrasts of a cell, by speed and then by energy; `members` are the cells of its case and degree.

    Cells with a stressor have none, because a stressor has no work that could gain.
    """
    if cell.mode == SERIAL.label or cell.has_stressor:
        return []
    if not cell.is_compared:
        return [Contrast(cell=cell, against=SERIAL.label, decision=Decision.NOT_RANKED)]
    by_mode = {other.mode: other for other in members}
    contrasts: list[Contrast] = []
    for quantity in Quantity:
        for reference in REFERENCES:
            other = by_mode.get(reference.label)
            comes_after = cell.mode != reference.label and cell.sharing.order >= reference.order
            if comes_after and (other is None or other.is_compared):
                by_block, metric = _divide(cell, other, quantity, is_serial=reference == SERIAL)
                contrasts.append(
                    Contrast(
                        cell=cell,
                        against=reference.label,
                        metric=metric,
                        ratios=by_block,
                        other=other,
                        quantity=quantity,
                    )
                )
            if reference == SERIAL:
                contrasts += _contrast_with_best_solo(cell, quantity)
    speeds = {pair.against: pair.ratios for pair in contrasts if pair.quantity is Quantity.SPEED}
    return [_test(pair, speeds.get(pair.against, {})) for pair in contrasts if pair.ratios]


def _test(pair: Contrast, speeds: Mapping[int, float]) -> Contrast:
    """Test a contrast; the ratios of its speed show whether a side drifts, for energy too, which scatters by itself."""
    cell = pair.cell
    if cell.num_given:  # the mean latency scatters less than a percentile
        other = None if pair.against == SERIAL.label else pair.other
        speeds = cell.compare_speeds(MEAN_SLOWDOWN) if other is None else ratios(other, cell, MEAN_LATENCY)
    is_drifting = cell.is_drifting(speeds, is_symmetric=pair.against != SERIAL.label)
    test = compare_pairs(select_independent(pair.ratios, cell.gpus), is_drifting=is_drifting)
    return dataclasses.replace(pair, test=test, ratio=test.ratio)


def _divide(cell: Cell, other: Cell | None, quantity: Quantity, *, is_serial: bool) -> tuple[Mapping[int, float], str]:
    against_serial = SPEEDUP if quantity is Quantity.SPEED else ENERGY_VS_ALONE
    if is_serial and against_serial in cell.values:  # the baseline of a steady mix is not a cell
        return cell.values[against_serial], against_serial
    if is_serial and cell.num_given and quantity is Quantity.SPEED:
        return _invert_slowdown(cell)
    if other is None:
        return {}, ""
    if quantity is Quantity.SPEED:
        return speed_ratios(cell, other, cell.speed)
    # In a steady window, the jobs of a mix do different shares of its work in each mode.
    has_same_work = not cell.case.is_mix or cell.window is WindowKind.WORK
    return speed_ratios(cell, other, [ENERGY_VS_ALONE, *([cell.energy] if has_same_work else [])])


def _invert_slowdown(cell: Cell) -> tuple[Mapping[int, float], str]:
    """Return the latency alone over the latency together, under the same arrivals; empty for a mix."""
    metric = P99_SLOWDOWN if P99_SLOWDOWN in cell.values else MEAN_SLOWDOWN
    slowdowns = {} if cell.case.is_mix else cell.values.get(metric, {})
    return {block: 1 / slowdown for block, slowdown in slowdowns.items()}, metric


def _contrast_with_best_solo(cell: Cell, quantity: Quantity) -> Iterator[Contrast]:
    metric = BEST_SOLO if quantity is Quantity.SPEED else ENERGY_VS_BEST_SOLO
    if cell.degree > 1 and metric in cell.values and not is_best_solo_serial(cell):
        values, against = cell.values[metric], name_best_solo(cell)
        yield Contrast(cell=cell, against=against, metric=metric, ratios=values, quantity=quantity)


def is_best_solo_serial(cell: Cell) -> bool:
    """Check that the best step mode alone is the serial baseline itself."""
    over_serial = cell.values.get(SPEEDUP, {})
    return all(over_serial.get(block) == ratio for block, ratio in cell.values.get(BEST_SOLO, {}).items())


def name_best_solo(cell: Cell) -> str:
    """Return the name of the best solo baseline of a cell: `CUDA graph alone`."""
    return f"{cell.best_solo} alone"
