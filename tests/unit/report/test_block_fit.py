"""The fit of factors of blocks and of candidates to the figures of a study."""

from __future__ import annotations

import math
import random

import pytest

from pipeline.report.evaluate.block_fit import BlockFit

pytestmark = pytest.mark.covers("pipeline/report/evaluate/block_fit.py")


def make_figures(factors, blocks, noise, seed):
    """Return figures with known factors of candidates, each in some blocks, and factors of blocks that scatter much."""
    source = random.Random(seed)
    of_block = {block: source.lognormvariate(0, 0.3) for block in range(10)}
    return [
        {block: factor * of_block[block] * source.lognormvariate(0, noise) for block in of_candidate}
        for factor, of_candidate in zip(factors, blocks, strict=True)
    ]


def test_factors_without_noise_are_exact_also_across_blocks():
    fit = BlockFit(make_figures([1.0, 2.0, 3.0], [range(4), range(2), range(2, 4)], noise=0.0, seed=1))
    ratio = fit.compare(2, 1)  # these two share no block
    assert ratio.median == pytest.approx(1.5) and ratio.n == 2


def test_in_equal_blocks_the_ratio_is_the_mean_of_the_ratios_of_the_blocks():
    first, second = {1: 1.0, 2: 4.0}, {1: 2.0, 2: 4.0}
    ratio = BlockFit([first, second]).compare(1, 0)
    assert ratio.median == pytest.approx(2**0.5) and ratio.low is None and ratio.high is None  # one degree of freedom


@pytest.mark.parametrize("is_one_sided", [False, True])
def test_intervals_hold_the_true_ratio_as_often_as_they_say(is_one_sided):
    num_inside, num_studies = 0, 400
    for seed in range(num_studies):
        figures = make_figures([1.0, 1.5, 2.0, 2.5], [range(5), range(5), range(2), range(1, 4)], noise=0.1, seed=seed)
        ratio = BlockFit(figures).compare(3, 1, is_one_sided=is_one_sided, level=0.1)
        num_inside += ratio.high > 2.5 / 1.5 and (is_one_sided or ratio.low < 2.5 / 1.5)
    assert 0.86 * num_studies < num_inside < 0.94 * num_studies


def test_a_curve_narrows_the_intervals_of_few_blocks_and_they_still_hold():
    degrees = [1, 2, 4, 6, 8, 10, 12]
    curve = [(place, math.log2(degree)) for place, degree in enumerate(degrees)]
    num_inside, num_studies, widths = 0, 0, {"alone": 0.0, "curve": 0.0}
    for seed in range(300):
        blocks = [range(3), *[range(1)] * 3, *[range(3)] * 3]
        figures = make_figures([degree**0.7 for degree in degrees], blocks, noise=0.08, seed=seed)
        fits = {"alone": BlockFit(figures), "curve": BlockFit(figures, [curve])}
        ratios = {name: fit.compare(5, 4, level=0.1) for name, fit in fits.items()}
        if None in (ratios["alone"].low, ratios["curve"].low):
            continue
        num_studies += 1
        for name, ratio in ratios.items():
            widths[name] += math.log(ratio.high / ratio.low)
        num_inside += ratios["curve"].low < 1.25**0.7 < ratios["curve"].high
    assert num_inside > 0.86 * num_studies > 100 and widths["curve"] < 0.8 * widths["alone"]


def test_without_noise_a_curve_changes_nothing():
    blocks = [range(3)] * 4
    figures = make_figures([1.0, 2.0, 3.9, 2.5], blocks, noise=0.0, seed=3)
    fit = BlockFit(figures, [[(place, float(place)) for place in range(4)]])
    assert fit.compare(2, 0).median == pytest.approx(3.9, rel=1e-6)
