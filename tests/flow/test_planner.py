"""A plan, exported, run on a simulated GPU and checked: from one command line to the next."""

from __future__ import annotations

import json

import pytest

from pipeline.planner import __main__, deployment
from pipeline.planner.deployment import Deployment, Gpu, Instance, Plan, Service
from tests.support import forks

pytest_plugins = ["tests.support.tracking_fixtures", "tests.support.run_fixtures"]
pytestmark = pytest.mark.covers("pipeline/planner")


@pytest.mark.torch
@pytest.mark.slow
def test_a_plan_that_was_exported_runs_to_its_end_and_is_checked(program, tmp_path, capsys):
    two = Instance(profile="3g.40gb", start=0, service="infer_tiny", processes=2, batch=2, throughput_per_s=40.0)
    one = Instance(
        profile="1g.10gb", start=4, service="infer_tiny", batch=1, throughput_per_s=10.0, latency_mean_ms=500.0
    )
    services = (Service(name="infer_tiny", rate_per_s=90.0, objective_ms=5000.0),)
    plan = Plan(deployment=Deployment(gpus=(Gpu(model="h100_80gb", instances=(two, one)),)), services=services)
    deployment.write(plan, tmp_path / "mine.json")
    export = ["export", str(tmp_path / "mine.json"), "--as", "experiment", "--out", str(tmp_path)]
    with forks.start_real("-m", "pipeline.planner", *export) as process:  # it knows nothing of what run.py registers
        assert process.communicate()[1] == "" and process.returncode == 0
    program.last = [f"gpu.lock_dir={tmp_path}", "listeners=[host,nvml]"]
    seconds = "window.seconds=5"  # a service of ten requests a second shows its work to a tenth of one
    status, _, err = program.run("--config-dir", tmp_path, "+experiment=mine", "+rehearse=tiny", seconds)
    assert status == 0, err
    capsys.readouterr()
    store = ["--experiment", "mine-rehearsal", "--root", str(tmp_path / "mlruns")]
    status = __main__.main(["check", str(tmp_path / "mine.json"), *store, "--json"])
    data = json.loads(capsys.readouterr().out)
    assert status == (0 if data["holds"] else 1) and data["is_simulated"] and not data["not_measured"]
    comparisons = {comparison["quantity"]: comparison for comparison in data["compared"]}
    assert comparisons["throughput_per_s"]["predicted"] == pytest.approx(90)
    assert comparisons["throughput_per_s"]["measured"] > 0
    assert comparisons["memory_mib"]["measured"] == pytest.approx(
        3 * 512 + 2 * 66
    )  # of the jobs, and a server an instance
