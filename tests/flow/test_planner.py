"""A plan, exported, run on a simulated GPU and checked: from one command line to the next."""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter

import pytest
import yaml

from pipeline.base.system.paths import PROJECT_DIR
from pipeline.planner import __main__, deployment
from pipeline.planner.deployment import Deployment, Gpu, Instance, Plan, Service
from tests.support import forks

pytestmark = pytest.mark.covers("pipeline/planner", "docs/cluster.md")


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


@pytest.mark.torch
@pytest.mark.slow
def test_the_page_from_jobs_to_a_cluster_runs_as_printed(program, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    page = (PROJECT_DIR / "docs/cluster.md").read_text(encoding="utf-8")
    (jobs,) = re.findall(r"^```yaml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "jobs.yaml").write_text(jobs)
    program.last = [f"gpu.lock_dir={tmp_path}", "foreign_load=note"]
    commands = re.findall(r"^```sh\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    measure, *planner_commands = [shlex.split(line, comments=True)[1:] for line in "".join(commands).splitlines()]
    status, out, err = program.run(*measure[1:])
    assert status == 0, out + err
    for module, name, *words in planner_commands:
        assert (module, name) == ("-m", "pipeline.planner") and __main__.main(words) == 0, capsys.readouterr()
    assert "profile.csv: 6 rows, 2 workloads, measured on a100_80gb" in capsys.readouterr().out
    gpus = json.loads((tmp_path / "plan.json").read_text())["gpus"]
    planned = Counter(job["instance_profile"] for gpu in gpus for group in gpu["groups"] for job in group["jobs"])
    requests = re.findall(r"--gres=gpu:(\S+):1 .* (tiny|tiny-text)\.sh$", (tmp_path / "submit.sh").read_text(), re.M)
    assert Counter(profile for profile, _ in requests) == planned and planned.total() == 4
    layouts = yaml.safe_load((tmp_path / "mig-parted.yaml").read_text())["mig-configs"]["plan"]
    divided = [Counter(layout["mig-devices"]) for layout in layouts for _ in layout["devices"]]
    assert sum(divided, Counter()) == planned
    assert (tmp_path / "manifests.yaml").read_text().count("kind: ResourceClaimTemplate") >= 1
