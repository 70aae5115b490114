"""A plan becomes an experiment that plans, a configuration that mig-parted takes, and manifests of Kubernetes."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.planner import __main__
from pipeline.planner.deployment import Deployment, Gpu, Plan
from pipeline.planner.export.experiment import build_programs, deal_rates, group_gpus
from tests.conftest import DATA
from tests.support.experiments import configs_of, planned
from tests.support.json_schema import violations
from tests.support.plans import H100, instance, plan_of, refusal, write_plan


def schema(name: str) -> Any:
    return json.loads((DATA / f"schemas/{name}.json").read_text())


def make_divided_gpu(**changes: Any) -> Gpu:
    small = instance("1g.10gb", 6, "infer_tiny", 10.0, batch=4)
    shared = instance("3g.40gb", 0, "infer_tiny", 90.0, processes=3, batch=8, latency_p99_ms=9.0)
    return Gpu(model=H100, instances=(shared, instance("2g.20gb", 4, "infer_tiny_text", 30.0), small), **changes)


WHOLE = Gpu(model=H100, mode="mps", instances=(instance(None, None, "infer_tiny", 100.0, processes=2, share_pct=50.0),))


def export(tmp_path: Path, plan: Plan, kind: str, *options: str) -> int:
    return __main__.main(["export", str(write_plan(tmp_path, plan)), "--as", kind, *options])


def refuse(tmp_path: Path, capsys: Any, plan: Plan, kind: str, *options: str) -> str:
    return refusal(capsys, "export", write_plan(tmp_path, plan), "--as", kind, *options)


def test_rates_are_dealt_by_throughput_and_add_up() -> None:
    plan = plan_of(make_divided_gpu(), WHOLE)
    rates = deal_rates(plan)
    assert rates == {(0, 0): 9.0, (0, 2): 3.0, (0, 1): 60.0, (1, 0): 15.0}  # of 90 + 10 + 100: 27 of 3, 3, 30 of 2
    unknown = Gpu(
        model=H100, instances=(instance("1g.10gb", 0, "a", None, processes=2), instance("1g.10gb", 1, "a", 5.0))
    )
    assert deal_rates(plan_of(unknown)) == {(0, 0): 20.0, (0, 1): 20.0}


def test_gpus_that_are_alike_are_one_group_and_every_process_is_a_job() -> None:
    plan = plan_of(make_divided_gpu(), make_divided_gpu(), WHOLE)
    groups = group_gpus(plan)
    assert [group.gpus for group in groups] == [(0, 1), (2,)]
    first, undivided_group = groups
    assert first.instance_of == (0, 0, 0, 1, 2) and len(set(first.sizes)) == 3
    assert (first.scenario, first.profiles) == ("mig_mps", ("3g", "2g", "1g"))
    assert (undivided_group.scenario, undivided_group.profiles) == ("mps_percent", ())
    values = {size: dict(program.values) for program, size in build_programs(plan, groups, {}).items()}
    assert values[first.sizes[0]]["max_batch"] == 8 and values[first.sizes[0]]["objective_percentile"] == 99.0
    assert "objective_percentile" not in values[first.sizes[4]]


def test_no_p99_is_asked_of_a_process_that_gets_too_few_requests_for_one(tmp_path: Path, capsys) -> None:
    slow = Gpu(model=H100, instances=(instance("3g.40gb", 0, "infer_tiny_text", 30.0, latency_p99_ms=9.0),))
    plan = plan_of(slow, rate_per_s=1.5)
    assert export(tmp_path, plan, "experiment", "--out", str(tmp_path / "conf")) == 0
    assert "too few requests for a p99 of infer_tiny_text: `check` compares the mean" in capsys.readouterr().out
    arguments = [f"hydra.searchpath=[file://{tmp_path / 'conf'}]", "+experiment=mine", "gpu=simulated_h100_80gb"]
    with planned(configs_of([*arguments, "repeats=1"])) as measured_plan:
        (group,) = measured_plan.groups
        assert "objective_percentile" not in dict(group.jobs[0].workload.params) and group.window.seconds == 600


@pytest.mark.slow
def test_the_exported_experiment_is_what_was_planned(tmp_path: Path, capsys) -> None:
    assert (
        export(
            tmp_path,
            plan_of(make_divided_gpu(), make_divided_gpu(), WHOLE),
            "experiment",
            "--out",
            str(tmp_path / "conf"),
        )
        == 0
    )
    run = f"python run.py --config-dir {tmp_path / 'conf'} +experiment=mine"
    # The slowest process is asked twice a second, and a window of one second might hold no request.
    assert capsys.readouterr().out == f"run it: {run}\nrehearse it: {run} +rehearse=tiny window.seconds=5\n"
    arguments = [f"hydra.searchpath=[file://{tmp_path / 'conf'}]", "+experiment=mine"]
    with planned(configs_of([*arguments, "gpu=simulated_h100_80gb", "repeats=1"])) as plan:
        assert len(plan.groups) == 2 and not any(group.skip_reason or group.sequential for group in plan.groups)
        mig = next(group for group in plan.groups if group.scenario == "mig_mps")
        options = dict(mig.sharing.options)
        assert options["profiles"] == ("3g", "2g", "1g") and options["instance_of"] == (0, 0, 0, 1, 2)
        jobs = [dict(job.workload.params) for job in mig.jobs]
        rates = deal_rates(plan_of(make_divided_gpu(), make_divided_gpu(), WHOLE))
        assert [float(params["rate_per_s"]) for params in jobs] == [rates[0, place] for place in (0, 0, 0, 1, 2)]
        assert {params["arrival"] for params in jobs} == {"poisson"} and {
            params["objective_ms"] for params in jobs
        } == {"200.0"}
        assert mig.window.seconds == 220  # 1,320 requests at 6 a second
    with planned(configs_of([*arguments, "+rehearse=tiny"])) as tiny:
        stand_ins = Counter(job.workload.name for group in tiny.groups for job in group.jobs)
        assert stand_ins == {"infer_tiny": 6, "infer_tiny_text": 1}
        assert not any(group.skip_reason for group in tiny.groups)


def test_an_experiment_is_of_one_model_and_of_known_workloads(tmp_path: Path, capsys) -> None:
    other = Gpu(model="a100_80gb", instances=(instance("3g.40gb", 0, "infer_tiny", 100.0),))
    out = ["--out", str(tmp_path / "conf")]
    assert "GPUs of 2 models (a100_80gb, h100_80gb)" in refuse(
        tmp_path, capsys, plan_of(WHOLE, other), "experiment", *out
    )
    assert export(tmp_path, plan_of(WHOLE, other), "experiment", *out, "--gpu", "simulated_a100_80gb") == 0
    content = yaml.safe_load((tmp_path / "conf/experiment/mine.yaml").read_text())
    assert [program["rate_per_s"] for program in content["sizes"].values()] == [30.0]
    assert "exists; choose another --name, or replace it with --force" in refuse(
        tmp_path, capsys, plan_of(WHOLE), "experiment", *out
    )
    bert = plan_of(Gpu(model=H100, instances=(instance("3g.40gb", 0, "bert", 9.0, batch=2),)))
    assert "service bert: conf/workload has no bert.yaml; name its workload" in refuse(
        tmp_path, capsys, bert, "experiment", *out, "--force"
    )
    assert (
        export(tmp_path, bert, "experiment", *out, "--force", "--workload", "bert=infer_bert_base precision=bf16") == 0
    )
    content = yaml.safe_load((tmp_path / "conf/experiment/mine.yaml").read_text())
    assert content["defaults"][0] == {"/workload@sizes.bert": "infer_bert_base"}
    assert content["sizes"]["bert"]["precision"] == "bf16"


def test_mig_parted_takes_the_configuration(tmp_path: Path, capsys) -> None:
    assert export(tmp_path, plan_of(make_divided_gpu(), WHOLE, make_divided_gpu()), "mig-parted") == 0
    content = yaml.safe_load(capsys.readouterr().out)
    assert [*violations(content, schema("mig_parted_v1"))] == []
    first_entries = content["mig-configs"]["mine"]
    assert first_entries[0] == {
        "devices": [0, 2],
        "mig-enabled": True,
        "mig-devices": {"1g.10gb": 1, "2g.20gb": 1, "3g.40gb": 1},
    }
    assert first_entries[1] == {"devices": [1], "mig-enabled": False, "mig-devices": {}}
    assert (
        export(tmp_path, plan_of(make_divided_gpu(), WHOLE, make_divided_gpu()), "mig-parted", "--gpus-per-node", "2")
        == 0
    )
    nodes = yaml.safe_load(capsys.readouterr().out)["mig-configs"]
    assert {name: [entry["devices"] for entry in entries] for name, entries in nodes.items()} == {
        "mine-1": [[0], [1]],
        "mine-2": [[0]],
    }
    some = plan_of(make_divided_gpu(id="1"), make_divided_gpu(), make_divided_gpu())
    assert export(tmp_path, some, "mig-parted") == 0
    assert yaml.safe_load(capsys.readouterr().out)["mig-configs"]["mine"][0]["devices"] == [0, 1, 2]
    seven = plan_of(*(make_divided_gpu(id=str(number)) for number in reversed(range(7))))
    assert export(tmp_path, seven, "mig-parted", "--gpus-per-node", "4") == 0
    nodes = yaml.safe_load(capsys.readouterr().out)["mig-configs"]
    assert {name: entries[0]["devices"] for name, entries in nodes.items()} == {
        "mine-1": [0, 1, 2, 3],
        "mine-2": [0, 1, 2],
    }
    assert "two GPUs have the same index" in refuse(
        tmp_path, capsys, plan_of(make_divided_gpu(id="1"), make_divided_gpu(id="01")), "mig-parted"
    )
    assert export(tmp_path, plan_of(make_divided_gpu(id="5")), "mig-parted") == 0
    assert yaml.safe_load(capsys.readouterr().out)["mig-configs"]["mine"][0]["devices"] == [5]
    assert "is not a GPU index" in refuse(tmp_path, capsys, plan_of(make_divided_gpu(id="GPU-1")), "mig-parted")


def test_kubernetes_takes_the_manifests(tmp_path: Path, capsys) -> None:
    assert "service infer_tiny has no image" in refuse(
        tmp_path, capsys, plan_of(make_divided_gpu(), make_divided_gpu(), WHOLE), "kubernetes"
    )
    error = refuse(tmp_path, capsys, plan_of(WHOLE), "kubernetes", "--image", "a:1", "--image", "infer=b:1")
    assert "--image infer=...: " in error and "has no service infer; check the name" in error
    assert "--image 'any 1' contains a space" in refuse(
        tmp_path, capsys, plan_of(WHOLE), "kubernetes", "--image", "any 1"
    )
    images = ["--image", "registry/any:1", "--image", "infer_tiny_text=registry/text:2"]
    assert export(tmp_path, plan_of(make_divided_gpu(), make_divided_gpu(), WHOLE), "kubernetes", *images) == 0
    manifests = list(yaml.safe_load_all(capsys.readouterr().out))
    for manifest in manifests:
        assert [*violations(manifest, schema("kubernetes_deployment_v1"))] == []
        labels = manifest["spec"]["template"]["metadata"]["labels"]
        assert manifest["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert len({manifest["metadata"]["name"] for manifest in manifests}) == len(manifests)
    requested_gpus: Counter[str] = Counter()
    for manifest in manifests:
        (container,) = manifest["spec"]["template"]["spec"]["containers"]
        (resource,) = container["resources"]["limits"]
        requested_gpus[resource] += manifest["spec"]["replicas"]
        assert container["image"] == ("registry/text:2" if container["name"] == "infer-tiny-text" else "registry/any:1")
    assert requested_gpus == {
        "nvidia.com/mig-3g.40gb": 2,
        "nvidia.com/mig-2g.20gb": 2,
        "nvidia.com/mig-1g.10gb": 2,
        "nvidia.com/gpu": 1,
    }
    two = Gpu(model=H100, mode="mps", instances=(*WHOLE.instances, instance(None, None, "infer_tiny_text", 5.0)))
    assert "has 2 services but no MIG instances" in refuse(tmp_path, capsys, plan_of(two), "kubernetes", *images)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": "v2"}, "$.version: 'v2' is not 'v1'"),
        ({"mig-configs": {"a": []}}, "$.mig-configs.a: 0 items"),
        (
            {"mig-configs": {"a": [{"devices": [0], "mig-enabled": True, "mig-devices": {"3g": 1}}]}},
            "'3g' is too long or",
        ),
        ({"other": 1}, "$: other is unknown"),
    ],
)
def test_the_schema_refuses_what_mig_parted_refuses(changes: dict[str, Any], message: str) -> None:
    entry = {"devices": [0], "mig-enabled": True, "mig-devices": {"3g.40gb": 1}}
    good = {"version": "v1", "mig-configs": {"a": [entry]}}
    assert [*violations(good, schema("mig_parted_v1"))] == []
    (fault,) = violations(good | changes, schema("mig_parted_v1"))
    assert message in fault


def test_a_plan_without_gpus_or_a_bad_name_is_refused(tmp_path: Path, capsys) -> None:
    empty = Plan(deployment=Deployment(gpus=()))
    for kind, message in (
        ("experiment", "GPUs of 0 models (none)"),
        ("mig-parted", "has no GPU"),
        ("kubernetes", "the plan has no service on any GPU"),
    ):
        assert message in refuse(tmp_path, capsys, empty, kind)
    assert export(tmp_path, empty, "mig-parted", "--name", "a b") == 2
    assert not (tmp_path / "conf").exists()
