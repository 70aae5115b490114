"""A plan whose listeners cannot read a published figure warns before anything is measured."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import pytest
import yaml

from pipeline.base.domain.records import Device, DeviceFacts, Plan
from pipeline.base.system.paths import PROJECT_DIR
from pipeline.plan import plan_text
from pipeline.study.published_figures import list_missing_sources
from tests.conftest import GPU
from tests.support.listener_contract import CPU

A100 = dataclasses.replace(GPU, facts=DeviceFacts(compute_capability=(8, 0)))
ROBROEK = ["workload=robroek_small", "data.source=synthetic_files", "scenario=serial"]
WITHOUT_FIGURES = {"interleaving", "migperf_frameworks", "other_gpus"}
MakePlan = Callable[..., Plan]


def warnings(make_plan: MakePlan, options: Sequence[str], device: Device = GPU) -> list[str]:
    return list(list_missing_sources(make_plan([*options], device=device)))


def listeners_of(file: str, key: str) -> list[list[str]]:
    defaults = yaml.safe_load((PROJECT_DIR / "conf" / file).read_text(encoding="utf-8"))["defaults"]
    return [entry[key] for entry in defaults if key in entry]


@pytest.mark.parametrize("name", sorted(path.stem for path in (PROJECT_DIR / "conf" / "experiment").glob("*.yaml")))
def test_each_experiment_with_published_figures_reads_the_activity_of_the_gpu(name: str) -> None:
    by_default = listeners_of("config.yaml", "listeners")
    listeners = [*listeners_of(f"experiment/{name}.yaml", "override /listeners"), *by_default][0]
    assert ("activity" in listeners) is (name not in WITHOUT_FIGURES)


def test_the_default_listeners_read_every_published_figure(make_plan: MakePlan) -> None:
    assert warnings(make_plan, ROBROEK) == []


def test_each_figure_without_a_listener_has_a_warning_with_its_publication(make_plan: MakePlan) -> None:
    (gract,) = warnings(make_plan, [*ROBROEK, "listeners=[host,nvml]"])
    assert gract.startswith("GRACT of 1 published finding will be missing (Robroek, ")
    assert gract.endswith("): no listener reads GRACT; add activity to listeners")
    many = ["workload=robroek_small", "data.source=synthetic_files", "scenario=naive", "degree=2", "listeners=[host]"]
    gract, memory = warnings(make_plan, many)
    assert gract.startswith("GRACT of 1 published finding")
    assert memory.startswith("memory of 1 published finding") and memory.endswith("add nvml to listeners")


def test_activity_memory_and_energy_of_a_service_on_an_instance_need_listeners(make_plan: MakePlan) -> None:
    service = ["workload=infer_bert_base", "scenario=mig", "scenario.profile=1g", "degree=1", "listeners=[host]"]
    lines = warnings(make_plan, service, dataclasses.replace(GPU, kind="simulated"))
    ending = "of 2 published findings will be missing (Zhang, "
    assert [line.partition(ending)[0] for line in lines] == ["GRACT ", "memory ", "energy "]


@pytest.mark.parametrize("listeners", ["[host,gpm]", "[host,dcgm]"])
def test_gpm_and_dcgm_read_what_activity_reads(make_plan: MakePlan, listeners: str) -> None:
    assert warnings(make_plan, [*ROBROEK, f"listeners={listeners}"]) == []


def test_a_gpu_before_hopper_without_dcgmi_is_known_before_the_study(
    make_plan: MakePlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    (warning,) = warnings(make_plan, ROBROEK, A100)
    assert warning.endswith("has no GPM counters, and dcgmi is not on PATH; install NVIDIA DCGM")


def test_other_workloads_and_machines_without_a_gpu_have_no_published_figure(make_plan: MakePlan) -> None:
    assert warnings(make_plan, ["workload=tiny", "listeners=[host]"]) == []
    assert warnings(make_plan, [*ROBROEK, "listeners=[host]"], CPU) == []


def test_warnings_are_the_first_lines_of_a_plan(make_plan: MakePlan) -> None:
    plan = dataclasses.replace(make_plan(["workload=tiny"], device=GPU), warnings=("first", "second"))
    lines = plan_text.format_plan(plan).splitlines()
    assert lines[:2] == ["warning: first", "warning: second"] and lines[2].startswith("1 group on ")
