"""Widths of intervals of speed-ups, the blocks that make them narrow enough, and those out of reach."""

from __future__ import annotations

import math
import random

import pytest

from pipeline.base.domain.normalisation import SPEEDUP
from pipeline.base.domain.precision_goal import PrecisionGoal
from pipeline.base.domain.records import Result
from pipeline.report.evaluate import statistics
from pipeline.report.evaluate.cells import make_cells
from pipeline.report.evaluate.interval_widths import measure_widths
from tests.support.report_rows import copies, study

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
