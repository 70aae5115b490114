"""Inventory of a machine: environments to build, and variables that change a speed."""

from __future__ import annotations

import pytest

from pipeline import rehearsal as rehearsal_of
from pipeline.base.system.errors import ConfigError
from pipeline.plan import config_reader
from pipeline.plan.inventory import SPEED_VARIABLES
from tests.conftest import GPU, sweep
from tests.support.experiments import composed


def test_a_mode_that_cannot_hold_a_single_group_refuses_it(make_plan):
    with pytest.raises(ConfigError, match="needs an NVIDIA GPU"):
        make_plan(["scenario=mps"])


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("scenario", "rehearsal"),
    [
        ("mps", ""),
        ("mps_percent", ""),
        ("mps_static", " gpu.driver=590"),
        ("timeslice", ""),
        ("mig", ""),
        ("mig_mps", ""),
    ],
)
def test_each_mode_without_a_gpu_is_refused_with_what_rehearses_it(make_plan, scenario, rehearsal):
    remedy = f"gpu=simulated_h100_80gb{rehearsal}"
    with pytest.raises(ConfigError, match=rf"not .*; rehearse it with {remedy}, or choose scenario=naive$"):
        make_plan([f"scenario={scenario}"])
    configs = config_reader.read([composed([f"scenario={scenario}", *remedy.split()])])
    with rehearsal_of.prepare_machine(configs) as machine:
        assert make_plan([f"scenario={scenario}"], device=machine.find_device(configs[0].gpu)).groups


def test_in_a_study_a_group_that_cannot_be_held_is_skipped_with_the_reason(make_plan):
    plan = make_plan(["scenario=mps"], ["scenario=naive"])
    skipped = {group.name: group.skip_reason for group in plan.groups if group.skip_reason}
    assert list(skipped) == ["mps-2x-tiny"]
    assert "needs an NVIDIA GPU" in skipped["mps-2x-tiny"]


def test_a_study_of_which_nothing_but_baselines_could_run_is_refused(make_plan):
    with pytest.raises(ConfigError, match="needs an NVIDIA GPU"):
        make_plan(*sweep(scenario=["serial", "mps"], degree=[1, 2]))


def test_a_list_of_percentages_must_fit_the_jobs(make_plan):
    with pytest.raises(ConfigError, match="2 values for 3 jobs"):
        make_plan(["scenario=mps_percent", "degree=3", "scenario.active_thread_pct=[50,50]"], device=GPU)


NAMES = ("CUDA_LAUNCH_BLOCKING", "OMP_NUM_THREADS", "NVIDIA_TF32_OVERRIDE")


@pytest.mark.parametrize(
    ("name", "is_recorded"),
    [
        *((name, True) for name in NAMES),
        ("PYTORCH_CUDA_ALLOC_CONF", True),
        ("CUDA_DEVICE_MAX_CONNECTIONS", True),
        ("CUBLAS_WORKSPACE_CONFIG", True),
        ("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", True),
        ("TORCHINDUCTOR_MAX_AUTOTUNE", True),
        ("NCCL_P2P_DISABLE", True),
        ("MKL_NUM_THREADS", True),
        ("OPENBLAS_NUM_THREADS", True),
        ("LD_PRELOAD", True),
        # What the orchestrator sets or removes, and what changes no speed.
        ("CUDA_VISIBLE_DEVICES", False),
        ("CUDA_MPS_PIPE_DIRECTORY", False),
        ("CUDA_HOME", False),
        ("CUDA_VERSION", False),
        ("TORCH_HOME", False),
        ("TORCHINDUCTOR_CACHE_DIR", False),
        ("KMP_BLOCKTIME", True),
        ("KMP_DUPLICATE_LIB_OK", False),
        ("KMP_INIT_AT_FORK", False),
        ("HOME", False),
    ],
)
def test_which_variables_are_recorded(name, is_recorded):
    assert (SPEED_VARIABLES.match(name) is not None) == is_recorded


@pytest.fixture
def plan_script(make_plan, tmp_path, monkeypatch):
    (tmp_path / "train.py").write_text("")
    monkeypatch.chdir(tmp_path)
    for name in (*NAMES, "OMP_WAIT_POLICY"):
        monkeypatch.delenv(name, raising=False)
    return lambda *overrides: make_plan(["workload=script", "workload.script=train.py", *overrides]).groups[0]


def test_a_variable_makes_another_group_and_is_a_param_of_it(plan_script, monkeypatch):
    without = plan_script()
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    group = plan_script()
    assert group.digest != without.digest
    params = dict(group.jobs[0].workload.params)
    assert {name: value for name, value in params.items() if name.startswith("environ.")} == {
        "environ.OMP_NUM_THREADS": "1"
    }
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert plan_script().digest not in (group.digest, without.digest)


def test_a_variable_of_the_workload_replaces_that_of_the_caller(plan_script, monkeypatch):
    group = plan_script("workload.environ.OMP_NUM_THREADS=1")
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    assert plan_script("workload.environ.OMP_NUM_THREADS=1").digest == group.digest


def test_a_secret_is_masked(plan_script, monkeypatch):
    monkeypatch.setenv("TORCH_API_TOKEN", "sesame")
    params = dict(plan_script().jobs[0].workload.params)
    assert params["environ.TORCH_API_TOKEN"] == "<hidden>"
