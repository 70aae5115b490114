"""Contrasts of cells: the blocks that they share, times as speeds, baselines, and jobs of a part of the GPU."""

from __future__ import annotations

import itertools

import pytest

from pipeline.base.domain.normalisation import SLOWDOWN
from pipeline.base.domain.sharing_modes import SERIAL
from pipeline.base.domain.window import WindowKind
from pipeline.report.evaluate.cells import Cell, make_cells
from pipeline.report.evaluate.contrasts import (
    Decision,
    compare_modes,
    contrast,
    contrast_cells,
    contrast_per_job,
    contrast_with_alone,
)
from pipeline.report.evaluate.metrics import TOTAL_TIME
from tests.support.report_rows import copies, job, params, row, study


def make_pair(gains: dict[int, float], *, degree: int = 2) -> tuple[Cell, Cell]:
    """Return the cells of naive sharing and of one serial job, with a gain of each block of naive sharing."""
    serial = [copies("serial", 1, 1000.0, block) for block in range(1, 5)]
    naive = [copies("naive", degree, 1000.0 * gain / degree, block) for block, gain in gains.items()]
    cells = {cell.mode: cell for cell in make_cells(study(*serial, *naive)) if not cell.is_derived}
    return cells["naive"], cells["serial"]


def test_pairs_the_blocks_that_both_cells_have() -> None:
    naive, serial = make_pair({2: 1.2, 3: 1.3, 4: 1.4, 5: 9.0})
    pair = contrast_cells(naive, serial)
    assert pair is not None and pair.ratio is not None
    assert pair.ratios == pytest.approx({2: 1.2, 3: 1.3, 4: 1.4})
    assert (pair.ratio.median, pair.ratio.n, pair.num_blocks, pair.num_gpus) == (pytest.approx(1.3), 3, 3, 1)
    assert (pair.case, pair.degree, pair.mode, pair.against) == (naive.case, 2, "naive", "serial")
    assert (pair.metric, pair.decision) == ("throughput_total_samples_per_s", Decision.NO_VERDICT)


def test_has_no_contrast_without_a_common_block_or_quantity() -> None:
    naive, serial = make_pair({7: 1.2})
    assert contrast_cells(naive, serial) is None
    naive, serial = make_pair({1: 1.2})
    assert contrast_cells(naive, serial, "power_mean_w") is None
    assert contrast_with_alone(naive, "power_mean_w") is None


def test_a_ratio_of_times_is_one_of_speeds() -> None:
    own = params()
    times = {"serial": 20.0, "naive": 10.0}
    rows = [
        row(mode, (job(0, own, None),), metrics={TOTAL_TIME: time_s}, window=WindowKind.WORK)
        for mode, time_s in times.items()
    ]
    naive, serial = sorted(make_cells(study(*rows)), key=lambda cell: cell.mode)
    pair = contrast_cells(naive, serial, TOTAL_TIME)
    assert pair is not None and pair.ratios == {1: 2.0}


def test_selects_cells_and_their_references() -> None:
    rows = [copies(mode, degree, 1000.0 / degree) for mode, degree in itertools.product(("serial", "naive"), (1, 2))]
    cells = make_cells(study(*rows))
    alone = next(cell for cell in cells if (cell.degree, cell.sharing) == (1, SERIAL))
    pairs = contrast(cells, lambda cell: cell.mode == "naive", lambda cell: alone if cell.degree > 1 else None)
    assert [(pair.degree, pair.mode, pair.other) for pair in pairs] == [(2, "naive", alone)]


def test_one_job_of_several_is_compared_by_its_part_of_the_throughput() -> None:
    naive, serial = make_pair({1: 1.5}, degree=3)
    pair = contrast_per_job(naive, serial)
    assert pair is not None and pair.ratios == pytest.approx({1: 0.5})


@pytest.mark.parametrize(("is_inverted", "ratio"), [(False, 2 / 1.6), (True, 1.6 / 2)])
def test_a_slowdown_is_a_contrast_by_itself_and_its_inverse_the_throughput_kept(
    is_inverted: bool, ratio: float
) -> None:
    naive, _ = make_pair({1: 1.6})
    pair = contrast_with_alone(naive, SLOWDOWN, subject="a", is_inverted=is_inverted)
    assert pair is not None and pair.ratio is not None
    assert (pair.ratio.median, pair.subject, pair.against) == (pytest.approx(ratio), "a", "alone")


def test_an_estimate_does_not_depend_on_the_order_of_blocks() -> None:
    gains = {1: 1.2, 2: 1.5, 3: 1.3, 4: 1.1}
    estimates = set()
    for order in itertools.permutations(gains):
        pair = contrast_cells(*make_pair({block: gains[block] for block in order}))
        assert pair is not None
        estimates.add(pair.ratio)
    assert len(estimates) == 1


def test_comparisons_of_modes_are_contrasts_with_a_decision() -> None:
    serial = [copies("serial", 1, 1000.0 + block, block) for block in range(1, 7)]
    naive = [copies("naive", 2, 900.0 + block, block) for block in range(1, 7)]
    (pair,) = [pair for pair in compare_modes(make_cells(study(*serial, *naive))) if pair.degree == 2]
    assert (pair.decision, pair.against, pair.blocks_needed) == (Decision.BETTER, "serial", None)
    assert pair.p is not None and pair.p_adjusted is not None and pair.p <= pair.p_adjusted
    assert pair.sentence.startswith("2 x resnet26_cifar10 bs128, naive: 1.80 x serial (1.80 to 1.80; 6 blocks)")
