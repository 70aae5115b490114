"""Differences of energy: tested like differences of speed, corrected with them, and never a reason to rank a mode."""

from __future__ import annotations

import re
from typing import Any

import pytest

from pipeline.report.evaluate.cells import make_cells
from pipeline.report.evaluate.contrasts import Contrast, Decision, Quantity, compare_modes
from pipeline.report.evaluate.metrics import ENERGY_VS_ALONE
from pipeline.report.evaluate.study_board import from_json, summarize_devices, to_json
from pipeline.report.evaluate.verdicts import winners
from pipeline.report.page.grid import BEST, OPEN, grids
from pipeline.report.read.study_records import Row
from tests.support.report_rows import copies, job, params, row, study, table_of

GRAPH = params(step_mode="cuda_graph")
FACTORS = (1.0, 1.01, 0.99, 1.005, 0.995)


def measured(scenario: str, degree: int, rate: float, energy_j: float, block: int, **changes: Any) -> Row:
    """Equal jobs with an energy per sample in a window of 10 s."""
    noisy = rate * FACTORS[block - 1]
    energy = {"energy_per_sample_j": energy_j, "energy_j": energy_j * 10 * degree * noisy}
    return copies(scenario, degree, noisy, block, metrics=energy, **changes)


def five_blocks(mps_j: float = 0.06, naive_j: float = 0.12) -> list[Row]:
    """Serial jobs at 0.1 J per sample, two jobs under MPS and naive, and a CUDA graph alone at 0.05 J."""
    rows = []
    for block, scatter in enumerate((1.0, 1.004, 0.996, 1.002, 0.998), start=1):
        rows.append(measured("serial", 1, 1000.0, 0.1, block))
        rows.append(measured("serial", 1, 2500.0, 0.05, block, own=GRAPH))
        rows.append(measured("naive", 2, 600.0, naive_j * scatter, block))
        rows.append(measured("mps", 2, 800.0, mps_j / scatter, block))
    return rows


def energies(rows: list[Row]) -> dict[tuple[str, str], Contrast]:
    comparisons = compare_modes(make_cells(study(*rows)))
    return {(v.mode, v.against): v for v in comparisons if v.quantity is Quantity.ENERGY}


def test_each_mode_is_compared_by_energy_with_both_baselines_and_earlier_modes() -> None:
    comparisons = energies(five_blocks())
    assert {pair: (round(verdict.ratio.median, 2), verdict.decision) for pair, verdict in comparisons.items()} == {
        ("naive", "serial"): (1.2, Decision.WORSE),
        ("naive", "CUDA graph alone"): (2.4, Decision.WORSE),
        ("MPS", "serial"): (0.6, Decision.BETTER),
        ("MPS", "CUDA graph alone"): (1.2, Decision.WORSE),
        ("MPS", "naive"): (0.5, Decision.BETTER),
    }
    assert comparisons["MPS", "serial"].sentence == (
        "2 x resnet26_cifar10 bs128, MPS: 0.60 x the energy of serial on this host (0.60 to 0.60; 5 blocks)."
    )


def test_speed_and_energy_are_corrected_together() -> None:
    comparisons = compare_modes(make_cells(study(*five_blocks(mps_j=0.1, naive_j=0.1))))
    assert (
        [v.quantity for v in comparisons].count(Quantity.ENERGY)
        == [v.quantity for v in comparisons].count(Quantity.SPEED)
        == 5
    )
    equal = next(v for v in comparisons if (v.mode, v.against, v.quantity) == ("MPS", "serial", Quantity.ENERGY))
    assert equal.decision is Decision.EQUAL
    assert equal.p is not None and equal.p_adjusted == pytest.approx(equal.p * len(comparisons), rel=1)
    assert equal.p_adjusted > 4.9 * equal.p


def test_no_energy_and_no_block_in_common_give_no_comparison() -> None:
    rows = [copies("serial", 1, 1000.0), copies("naive", 2, 600.0)]
    assert energies(rows) == {}


def test_energy_does_not_rank_modes() -> None:
    cells = make_cells(study(*five_blocks(mps_j=0.3)))
    (winner,) = winners(cells, compare_modes(cells))
    assert winner.mode == "MPS"
    assert re.fullmatch(
        r"2 x resnet26_cifar10 bs128: MPS is fastest, 1\.60 x serial.*\. MPS: 0\.64 x CUDA graph alone.*; "
        r"energy 3\.00 x serial on this host \(2\.99 to 3\.01\), 6\.00 x CUDA graph alone \(5\.98 to 6\.02\)\.",
        winner.sentence,
    )


def test_a_steady_mix_is_compared_by_the_energy_of_the_work_that_it_did() -> None:
    """Energy per sample would compare different shares of the two jobs."""
    rows = []
    for block in range(1, 6):
        for name, rate, power_w in (("a", 1000.0, 100.0), ("b", 100.0, 200.0)):
            alone = {"energy_j": 10 * power_w, "energy_per_sample_j": power_w / rate}
            rows.append(row("serial", (job(0, params(name), rate),), block, metrics=alone))
        for scenario, rate_a, rate_b in (("naive", 900.0, 10.0), ("mps", 100.0, 90.0)):
            power_w = (150.0 + 0.1 * block) * (1.2 if scenario == "mps" else 1.0)
            jobs = (job(0, params("a"), rate_a, size="A"), job(1, params("b"), rate_b, size="B"))
            per_sample = {"energy_j": 10 * power_w, "energy_per_sample_j": power_w / (rate_a + rate_b)}
            rows.append(row(scenario, jobs, block, metrics=per_sample))
    comparisons = energies(rows)
    assert comparisons["naive", "serial"].metric == comparisons["MPS", "naive"].metric == ENERGY_VS_ALONE
    assert comparisons["naive", "serial"].ratio.median == pytest.approx(150.3 / (0.9 * 100 + 0.1 * 200))
    assert comparisons["MPS", "naive"].ratio.median == pytest.approx(1.2 * 110 / (0.1 * 100 + 0.9 * 200))
    assert comparisons["MPS", "naive"].decision is Decision.BETTER


def test_tables_the_page_and_the_file_of_cases_have_energy_and_the_best_step_mode() -> None:
    of = study(*five_blocks())
    cells = make_cells(of)
    comparisons = compare_modes(cells)
    best = winners(cells, comparisons)
    table = table_of("verdicts", cells)
    place = table.columns.index("quantity")
    assert [line[place] for line in table.rows].count("energy") == 5
    speed, further = grids(of, cells, comparisons, best)
    assert (speed.title, [line.degree for line in speed.lines]) == ("Speed-up over serial", [2])
    states = {line.measure: [entry.state for (entry,) in line.entries] for line in further.lines}
    assert states == {
        "speed-up over CUDA graph alone": ["", ""],
        "energy over serial": ["", BEST],
        "energy over CUDA graph alone": ["", ""],
    }
    (measured_here,) = from_json(to_json(summarize_devices(of, cells, comparisons, best)))
    (outcome,) = measured_here.outcomes
    energy = outcome.find_comparison("energy", is_best_solo=False)
    assert energy is not None and (energy.against, energy.verdict) == ("serial", "better")
    over_best = outcome.find_comparison("speed", is_best_solo=True)
    assert over_best is not None and over_best.ratio.median == pytest.approx(0.64)


def test_too_few_blocks_leave_energy_open() -> None:
    of = study(*[each for each in five_blocks() if each.block < 4])
    cells = make_cells(of)
    comparisons = compare_modes(cells)
    assert {verdict.decision for verdict in comparisons} == {Decision.NO_VERDICT}
    (_, further) = grids(of, cells, comparisons, winners(cells, comparisons))
    assert {entry.state for line in further.lines for entries in line.entries for entry in entries} == {OPEN}
