"""Baselines that drift with the host, while the group does not."""

from __future__ import annotations

import dataclasses
import math
import random

import pytest

from pipeline.base.domain.normalisation import MEAN_SLOWDOWN, SPEEDUP
from pipeline.report.evaluate import statistics
from pipeline.report.evaluate.cells import Cell, make_cells
from pipeline.report.evaluate.contrasts import Contrast, Decision, Quantity, compare_modes
from pipeline.report.evaluate.metrics import BEST_SOLO, ENERGY_VS_ALONE
from pipeline.report.evaluate.wording import list_doubts
from pipeline.report.read.study_records import Row
from tests.support.report_rows import copies, params, study
from tests.unit.report.test_report_services import served

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
    assert verdict.sentence.endswith(f"(naive: {NOTE}a CUDA graph as baseline would not drift)")


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


def with_energy(made: list[Row], joules: tuple[float, ...]) -> list[Row]:
    """Add the energy of a window of 10 s, and its energy per sample."""
    changed = []
    for row, per_sample in zip(made, joules, strict=True):
        rate = row.metrics["throughput_total_samples_per_s"]
        energy = {"energy_per_sample_j": per_sample, "energy_j": per_sample * 10 * rate}
        changed.append(dataclasses.replace(row, metrics={**row.metrics, **energy}))
    return changed


def test_an_energy_over_a_drifting_baseline_counts_five_blocks_as_one() -> None:
    host_j = tuple(0.1 * host**-0.8 for host in HOST)
    groups = with_energy(rows("serial", 1, 1000, HOST), host_j), with_energy(rows("naive", 7, 2900), (0.05,) * 5)
    cells = make_cells(study(*(row for group in groups for row in group)))
    (cell,) = (cell for cell in cells if (cell.mode, cell.degree) == ("naive", 7))
    (verdict,) = (verdict for verdict in compare_modes(cells) if verdict.quantity is Quantity.ENERGY)
    plain = statistics.estimate([0.05 / joules for joules in host_j])
    assert verdict.ratio == cell.estimates[ENERGY_VS_ALONE]
    assert math.log(verdict.ratio.high / verdict.ratio.low) == pytest.approx(
        math.sqrt(5) * math.log(plain.high / plain.low)
    )
    # The noise of the counter is no drift.
    still = with_energy(rows("serial", 1, 1000), host_j), with_energy(rows("naive", 7, 2900), (0.05,) * 5)
    (verdict,) = (v for v in compare_modes(make_cells(study(*still[0], *still[1]))) if v.quantity is Quantity.ENERGY)
    assert (verdict.ratio.low, verdict.ratio.high) == pytest.approx((plain.low, plain.high))


def test_a_latency_over_a_drifting_baseline_counts_five_blocks_as_one() -> None:
    made = []
    for block, host in enumerate(HOST, start=1):
        made += [served("serial", 1, 50, 5.0 / host, block), served("naive", 4, 50, 20.0, block)]
    (cell,) = (cell for cell in make_cells(study(*made)) if cell.degree == 4 and cell.mode == "naive")
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
