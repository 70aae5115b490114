"""The leading numbers of a report, and its doubts."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import Any

import pytest

from pipeline.base.domain.records import Result
from pipeline.report.evaluate.cells import make_cells
from pipeline.report.evaluate.contrasts import compare_modes
from pipeline.report.evaluate.verdicts import describe_cases, winners
from pipeline.report.evaluate.wording import describe_host_bound, list_doubts
from pipeline.report.page.key_findings import (
    MOST,
    TIMES,
    LeadingNumber,
    select_leading_numbers,
    summarize,
)
from pipeline.report.page.page import make_content, render
from pipeline.report.read.study_records import Row, Study
from tests.support.report_rows import collocation_study, copies, job, params, row, study, table_of
from tests.unit.report.test_report_services import make_service_row, service

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


def run(
    scenario: str, degree: int, rate: float, energy_j: float, block: int, job_params: Any = None, **changes: Any
) -> Row:
    figures = {"energy_per_sample_j": energy_j, "energy_j": energy_j * 10 * degree * rate}
    return copies(scenario, degree, rate * FACTORS[block - 1], block, job_params, metrics=figures, **changes)


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
def test_an_invalid_result_never_leads_and_a_marked_one_only_with_a_star_where_all_are(changes: dict[str, Any]) -> None:
    numbers = lead(graphs_and_sharing(3, **changes))
    assert numbers and {number.jobs for number in numbers} == {"2 resnet26_cifar10 bs128, naive"}
    everything = [
        dataclasses.replace(row, marks=copies("mps", 1, 1.0, **changes).marks) for row in graphs_and_sharing(3)
    ]
    if "invalid" in changes:
        assert lead(everything) == []
    elif "note" in changes:
        assert [number.number for number in lead(everything)] == ["0.45*", "1.80*", "1.25*", "1.29*"]


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
    assert say(graphs_and_sharing(2)).endswith("(2 complete blocks).")
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
        *(make_service_row("serial", 1, rate, 5.0) for rate in (50, 100, 200)),
        *(make_service_row("mps", 4, rate, latency) for rate, latency in ((50, 6.0), (100, 8.0), (200, 40.0))),
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
    rows = [make_service_row(mode, degree, 50, latency, block) for block in (1, 2, 3)
            for mode, degree, latency in (("serial", 1, 5.0), ("mps", 4, 10.0))]  # fmt: skip
    (number,) = lead(rows)
    assert (number.number, number.label) == ("2.00", "the p99 latency of one service alone")
    assert number.basis == "no verdict: 3 blocks"
    mixed = []
    for block in (1, 2, 3):
        train = params("train")
        mixed += [row("serial", (service(0, 50, 5.0),), block), row("serial", (job(0, train, 100.0),), block)]
        mixed += [row("mps", (job(0, train, 80.0), service(1, 50, 7.5)), block)]
    throughput, latency = lead(mixed)
    assert (throughput.number, throughput.label) == (
        "0.80",
        "the throughput that the job next to the service has alone",
    )
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
    job_params = params()
    only_memory = [
        row("serial", (job(0, job_params, None),), block, metrics={"memory_peak_mib": 900.0}) for block in (1, 2)
    ]
    assert [number.label for number in lead(only_memory)] == ["peak memory of the GPU"]


def test_a_study_in_which_everything_failed_has_no_number_and_no_picture_on_top() -> None:
    rows = [
        copies(mode, degree, 1.0, result=Result.OOM, reason="no room") for mode, degree in (("serial", 1), ("mps", 2))
    ]
    assert lead(rows) == []
    sentence = "On one NVIDIA H100 80GB HBM3, no group has a valid result: 2 ran out of memory; for example: no room."
    assert say(rows) == sentence
    page = render(make_content(study(*rows)))
    header = page[: page.index("<nav>")]
    assert sentence in header and "<figure" not in header and 'class="numbers"' not in header


@pytest.mark.slow
def test_the_first_screen_has_few_numbers_one_sentence_and_the_picture() -> None:
    page = render(make_content(study(*collocation_study(2))))
    header = page[page.index("<header>") : page.index("<nav>")]
    assert 0 < header.count("<strong>") - header.count("<strong>Simulated") <= MOST
    assert header.index('class="numbers"') < header.index('class="answer"') < header.index('id="figure-gain"')
    assert len(page) < 500_000


@pytest.mark.slow
def test_a_rehearsal_leads_with_what_ran_and_no_speed() -> None:
    rows = [
        dataclasses.replace(row, is_simulated=True, marks=copies("mps", 1, 1.0, note="few steps").marks)
        for row in collocation_study(1)
    ]
    assert lead(rows) == []
    page = render(make_content(study(*rows)))
    header = page[page.index("<header>") : page.index("<nav>")]
    assert header.index('class="stamp"') < header.index('class="answer"') and "<figure" not in header
    num_ran = sum(row.result is Result.OK for row in rows)
    assert f"{num_ran} of {len(rows)} groups ran. A rehearsal measures no speed." in header
    assert "few steps" not in header and "to settle" not in header and 'id="figure-gain"' in page


ONE_MODE = [copies("serial", 1, 100.0), copies("naive", 2, 90.0), copies("naive", 3, 60.0)]


def test_a_study_of_one_mode_and_one_block_has_an_answer() -> None:
    jobs = "2 resnet26_cifar10 bs128 under naive"
    time = "take 0.56 of the time of one after another, each up to 1.11 times as long as alone"
    certainty = "1 complete block"
    assert say(ONE_MODE) == f"On one NVIDIA H100 80GB HBM3, {jobs} {time}; 3 gain nothing more ({certainty})."
    assert [(number.number, number.basis) for number in lead(ONE_MODE)] == [("1.80", "no verdict: 1 block")]
    more = [copies("naive", 2, 90.0 / 0.9), copies("naive", 3, 80.0)]
    assert "; 3 gain nothing more" not in say([ONE_MODE[0], *more])
    losing = say([ONE_MODE[0], copies("naive", 2, 45.0)])
    assert "sharing gains nothing: " in losing and "take 1.11 times as long as in turn, each up to 2.22" in losing
    impossible = say([ONE_MODE[0], copies("naive", 2, 400.0)])
    assert impossible.endswith(", no group of several jobs has a plausible speed-up (1 complete block).")


def test_five_blocks_of_one_mode_are_faster_than_serial_and_not_called_fastest() -> None:
    rows = [copies(*one, block) for block in range(1, 6) for one in (("serial", 1, 100.0), ("naive", 2, 90.0))]
    of = study(*rows)
    cells = make_cells(of)
    comparisons = compare_modes(cells)
    (sentence,) = describe_cases(cells, comparisons, winners(cells, comparisons))
    assert sentence.startswith("2 x resnet26_cifar10 bs128, naive: 1.80 x serial (5 blocks). They take")
    assert "fastest" not in sentence + say(rows)


def test_the_first_screen_has_what_settles_an_open_case() -> None:
    header = render(make_content(study(*ONE_MODE))).split("<nav>")[0]
    need = "Intervals need 3 blocks, verdicts 5; to settle what is open, add repeats=5 resume=true to the command of"
    assert f'<p class="note">{need} the study.</p>' in header
    auto = dataclasses.replace(study(*ONE_MODE), facts={"precision_goal_pct": ("2",)})
    assert need not in render(make_content(auto))


STOOD_STILL = "job 0-resnet26 made no step in the last 3 s of the window (a step takes 10 ms)"


def test_blocks_without_marks_raise_no_doubt() -> None:
    plain = study(copies("serial", 1, 1000.0))
    assert list_doubts(plain, ()) == []
    assert table_of("blocks", plain).rows[0][-2:] == (1, 0)
    assert not table_of("host", plain).rows


def test_the_host_loop_of_older_studies_is_read_and_ignored() -> None:
    rows = [copies("naive", 2, 9.0, block, metrics={"host_loop_ms": float(10**block)}) for block in (1, 2, 3)]
    seen = study(*rows)
    assert list_doubts(seen, make_cells(seen)) == []
    assert "loop" not in render(make_content(seen))


@pytest.mark.parametrize(
    ("degree", "gains", "words"),
    [
        (2, (2.4, 2.5, 2.45), "speed-up of 2.45 (2.33 to 2.58) exceeds the number of jobs"),
        (2, (1.7, 2.6, 2.9), ""),  # the interval reaches below: one block alone may be noise
        (2, (2.6,), ""),
        (2, (36.0,), "speed-up of 36.00 exceeds the number of jobs"),
        (
            1,
            (1.3, 1.32, 1.28),
            "one naive job repeats the serial run, but ran 1.30 times (1.25 to 1.35) as fast",
        ),
        (
            1,
            (0.7, 0.72, 0.71),
            "one naive job repeats the serial run, but ran 0.71 times (0.69 to 0.74) as fast",
        ),
        (1, (1.07, 1.06, 1.08), ""),
        (1, (1.9, 1.0, 0.8), ""),
    ],
)
def test_a_gain_that_cannot_be_is_judged_by_its_interval(degree, gains, words) -> None:
    rows = [copies("serial", 1, 100.0, block) for block, _ in enumerate(gains, 1)]
    rows += [copies("naive", degree, 100.0 * gain / degree, block) for block, gain in enumerate(gains, 1)]
    seen = study(*rows)
    notes = list_doubts(seen, make_cells(seen))
    assert [note for note in notes if words in note] if words else not notes
    (cell,) = (cell for cell in make_cells(seen) if cell.mode == "naive")
    assert bool(cell.marks) == bool(words)
    assert cell.is_ranked, "a note excludes nothing"


def test_what_is_flagged_is_said_once_with_its_groups_and_marked_in_the_tables() -> None:
    overlaps = {("naive", 2): (0.91, 0.9), ("mps", 2): (0.91, None), ("naive", 3): (None, None)}
    rows = [
        copies(mode, degree, 9.0, block, note=f"overlap {overlap:.3f} is below 0.95" if overlap else "")
        for (mode, degree), of_blocks in overlaps.items()
        for block, overlap in enumerate(of_blocks, 1)
    ]
    name = "2x-resnet26_cifar10"
    (doubt,) = list_doubts(study(*rows), ())
    assert doubt == f"naive-{name} and mps-{name} (1 of 2 blocks): for example overlap 0.910 is below 0.95."
    content = make_content(study(*rows))
    (speed,) = (table for table in content.tables if table.name == "speed")
    assert [row[1:4] for row in speed.rows] == [(2, "naive", "ok*"), (2, "MPS", "ok*"), (3, "naive", "ok")]
    assert doubt in render(content) and "*: doubtful" in speed.note


def test_groups_that_are_bound_by_their_host_are_named() -> None:
    figures = {"process_cpu_mean_pct": 97.0, "run_queue_delay_pct": 0.0}
    rows = [
        copies(scenario, degree, 1000.0, block, metrics=figures | {"host_bound_ratio": share})
        for block in (1, 2, 3)
        for scenario, degree, share in (("serial", 1, 1.0), ("naive", 2, 1.0), ("mps", 2, 0.5), ("mps", 7, 0.0))
    ]
    cells = make_cells(study(*rows))
    label = cells[0].case.label
    assert describe_host_bound(cells).endswith(f"of the time): one {label} (serial) and 2 {label} (naive, MPS).")
    table = table_of("host", cells)
    assert describe_host_bound(cells) in table.note
    assert dict(zip(table.columns, table.rows[0], strict=True))["waiting for a CPU (% of one core)"] == "0"
    assert describe_host_bound([cell for cell in cells if cell.degree == 7 and not cell.is_derived]).endswith(
        ": no group."
    )


def test_without_gpu_activity_nothing_is_said_of_what_binds_a_group() -> None:
    cells = make_cells(study(copies("naive", 2, 1000.0, metrics={"process_cpu_mean_pct": 99.0})))
    assert describe_host_bound(cells) == ""


def test_nothing_is_compared_with_a_baseline_that_stood_still() -> None:
    rows = [
        copies(scenario, degree, 1000.0, block, invalid=STOOD_STILL if (scenario, block) == ("serial", 2) else "")
        for block in (1, 2, 3)
        for scenario, degree in (("serial", 1), ("naive", 2))
    ]
    seen = study(*rows)
    (pair,) = (cell for cell in make_cells(seen) if cell.degree == 2 and not cell.is_derived)
    assert pair.values["speedup_vs_serial_ratio"] == {1: pytest.approx(2.0), 3: pytest.approx(2.0)}
    (doubt,) = list_doubts(seen, make_cells(seen))
    name = "serial-1x-resnet26_cifar10 (1 of 3 blocks)"
    assert doubt == f"{name}: {STOOD_STILL}; invalid, so not compared."
    assert table_of("drift", seen).rows[0][2] == 2, "blocks with a baseline"
    assert "invalid, so not compared" in render(make_content(seen))


def test_environments_that_a_resume_let_stand_beside_each_other_are_named() -> None:
    def make_resumed_study(*digests: str, **facts: str) -> Study:
        environment_params = [params(environment_digest=digest) for digest in digests]
        return study(
            *(
                copies("naive", n, 1000.0, job_params=job_params, facts=facts)
                for n, job_params in enumerate(environment_params, 1)
            )
        )

    (doubt,) = list_doubts(make_resumed_study("old", "new", accepts_environment="true"), ())
    assert doubt.startswith("The study compares rows of 2 environments, because it was resumed with resume=accept_")
    assert (
        list_doubts(make_resumed_study("same", "same", accepts_environment="true"), ())
        == list_doubts(make_resumed_study("old", "new"), ())
        == []
    )


def test_a_note_on_gains_is_said_once_with_all_jobs_that_have_it() -> None:
    rows = [copies("serial", 1, 10.0, job_params=params(f"work{number}")) for number in range(6)]
    rows += [copies("mps", 2, 20.0 + number, job_params=params(f"work{number}")) for number in range(6)]
    report_study = study(*rows)
    (note,) = [
        line for line in list_doubts(report_study, make_cells(report_study)) if "exceeds the number of jobs" in line
    ]
    assert note.startswith(
        "2 work0 bs128 (MPS), 2 work1 bs128 (MPS), 2 work2 bs128 (MPS), 2 work3 bs128 (MPS) and 2 more: "
    )
    assert note.count("the baseline was slow,") == 1 and "for example speed-up of 4.00 exceeds" in note
