"""Estimates and tests, the widths of intervals, and baselines that drift with their host."""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
from collections import Counter
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline.base.domain.normalisation import MEAN_SLOWDOWN, SPEEDUP, select_independent
from pipeline.base.domain.precision_goal import PrecisionGoal
from pipeline.base.domain.records import Result
from pipeline.base.domain.sharing_modes import MIG, MPS, NAIVE, SERIAL
from pipeline.base.domain.window import WindowKind
from pipeline.report.evaluate import statistics
from pipeline.report.evaluate.cells import Case, Cell, make_cells
from pipeline.report.evaluate.contrasts import Contrast, Decision, Quantity, compare_modes, decide
from pipeline.report.evaluate.interval_widths import measure_widths
from pipeline.report.evaluate.metrics import BEST_SOLO, ENERGY_VS_ALONE
from pipeline.report.evaluate.statistics import Scale, compare_pairs, correct_p_values, estimate, p_values
from pipeline.report.evaluate.wording import list_doubts
from pipeline.report.read.study_records import Row
from tests.support.report_rows import copies, params, study
from tests.unit.report.test_report_services import make_service_row

NUM_STUDIES, NUM_CASES, NUM_BLOCKS = 1500, 8, 5
MODES = (SERIAL, NAIVE, MPS, MIG)
NUM_TABLES = 2500
CLAIMS = (Decision.BETTER, Decision.WORSE)
RNG_SEED = 20261121


def studies(noise: float, speeds: tuple[float, ...], num_studies: int) -> NDArray[np.float64]:
    """Throughput by study, case, block and mode. The machine drifts by 3 % between blocks, the same for all modes."""
    rng = np.random.default_rng(RNG_SEED)
    shape = (num_studies, NUM_CASES, NUM_BLOCKS)
    drift = np.cumsum(rng.normal(0, 0.03, (num_studies, 1, NUM_BLOCKS)), axis=2)
    runs = rng.normal(0, noise, (*shape, len(speeds)))
    return np.exp(np.log(speeds) + drift[..., None] + runs)


PAIRS = ((1, 0), (2, 0), (2, 1), (3, 0), (3, 1), (3, 2))
"""Each mode against those before it, as `verdicts` takes them."""


def judge_tables(
    ratios: NDArray[np.float64], *, is_drifting: bool = False
) -> tuple[NDArray[np.object_], NDArray[np.float64], NDArray[np.float64]]:
    """Decision and adjusted p values of many tables at once. Shape of the ratios: [table, comparison, block]."""
    logs = np.log(ratios)
    num_blocks = logs.shape[-1]
    error = np.std(logs, axis=-1, ddof=1) / math.sqrt(num_blocks / (statistics.DRIFT_BLOCKS if is_drifting else 1))
    different, equal = correct_p_values(*p_values(np.mean(logs, axis=-1), error, num_blocks - 1))
    decisions = np.array(decide(np.median(ratios, axis=-1), different, equal), dtype=object)
    return decisions.reshape(different.shape), different, equal


def compute_ratios(rates: NDArray[np.float64]) -> NDArray[np.float64]:
    """Shape: [study, comparison, block]."""
    pairs = np.stack([rates[..., one] / rates[..., other] for one, other in PAIRS], axis=2)
    return pairs.reshape(len(rates), NUM_CASES * len(PAIRS), NUM_BLOCKS)


def make_rate_cells(case: int, rates: NDArray[np.float64], gpus: dict[int, str] | None = None) -> list[Cell]:
    """The modes of a case, by their speed over that of the first one. Shape: [block, mode]."""
    return [
        Cell(
            case=Case(label=f"case {case}", is_mix=False, workloads=(f"{case}",)),
            degree=7,
            mode=mode.label,
            sharing=mode,
            window=WindowKind.STEADY,
            device="H100",
            results=Counter({Result.OK: len(rates)}),
            values={SPEEDUP: {block: float(row[index] / row[0]) for block, row in enumerate(rates, start=1)}},
            gpus=gpus or {},
        )
        for index, mode in enumerate(MODES[: rates.shape[1]])
    ]


def assert_a_report_says_the_same(verdicts: list[Contrast], *expected: NDArray[Any]) -> None:
    decisions, different, equal = expected
    assert [verdict.decision for verdict in verdicts] == list(decisions)
    p = np.where(decisions == Decision.EQUAL, equal, different)
    assert [verdict.p_adjusted for verdict in verdicts] == pytest.approx(list(p), rel=1e-6)


@pytest.mark.parametrize(("noise", "speeds"), [(0.01, (1, 1, 1, 1)), (0.04, (1, 1, 1, 1)), (0.01, (1, 1, 1, 1.1))])
def test_many_studies_are_judged_at_once_as_a_report_judges_each(noise: float, speeds: tuple[float, ...]) -> None:
    several = studies(noise, speeds, 20)
    for every_rate, *expected in zip(several, *judge_tables(compute_ratios(several)), strict=True):
        cells = [cell for case, rates in enumerate(every_rate) for cell in make_rate_cells(case, rates)]
        assert_a_report_says_the_same(compare_modes(cells), *expected)


@pytest.mark.parametrize("noise", [0.005, 0.01, 0.04])
def test_equal_modes_are_declared_different_in_at_most_5_percent_of_studies(noise: float) -> None:
    decisions, _, _ = judge_tables(compute_ratios(studies(noise, (1, 1, 1, 1), NUM_STUDIES)))
    assert decisions.shape == (NUM_STUDIES, NUM_CASES * len(PAIRS))
    share = np.mean(np.isin(decisions, CLAIMS).any(axis=1))
    print(f"noise {noise:.1%} of a run: {share:.3f} of studies with a wrong claim among {decisions.shape[1]}")
    print(f"noise {noise:.1%} of a run: {np.mean(decisions == Decision.EQUAL):.3f} of the equal pairs found")
    assert share <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / NUM_STUDIES)


@pytest.mark.parametrize("num_at_margin", [0, 3, 6])
def test_at_most_5_percent_of_tables_have_a_wrong_claim_of_any_kind(num_at_margin: int) -> None:
    """Tables of 6 comparisons: some of equal modes, the others of modes apart by exactly the margin.

    Runs scatter so little that all that is true is found: then the correction spends the whole level.
    """
    rng = np.random.default_rng(RNG_SEED)
    truth = np.array([math.log1p(statistics.MARGIN) * (-1) ** case for case in range(num_at_margin)] + [0.0] * 6)[:6]
    ratios = np.exp(truth[:, None] + rng.normal(0, 0.003, (NUM_TABLES, 6, 10)))
    decisions, different, equal = judge_tables(ratios)
    wrong = (equal[:, :num_at_margin] < 0.05).any(axis=1) | (different[:, num_at_margin:] < 0.05).any(axis=1)
    share = np.mean(wrong)
    print(f"{num_at_margin} of 6 at the margin: {share:.4f} of {NUM_TABLES} tables with a wrong claim")
    assert share <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / NUM_TABLES)
    for table in range(20):
        pairs = [np.stack([np.ones(10), ratios[table, case]], axis=1) for case in range(6)]
        cells = [cell for case, rates in enumerate(pairs) for cell in make_rate_cells(case, rates)]
        assert_a_report_says_the_same(compare_modes(cells), decisions[table], different[table], equal[table])


@pytest.mark.parametrize("num_at_margin", [0, 3])
def test_energy_that_follows_speed_makes_no_more_wrong_tables(num_at_margin: int) -> None:
    """Tables of 6 comparisons of speed and 6 of energy, which is power over speed; the power hardly scatters."""
    rng = np.random.default_rng(RNG_SEED)
    truth = np.array([math.log1p(statistics.MARGIN)] * num_at_margin + [0.0] * (6 - num_at_margin))
    speed = truth[:, None] + rng.normal(0, 0.003, (NUM_TABLES, 6, 10))
    power = rng.normal(0, 0.001, speed.shape)
    _, different, equal = judge_tables(np.exp(np.concatenate([speed, power - speed], axis=1)))
    is_at_margin = np.concatenate([truth, truth]) > 0
    share = np.mean((equal[:, is_at_margin] < 0.05).any(axis=1) | (different[:, ~is_at_margin] < 0.05).any(axis=1))
    print(
        f"speed and energy, {num_at_margin} of 6 at the margin: {share:.4f} of {NUM_TABLES} tables with a wrong claim"
    )
    assert share <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / NUM_TABLES)


@pytest.mark.parametrize("num_comparisons", [29, 82])
def test_more_comparisons_need_larger_differences(num_comparisons: int) -> None:
    """One difference of 10 % among comparisons of equal modes, five blocks, runs that scatter by 1.5 %."""
    rng = np.random.default_rng(RNG_SEED)
    ratios = rng.normal(0, 0.015 * math.sqrt(2), (NUM_TABLES, num_comparisons, NUM_BLOCKS))
    ratios[:, 0] += math.log(1.1)
    decisions, _, _ = judge_tables(np.exp(ratios))
    share = np.mean(decisions[:, 0] == Decision.BETTER)
    print(f"a difference of 10 % among {num_comparisons} comparisons is found in {share:.3f} of {NUM_TABLES} tables")
    assert share == pytest.approx({29: 0.86, 82: 0.62}[num_comparisons], abs=0.03)


BLOCKS_OF_GPUS = (5, 2, 4)
GPU_OF_BLOCK = np.repeat(np.arange(len(BLOCKS_OF_GPUS)), BLOCKS_OF_GPUS)


def draw_gpu_ratios(truth: float, between: float, num_tables: int, num_comparisons: int) -> NDArray[np.float64]:
    """Ratios of blocks on GPUs that differ from each other, with noise of 0.5 %. Shape: [table, comparison, block]."""
    rng = np.random.default_rng(RNG_SEED)
    of_gpu = rng.normal(truth, between, (num_tables, num_comparisons, len(BLOCKS_OF_GPUS)))
    return np.exp(of_gpu[..., GPU_OF_BLOCK] + rng.normal(0, 0.005, (num_tables, num_comparisons, len(GPU_OF_BLOCK))))


def average_by_gpu(ratios: NDArray[np.float64]) -> NDArray[np.float64]:
    of_each = [np.median(ratios[..., gpu == GPU_OF_BLOCK], axis=-1) for gpu in range(len(BLOCKS_OF_GPUS))]
    return np.stack(of_each, axis=-1)


GPUS = {block: f"GPU-{gpu}" for block, gpu in enumerate(GPU_OF_BLOCK.tolist(), start=1)}


@pytest.mark.parametrize(("between", "of_blocks"), [(0.005, 0.80), (0.02, 0.62)])
def test_the_mean_over_gpus_is_covered_where_each_counts_once(between: float, of_blocks: float) -> None:
    """And not where their blocks are taken as independent, which is shown beside."""
    ratios = draw_gpu_ratios(math.log(1.3), between, 4000, 1)[:, 0]
    several = [estimate(select_independent(dict(enumerate(row, start=1)), GPUS)) for row in ratios.tolist()]
    pooled = [estimate(row) for row in ratios.tolist()]
    covered, covered_pooled = (np.mean([e.low <= 1.3 <= e.high for e in intervals]) for intervals in (several, pooled))
    print(f"between GPUs {between:.1%}: covered {covered:.3f}, of blocks as if independent {covered_pooled:.3f}")
    assert 0.94 < covered < 0.96
    assert covered_pooled < of_blocks


@pytest.mark.parametrize("between", [0.005, 0.02])
@pytest.mark.parametrize("truth", [0.0, math.log1p(statistics.MARGIN)])
def test_at_most_5_percent_of_tables_over_several_gpus_have_a_wrong_claim(between: float, truth: float) -> None:
    """48 comparisons of modes that are equal on average over GPUs, or apart by exactly the margin."""
    ratios = draw_gpu_ratios(truth, between, 1000, 48)
    units = average_by_gpu(ratios)
    wrong = {}
    for name, values in (("each once", units), ("blocks as if independent", ratios)):
        decisions, _, _ = judge_tables(values)
        claims = (Decision.EQUAL, Decision.WORSE) if truth else CLAIMS
        wrong[name] = float(np.mean(np.isin(decisions, claims).any(axis=1)))
    print(f"between GPUs {between:.1%}, truth {truth:.3f}: tables with a wrong claim {wrong}")
    assert wrong["each once"] <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / 1000)
    if between == 0.02:
        assert wrong["blocks as if independent"] > 0.9
    for table in range(5):
        cells = [
            cell
            for case, of_blocks in enumerate(ratios[table])
            for cell in make_rate_cells(case, np.stack([np.ones(len(of_blocks)), of_blocks], axis=1), GPUS)
        ]
        expected = judge_tables(units[table : table + 1])
        assert_a_report_says_the_same(compare_modes(cells), *(table_results[0] for table_results in expected))


def test_an_interval_reaches_to_the_median_of_values_in_two_heaps() -> None:
    interval = statistics.estimate([1.0] * 5 + [1.6] * 6)
    assert interval.median == interval.high == 1.6 and interval.low is not None and interval.low < 1.3
    assert statistics.estimate([1980.0] * 5) == statistics.Estimate(median=1980.0, low=1980.0, high=1980.0, n=5)


def test_over_three_gpus_large_differences_are_found() -> None:
    """What it costs: of 48 differences, by their size and the scatter between GPUs."""
    for between, size in itertools.product((0.005, 0.02), (1.1, 1.5)):
        decisions, _, _ = judge_tables(average_by_gpu(draw_gpu_ratios(math.log(size), between, 1000, 48)))
        share = np.mean(decisions == Decision.BETTER)
        print(f"between GPUs {between:.1%}: found {share:.3f} of the differences of {size - 1:.0%}")
        assert share > (0.6 if size == 1.5 else 0.03)


@pytest.mark.parametrize(("noise", "power"), [(0.01, 0.95), (0.015, 0.7), (0.02, 0.4)])
def test_a_difference_of_10_percent_is_found(noise: float, power: float) -> None:
    """Power of each claim, after the correction over 48 of them, with five blocks."""
    decisions, _, _ = judge_tables(compute_ratios(studies(noise, (1.0, 1.0, 1.0, 1.1), 200)))
    of_mig = decisions.reshape(200, NUM_CASES, len(PAIRS))[..., 3:]
    assert of_mig.size == 200 * NUM_CASES * 3 and Decision.WORSE not in set(of_mig.ravel())
    share = np.mean(of_mig == Decision.BETTER)
    print(f"noise {noise:.1%} of a run: found {share:.3f} of the differences")
    assert share > power


def test_intervals_cover_the_truth_95_times_of_100() -> None:
    rng = np.random.default_rng(RNG_SEED)
    for n, scale in itertools.product((3, 5, 10), (Scale.POSITIVE, Scale.PLAIN)):
        truth = 1.3
        noise = rng.normal(0, 0.05, (4000, n))
        values = truth * np.exp(noise) if scale is Scale.POSITIVE else truth + noise
        estimates = [estimate(row, scale) for row in values.tolist()]
        covered = np.mean([e.low <= truth <= e.high for e in estimates])
        print(f"n={n} {scale.value}: {covered:.3f}")
        assert 0.94 < covered < 0.96


def list_figures(blocks: list[float], scale: Scale) -> list[float]:
    """The figures of an estimate and of a comparison; NaN for those that are missing."""
    test = compare_pairs(blocks)
    figures = [*dataclasses.astuple(estimate(blocks, scale)), *dataclasses.astuple(test.ratio)]
    figures += [test.p_different, test.p_equal, test.mean, test.deviation]
    return [math.nan if figure is None else float(figure) for figure in figures]


def test_the_order_of_blocks_changes_no_estimate_and_no_test() -> None:
    chance = random.Random(RNG_SEED)
    for num_blocks, scale in itertools.product((1, 2, 5, 12), Scale):
        blocks = [chance.uniform(0.4, 1.0) for _ in range(num_blocks)]
        for permuted in (chance.sample(blocks, num_blocks) for _ in range(5)):
            assert list_figures(permuted, scale) == pytest.approx(list_figures(blocks, scale), rel=1e-9, nan_ok=True)


def test_pairing_removes_what_a_block_does_to_all_modes() -> None:
    ratios = [1.10, 1.11, 1.09, 1.10, 1.105]
    test = compare_pairs(ratios)
    assert test.p_different is not None and test.p_different < 1e-4
    assert test.ratio.median == 1.10
    assert test.ratio.low is not None and 1.08 < test.ratio.low < 1.10 < test.ratio.high < 1.12


def test_an_estimate_of_few_values_has_no_interval() -> None:
    assert estimate([3.0]) == statistics.Estimate(median=3.0, low=None, high=None, n=1)
    assert estimate([3.0, 5.0]).low is None
    assert estimate([3.0, 5.0, 4.0]).low is not None
    with pytest.raises(ValueError, match="at least one"):
        estimate([])


def test_a_share_stays_between_0_and_1() -> None:
    interval = estimate([0.99, 1.0, 0.97, 1.0], Scale.SHARE)
    assert interval.high == 1.0 and interval.low is not None and interval.low < 0.99
    lows = [estimate([0.0, 0.1, 2.0], scale).low for scale in (Scale.PLAIN, Scale.AMOUNT, Scale.POSITIVE)]
    assert lows[0] is not None and lows[0] < 0 and lows[1:] == [0.0, 0.0]


def test_the_t_interval_is_that_of_the_textbook() -> None:
    # Peaks take few values: an interval of their mean can lie below every one that must fit.
    interval = estimate([2335.0, 7485.0, 7485.0, 7485.0, 3983.0], Scale.PEAK)
    assert (interval.low, interval.median, interval.high) == (2335.0, 7485.0, 7485.0)
    interval = estimate([9.0, 10.0, 11.0, 10.5, 9.5], Scale.PLAIN)
    half = 2.7764451 * math.sqrt(0.625) / math.sqrt(5)
    assert (interval.median, interval.low, interval.high) == (10.0, pytest.approx(10 - half), pytest.approx(10 + half))


def test_equality_within_the_margin_needs_evidence() -> None:
    close = compare_pairs([1.001, 0.999, 1.002, 1.0, 0.998])
    assert close.p_equal is not None and close.p_equal < 0.001 and close.p_different > 0.5
    wide = compare_pairs([1.05, 0.95, 1.04, 0.97, 0.99])
    assert wide.p_equal > 0.05 and wide.p_different > 0.05
    assert compare_pairs([1.1]).p_different is None
    exact = compare_pairs([1.0] * 5)
    assert (exact.p_different, exact.p_equal) == (1.0, 0.0)


def test_both_kinds_of_claims_are_corrected_as_one_family() -> None:
    """Four hypotheses, of which two can be true at once: the multipliers are 2, 2, 2, 1 in the order of p."""
    assert pair_p_values([0.01, 0.5], [0.9, 0.02]) == [pytest.approx((0.02, 1.0)), pytest.approx((1.0, 0.04))]
    # Three comparisons: 3, 3, 3, 3, 2, 1; an adjusted p value is never below that of a smaller p.
    assert pair_p_values([0.001, 0.002, 0.003], [0.01, 0.014, 0.02]) == [
        pytest.approx((0.003, 0.03)),
        pytest.approx((0.006, 0.03)),
        pytest.approx((0.009, 0.03)),
    ]
    assert pair_p_values([0.04], [0.03]) == [pytest.approx((0.04, 0.03))]
    assert pair_p_values([], []) == []


def pair_p_values(different: list[float], equal: list[float]) -> list[tuple[float, float]]:
    """Both adjusted p values of each comparison."""
    return list(zip(*(adjusted.tolist() for adjusted in correct_p_values(different, equal)), strict=True))


def test_the_number_of_blocks_that_is_needed_grows_with_the_spread() -> None:
    numbers = [
        statistics.blocks_needed(compare_pairs([math.exp(0.05 + s * d) for d in (-1, -0.5, 0, 0.5, 1)]), 24)
        for s in (0.001, 0.02, 0.05)
    ]
    assert numbers[0] == 5 and None not in numbers
    assert numbers == sorted(numbers) and numbers[-1] > 10
    assert statistics.blocks_needed(compare_pairs([1.1]), 24) is None
    assert statistics.blocks_needed(compare_pairs([1.02, 1.6, 0.7, 1.0, 1.02]), 24) is None


def test_so_many_blocks_really_give_a_verdict_about_four_times_of_five() -> None:
    rng = np.random.default_rng(RNG_SEED)
    noise, shift = 0.03, 0.05
    typical = compare_pairs(np.exp(shift + noise * np.array([-1.265, -0.632, 0, 0.632, 1.265])).tolist())
    assert typical.deviation == pytest.approx(noise, rel=0.01)
    n = statistics.blocks_needed(typical, 10)
    assert n is not None
    verdicts = [
        compare_pairs(np.exp(rng.normal(shift, noise, n)).tolist()).p_different < 0.05 / 10 for _ in range(1000)
    ]
    assert 0.75 < np.mean(verdicts) < 0.92


GOAL = PrecisionGoal(pct=5, max_blocks=20)
SPREAD = (-1.0, -0.5, 0.0, 0.5, 1.0)


def widths(scatter, num_blocks=5, goal=GOAL, **changes):
    """The widths of three naive jobs whose speed-up over serial scatters."""
    rows = []
    for block in range(1, num_blocks + 1):
        factor = math.exp(scatter * SPREAD[block % 5])
        rows += [copies("serial", 1, 100.0, block), copies("naive", 3, 50.0 * factor, block, **changes)]
    return measure_widths(make_cells(study(*(row for row in rows))), goal)


def test_the_width_is_that_of_the_interval_in_the_report():
    (width,) = widths(0.02)
    deviation = 0.02 * math.sqrt(2.5 / 4)
    assert width.pct == pytest.approx(100 * (math.exp(2.7764451 * deviation / math.sqrt(5)) - 1))
    assert width.is_reached and not width.is_out_of_reach and width.num_needed == 5
    assert width.text.startswith("3 resnet26_cifar10 bs128, naive: 2 % after 5 blocks")


def test_a_wide_interval_says_how_many_blocks_would_be_enough():
    (width,) = widths(0.1)
    assert not width.is_reached and not width.is_out_of_reach and width.num_needed is not None
    n, deviation = width.num_needed, 0.1 * math.sqrt(2.5 / 4)
    assert statistics.blocks_for_half_width(deviation, 0.05) == n and 10 < n < 14
    assert width.text.endswith(f"10 % after 5 blocks, about {n} are needed")


def test_only_what_even_the_least_scatter_forbids_is_out_of_reach():
    # With five blocks the deviation may be 1.54 times as large as the true one: 45 blocks may yet turn out to be 20.
    assert [widths(scatter)[0].is_out_of_reach for scatter in (0.16, 0.25)] == [False, True]
    assert statistics.lower_bound_of_deviation(1.0, 5) == pytest.approx(math.sqrt(4 / 9.4877), rel=1e-4)
    (width,) = widths(3.0)
    assert width.is_out_of_reach and width.num_needed is None
    assert width.text.endswith("after 5 blocks, more than 1000 are needed")


def test_below_five_blocks_nothing_is_known():
    (width,) = widths(0.001, num_blocks=4)
    assert (width.pct, width.num_needed, width.is_reached, width.is_out_of_reach) == (None, None, False, False)
    assert width.text.endswith("no interval after 4 blocks")


def test_equal_blocks_have_an_interval_without_width():
    (width,) = widths(0.0)
    assert width.pct == 0 and width.is_reached


def test_groups_that_are_not_compared_have_no_width():
    assert widths(0.01, result=Result.OOM) == []
    assert widths(0.01, invalid="a job made no progress") == []


@pytest.mark.slow
def test_a_drifting_baseline_widens_the_interval_that_the_study_stops_on():
    """The interval of the report decides; at the goal, no reported interval is wider."""
    rng, num_reached = random.Random(45), 0
    for _ in range(40):
        rows = []
        for block in range(1, 13):
            speeds = 1000 * math.exp(rng.gauss(0, 0.04)), 300 * math.exp(rng.gauss(0, 0.002))
            rows += [copies("serial", 1, speeds[0], block), copies("naive", 7, speeds[1], block)]
        cells = make_cells(study(*rows))
        (width,) = measure_widths(cells, PrecisionGoal(pct=5, max_blocks=200))
        (reported,) = (cell.estimates[SPEEDUP] for cell in cells if cell.mode == "naive")
        half = statistics.half_width(reported)
        assert width.pct == pytest.approx(100 * half) and width.is_reached == (half <= 0.05)
        num_reached += width.is_reached
        # The number of blocks that are needed counts five blocks as one, too.
        plain = statistics.compare_pairs(list(cells[-1].values[SPEEDUP].values())).deviation
        assert width.num_needed == max(
            statistics.blocks_for_half_width(plain * math.sqrt(5), 0.05), 5 if width.is_reached else 13
        )
    assert 0 < num_reached < 40


HOST = (1.00, 0.92, 1.07, 0.97, 1.05)
"""The speed of the host in each block."""
GPU = (1.000, 1.001, 0.999, 1.000, 1.001)
BOTH = tuple(host * gpu for host, gpu in zip(HOST, GPU, strict=True))
NOTE = "the baseline drifts with its host, so 5 blocks count as one; "


def rows(scenario: str, degree: int, total: float, follows: tuple[float, ...] = GPU, **changes: str) -> list[Row]:
    return [
        copies(scenario, degree, total * speed / degree, block, params(**changes))
        for block, speed in enumerate(follows, start=1)
    ]


def judge(*groups: list[Row]) -> tuple[dict[tuple[str, int], Cell], dict[tuple[str, str], Contrast]]:
    cells = make_cells(study(*(row for group in groups for row in group)))
    comparisons = compare_modes(cells)
    return (
        {(cell.mode, cell.degree): cell for cell in cells if "graph" not in cell.case.label},
        {(verdict.mode, verdict.against): verdict for verdict in comparisons},
    )


FULL = make_cells(study(*rows("naive", 7, 2900)))[0]
"""A cell of seven jobs that fill the GPU."""


def test_five_blocks_count_as_one_if_only_the_baseline_follows_the_host() -> None:
    cells, comparisons = judge(rows("serial", 1, 1000, HOST), rows("naive", 7, 2900))
    gain, verdict = cells["naive", 7].estimates[SPEEDUP], comparisons["naive", "serial"]
    plain = statistics.estimate([2.9 * gpu / host for gpu, host in zip(GPU, HOST, strict=True)])
    assert verdict.ratio == gain and gain.median == pytest.approx(plain.median)
    assert math.log(gain.high / gain.low) == pytest.approx(math.sqrt(5) * math.log(plain.high / plain.low))
    # A gain far above what a host can do stays a verdict.
    assert verdict.decision is Decision.BETTER
    assert cells["naive", 7].notes_on_gain == (f"{NOTE}a CUDA graph as baseline would not drift",)
    assert ", naive: 2.90* x serial" in verdict.sentence


def test_a_drifting_cuda_graph_widens_the_interval_without_a_note() -> None:
    graph = {"step_mode": "cuda_graph"}
    comparisons = compare_modes(
        cells := make_cells(study(*rows("serial", 1, 1000, HOST, **graph), *rows("naive", 7, 2900, **graph)))
    )
    (cell,) = (cell for cell in cells if cell.degree == 7 and cell.mode == "naive")
    (verdict,) = (verdict for verdict in comparisons if verdict.mode == "naive")
    plain = statistics.estimate([2.9 * gpu / host for gpu, host in zip(GPU, HOST, strict=True)])
    assert math.log(verdict.ratio.high / verdict.ratio.low) == pytest.approx(
        math.sqrt(5) * math.log(plain.high / plain.low)
    )
    assert cell.notes_on_gain == ()


def test_a_small_gain_over_a_drifting_baseline_is_no_verdict() -> None:
    _, comparisons = judge(rows("serial", 1, 1000, HOST), rows("naive", 7, 1100))
    assert comparisons["naive", "serial"].decision is Decision.NO_VERDICT
    assert comparisons["naive", "serial"].blocks_needed is not None
    # If both sides follow the host, pairing removes its drift, and the same gain is decided.
    cells, comparisons = judge(rows("serial", 1, 1000, HOST), rows("naive", 7, 1100, BOTH))
    assert comparisons["naive", "serial"].decision is Decision.BETTER and not cells["naive", 7].notes_on_gain


def test_the_gain_over_the_cuda_graph_is_in_the_note() -> None:
    graph = rows("serial", 1, 3000, GPU[::-1], step_mode="cuda_graph")
    cells, _ = judge(rows("serial", 1, 1000, HOST), graph, rows("naive", 7, 2900))
    (note,) = cells["naive", 7].notes_on_gain
    assert note == f"{NOTE}speed-up over the best step mode alone: 0.97 times (0.97 to 0.97)"
    gain = cells["naive", 7].estimates[BEST_SOLO]
    assert gain.high / gain.low < 1.01
    # A group that waits for the host drifts against the graph.
    bound, _ = judge(rows("serial", 1, 1000, HOST), graph, rows("naive", 7, 1100, BOTH))
    assert bound["naive", 7].has_drifting_baseline(BEST_SOLO) and not bound["naive", 7].notes_on_gain
    (doubt,) = list_doubts(study(), list(cells.values()))
    assert doubt == f"7 resnet26_cifar10 bs128 (naive): {note}."


def test_a_mode_that_follows_the_host_is_no_exact_reference_for_one_that_does_not() -> None:
    groups = rows("serial", 1, 1000, HOST), rows("naive", 2, 1200, HOST), rows("mps", 2, 1300)
    _, comparisons = judge(*groups)
    assert "one of the two drifts with its host, so 5 blocks count as one" in comparisons["MPS", "naive"].sentence
    assert (
        comparisons["MPS", "naive"].decision is Decision.NO_VERDICT and NOTE not in comparisons["MPS", "naive"].sentence
    )
    groups = rows("serial", 1, 1000, HOST), rows("naive", 2, 1200), rows("mps", 2, 1300, HOST)
    assert "drifts with its host" in judge(*groups)[1]["MPS", "naive"].sentence
    groups = rows("serial", 1, 1000, HOST), rows("naive", 2, 1200), rows("mps", 2, 1300)
    verdict = judge(*groups)[1]["MPS", "naive"]
    assert verdict.decision is Decision.BETTER and "one of the two" not in verdict.sentence


def test_a_group_that_scatters_beside_an_exact_baseline_counts_each_block() -> None:
    cells, _ = judge(rows("serial", 1, 1000), rows("naive", 7, 2900, HOST))
    assert not cells["naive", 7].notes_on_gain and not cells["naive", 7].has_drifting_baseline(SPEEDUP)


def test_few_or_small_differences_are_no_drift() -> None:
    assert statistics.is_baseline_drifting(GPU, HOST)
    assert not statistics.is_baseline_drifting(GPU[:2], HOST[:2])
    assert not statistics.is_baseline_drifting(GPU, (1.0, 1.004, 1.0, 0.996, 1.0))
    assert not statistics.is_baseline_drifting((*GPU[:4], 0.0), HOST)


def test_gpus_of_different_hosts_are_independent() -> None:
    gpus = ("GPU-a", "GPU-b", "GPU-c", "GPU-d", "GPU-e")
    several = [
        row
        for block, (gpu, host) in enumerate(zip(gpus, HOST, strict=True), start=1)
        for row in (
            copies("serial", 1, 1000 * host, block, gpu_uuid=gpu),
            copies("naive", 7, 2900 / 7, block, gpu_uuid=gpu),
        )
    ]
    cells, _ = judge(several)
    assert not cells["naive", 7].has_drifting_baseline(SPEEDUP)
    gain, plain = cells["naive", 7].estimates[SPEEDUP], statistics.estimate([2.9 / host for host in HOST])
    assert (gain.low, gain.high) == pytest.approx((plain.low, plain.high))


def test_more_blocks_are_needed_if_the_baseline_drifts() -> None:
    ratios = [1.3 / host for host in HOST]
    plain, drifting = (statistics.compare_pairs(ratios, is_drifting=is_drifting) for is_drifting in (False, True))
    needed = [statistics.blocks_needed(test, 4) for test in (plain, drifting)]
    assert None not in needed and needed[0] < needed[1]
    assert drifting.p_different > plain.p_different


def add_energy(rows_before: list[Row], joules: tuple[float, ...]) -> list[Row]:
    """Add the energy of a window of 10 s, and its energy per sample."""
    changed = []
    for row, per_sample in zip(rows_before, joules, strict=True):
        rate = row.metrics["throughput_total_samples_per_s"]
        energy = {"energy_per_sample_j": per_sample, "energy_j": per_sample * 10 * rate}
        changed.append(dataclasses.replace(row, metrics={**row.metrics, **energy}))
    return changed


def test_an_energy_over_a_drifting_baseline_counts_five_blocks_as_one() -> None:
    host_j = tuple(0.1 * host**-0.8 for host in HOST)
    groups = add_energy(rows("serial", 1, 1000, HOST), host_j), add_energy(rows("naive", 7, 2900), (0.05,) * 5)
    cells = make_cells(study(*(row for group in groups for row in group)))
    (cell,) = (cell for cell in cells if (cell.mode, cell.degree) == ("naive", 7))
    (verdict,) = (verdict for verdict in compare_modes(cells) if verdict.quantity is Quantity.ENERGY)
    plain = statistics.estimate([0.05 / joules for joules in host_j])
    assert verdict.ratio == cell.estimates[ENERGY_VS_ALONE]
    assert math.log(verdict.ratio.high / verdict.ratio.low) == pytest.approx(
        math.sqrt(5) * math.log(plain.high / plain.low)
    )
    # The noise of the counter is no drift.
    still = add_energy(rows("serial", 1, 1000), host_j), add_energy(rows("naive", 7, 2900), (0.05,) * 5)
    (verdict,) = (v for v in compare_modes(make_cells(study(*still[0], *still[1]))) if v.quantity is Quantity.ENERGY)
    assert (verdict.ratio.low, verdict.ratio.high) == pytest.approx((plain.low, plain.high))


def test_a_latency_over_a_drifting_baseline_counts_five_blocks_as_one() -> None:
    service_rows = []
    for block, host in enumerate(HOST, start=1):
        service_rows += [
            make_service_row("serial", 1, 50, 5.0 / host, block),
            make_service_row("naive", 4, 50, 20.0, block),
        ]
    (cell,) = (cell for cell in make_cells(study(*service_rows)) if cell.degree == 4 and cell.mode == "naive")
    plain = statistics.estimate([4 * host for host in HOST])
    assert math.log(cell.estimates[MEAN_SLOWDOWN].high / cell.estimates[MEAN_SLOWDOWN].low) == pytest.approx(
        math.sqrt(5) * math.log(plain.high / plain.low)
    )


@pytest.mark.parametrize("num_blocks", [5, 10])
def test_intervals_of_energies_over_a_drifting_baseline_cover(num_blocks: int) -> None:
    """The host is simulated: 10 % of noise for 170 s and 5 % for a moment, whose 0.8 the energy follows."""
    rng, num, covered, plain = random.Random(45), 400, 0, 0
    keep = math.exp(-63 / 170)  # five blocks in 315 s
    for _ in range(num):
        host, speeds, ratios = rng.gauss(0, 0.1), {}, {}
        for block in range(1, num_blocks + 1):
            host = keep * host + math.sqrt(1 - keep**2) * rng.gauss(0, 0.1)
            now = host + rng.gauss(0, 0.05)
            speeds[block] = 3 * math.exp(-now)
            ratios[block] = 0.5 * math.exp(0.8 * now + rng.gauss(0, 0.01))
        rates = {block: 3000 * math.exp(rng.gauss(0, 0.001)) for block in speeds}
        values = {"throughput_total_samples_per_s": rates, SPEEDUP: speeds, ENERGY_VS_ALONE: ratios}
        interval = dataclasses.replace(FULL, values=values, gpus={}).estimate_quantity(ENERGY_VS_ALONE)
        unwidened = statistics.estimate(list(ratios.values()))
        covered += interval.low <= 0.5 <= interval.high
        plain += unwidened.low <= 0.5 <= unwidened.high
    print(f"{num_blocks} blocks: {plain / num:.3f} without the rule, {covered / num:.3f} with it")
    assert plain / num < 0.85 and covered / num > 0.94
