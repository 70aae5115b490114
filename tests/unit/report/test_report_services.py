"""Services in a report: rates within an objective, mixes with other jobs, and fractions of a GPU."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Sequence
from typing import Any

import pytest

from pipeline.base.domain.normalisation import MEAN_SLOWDOWN, P99_SLOWDOWN, SLOWDOWN
from pipeline.base.domain.records import Result
from pipeline.report.evaluate import study_board
from pipeline.report.evaluate.cells import list_metrics, make_cells
from pipeline.report.evaluate.contrasts import Decision, compare_modes
from pipeline.report.evaluate.services import compare_services, describe_fractions, describe_mix, list_fractions
from pipeline.report.figures import bar_charts, curves
from pipeline.report.figures.drawing import draw
from pipeline.report.page.grid import grids
from pipeline.report.page.key_findings import select_leading_numbers, write_answer
from pipeline.report.page.page import make_content, render
from pipeline.report.page.study_tables import make_tables
from pipeline.report.read.study_records import JobRow, Row
from tests.support.report_rows import job, params, row, study, table_of


def service(index: int, rate: float, latency_ms: float, sequence: int = 0, **changes: Any) -> JobRow:
    service_params = params("infer", work_unit="requests", given_rate="true", rate_per_s=f"{rate:g}")
    service_params |= {"objective_ms": "50.0", "objective_percentile": "99.0", "arrival_sequence": str(sequence)}
    figures = {"throughput_requests_per_s": rate, "latency_mean_ms": latency_ms, "latency_p99_ms": 3 * latency_ms}
    return job(index, service_params, None, metrics=figures, **changes)


def make_service_row(scenario: str, degree: int, rate: float, latency_ms: float, block: int = 1, **figures: Any) -> Row:
    """Equal services at a rate, with the figures of their group."""
    group_figures = {
        "throughput_total_requests_per_s": degree * rate,
        "latency_mean_worst_ms": latency_ms,
        "latency_p99_worst_ms": 3 * latency_ms,
        "objective_met_worst_ratio": float(3 * latency_ms <= 50),
        "rate_sustained_worst_ratio": 1.0,
    }
    jobs = tuple(service(index, rate, latency_ms, (index + block - 1) % degree) for index in range(degree))
    return row(scenario, jobs, block, metrics=group_figures | figures)


def test_the_highest_rate_lies_below_the_lowest_that_misses_the_objective() -> None:
    rows = [
        *(make_service_row("serial", 1, rate, 5.0) for rate in (50, 100, 200, 400)),
        *(make_service_row("naive", 4, rate, latency) for rate, latency in ((50, 6.0), (100, 20.0), (200, 15.0))),
        make_service_row("mps", 4, 50, 6.0),
        make_service_row("mps", 4, 100, 8.0),
        # A queue that grows misses every objective, however short the latencies of what was answered.
        make_service_row("mps", 4, 200, 9.0, rate_sustained_worst_ratio=0.9),
        row("mps", tuple(service(i, 400, 1.0) for i in range(4)), result=Result.OOM),
    ]
    table = table_of("objective", study(*rows))
    assert [line[1:4] + line[4:] for line in table.rows] == [
        (1, "serial", "p99 within 50 ms", 400, 400, "15", None),
        (4, "naive", "p99 within 50 ms", 50, 200, "18", 100),
        (4, "MPS", "p99 within 50 ms", 100, 400, "24", 200),
    ]
    (sentence,) = write_answer(study(*rows), make_cells(study(*rows)), [])
    assert "infer answers 400 requests/s alone, 200 requests/s in 4 jobs (naive) and 400 requests/s in 4 j" in sentence
    speed = next(
        table for table in make_tables(study(*rows), make_cells(study(*rows)), [], [], []) if table.name == "speed"
    )
    assert {line[1:3] for line in speed.rows} == {(1, "serial"), (4, "naive"), (4, "MPS")}


def test_a_rate_of_too_few_requests_for_the_percentile_is_not_called_none() -> None:
    def make_rated_row(scenario: str, rate: float, **met: float) -> Row:
        figures = {"throughput_total_requests_per_s": rate, "rate_sustained_worst_ratio": 1.0, "latency_mean_ms": 5.0}
        return row(scenario, (service(0, rate, 5.0),), metrics=figures | met)

    grew = {"rate_sustained_worst_ratio": 0.5}
    unknown = [make_rated_row(mode, rate) for mode in ("serial", "mps") for rate in (50, 100)] + [
        make_rated_row("mps", 200, **grew)
    ]
    (sentence,) = write_answer(study(*unknown), make_cells(study(*unknown)), []) or [""]
    assert "rate" not in sentence
    half = [*unknown, *(make_rated_row("naive", rate, objective_met_worst_ratio=0.0) for rate in (50, 100))]
    (sentence,) = write_answer(study(*half), make_cells(study(*half)), [])
    assert "an unknown rate (serial), no rate (naive) and an unknown rate (MPS) with a p99 within 50 ms" in sentence


def test_services_are_compared_by_their_latency_and_gain_nothing() -> None:
    rows = []
    for block in range(1, 6):
        jitter = 1 + 0.001 * block
        rows.append(make_service_row("serial", 1, 50, 5.0, block))
        rows.append(make_service_row("naive", 4, 50, 20.0 * jitter, block))
        rows.append(make_service_row("mps", 4, 50, 10.0 / jitter, block))
    cells = make_cells(study(*rows))
    named_comparisons = {(comparison.mode, comparison.against): comparison for comparison in compare_modes(cells)}
    assert named_comparisons["MPS", "naive"].metric == "latency_p99_worst_ms"
    assert named_comparisons["MPS", "naive"].ratio is not None
    assert named_comparisons["MPS", "naive"].ratio.median == pytest.approx(2, rel=0.01)
    assert "x naive by the p99 latency of the slowest job (" in named_comparisons["MPS", "naive"].sentence
    assert named_comparisons["naive", "serial"].ratio is not None
    assert named_comparisons["naive", "serial"].ratio.median == pytest.approx(0.25, rel=0.01)
    assert not any("speedup_vs_serial_ratio" in cell.estimates for cell in cells)
    assert [*curves.sketch_gains(cells, None)] == []
    (sentence,) = write_answer(study(*rows), cells, [])
    assert (
        "the p99 latency of services that run together is 1.99 times" in sentence
        and "(4 infer bs128, naive)" in sentence
    )


def test_only_the_service_with_the_arrivals_of_the_run_alone_is_compared_with_it() -> None:
    rows = []
    for block in range(1, 6):
        alone = 5.0 + block
        rows.append(row("serial", (service(0, 50, alone),), block, metrics={"latency_mean_worst_ms": alone}))
        # The copy with the arrivals of the run alone is as fast as it; the others have slower bursts by chance.
        sequences = [(index + block - 1) % 3 for index in range(3)]
        jobs = tuple(service(i, 50, alone * (1 + 0.4 * n), n) for i, n in enumerate(sequences))
        rows.append(row("mps", jobs, block, metrics={"latency_mean_worst_ms": 1.8 * alone}))
    (verdict,) = compare_modes(make_cells(study(*rows)))
    assert (verdict.decision, verdict.metric) == (Decision.EQUAL, "latency_p99_slowdown_worst_ratio")
    assert "1.00 x the same job alone by the p99 latency under the same arrivals, equal within" in verdict.sentence


def test_a_percentile_that_one_block_lacks_is_no_figure_of_the_case() -> None:
    rows = [make_service_row(mode, 1, 50, 5.0, block) for mode in ("serial", "naive") for block in range(1, 6)]
    short = rows[-1]
    without = {name: value for name, value in short.metrics.items() if "p99" not in name}
    rows[-1] = dataclasses.replace(short, metrics=without)
    cells = {cell.mode: cell for cell in make_cells(study(*rows))}
    assert "latency_p99_worst_ms" in cells["serial"].estimates
    assert "latency_p99_worst_ms" not in cells["naive"].estimates
    assert cells["naive"].estimates["latency_mean_worst_ms"].n == 5


def test_a_service_that_does_not_sustain_its_rate_in_every_block_is_not_compared() -> None:
    rows = []
    for block in range(1, 9):
        rows.append(make_service_row("serial", 1, 50, 5.0, block))
        rows.append(make_service_row("mps", 4, 50, 10.0 + 0.01 * block, block))
        saturated = make_service_row("naive", 4, 50, 10.0, block, rate_sustained_worst_ratio=0.8 if block < 4 else 1.0)
        without = {key: value for key, value in saturated.metrics.items() if "latency" not in key}
        rows.append(dataclasses.replace(saturated, metrics=without) if block < 4 else saturated)
    cells = make_cells(study(*rows))
    comparisons = compare_modes(cells)
    assert [(comparison.mode, comparison.against) for comparison in comparisons] == [
        ("naive", "serial"),
        ("MPS", "serial"),
    ]
    assert comparisons[0].ratio is None
    assert comparisons[0].sentence == "4 x infer bs128, naive: did not sustain its rate in 3 of 8 blocks."
    (sentence,) = write_answer(study(*rows), cells, [])
    assert "(4 infer bs128, MPS) that of one service alone" in sentence and "naive" not in sentence
    (drawn,) = bar_charts.sketch_copies(cells, None)
    boxes = [text.get_text() for text in drawn.paint().axes[0].texts]
    assert boxes == ["rate not sustained"]
    (measured,) = study_board.summarize_devices(study(*rows), cells, comparisons, [])
    (four,) = measured.outcomes
    assert (four.tied, four.endings) == (("MPS",), ("naive: did not sustain its rate in 3 of 8 blocks",))


def test_a_training_beside_a_service_keeps_a_part_of_its_speed_and_the_requests_pay() -> None:
    train = params("train")
    rows = [row("serial", (job(0, train, 100.0),)), row("serial", (service(0, 50, 5.0),))]
    for scenario, rate, latency_ms in (("naive", 40.0, 20.0), ("mps", 80.0, 10.0)):
        jobs = (job(0, train, rate, size="T"), service(1, 50, latency_ms, size="I"))
        rows.append(row(scenario, jobs, metrics={"latency_mean_worst_ms": latency_ms}))
    cells = make_cells(study(*rows))
    assert [line[1:] for line in table_of("beside", cells).rows] == [
        ("naive", "infer", None, "4", "4"),
        ("naive", "train", "0.4", None, None),
        ("MPS", "infer", None, "2", "2"),
        ("MPS", "train", "0.8", None, None),
    ]
    naive, mps = (
        list(mode_pairs)
        for _, mode_pairs in itertools.groupby(compare_services(cells), key=lambda service_pair: service_pair.cell.mode)
    )
    assert describe_mix(mps) == (
        "T+I, MPS: the p99 latency of infer is 2.00 times its latency alone and the throughput of train is 0.80 times "
        "its throughput alone."
    )
    assert [(pair.subject, pair.metric) for pair in naive] == [
        ("infer", P99_SLOWDOWN),
        ("infer", MEAN_SLOWDOWN),
        ("train", SLOWDOWN),
    ]
    (sketch,) = bar_charts.sketch_mixes(cells, None)
    throughput_axes, paid = sketch.paint().axes
    assert [bar.get_height() for bar in throughput_axes.patches] == pytest.approx([0.4, 0.8])
    assert [bar.get_height() for bar in paid.patches] == pytest.approx([4, 2])


def test_two_services_of_which_one_does_not_sustain_its_rate_are_no_mix_of_services_and_other_jobs() -> None:
    rows = [row("serial", (service(0, 50, 5.0),)), row("serial", (service(0, 450, 9.0),))]
    for name in ("latency_mean_ms", "latency_p99_ms"):
        del rows[1].jobs[0].metrics[name]
    jobs = (service(0, 50, 6.0, size="J"), service(1, 450, 30.0, size="K"))
    rows.append(row("naive", jobs, metrics={"rate_sustained_worst_ratio": 0.4}))
    assert not list(compare_services(make_cells(study(*rows))))


def test_each_variant_of_one_training_beside_a_service_keeps_its_part() -> None:
    eager, graph = params("train"), params("train", step_mode="cuda_graph")
    rows = [row("serial", (job(0, train_params, 100.0),)) for train_params in (eager, graph)]
    rows.append(row("serial", (service(0, 50, 5.0),)))
    rows.append(row("mps", (job(0, eager, 90.0), job(1, graph, 40.0), service(2, 50, 10.0))))
    pairs = compare_services(make_cells(study(*rows)))
    kept_shares = {pair.subject: pair.gain for pair in pairs if pair.metric == SLOWDOWN}
    assert kept_shares == {"train bs128": pytest.approx(0.9), "train bs128 (CUDA graph)": pytest.approx(0.4)}


def test_a_study_of_services_beside_training_has_an_answer_in_words_and_in_a_grid() -> None:
    train, alone = params("train"), {"energy_j": 1000.0, "energy_above_idle_j": 800.0}
    per_sample, per_request = {"energy_above_idle_per_sample_j": 2.0}, {"energy_above_idle_per_request_j": 1.0}
    rows = [
        row("serial", (job(0, train, 100.0),), metrics=alone | per_sample),
        row("serial", (service(0, 50, 5.0),), metrics=alone | per_request),
    ]
    for scenario, rate, latency_ms, energy_j in (("naive", 90.0, 20.0, 1300.0), ("mps", 80.0, 10.0, 1100.0)):
        jobs = (job(0, train, rate, size="T"), service(1, 50, latency_ms, size="I"))
        rows.append(row(scenario, jobs, metrics={"energy_j": energy_j, "energy_above_idle_j": 900.0}))
    saturated = (job(0, train, 70.0, size="T"), service(1, 50, 30.0, size="I"))
    rows.append(row("mps_percent", saturated, metrics={"rate_sustained_worst_ratio": 0.8}))
    report_study = study(*rows)
    cells = make_cells(report_study)
    throughput, energy, latency = write_answer(report_study, cells, [])
    assert throughput == (
        "On one NVIDIA H100 80GB HBM3, jobs that run with services keep 0.70 (T+I, MPS equal shares) to 0.90 (T+I, "
        "naive) of their throughput (I: infer, T: train)."
    )
    assert re.fullmatch(
        r"Services and jobs together use 0\.\d\d \(T\+I, MPS\) to 0\.\d\d \(T\+I, naive\) of the energy .*", energy
    )
    assert latency == "The p99 latency of services is 2.00 (T+I, MPS) to 4.00 (T+I, naive) times their latency alone."
    (grid,) = grids(report_study, cells, compare_modes(cells), [])
    assert [mode.label for mode in grid.modes] == ["naive", "MPS", "MPS %"]
    texts = {line.measure: [[entry.text for entry in entries] for entries in line.entries] for line in grid.lines}
    assert texts["throughput kept by train"] == [["0.90"], ["0.80"], ["0.70"]]
    assert texts["p99 latency of infer"] == [["4.00"], ["2.00"], ["rate not sustained"]]
    assert [bool(entries and entries[0]) for entries in texts["energy of all"]] == [True, True, False]
    page = render(make_content(report_study))
    assert "No two modes have figures" not in page and "throughput kept by train" in page
    opening = page[page.index("<figure") : page.index("</figure>")]
    assert 'id="figure-beside-inference"' in opening and "energy, times alone" in opening


def test_bars_of_one_colour_say_which_they_are() -> None:
    alone = [row("serial", (job(0, params("train"), 100.0),)), row("serial", (service(0, 50, 5.0),))]
    jobs = (job(0, params("train"), 80.0, size="T"), service(1, 50, 10.0, size="I"))
    both = [row("mps", jobs), row("mps", jobs, options={"priority": [1, 0]}), row("naive", jobs)]
    (sketch,) = bar_charts.sketch_mixes(make_cells(study(*alone, *both)), None)
    throughput_axes, *_ = sketch.paint().axes
    assert {tick.get_text() for tick in throughput_axes.get_xticklabels(minor=True)} == {"", "MPS", "priority=1+0"}


def test_what_is_as_many_as_the_requests_is_said_once() -> None:
    def make_image_rows(images: int) -> list[Row]:
        figures = {"throughput_total_images_per_s": 50.0 * images, "energy_per_image_j": 1.0}
        return [make_service_row("serial", 1, 50, 5.0, **figures), make_service_row("naive", 1, 50, 5.0, **figures)]

    assert [name for name in list_metrics(make_cells(study(*make_image_rows(1)))) if "image" in name] == []
    eight = list_metrics(make_cells(study(*make_image_rows(8))))
    assert [name for name in eight if "throughput_total" in name] == [
        "throughput_total_requests_per_s",
        "throughput_total_images_per_s",
    ]
    assert "energy_per_image_j" in eight


def make_fraction_row(
    percentage: int | None, degree: int, users: int, latency_ms: float, block: int = 1, **changes: Any
) -> Row:
    """Return services with clients that wait, on a percentage of the GPU; `None` is the whole GPU without MPS."""
    service_params = params(
        "infer", work_unit="requests", outstanding=users, objective_ms="20.0", objective_percentile="50.0"
    )
    place = {} if percentage is None else {"mps_active_thread_percentage": str(percentage)}
    options = {} if percentage is None else {"active_thread_pct": percentage}
    figures = {"throughput_requests_per_s": 1000 * users / latency_ms, "latency_mean_ms": latency_ms}
    group = {
        "throughput_total_requests_per_s": degree * 1000 * users / latency_ms,
        "latency_mean_worst_ms": latency_ms,
        "latency_p50_worst_ms": latency_ms,
        "latency_p95_worst_ms": 1.5 * latency_ms,
        "energy_per_request_j": 0.25 / degree,
    }
    jobs = tuple(job(index, service_params, None, metrics=figures, place=place) for index in range(degree))
    scenario = "serial" if percentage is None else "mps_percent"
    return row(scenario, jobs, block, metrics=group, options=options, **changes)


def make_fraction_rows(block: int = 1, slower: float = 1.0) -> list[Row]:
    """Return the whole GPU (1 ms a request), and half of it: 1.25 ms with the rest idle, 1.6 ms with it loaded."""
    return [
        *(make_fraction_row(None, 1, users, 1.0 * users * slower, block) for users in (4, 32)),
        *(make_fraction_row(50, 1, users, 1.25 * users * slower, block) for users in (4, 32)),
        *(make_fraction_row(50, 2, users, 1.6 * users * slower, block) for users in (4, 32)),
    ]


def tabulate(rows: Sequence[Row]) -> list[tuple[Any, ...]]:
    return [line[1:] for line in table_of("fractions", study(*rows)).rows]


def test_fractions_are_led_by_a_sentence_without_a_number() -> None:
    cells = make_cells(of_fractions := study(*make_fraction_rows()))
    assert select_leading_numbers(of_fractions, cells, compare_modes(cells)) == ()
    assert describe_fractions(cells)


def test_a_service_on_half_a_gpu_is_compared_with_the_whole_gpu_for_both_states_of_the_rest() -> None:
    assert tabulate(make_fraction_rows()) == [
        ("whole", "serial", None, 4, "1", "6", None, "0.25", "20"),
        ("whole", "serial", None, 32, "1", "48", None, "0.25", "20"),
        ("half", "MPS 50 %", "idle", 4, "0.8", "7.5", None, "0.25", "16"),
        ("half", "MPS 50 %", "idle", 32, "0.8", "60", None, "0.25", "16"),
        ("half", "MPS 50 %", "loaded", 4, "0.625", "9.6", None, "0.125", "12.5"),
        ("half", "MPS 50 %", "loaded", 32, "0.625", "76.8", None, "0.125", "12.5"),
    ]


def test_ratios_are_of_one_block_and_have_an_interval() -> None:
    rows = [one for block in (1, 2, 3) for one in make_fraction_rows(block, slower=1 + 0.1 * block)]
    idle, loaded = (part for part in list_fractions(make_cells(study(*rows))) if part.num_parts == 2)
    assert idle.rest == "idle" and loaded.rest == "loaded"
    throughput, users = idle.compare_throughput(32), loaded.estimate_users()
    assert throughput is not None and throughput.ratio is not None
    assert (throughput.ratio.n, throughput.ratio.low) == (3, pytest.approx(0.8))
    assert users is not None and not isinstance(users, str) and users.low is not None
    assert users.median == pytest.approx(20 / 1.6 / 1.2) and users.low < users.median < (users.high or 0)


@pytest.mark.parametrize(("slower", "bound"), [(0.5, "at least 32"), (8.0, "fewer than 4")])
def test_users_outside_the_measured_numbers_are_bounds(slower: float, bound: str) -> None:
    lines = tabulate(make_fraction_rows(slower=slower))
    assert lines[0][-1] == bound and lines[2][-1] == ("at least 32" if slower < 0.625 else bound)
    assert "users" not in describe_fractions(make_cells(study(*make_fraction_rows(slower=slower))))[0]


def test_one_block_outside_the_measured_numbers_leaves_a_bound() -> None:
    assert tabulate([*make_fraction_rows(1), *make_fraction_rows(2, slower=0.5)])[0][-1] == "at least 32"


def test_users_need_an_objective_at_a_percentile_and_two_numbers_of_users() -> None:
    one_number = [one for one in make_fraction_rows() if one.jobs[0].params["outstanding"] == "4"]
    assert [line[-1] for line in tabulate(one_number)] == [None] * 3
    assert [line[4] for line in tabulate(one_number)] == ["1", "0.8", "0.625"]


def test_wrong_results_on_a_fraction_are_named_and_have_no_figures() -> None:
    rows = [one for one in make_fraction_rows() if one.degree == 1]
    rows += [make_fraction_row(50, 2, users, 1.6 * users, result=Result.WRONG_RESULTS) for users in (4, 32)]
    assert tabulate(rows)[-1] == ("half", "MPS 50 %", "loaded", 32, "wrong_results", None, None, None, None)
    assert describe_fractions(make_cells(study(*rows))) == [
        "On half of the GPU (MPS 50 %), the throughput of infer is 0.80 times with the rest idle, relative to the "
        "whole GPU."
    ]


def test_the_answer_names_both_states_of_the_rest_and_the_users() -> None:
    (sentence,) = describe_fractions(make_cells(study(*make_fraction_rows())))
    assert "is 0.80 times with the rest idle and 0.62 times with the rest loaded, relative to the whole GPU" in sentence
    assert sentence.endswith("; 16.0 and 12.5 instead of 20.0 users have a p50 within 20 ms.")


def test_shares_of_which_only_one_number_of_jobs_ran_are_no_fractions() -> None:
    rows = [one for one in make_fraction_rows() if one.degree == 1]
    cells = make_cells(study(*rows))
    assert not [*list_fractions(cells)] and not [*curves.sketch_fractions(cells, None)]
    assert not describe_fractions(cells)
    assert "fractions" not in {table.name for table in make_tables(study(*rows), cells, [], [], [])}


def test_a_figure_has_a_panel_for_each_known_quantity() -> None:
    (sketch,) = curves.sketch_fractions(make_cells(study(*make_fraction_rows())), None)
    svg = draw(sketch, "fractions", is_simulated=False).svg
    titles = ("throughput with 32 users", "users with a p50 within 20 ms", "p95 latency with 4 users", "energy per")
    assert all(title in svg for title in titles)
    assert "MPS %, rest idle" in svg and "MPS %, rest loaded" in svg and "quarter" not in svg
    without = [make_fraction_row(p, d, 4, 4.0) for p, d in ((None, 1), (50, 1), (50, 2))]
    (sketch,) = curves.sketch_fractions(make_cells(study(*without)), None)
    assert "users with a" not in draw(sketch, "fractions", is_simulated=False).svg
