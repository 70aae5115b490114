"""Studies of known truth that stop when their intervals are narrow enough: coverage and wrong claims."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import stdtrit

from pipeline.base.domain.precision_goal import MIN_BLOCKS, PrecisionGoal
from pipeline.report.evaluate import statistics
from pipeline.report.evaluate.contrasts import Decision
from pipeline.report.evaluate.interval_widths import measure_widths
from tests.unit.report.test_report_statistics import judge_tables, make_rate_cells

MAX_BLOCKS = 20
RNG_SEED = 20261126
CLAIMS = (Decision.BETTER, Decision.WORSE)
MARGIN = math.log1p(statistics.MARGIN)
Logs = NDArray[np.float64]
"""Log ratios of speed. Shape: [table, comparison, block]."""


def simulate(num_tables: int, num_modes: int, noise: float, truth: float = 0.0, *, scatter: bool = True) -> Logs:
    """Modes against one serial baseline, in blocks; `noise` is that of a run, normal on logarithms."""
    rng = np.random.default_rng(RNG_SEED)
    baseline = rng.normal(0, noise, (num_tables, 1, MAX_BLOCKS))
    of_modes = noise if scatter else 0.002
    return truth + rng.normal(0, of_modes, (num_tables, num_modes, MAX_BLOCKS)) - baseline


def intervals(logs: Logs, *, is_drifting: bool = False) -> tuple[Logs, Logs]:
    """Ends of the intervals of `statistics.estimate`, as logarithms."""
    n = logs.shape[-1]
    mean, median = np.mean(logs, axis=-1), np.median(logs, axis=-1)
    half = (
        stdtrit(n - 1, 0.975)
        * np.std(logs, axis=-1, ddof=1)
        / math.sqrt(n / (statistics.DRIFT_BLOCKS if is_drifting else 1))
    )
    return np.minimum(mean - half, median), np.maximum(mean + half, median)


def is_narrow(logs: Logs, goal: float, *, is_drifting: bool = False) -> NDArray[np.bool_]:
    low, high = intervals(logs, is_drifting=is_drifting)
    return ((high - low) / 2 <= math.log1p(goal)).all(axis=-1)


def has_claim(logs: Logs) -> NDArray[np.bool_]:
    return np.isin(judge_tables(np.exp(logs))[0], CLAIMS).any(axis=-1)


def stop(logs: Logs, ends: Callable[[Logs], NDArray[np.bool_]]) -> NDArray[np.int64]:
    """Number of blocks of each table that ends at the first look, after each of 5 to 20 blocks, with `ends`."""
    blocks = np.full(len(logs), MAX_BLOCKS)
    for n in range(MAX_BLOCKS, MIN_BLOCKS - 1, -1):
        blocks[ends(logs[..., :n])] = n
    return blocks


def evaluate(logs: Logs, blocks: NDArray[np.int64], truth: float, *, is_drifting: bool = False) -> tuple[float, float]:
    """Share of intervals that cover the truth, and share of tables with a wrong claim."""
    covered, wrong = np.zeros(logs.shape[:2], dtype=bool), np.zeros(len(logs), dtype=bool)
    for n in np.unique(blocks):
        ended = blocks == n
        low, high = intervals(logs[ended][..., :n], is_drifting=is_drifting)
        covered[ended] = (low <= truth) & (truth <= high)
        decisions = judge_tables(np.exp(logs[ended][..., :n]), is_drifting=is_drifting)[0]
        wrong[ended] = np.isin(decisions, (Decision.EQUAL, Decision.WORSE) if truth else CLAIMS).any(axis=-1)
    return float(covered.mean()), float(wrong.mean())


DESIGNS: dict[str, tuple[int, bool, float, float]] = {
    # Number of speed-ups, whether runs other than the baseline scatter, least coverage, most tables with a wrong claim.
    # If only the baseline scatters, five blocks count as one.
    "one speed-up": (1, True, 0.915, 0.08),
    "six speed-ups": (6, True, 0.94, 0.055),
    "six speed-ups, only the baseline scatters": (6, False, 0.915, 0.05),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("num_tables", [1000, pytest.param(20_000, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize(("noise", "goal"), [(0.02, 0.05), (0.02, 0.02), (0.06, 0.05), (0.1, 0.05), (0.1, 0.1)])
@pytest.mark.parametrize("design", DESIGNS)
def test_stopping_on_widths_costs_little_coverage(design: str, noise: float, goal: float, num_tables: int) -> None:
    num_modes, scatter, least_coverage, most_wrong = DESIGNS[design]
    error = 2 * math.sqrt(0.05 * 0.95 / num_tables)
    coverages, wrong_shares, lines = [], [], []
    for truth in (0.0, MARGIN):
        logs = simulate(num_tables, num_modes, noise, truth, scatter=scatter)
        blocks = stop(logs, lambda part: is_narrow(part, goal, is_drifting=not scatter))
        coverage, wrong = evaluate(logs, blocks, truth, is_drifting=not scatter)
        coverages.append(coverage)
        wrong_shares.append(wrong)
        reached = float(np.mean(is_narrow(logs, goal, is_drifting=not scatter) | (blocks < MAX_BLOCKS)))
        fixed = [evaluate(logs, np.full(num_tables, n), truth, is_drifting=not scatter) for n in (5, 10, 20)]
        lines.append(
            f"truth {truth:.3f}: {blocks.mean():.1f} blocks, {reached:.0%} reach the goal; covered {coverage:.3f}, "
            f"wrong {wrong:.3f}; 5, 10, 20 blocks: {', '.join(f'{c:.3f} {w:.3f}' for c, w in fixed)}"
        )
    print(f"{design}, noise {noise:.0%}, goal {goal:.0%}, {num_tables} tables", *lines, sep="\n    ")
    assert min(coverages) >= least_coverage - error
    assert max(wrong_shares) <= most_wrong + error


@pytest.mark.parametrize("num_tables", [1000, pytest.param(20_000, marks=pytest.mark.exhaustive)])
def test_stopping_at_the_first_claim_would_make_many_wrong_claims(num_tables: int) -> None:
    for num_modes in (1, 6):
        logs = simulate(num_tables, num_modes, 0.1)
        _, wrong = evaluate(logs, stop(logs, has_claim), 0.0)
        print(f"{num_modes} equal modes, noise 10 %, stopped at the first claim: {wrong:.3f} of {num_tables} wrong")
        assert wrong > 0.12


def test_many_tables_stop_as_the_rule_stops_each() -> None:
    logs = simulate(20, 1, 0.1)
    goal = PrecisionGoal(pct=10, max_blocks=MAX_BLOCKS)
    for table, blocks in zip(np.exp(logs[:, 0]), stop(logs, lambda part: is_narrow(part, 0.1)), strict=True):
        looks = {
            n: measure_widths(make_rate_cells(1, np.stack([np.ones(n), table[:n]], axis=1)), goal)
            for n in range(MIN_BLOCKS, MAX_BLOCKS + 1)
        }
        assert next((n for n, (width,) in looks.items() if width.is_reached), MAX_BLOCKS) == blocks
