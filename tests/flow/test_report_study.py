"""A study that really ran, read for a report."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from pipeline.base.system.paths import PROJECT_DIR
from pipeline.report.evaluate.cells import make_cells
from pipeline.report.read import rows
from tests.support import forks

pytest_plugins = ["tests.support.tracking_fixtures"]
pytestmark = pytest.mark.covers("pipeline/report")


@pytest.mark.slow
def test_the_report_computes_what_the_orchestrator_recorded(tmp_path: Path, template_store: Path) -> None:
    shutil.copytree(template_store, tmp_path / "mlruns")
    overrides = ["scenario=serial,naive", "degree=1,2", "repeats=2", "window.seconds=0.3", "window.settle_s=0.1"]
    toy = ["--config-dir", str(PROJECT_DIR / "tests/conf"), "workload=toy", "gpu=cpu", f"gpu.lock_dir={tmp_path}"]
    done = forks.run(PROJECT_DIR / "run.py", "-m", *toy, *overrides, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
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
