"""A study that really ran, read for a report."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.report.evaluate.cells import make_cells
from pipeline.report.read import rows
from tests.support.run_cases import TOY

pytest_plugins = ["tests.support.tracking_fixtures", "tests.support.run_fixtures"]
pytestmark = pytest.mark.covers("pipeline/report")


@pytest.mark.slow
def test_the_report_computes_what_the_orchestrator_recorded(run, tmp_path: Path) -> None:
    overrides = ["scenario=serial,naive", "degree=1,2", "repeats=2", "window.seconds=0.3", "window.settle_s=0.1"]
    status, _, err = run("-m", *TOY, *overrides)
    assert status == 0, err
    study = rows.read([tmp_path / "mlruns"], "collocation")
    assert len(study.rows) == study.num_planned == 6
    assert study.num_complete_blocks == 2 and study.left_out == {}
    cells = {(cell.mode, cell.degree): cell for cell in make_cells(study)}
    assert set(cells) == {("serial", 1), ("naive", 1), ("serial", 2), ("naive", 2)}
    names = ("speedup_vs_serial_ratio", "slowdown_worst_ratio", "fairness_jain_ratio")
    for row in study.rows:
        computed = cells[row.mode, row.degree].values
        for name in names:
            assert computed[name][row.block] == pytest.approx(row.metrics[name], rel=1e-9)
