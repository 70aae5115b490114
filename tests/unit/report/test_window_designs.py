"""Simulated studies in the windows of each design: a smaller form of `python -m benchmarks.window_designs`."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from benchmarks.window_designs import (
    CELL_S,
    DESIGNS,
    GRAPH_SPEED,
    GROUPS,
    VS_GRAPH,
    VS_SERIAL,
    Jobs,
    Noise,
    SimulatedGroup,
    expected_speed,
    is_wrong_claim,
    judge_design,
    make_study,
    measure_rates,
    schedule,
    simulate_host,
)
from pipeline.base.domain.normalisation import SPEEDUP
from pipeline.base.domain.window import Window
from pipeline.report.evaluate.cells import make_cells
from pipeline.report.evaluate.contrasts import Decision
from pipeline.report.evaluate.metrics import BEST_SOLO
from pipeline.report.evaluate.statistics import estimate, is_baseline_drifting

SERIAL, SEVEN = GROUPS.index(SimulatedGroup("serial", 1)), GROUPS.index(SimulatedGroup("naive", 7))
NUM_TABLES = 300
KINDS = (Noise.INDEPENDENT, Noise.DRIFTING, Noise.STATES)


def cover(window: Window, noise: Noise, jobs: Jobs, *, has_rule: bool = True) -> float:
    """Share of the intervals of seven naive jobs against serial, in studies of one workload, that cover the truth."""
    rates, _ = measure_rates(window, noise, jobs, 1, 5, NUM_TABLES, seed=7)
    pairs = [(table[:, 0, SEVEN], table[:, 0, SERIAL]) for table in rates]
    estimates = [
        estimate(
            (seven / alone).tolist(), is_drifting=has_rule and is_baseline_drifting(seven.tolist(), alone.tolist())
        )
        for seven, alone in pairs
    ]
    return float(np.mean([judgement.low <= 1 <= judgement.high for judgement in estimates]))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if "3 s" in name else pytest.mark.slow) for name in DESIGNS]
)
@pytest.mark.parametrize("noise", KINDS)
def test_intervals_cover_the_truth_93_times_of_100(name: str, noise: Noise) -> None:
    """Two states that last a minute may hide from five short launches: then 0.9, and the row has a note."""
    chance = 2 * math.sqrt(0.05 * 0.95 / NUM_TABLES)
    assert cover(DESIGNS[name], noise, Jobs.HOST_BOUND) > 0.93 - chance
    assert cover(DESIGNS[name], noise, Jobs.FULL) > (0.90 if noise is Noise.STATES else 0.93) - chance


def test_without_the_rule_a_drifting_baseline_is_covered_too_rarely() -> None:
    for name in ("ordinary, 3 s", "interleaved, 3 s"):
        assert cover(DESIGNS[name], Noise.DRIFTING, Jobs.FULL, has_rule=False) < 0.9


@pytest.mark.slow
def test_at_most_5_percent_of_tables_have_a_wrong_claim() -> None:
    num_wrong = num_tables = 0
    for noise, jobs in itertools.product(KINDS, (Jobs.HOST_BOUND, Jobs.FULL)):
        judgement = judge_design(DESIGNS["interleaved, 3 s"], noise, jobs, num_tables=10)
        num_wrong += sum(judgement.num_wrong.values())
        num_tables += judgement.num_tables * len(judgement.num_wrong)
        # Every group that fills the GPU has the note, and an exact gain over the CUDA graph.
        if jobs is Jobs.FULL:
            assert judgement.drifting_share > 0.9 and judgement.coverage[VS_GRAPH].half_width < 0.004
            assert judgement.coverage[VS_SERIAL].half_width > 0.05
        else:
            assert judgement.drifting_share < 0.2
    assert num_tables == 120 and num_wrong <= num_tables * (0.05 + 2 * math.sqrt(0.05 * 0.95 / num_tables))


def test_a_study_of_rates_has_their_ratios() -> None:
    rates, _ = measure_rates(DESIGNS["interleaved, 3 s"], Noise.DRIFTING, Jobs.FULL, 1, 5, 1, seed=3)
    cells = make_cells(make_study(rates[0], 1.02))
    seven = next(cell for cell in cells if (cell.mode, cell.degree) == ("naive", 7))
    expected = 1.02 * rates[0, :, 0, SEVEN] / rates[0, :, 0, SERIAL]
    assert list(seven.values[SPEEDUP].values()) == pytest.approx(expected.tolist())
    assert seven.estimates[BEST_SOLO].median == pytest.approx(1.02 / GRAPH_SPEED, rel=0.01)


def test_the_schedule_measures_every_group_as_long_as_its_window_says() -> None:
    for (name, window), seed in itertools.product(DESIGNS.items(), (1, 2)):
        spans, num_cells = schedule(window, 2, 5, np.random.default_rng(seed))
        assert len(spans) == 5 * 2 * len(GROUPS)
        lengths = {round(sum(end - begin for begin, end in parts) * CELL_S, 6) for parts in spans.values()}
        assert lengths == {window.seconds}, name
        taken = sorted(span for parts in spans.values() for span in parts)
        assert all(before[1] <= after[0] for before, after in itertools.pairwise(taken))
        assert taken[-1][1] == num_cells
    # Slices of a launch alternate; a job alone has a launch to itself.
    spans, _ = schedule(DESIGNS["interleaved, 3 s"], 1, 1, np.random.default_rng(1))
    two, seven = spans[0, 0, 2], spans[0, 0, SEVEN]
    assert two[0] < seven[-1] and seven[0] < two[-1]
    assert not any(spans[0, 0, SERIAL][0] < span < spans[0, 0, SERIAL][-1] for span in two + seven)


@pytest.mark.parametrize("noise", Noise)
def test_the_noise_of_the_host_has_its_mean_and_scatter(noise: Noise) -> None:
    host = simulate_host(noise, 400, 2000, np.random.default_rng(5))
    assert np.mean(np.exp(host)) == pytest.approx(expected_speed(noise, 1.0), abs=0.01)
    scatter = {Noise.INDEPENDENT: 0.113, Noise.DRIFTING: 0.151, Noise.STATES: 0.0447, Noise.PURE_STATES: 0.04}
    assert np.std(host) == pytest.approx(scatter[noise], rel=0.05)
    seconds = host.reshape(400, -1, round(1 / CELL_S)).mean(axis=2)
    if noise is Noise.INDEPENDENT:  # windows of 1 s scatter by 9.7 %
        assert np.std(seconds) == pytest.approx(0.097, rel=0.03)


def test_a_claim_is_wrong_if_its_sign_is_wrong_or_equality_is() -> None:
    assert is_wrong_claim(Decision.BETTER, 1.0) and is_wrong_claim(Decision.WORSE, 1.0)
    assert is_wrong_claim(Decision.WORSE, 1.02) and not is_wrong_claim(Decision.BETTER, 1.02)
    assert is_wrong_claim(Decision.EQUAL, 1.02) and is_wrong_claim(Decision.EQUAL, 1 / 1.02)
    assert not is_wrong_claim(Decision.EQUAL, 1.01) and not is_wrong_claim(Decision.NO_VERDICT, 1.0)
