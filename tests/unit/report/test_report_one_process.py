"""Sharing inside one process in the report and in advice: what it saves beside its speed, and what it gives up."""

from __future__ import annotations

import pytest

from pipeline.base.domain.sharing_modes import STREAMS
from pipeline.planner.results.advice import advise
from pipeline.report.evaluate.cells import make_cells
from pipeline.report.evaluate.contrasts import compare_modes
from pipeline.report.evaluate.verdicts import winners
from pipeline.report.read.study_records import Row
from tests.support.report_rows import copies, study, table_of


def rows(**speeds: float) -> list[Row]:
    """Return five blocks of two jobs in each mode, at a speed over serial, with the figures of their processes."""
    by_mode = [("serial", 1, 100.0), *((mode, 2, 50.0 * speed) for mode, speed in speeds.items())]
    return [
        copies(
            mode,
            degree,
            rate * (1 + 0.001 * block),
            block,
            metrics={
                "memory_peak_mib": 1000.0 if mode in ("serial", "streams") else 2000.0,
                "host_memory_total_mib": 900.0 * (1 if mode == "streams" else degree),
                "host_cpu_total_pct": 25.0 * degree,
            },
        )
        for block in range(1, 6)
        for mode, degree, rate in by_mode
    ]


def test_memory_and_cpu_are_beside_speed_in_a_table_that_says_what_is_given_up() -> None:
    table = table_of("one_process", make_cells(study(*rows(streams=1.8, mps=1.6))))
    assert table.note.startswith(f"streams gives up {STREAMS.gives_up}.")
    heads = list(table.columns)
    assert heads[4] == "speed-up over serial"
    of_mode = {line[2]: dict(zip(heads, line, strict=True)) for line in table.rows}
    assert of_mode["streams"]["host memory of all jobs (MiB)"].startswith("900")
    assert of_mode["MPS"]["host memory of all jobs (MiB)"].startswith("1800")
    assert of_mode["MPS"]["peak memory of the GPU (MiB)"].startswith("2000")


def test_a_study_without_such_a_mode_has_no_such_table() -> None:
    assert table_of("one_process", make_cells(study(*rows(naive=1.2, mps=1.6)))).rows == ()


@pytest.mark.parametrize(("streams", "best"), [(1.8, "streams"), (1.4, "MPS")])
def test_the_fastest_mode_says_what_it_gives_up(streams: float, best: str) -> None:
    cells = make_cells(study(*rows(streams=streams, mps=1.6, naive=1.1)))
    compared = compare_modes(cells)
    (winner,) = [winner for winner in winners(cells, compared) if winner.degree == 2]
    (advice,) = advise(cells, compared)
    assert winner.mode == advice.mode == best
    says = f"It gives up {STREAMS.gives_up}." in winner.sentence
    changes = [change for change in advice.changes if "isolation" in change]
    assert says is (best == "streams")
    assert changes == (["MPS instead, if the jobs need isolation of memory and faults"] if says else [])


def test_of_equal_modes_the_one_with_isolation_is_advised() -> None:
    cells = make_cells(study(*rows(streams=1.603, mps=1.6, naive=1.1)))
    (advice,) = advise(cells, compare_modes(cells))
    assert advice.mode == "MPS"
