"""What follows from a profile of a simulated GPU says so, from one command to the next."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.planner.__main__ import main
from pipeline.planner.profile_table import SIMULATED, Profile, Row, write
from pipeline.report.figures.drawing import STAMP

ROW = Row(
    workload="infer_tiny",
    gpu_model="a100_80gb",
    sharing_mode="mig",
    instance_profile="3g.40gb",
    batch=1,
    throughput_per_s=50.0,
    latency_mean_ms=5.0,
)


@pytest.mark.slow
@pytest.mark.usefixtures("searches_by_rounds")
@pytest.mark.parametrize("is_simulated", [True, False])
def test_plans_transitions_pictures_and_exports_are_marked(tmp_path: Path, capsys, is_simulated: bool) -> None:
    def said(*argv: object) -> str:
        assert main([str(each) for each in argv]) == 0
        return capsys.readouterr().out

    profile, services, jobs = (tmp_path / name for name in ("p.csv", "s.yaml", "j.yaml"))
    write(profile, Profile(rows=(ROW,), is_simulated=is_simulated))
    services.write_text("services: [{name: infer_tiny, rate_per_s: 40, objective_ms: 50}]")
    jobs.write_text("jobs: [{name: infer_tiny, work: 100}]")
    plan, steps, loads = (tmp_path / f"{name}.json" for name in ("plan", "steps", "loads"))
    texts = [
        said("serve", services, "--profile", profile, "--out", plan),
        said("train", jobs, "--profile", profile),
        said("compare", services, "--profile", profile),
        said("transition", plan, plan, "--out", steps),
        said("export", plan, "--as", "mig-parted"),
        said("export", plan, "--as", "kubernetes", "--image", "a"),
    ]
    said("export", plan, "--as", "experiment", "--out", tmp_path / "conf")
    texts.append((tmp_path / "conf/experiment/plan.yaml").read_text())
    assert [SIMULATED in text for text in texts] == [is_simulated] * len(texts)
    loads.write_text(said("compare", services, "--profile", profile, "--json"))
    assert json.loads(said("train", jobs, "--profile", profile, "--json"))["is_simulated"] is is_simulated
    said("draw", plan, steps, loads, "--out", tmp_path)
    pictures = [(tmp_path / f"{each.stem}.svg").read_text() for each in (plan, steps, loads)]
    assert [STAMP in picture for picture in pictures] == [is_simulated] * 3
