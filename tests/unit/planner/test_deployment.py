"""Plans in files: what is written is read again, and what cannot be used is refused by file, row and key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.base.system.errors import ConfigError
from pipeline.planner import deployment
from pipeline.planner.deployment import Deployment, Gpu, Instance, Plan, Service

A100 = "simulated_a100_80gb"


def instance(profile: str | None, start: int | None, **figures: Any) -> Instance:
    return Instance(profile=profile, start=start, service=figures.pop("service", "bert"), **figures)


def plan(*gpus: Gpu) -> Plan:
    return Plan(deployment=Deployment(gpus=gpus), services=(Service(name="bert", rate_per_s=19, objective_ms=6434),))


def get_refusal(tmp_path: Path, change: Any) -> str:
    content = deployment.to_json(plan(Gpu(model=A100, instances=(instance("3g.40gb", 4),))))
    change(content)
    (tmp_path / "plan.json").write_text(json.dumps(content))
    with pytest.raises(ConfigError) as error:
        deployment.read(tmp_path / "plan.json")
    text = str(error.value)
    assert text.startswith(str(tmp_path / "plan.json"))
    return text


def test_a_plan_is_read_as_it_was_written(tmp_path: Path) -> None:
    gpus = (
        Gpu(model=A100, id="0", instances=(instance("4g.40gb", 0, processes=2, batch=8, memory_mib=900.0),)),
        Gpu(model="NVIDIA H100 80GB HBM3", mode="mps", instances=(instance(None, None, share_pct=50.0),)),
        Gpu(model="an unknown one", mode="naive", instances=()),
    )
    written = Plan(
        deployment=Deployment(gpus=gpus), status="optimal", bound=3.0, gap=0.0, profile_digest="12", details={"a": [1]}
    )
    deployment.write(written, tmp_path / "plan.json")
    assert deployment.read(tmp_path / "plan.json") == written
    assert json.loads((tmp_path / "plan.json").read_text())["num_gpus"] == 3


def test_a_gpu_is_named_by_what_the_driver_calls_it_too() -> None:
    for name in ("a100_80gb", A100, "A100-80GB", "NVIDIA A100-SXM4-80GB"):
        model = deployment.mig_gpu(Gpu(model=name, instances=()))
        assert model.name == "NVIDIA A100-SXM4-80GB"


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("version", 7, "version is 7"),
        ("num_gpus", 5, "num_gpus is 5, but gpus lists 1"),
        ("colour", 1, "unknown key 'colour'"),
        ("gap", -1, ": gap must be finite and not negative"),
        ("bound", float("nan"), ": bound must be finite and not negative"),
        pytest.param("bound", 10**400, ": bound must be finite and not negative", id="huge"),
        ("status", "good", ": status must be one of optimal, feasible"),
        ("gpus", {}, ": gpus must be a list"),
        ("gpus", [3], ": gpus[0] must be an object"),
        ("services", [{"name": "bert"}], ": services[0]: key 'rate_per_s' is missing"),
        ("services", [{"name": "bert", "rate_per_s": 0}], "services[0]: rate"),
        ("services", [{"name": "bert", "rate_per_s": 1}] * 2, "service bert is listed 2 times"),
    ],
)
def test_what_a_file_says_wrongly_is_named_by_its_key(tmp_path: Path, key: str, value: object, message: str) -> None:
    assert message in get_refusal(tmp_path, lambda content: content.update({key: value}))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("start", "4", 'gpus[0].instances[0].start must be a whole number, not "4"'),
        ("start", 1, "3g.40gb cannot begin at memory slice 1, only at 0, 4; legal: [3g.40gb@0]"),
        ("start", None, "gpus[0].instances[0]: needs profile and start"),
        ("profile", "9g.1gb", "gpus[0]: NVIDIA A100-SXM4-80GB has no MIG profile '9g.1gb'"),
        ("processes", 0, "processes and batch must be at least 1"),
        ("processes", True, "processes must be a whole number, not true"),
        ("memory_mib", 90000, "gpus[0].instances[0]: bert needs 90000 MiB, but 3g.40gb"),
        ("share_pct", 101, "share_pct must be above 0"),
    ],
)
def test_an_instance_that_cannot_be_is_refused(tmp_path: Path, key: str, value: object, message: str) -> None:
    assert message in get_refusal(tmp_path, lambda content: content["gpus"][0]["instances"][0].update({key: value}))


def test_a_layout_that_is_not_legal_is_refused_with_the_nearest_that_are() -> None:
    three = Gpu(model=A100, instances=tuple(instance("3g.40gb", start) for start in (0, 4, 4)))
    with pytest.raises(ConfigError, match=r"3 instances of 3g.40gb.*nearest: \[3g.40gb@4,2g.20gb@0,2g.20gb@2\];"):
        deployment.check(Deployment(gpus=(three,)), "here")
    halves = Gpu(model=A100, driver_branch=470, instances=(instance("4g.40gb", 0), instance("3g.40gb", 4)))
    with pytest.raises(ConfigError, match=r"^here: gpus\[0\]: .*branch 510 or later.*nearest: "):
        deployment.check(Deployment(gpus=(halves,)), "here")
    overlapping = Gpu(model=A100, instances=(instance("3g.40gb", 0), instance("2g.20gb", 2)))
    with pytest.raises(ConfigError, match=r"3g.40gb at memory slice 0 overlaps 2g.20gb at 2; legal: \["):
        deployment.check(Deployment(gpus=(overlapping,)), "here")


def test_what_is_undivided_has_no_instances_and_shares_the_memory() -> None:
    with pytest.raises(ConfigError, match="must have neither profile nor start on a GPU of mode mps"):
        deployment.check_gpu(Gpu(model=A100, mode="mps", instances=(instance("3g.40gb", 0),)), "here")
    two = Gpu(model=A100, mode="naive", instances=(instance(None, None, memory_mib=50000.0),) * 2)
    with pytest.raises(ConfigError, match="the services of this GPU need 100000 MiB, but"):
        deployment.check_gpu(two, "here")


def test_a_gpu_is_there_once() -> None:
    with pytest.raises(ConfigError, match="2 GPUs have the id '0'"):
        deployment.check(Deployment(gpus=(Gpu(model=A100, id="0", instances=()),) * 2), "here")
