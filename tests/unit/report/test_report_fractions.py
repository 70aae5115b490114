"""Services on fractions of a GPU: what they keep of the whole GPU with the rest idle, and with the rest loaded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from pipeline.base.domain.records import Result
from pipeline.report.evaluate.cells import make_cells
from pipeline.report.evaluate.gpu_fractions import describe_fractions, list_fractions
from pipeline.report.evaluate.verdicts import verdicts
from pipeline.report.figures import fractions
from pipeline.report.figures.drawing import draw
from pipeline.report.page.leading_numbers import select_leading_numbers
from pipeline.report.page.service_tables import fraction_table
from pipeline.report.page.study_tables import make_tables
from pipeline.report.read.study_records import Row
from tests.support.report_rows import job, params, row, study


def served(percentage: int | None, degree: int, users: int, latency_ms: float, block: int = 1, **changes: Any) -> Row:
    """Return services with clients that wait, on a percentage of the GPU; `None` is the whole GPU without MPS."""
    own = params("infer", work_unit="requests", outstanding=users, objective_ms="20.0", objective_percentile="50.0")
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
    jobs = tuple(job(index, own, None, metrics=figures, place=place) for index in range(degree))
    scenario = "serial" if percentage is None else "mps_percent"
    return row(scenario, jobs, block, metrics=group, options=options, **changes)


def whole_and_half(block: int = 1, slower: float = 1.0) -> list[Row]:
    """Return the whole GPU (1 ms a request), and half of it: 1.25 ms with the rest idle, 1.6 ms with it loaded."""
    return [
        *(served(None, 1, users, 1.0 * users * slower, block) for users in (4, 32)),
        *(served(50, 1, users, 1.25 * users * slower, block) for users in (4, 32)),
        *(served(50, 2, users, 1.6 * users * slower, block) for users in (4, 32)),
    ]


def tabulate(rows: Sequence[Row]) -> list[tuple[Any, ...]]:
    return [line[1:] for line in fraction_table(make_cells(study(*rows))).rows]


def test_fractions_are_led_by_a_sentence_without_a_number() -> None:
    cells = make_cells(of_fractions := study(*whole_and_half()))
    assert select_leading_numbers(of_fractions, cells, verdicts(cells)) == ()
    assert describe_fractions(cells)


def test_a_service_on_half_a_gpu_is_compared_with_the_whole_gpu_for_both_states_of_the_rest() -> None:
    assert tabulate(whole_and_half()) == [
        ("whole", "serial", None, 4, "1", "6", None, "0.25", "20"),
        ("whole", "serial", None, 32, "1", "48", None, "0.25", "20"),
        ("half", "MPS 50 %", "idle", 4, "0.8", "7.5", None, "0.25", "16"),
        ("half", "MPS 50 %", "idle", 32, "0.8", "60", None, "0.25", "16"),
        ("half", "MPS 50 %", "loaded", 4, "0.625", "9.6", None, "0.125", "12.5"),
        ("half", "MPS 50 %", "loaded", 32, "0.625", "76.8", None, "0.125", "12.5"),
    ]


def test_ratios_are_of_one_block_and_have_an_interval() -> None:
    rows = [one for block in (1, 2, 3) for one in whole_and_half(block, slower=1 + 0.1 * block)]
    idle, loaded = (part for part in list_fractions(make_cells(study(*rows))) if part.num_parts == 2)
    assert idle.rest == "idle" and loaded.rest == "loaded"
    throughput, users = idle.compare_throughput(32), loaded.estimate_users()
    assert throughput is not None and (throughput.n, throughput.low) == (3, pytest.approx(0.8))
    assert users is not None and not isinstance(users, str) and users.low is not None
    assert users.median == pytest.approx(20 / 1.6 / 1.2) and users.low < users.median < (users.high or 0)


@pytest.mark.parametrize(("slower", "bound"), [(0.5, "at least 32"), (8.0, "fewer than 4")])
def test_users_outside_the_measured_numbers_are_bounds(slower: float, bound: str) -> None:
    lines = tabulate(whole_and_half(slower=slower))
    assert lines[0][-1] == bound and lines[2][-1] == ("at least 32" if slower < 0.625 else bound)
    assert "users" not in describe_fractions(make_cells(study(*whole_and_half(slower=slower))))[0]


def test_one_block_outside_the_measured_numbers_leaves_a_bound() -> None:
    assert tabulate([*whole_and_half(1), *whole_and_half(2, slower=0.5)])[0][-1] == "at least 32"


def test_users_need_an_objective_at_a_percentile_and_two_numbers_of_users() -> None:
    one_number = [one for one in whole_and_half() if one.jobs[0].params["outstanding"] == "4"]
    assert [line[-1] for line in tabulate(one_number)] == [None] * 3
    assert [line[4] for line in tabulate(one_number)] == ["1", "0.8", "0.625"]


def test_wrong_results_on_a_fraction_are_named_and_have_no_figures() -> None:
    rows = [one for one in whole_and_half() if one.degree == 1]
    rows += [served(50, 2, users, 1.6 * users, result=Result.WRONG_RESULTS) for users in (4, 32)]
    assert tabulate(rows)[-1] == ("half", "MPS 50 %", "loaded", 32, "wrong_results", None, None, None, None)
    assert describe_fractions(make_cells(study(*rows))) == [
        "On half of the GPU (MPS 50 %), the throughput of infer is 0.80 times with the rest idle, relative to the "
        "whole GPU."
    ]


def test_the_answer_names_both_states_of_the_rest_and_the_users() -> None:
    (sentence,) = describe_fractions(make_cells(study(*whole_and_half())))
    assert "is 0.80 times with the rest idle and 0.62 times with the rest loaded, relative to the whole GPU" in sentence
    assert sentence.endswith("; 16.0 and 12.5 instead of 20.0 users have a p50 within 20 ms.")


def test_shares_of_which_only_one_number_of_jobs_ran_are_no_fractions() -> None:
    rows = [one for one in whole_and_half() if one.degree == 1]
    cells = make_cells(study(*rows))
    assert not [*list_fractions(cells)] and not [*fractions.sketches(cells, None)]
    assert not describe_fractions(cells)
    assert "fractions" not in {table.name for table in make_tables(study(*rows), cells, [], [], [])}


def test_a_figure_has_a_panel_for_each_known_quantity() -> None:
    (sketch,) = fractions.sketches(make_cells(study(*whole_and_half())), None)
    svg = draw(sketch, "fractions", is_simulated=False).svg
    titles = ("throughput with 32 users", "users with a p50 within 20 ms", "p95 latency with 4 users", "energy per")
    assert all(title in svg for title in titles)
    assert "MPS %, rest idle" in svg and "MPS %, rest loaded" in svg and "quarter" not in svg
    without = [served(p, d, 4, 4.0) for p, d in ((None, 1), (50, 1), (50, 2))]
    (sketch,) = fractions.sketches(make_cells(study(*without)), None)
    assert "users with a" not in draw(sketch, "fractions", is_simulated=False).svg
