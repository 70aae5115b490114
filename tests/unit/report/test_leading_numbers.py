"""The numbers on the first screen of a report: which ones lead in which kind of study, and what never leads."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import Any

import pytest

from pipeline.base.domain.records import Result
from pipeline.report.evaluate.cells import make_cells
from pipeline.report.evaluate.contrasts import compare_modes
from pipeline.report.evaluate.verdicts import winners
from pipeline.report.page.key_findings import summarize
from pipeline.report.page.leading_numbers import MOST, TIMES, LeadingNumber, select_leading_numbers
from pipeline.report.page.page import make_content, render
from pipeline.report.read.study_records import Row
from tests.support.report_rows import collocation_study, copies, job, params, row, study
from tests.unit.report.test_report_services import served, service

GRAPH = params(step_mode="cuda_graph")
FACTORS = (1.0, 1.02, 0.98, 1.01, 0.99)


def lead(rows: Sequence[Row]) -> list[LeadingNumber]:
    of = study(*rows)
    cells = make_cells(of)
    return [*select_leading_numbers(of, cells, compare_modes(cells))]


def say(rows: Sequence[Row]) -> str:
    of = study(*rows)
    cells = make_cells(of)
    return summarize(of, cells, winners(cells, compare_modes(cells)))


def run(scenario: str, degree: int, rate: float, energy_j: float, block: int, own: Any = None, **changes: Any) -> Row:
    figures = {"energy_per_sample_j": energy_j, "energy_j": energy_j * 10 * degree * rate}
    return copies(scenario, degree, rate * FACTORS[block - 1], block, own, metrics=figures, **changes)


def graphs_and_sharing(num_blocks: int, **of_mps: Any) -> list[Row]:
    """Eager jobs alone, a CUDA graph alone that is four times as fast, and two eager jobs together."""
    rows = []
    for block in range(1, num_blocks + 1):
        rows += [run("serial", 1, 1000.0, 0.1, block), run("serial", 1, 4000.0, 0.04, block, GRAPH)]
        rows += [run("naive", 2, 700.0, 0.08, block), run("mps", 2, 900.0, 0.05, block, **of_mps)]
    return rows


def test_the_gain_over_one_cuda_graph_leads_then_that_over_serial_then_energy_and_naive() -> None:
    numbers = lead(graphs_and_sharing(5))
    assert [(number.number, number.unit) for number in numbers] == [
        (n, TIMES) for n in ("0.45", "1.80", "1.25", "1.29")
    ]
    assert [number.label for number in numbers] == [
        "the speed of one CUDA graph at a time",
        "the serial speed, which also depends on the host",
        "the energy of one CUDA graph at a time, for the same work",
        "the speed of naive sharing",
    ]
    assert {number.jobs for number in numbers} == {"2 resnet26_cifar10 bs128, MPS"}
    assert all(re.fullmatch(r"(\d\.\d\d to \d\.\d\d \()?5 blocks\)?", number.basis) for number in numbers)


def test_jobs_that_no_other_step_mode_makes_faster_do_not_depend_on_the_host() -> None:
    rows = [row for row in graphs_and_sharing(3) if row.jobs[0].params != GRAPH]
    assert lead(rows)[0].label == "the serial speed, which also depends on the host", "nothing shows the contrary"
    slow = [*rows, *(run("serial", 1, 900.0, 0.1, block, GRAPH) for block in (1, 2, 3))]
    assert lead(slow)[0].label == "the serial speed"


def test_cuda_graphs_that_run_together_count_as_a_gain_over_one_and_not_over_serial() -> None:
    together = [run("mps", 2, 2800.0, 0.03, block, GRAPH) for block in (1, 2, 3)]
    first, second, *_ = lead([*graphs_and_sharing(3), *together])
    assert (first.number, first.jobs) == ("1.40", "2 resnet26_cifar10 bs128 (CUDA graph), MPS")
    assert (second.number, second.jobs) == ("1.80", "2 resnet26_cifar10 bs128, MPS")


@pytest.mark.parametrize(
    "changes", [{"invalid": "the jobs did not overlap"}, {"note": "power limited the clocks"}, {"result": Result.OOM}]
)
def test_an_invalid_or_marked_result_never_leads(changes: dict[str, Any]) -> None:
    numbers = lead(graphs_and_sharing(3, **changes))
    assert numbers and {number.jobs for number in numbers} == {"2 resnet26_cifar10 bs128, naive"}
    everything = [
        dataclasses.replace(row, marks=copies("mps", 1, 1.0, **changes).marks) for row in graphs_and_sharing(3)
    ]
    if "result" not in changes:
        assert lead(everything) == []


def test_a_gain_over_a_doubtful_baseline_does_not_lead() -> None:
    noted = [
        dataclasses.replace(row, marks=copies("mps", 1, 1.0, note="few steps").marks) if row.degree == 1 else row
        for row in graphs_and_sharing(3)
    ]
    assert not any(number.unit == TIMES for number in lead(noted))
    fast = [*(run("serial", 1, 1000.0, 0.1, b) for b in (1, 2, 3)), *(run("mps", 2, 3000.0, 0.1, b) for b in (1, 2, 3))]
    labels = [number.label for number in lead(fast)]
    assert labels == ["the energy of one job at a time, for the same work"], "3.00 exceeds the number of jobs"


def test_missing_intervals_and_verdicts_are_said() -> None:
    numbers = lead(graphs_and_sharing(2))
    assert {number.basis for number in numbers} == {"no verdict: 2 blocks"}
    assert say(graphs_and_sharing(2)).endswith("(2 complete blocks; intervals need 3, verdicts 5).")
    assert say(graphs_and_sharing(3)).endswith("(3 complete blocks; a verdict needs 5 blocks).")
    assert say(graphs_and_sharing(5)).startswith("On one NVIDIA H100 80GB HBM3, MPS is fastest in the one case")
    gpus = [
        dataclasses.replace(row, gpu_uuid=f"GPU-{row.block}", boot_id=f"boot-{row.block}")
        for row in graphs_and_sharing(2)
    ]
    assert {number.basis for number in lead(gpus)} == {"no verdict: 2 GPUs"}


def test_each_number_says_what_it_rests_on() -> None:
    three = lead(graphs_and_sharing(3))
    assert all(re.fullmatch(r"(.* to .* \()?no verdict: 3 blocks\)?", number.basis) for number in three)
    equal = [run(mode, degree, 1000.0 / degree, 0.1, block, GRAPH)
             for block in range(1, 6) for mode, degree in (("serial", 1), ("mps", 2))]  # fmt: skip
    assert lead(equal)[0].basis == "equal within 2 %: 5 blocks"
    alone = lead([copies("serial", 1, rate, block) for block, rate in enumerate((999.0, 1000.0, 1002.0), 1)])
    assert alone[0].basis == "997 to 1004 (3 blocks)", "the throughput of one group is no comparison"


def test_services_lead_with_the_highest_rate_within_the_objective() -> None:
    rows = [
        *(served("serial", 1, rate, 5.0) for rate in (50, 100, 200)),
        *(served("mps", 4, rate, latency) for rate, latency in ((50, 6.0), (100, 8.0), (200, 40.0))),
    ]
    numbers = lead(rows)
    assert [(number.number, number.unit, number.jobs) for number in numbers] == [
        ("400", "requests/s", "4 infer, MPS"),
        ("200", "requests/s", "infer alone"),
    ]
    assert numbers[0].label == "with a p99 within 50 ms, the highest of 3 measured rates"
    assert numbers[0].basis == "no interval: 1 block"
    marked = [row if (row.scenario, row.jobs[0].params["rate_per_s"]) != ("mps", "100") else
              dataclasses.replace(row, marks=copies("mps", 1, 1.0, note="late").marks) for row in rows]  # fmt: skip
    assert [number.jobs for number in lead(marked)] == ["infer alone"]


def test_services_at_one_rate_lead_with_their_latency_and_mixes_with_the_kept_throughput() -> None:
    rows = [served(mode, degree, 50, latency, block) for block in (1, 2, 3)
            for mode, degree, latency in (("serial", 1, 5.0), ("mps", 4, 10.0))]  # fmt: skip
    (number,) = lead(rows)
    assert (number.number, number.label) == ("2.00", "the p99 latency of one service alone")
    assert number.basis == "no verdict: 3 blocks"
    mixed = []
    for block in (1, 2, 3):
        train = params("train")
        mixed += [row("serial", (service(0, 50, 5.0),), block), row("serial", (job(0, train, 100.0),), block)]
        mixed += [row("mps", (job(0, train, 80.0), service(1, 50, 7.5)), block)]
    kept, latency = lead(mixed)
    assert (kept.number, kept.label) == ("0.80", "the throughput that the job next to the service has alone")
    assert (latency.number, latency.label) == ("1.50", "the p99 latency that the service has alone")


def test_one_group_alone_leads_with_its_own_figures() -> None:
    figures = {"energy_per_sample_j": 0.00456, "memory_peak_mib": 1500.0, "gract_mean_ratio": 0.8}
    numbers = lead([copies("serial", 1, 1234.5, metrics=figures)])
    assert [(number.number, number.unit) for number in numbers] == [
        ("1234", "samples/s"),
        ("4.56", "mJ"),
        ("1500", "MiB"),
        ("0.800", ""),
    ]
    mix = tuple(job(index, params(name), 10.0) for index, name in enumerate("ab"))
    assert [number.unit for number in lead([row("mps", mix, metrics=figures)])] == ["MiB", ""], "no sum of samples"
    own = params()
    only_memory = [row("serial", (job(0, own, None),), block, metrics={"memory_peak_mib": 900.0}) for block in (1, 2)]
    assert [number.label for number in lead(only_memory)] == ["peak memory of the GPU"]


def test_a_study_in_which_everything_failed_has_no_number_and_no_picture_on_top() -> None:
    rows = [
        copies(mode, degree, 1.0, result=Result.OOM, reason="no room") for mode, degree in (("serial", 1), ("mps", 2))
    ]
    assert lead(rows) == []
    said = "On one NVIDIA H100 80GB HBM3, no group has a valid result: 2 ran out of memory; for example: no room."
    assert say(rows) == said
    page = render(make_content(study(*rows)))
    header = page[: page.index("<nav>")]
    assert said in header and "<figure" not in header and 'class="numbers"' not in header


@pytest.mark.slow
def test_the_first_screen_has_few_numbers_one_sentence_and_the_picture_and_says_simulated() -> None:
    rows = [dataclasses.replace(row, is_simulated=True) for row in collocation_study(2)]
    page = render(make_content(study(*rows)))
    header = page[page.index("<header>") : page.index("<nav>")]
    assert 0 < header.count("<strong>") - header.count("<strong>Simulated") <= MOST
    assert header.index('class="stamp"') < header.index('class="numbers"') < header.index('class="answer"')
    assert header.index('class="answer"') < header.index('id="figure-gain"')
    assert header.count("; simulated</small>") >= 1
    assert len(page) < 500_000
