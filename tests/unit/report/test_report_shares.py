"""The share of the GPU and the energy of each job of a group."""

from __future__ import annotations

import dataclasses

import pytest

from pipeline.report.evaluate.cells import make_cells
from pipeline.report.page.study_tables import make_tables
from pipeline.report.read.study_records import JobRow, Row
from tests.support.report_rows import job, params, row, study, table_of

SM, MEMORY = "process_sm_utilization_mean_pct", "process_memory_utilization_mean_pct"
ALONE = {"energy_j": 3000.0, "power_idle_w": 100.0, "utilization_gpu_mean_pct": 80.0}
TOGETHER = {"energy_j": 5000.0, "power_idle_w": 100.0}  # 500 W for 10 s, 400 W above idle


def _job(index: int, name: str, rate: float, **figures: float) -> JobRow:
    made = job(index, params(name, work_unit="samples"), rate)
    return dataclasses.replace(made, metrics={**made.metrics, **figures})


def _rows(*together: JobRow, scenario: str = "mps", busy: float | None = None) -> list[Row]:
    measured = {} if busy is None else {SM: busy}
    return [
        row("serial", (_job(0, "a", 100.0, **measured),), metrics={**ALONE, "energy_per_sample_j": 3.0}),
        row("serial", (_job(0, "b", 50.0, **measured),), metrics={**ALONE, "energy_per_sample_j": 6.0}),
        row(scenario, together, metrics=TOGETHER),
    ]


def _list_shares(rows: list[Row]) -> list[tuple[object, ...]]:
    return [line[2:] for line in table_of("shares", study(*rows)).rows]


def test_a_measured_share_divides_the_energy_above_idle() -> None:
    jobs = (_job(0, "a", 50.0, **{SM: 60.0, MEMORY: 12.0}), _job(1, "b", 10.0, **{SM: 20.0, MEMORY: 3.0}))
    assert _list_shares(_rows(*jobs, scenario="naive")) == [
        ("naive", "a bs128", "60", "measured", "12", "sample", "3 J", "7 J"),  # (50 + 300) W, 50 samples/s
        ("naive", "b bs128", "20", "measured", "3", "sample", "6 J", "15 J"),  # (50 + 100) W, 10 samples/s
    ]


@pytest.mark.parametrize(("busy", "shares"), [(None, ("60", "20")), (40.0, ("30", "10"))])
def test_a_share_that_was_not_measured_is_a_model(busy: float | None, shares: tuple[str, str]) -> None:
    """The busy time per step alone is that of the process if it was measured, else that of the GPU."""
    rows = _rows(_job(0, "a", 75.0), _job(1, "b", 12.5), busy=busy)
    assert _list_shares(rows) == [
        ("MPS", "a bs128", shares[0], "model", None, "sample", "3 J", "4.667 J"),
        ("MPS", "b bs128", shares[1], "model", None, "sample", "6 J", "12 J"),
    ]


def test_a_missing_input_leaves_share_or_energy_missing() -> None:
    jobs = (_job(0, "a", 75.0), _job(1, "b", 12.5))
    both = _rows(*jobs)
    assert [line[2] for line in _list_shares(both[1:])] == ["20"]  # the other job did not run alone
    assert [line[-1] for line in _list_shares(both[1:])] == [None]
    without_idle = dataclasses.replace(both[2], metrics={"energy_j": 5000.0})
    assert [line[-1] for line in _list_shares([*both[:2], without_idle])] == [None, None]


def test_one_job_has_no_row_and_the_table_is_written() -> None:
    assert _list_shares(_rows(_job(0, "a", 75.0))) == []
    of = study(*_rows(_job(0, "a", 75.0), _job(1, "b", 12.5)))
    assert "shares" in [table.name for table in make_tables(of, make_cells(of), [], [], [])]
