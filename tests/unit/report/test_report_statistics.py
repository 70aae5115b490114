"""Estimates and tests, on studies whose truth is known."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline.base.domain.normalisation import select_independent
from pipeline.base.domain.records import Result
from pipeline.base.domain.sharing_modes import MIG, MPS, NAIVE, SERIAL
from pipeline.base.domain.window import WindowKind
from pipeline.report.evaluate import statistics
from pipeline.report.evaluate.cells import Case, Cell
from pipeline.report.evaluate.contrasts import Contrast, Decision, compare_modes, decide
from pipeline.report.evaluate.metrics import SPEEDUP, Scale
from pipeline.report.evaluate.statistics import compare_pairs, correct_p_values, estimate, p_values

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


def judged(
    ratios: NDArray[np.float64], *, is_drifting: bool = False
) -> tuple[NDArray[np.object_], NDArray[np.float64], NDArray[np.float64]]:
    """Decision and adjusted p values of many tables at once. Shape of the ratios: [table, comparison, block]."""
    logs = np.log(ratios)
    num_blocks = logs.shape[-1]
    error = np.std(logs, axis=-1, ddof=1) / math.sqrt(num_blocks / (statistics.DRIFT_BLOCKS if is_drifting else 1))
    different, equal = correct_p_values(*p_values(np.mean(logs, axis=-1), error, num_blocks - 1))
    decisions = np.array(decide(np.median(ratios, axis=-1), different, equal), dtype=object)
    return decisions.reshape(different.shape), different, equal


def ratios_of(rates: NDArray[np.float64]) -> NDArray[np.float64]:
    """Shape: [study, comparison, block]."""
    pairs = np.stack([rates[..., one] / rates[..., other] for one, other in PAIRS], axis=2)
    return pairs.reshape(len(rates), NUM_CASES * len(PAIRS), NUM_BLOCKS)


def make_cells(case: int, rates: NDArray[np.float64], gpus: dict[int, str] | None = None) -> list[Cell]:
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


def assert_a_report_says_the_same(found: list[Contrast], *expected: NDArray[Any]) -> None:
    decisions, different, equal = expected
    assert [verdict.decision for verdict in found] == list(decisions)
    p = np.where(decisions == Decision.EQUAL, equal, different)
    assert [verdict.p_adjusted for verdict in found] == pytest.approx(list(p), rel=1e-6)


@pytest.mark.parametrize(("noise", "speeds"), [(0.01, (1, 1, 1, 1)), (0.04, (1, 1, 1, 1)), (0.01, (1, 1, 1, 1.1))])
def test_many_studies_are_judged_at_once_as_a_report_judges_each(noise: float, speeds: tuple[float, ...]) -> None:
    several = studies(noise, speeds, 20)
    for study, *expected in zip(several, *judged(ratios_of(several)), strict=True):
        cells = [cell for case, rates in enumerate(study) for cell in make_cells(case, rates)]
        assert_a_report_says_the_same(compare_modes(cells), *expected)


@pytest.mark.parametrize("noise", [0.005, 0.01, 0.04])
def test_equal_modes_are_declared_different_in_at_most_5_percent_of_studies(noise: float) -> None:
    decisions, _, _ = judged(ratios_of(studies(noise, (1, 1, 1, 1), NUM_STUDIES)))
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
    decisions, different, equal = judged(ratios)
    wrong = (equal[:, :num_at_margin] < 0.05).any(axis=1) | (different[:, num_at_margin:] < 0.05).any(axis=1)
    share = np.mean(wrong)
    print(f"{num_at_margin} of 6 at the margin: {share:.4f} of {NUM_TABLES} tables with a wrong claim")
    assert share <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / NUM_TABLES)
    for table in range(20):
        pairs = [np.stack([np.ones(10), ratios[table, case]], axis=1) for case in range(6)]
        cells = [cell for case, rates in enumerate(pairs) for cell in make_cells(case, rates)]
        assert_a_report_says_the_same(compare_modes(cells), decisions[table], different[table], equal[table])


@pytest.mark.parametrize("num_at_margin", [0, 3])
def test_energy_that_follows_speed_makes_no_more_wrong_tables(num_at_margin: int) -> None:
    """Tables of 6 comparisons of speed and 6 of energy, which is power over speed; the power hardly scatters."""
    rng = np.random.default_rng(RNG_SEED)
    truth = np.array([math.log1p(statistics.MARGIN)] * num_at_margin + [0.0] * (6 - num_at_margin))
    speed = truth[:, None] + rng.normal(0, 0.003, (NUM_TABLES, 6, 10))
    power = rng.normal(0, 0.001, speed.shape)
    _, different, equal = judged(np.exp(np.concatenate([speed, power - speed], axis=1)))
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
    decisions, _, _ = judged(np.exp(ratios))
    share = np.mean(decisions[:, 0] == Decision.BETTER)
    print(f"a difference of 10 % among {num_comparisons} comparisons is found in {share:.3f} of {NUM_TABLES} tables")
    assert share == pytest.approx({29: 0.86, 82: 0.62}[num_comparisons], abs=0.03)


BLOCKS_OF_GPUS = (5, 2, 4)
GPU_OF_BLOCK = np.repeat(np.arange(len(BLOCKS_OF_GPUS)), BLOCKS_OF_GPUS)


def on_several_gpus(truth: float, between: float, num_tables: int, num_comparisons: int) -> NDArray[np.float64]:
    """Ratios of blocks on GPUs that differ from each other, with noise of 0.5 %. Shape: [table, comparison, block]."""
    rng = np.random.default_rng(RNG_SEED)
    of_gpu = rng.normal(truth, between, (num_tables, num_comparisons, len(BLOCKS_OF_GPUS)))
    return np.exp(of_gpu[..., GPU_OF_BLOCK] + rng.normal(0, 0.005, (num_tables, num_comparisons, len(GPU_OF_BLOCK))))


def one_a_gpu(ratios: NDArray[np.float64]) -> NDArray[np.float64]:
    of_each = [np.median(ratios[..., gpu == GPU_OF_BLOCK], axis=-1) for gpu in range(len(BLOCKS_OF_GPUS))]
    return np.stack(of_each, axis=-1)


GPUS = {block: f"GPU-{gpu}" for block, gpu in enumerate(GPU_OF_BLOCK.tolist(), start=1)}


@pytest.mark.parametrize(("between", "of_blocks"), [(0.005, 0.80), (0.02, 0.62)])
def test_the_mean_over_gpus_is_covered_where_each_counts_once(between: float, of_blocks: float) -> None:
    """And not where their blocks are taken as independent, which is shown beside."""
    ratios = on_several_gpus(math.log(1.3), between, 4000, 1)[:, 0]
    several = [estimate(select_independent(dict(enumerate(row, start=1)), GPUS)) for row in ratios.tolist()]
    pooled = [estimate(row) for row in ratios.tolist()]
    covered, covered_pooled = (np.mean([e.low <= 1.3 <= e.high for e in found]) for found in (several, pooled))
    print(f"between GPUs {between:.1%}: covered {covered:.3f}, of blocks as if independent {covered_pooled:.3f}")
    assert 0.94 < covered < 0.96
    assert covered_pooled < of_blocks


@pytest.mark.parametrize("between", [0.005, 0.02])
@pytest.mark.parametrize("truth", [0.0, math.log1p(statistics.MARGIN)])
def test_at_most_5_percent_of_tables_over_several_gpus_have_a_wrong_claim(between: float, truth: float) -> None:
    """48 comparisons of modes that are equal on average over GPUs, or apart by exactly the margin."""
    ratios = on_several_gpus(truth, between, 1000, 48)
    units = one_a_gpu(ratios)
    wrong = {}
    for name, values in (("each once", units), ("blocks as if independent", ratios)):
        decisions, _, _ = judged(values)
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
            for cell in make_cells(case, np.stack([np.ones(len(of_blocks)), of_blocks], axis=1), GPUS)
        ]
        expected = judged(units[table : table + 1])
        assert_a_report_says_the_same(compare_modes(cells), *(each[0] for each in expected))


def test_an_interval_reaches_to_the_median_of_values_in_two_heaps() -> None:
    found = statistics.estimate([1.0] * 5 + [1.6] * 6)
    assert found.median == found.high == 1.6 and found.low is not None and found.low < 1.3
    assert statistics.estimate([1980.0] * 5) == statistics.Estimate(median=1980.0, low=1980.0, high=1980.0, n=5)


def test_over_three_gpus_large_differences_are_found() -> None:
    """What it costs: of 48 differences, by their size and the scatter between GPUs."""
    for between, size in itertools.product((0.005, 0.02), (1.1, 1.5)):
        decisions, _, _ = judged(one_a_gpu(on_several_gpus(math.log(size), between, 1000, 48)))
        share = np.mean(decisions == Decision.BETTER)
        print(f"between GPUs {between:.1%}: found {share:.3f} of the differences of {size - 1:.0%}")
        assert share > (0.6 if size == 1.5 else 0.03)


@pytest.mark.parametrize(("noise", "power"), [(0.01, 0.95), (0.015, 0.7), (0.02, 0.4)])
def test_a_difference_of_10_percent_is_found(noise: float, power: float) -> None:
    """Power of each claim, after the correction over 48 of them, with five blocks."""
    decisions, _, _ = judged(ratios_of(studies(noise, (1.0, 1.0, 1.0, 1.1), 200)))
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
    found = estimate([0.99, 1.0, 0.97, 1.0], Scale.SHARE)
    assert found.high == 1.0 and found.low is not None and found.low < 0.99
    lows = [estimate([0.0, 0.1, 2.0], scale).low for scale in (Scale.PLAIN, Scale.AMOUNT, Scale.POSITIVE)]
    assert lows[0] is not None and lows[0] < 0 and lows[1:] == [0.0, 0.0]


def test_the_t_interval_is_that_of_the_textbook() -> None:
    # Peaks take few values: an interval of their mean can lie below every one that must fit.
    found = estimate([2335.0, 7485.0, 7485.0, 7485.0, 3983.0], Scale.PEAK)
    assert (found.low, found.median, found.high) == (2335.0, 7485.0, 7485.0)
    found = estimate([9.0, 10.0, 11.0, 10.5, 9.5], Scale.PLAIN)
    half = 2.7764451 * math.sqrt(0.625) / math.sqrt(5)
    assert (found.median, found.low, found.high) == (10.0, pytest.approx(10 - half), pytest.approx(10 + half))


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
    assert pairs_of([0.01, 0.5], [0.9, 0.02]) == [pytest.approx((0.02, 1.0)), pytest.approx((1.0, 0.04))]
    # Three comparisons: 3, 3, 3, 3, 2, 1; an adjusted p value is never below that of a smaller p.
    assert pairs_of([0.001, 0.002, 0.003], [0.01, 0.014, 0.02]) == [
        pytest.approx((0.003, 0.03)),
        pytest.approx((0.006, 0.03)),
        pytest.approx((0.009, 0.03)),
    ]
    assert pairs_of([0.04], [0.03]) == [pytest.approx((0.04, 0.03))]
    assert pairs_of([], []) == []


def pairs_of(different: list[float], equal: list[float]) -> list[tuple[float, float]]:
    """Both adjusted p values of each comparison."""
    return list(zip(*(found.tolist() for found in correct_p_values(different, equal)), strict=True))


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
    found = [compare_pairs(np.exp(rng.normal(shift, noise, n)).tolist()).p_different < 0.05 / 10 for _ in range(1000)]
    assert 0.75 < np.mean(found) < 0.92
