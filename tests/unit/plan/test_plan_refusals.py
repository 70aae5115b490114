"""Groups that cannot run: refused when they are planned, with the remedy."""

from __future__ import annotations

import dataclasses
import os
import re

import pytest

from pipeline.base.system.errors import ConfigError
from pipeline.base.system.paths import PROJECT_DIR
from pipeline.plan import config_reader
from pipeline.plan.inventory import take_inventory as take_inventory
from pipeline.prepare.device import nvml
from pipeline.study import plans
from tests.conftest import GPU
from tests.unit.plan.test_plan import SYNTHETIC


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["degree=0"], "degree=0 must be from 1 to 10000"),
        (["degree=999999999999999999999999999999"], "must be from 1 to 10000"),
        (["scenario=mig", "scenario.instances_per_job=99999999999999999999"], "must be from 1 to 7"),
        (["mix=[]"], "names no job"),
        (["only=[]"], "only=[] names no group; write only="),
        (["only=3+4"], "only=3+4 has no numbers of this plan, "),
        (["only=0a1b2c:1"], "only=0a1b2c:1 has no numbers of this plan, "),
        (["scenario=mig", "scenario.profiles=[]"], "scenario.profiles=[] is empty; name the profile of each instance"),
        (["workload.learning_rate=nan"], "learning_rate=nan must be greater than 0, and finite"),
        (["workload.learning_rate=-1"], "learning_rate=-1 must be greater than 0, and finite"),
        (["mix=[S,Q]"], "Q is neither one of the sizes"),
        (["repeats=0"], "repeats"),
        (["window.seconds=0"], "window.seconds"),
        (["tracking.experiment="], "tracking.experiment is empty"),
        ([f"tracking.experiment={'x' * 256}"], "must have at most 255 bytes"),
        ([f"gpu.lock_dir={'x' * 256}"], "is too long for a path"),
        (
            ["workload.work_unit=two words"],
            "unit=two words cannot be part of metric names; use a plural noun of letters",
        ),
        (["tracking.root="], "tracking.root is empty"),
        ([f"tracking.root={__file__}"], "is a file; add a bundle to a store with"),
        (["tracking.root='a?b'"], "a path with ?, which"),
        (["tracking.root='p%41'"], "a path with %, which"),
        (["window.settle_s=-1"], "settle_s"),
        (["window.seconds=1e300"], "window.seconds=1e+300 must be at most 31622400"),
        (["limits.group_s=4e7"], "limits.group_s=40000000.0 must be at most 31622400"),
        (["listeners.host.interval_ms=100000000000"], "disturbs the jobs) to 86400000"),
        (["listeners.host.interval_ms=100"], "interval_ms=100 must be from 200"),
        (["listeners=[activity,dcgm]"], "[activity,dcgm] would read the same counters twice; remove activity, or dcgm"),
        (["listeners=[gpm,activity,dcgm]"], "twice; remove activity, or gpm and dcgm"),
        (["listeners.host.required=perhaps"], "true, false or if_gpu"),
        (["workload=resnet26_cifar10"], "data.root"),
        (["workload=resnet26_cifar10", "data.root=/does/not/exist"], "/does/not/exist"),
        (["workload=resnet152_imagenet", SYNTHETIC], "gpu=cpu"),
        (["workload=script", "workload.script=absent.py"], "absent.py"),
        (["workload=script"], "workload.script"),
        (["tracking=server"], "tracking.uri"),
        (["workload.batch_size=0"], "batch_size"),
        ([SYNTHETIC, "workload.samples=31"], "samples=31 is less than batch_size=32"),
        (["time_limit_s=0"], "time_limit_s"),
        (["seed=4294967296"], "seed=4294967296 must be at most 4294967295"),
        (["workload=script", "workload.script='~nobody-here/train.py'"], "unknown user ~nobody-here"),
        (["workload.loader_workers=-1"], "loader_workers"),
        (["workload.samples=1000"], "synthetic"),
        (
            ["workload=resnet26_cifar10", SYNTHETIC, "workload.image_px=16"],
            "image_px=16 is less than the 32 pixels of cifar10",
        ),
        (["workload.source=synthetic_files"], "the data set digits is an array in scikit-learn"),
        (["workload=robroek_small", "data.source=files"], "data.root"),
        (["workload=robroek_small", "data.source=files", "data.root=/absent"], "/absent/cifar10"),
        (["workload=robroek_small", "data.source=files", "workload.samples=1000"], "synthetic"),
        (["workload.step_mode=cuda_graph"], "needs a GPU"),
        (
            ["+workload.environ.CUDA_VISIBLE_DEVICES='1'"],
            "environ.CUDA_VISIBLE_DEVICES is reserved for the orchestrator",
        ),
        (["+workload.environ.COLLOCATION_GROUP=x"], "environ.COLLOCATION_GROUP is reserved for the orchestrator"),
        (["scenario._target_=pipeline.prepare.sharing.naive.Naiv"], "is not a class that can be imported"),
        (["listeners.host._target_=listeners.host.Guest"], "is not a class that can be imported"),
        (["+listeners.host.options.colour=red"], "colour"),
        (["env._target_=no.such.Env"], "no.such.Env"),
        (["listeners.nvml.options=${workload.name}"], "listeners.nvml.options=tiny must be a map"),
        (["workload.environ=${workload.name}"], "workload.environ=tiny must be a map"),
        (["gpu.tolerate=${workload.name}"], "gpu.tolerate=tiny must be a list"),
        (["workload.script="], "workload.script= does not exist"),
        (["+sizes.X.script=train.py", "mix=[X,X]"], "sizes.X has no schema; choose +workload@sizes.X=NAME, or"),
        (["workload=script", "workload.script=", "env=venv"], "workload.script= does not exist"),
    ],
)
def test_what_cannot_run_is_refused_with_the_remedy(make_plan, overrides, words):
    with pytest.raises(ConfigError, match=re.escape(words)):
        make_plan(overrides)


def test_a_store_in_a_folder_that_is_not_utf8_is_refused_and_one_elsewhere_is_not(make_plan, monkeypatch, tmp_path):
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    monkeypatch.chdir(folder)
    with pytest.raises(
        ConfigError, match=r"^tracking\.root=mlruns has a path that is not UTF-8, .*; choose another folder, such as"
    ):
        make_plan([])
    assert make_plan([f"tracking.root={tmp_path}"]).groups


def test_a_file_that_is_not_there_is_named_with_each_folder_once(make_plan, monkeypatch):
    monkeypatch.chdir(PROJECT_DIR)
    for overrides in (["workload=script", "workload.script=absent.py"], ["env=venv", "env.file=absent"]):
        with pytest.raises(ConfigError) as refused:
            make_plan(overrides)
        assert f"=absent{'.py' if 'workload=script' in overrides else ''} does not exist" in str(refused.value)
        assert str(refused.value).endswith(f" in {PROJECT_DIR}; check the name")


def test_a_gpu_that_is_named_is_not_replaced_by_the_cpus(compose, monkeypatch):
    monkeypatch.setattr(nvml, "list_devices", list)
    (config,) = config_reader.read(compose(["gpu=auto"]))
    assert take_inventory([config], plans.find_device).device_of(config.gpu).kind == "cpu"
    (config,) = config_reader.read(compose(["gpu=auto", "gpu.device=1"]))
    with pytest.raises(ConfigError, match=r"gpu\.device='1' needs an NVIDIA GPU"):
        take_inventory([config], plans.find_device)


@pytest.mark.sampled(1)
@pytest.mark.torch
@pytest.mark.parametrize("workload", ["tiny", "bert_base", "infer_bert_base"])
def test_a_dry_run_on_a_simulated_gpu_plans_what_only_a_real_one_can_run(make_plan, workload):
    simulated = dataclasses.replace(GPU, kind="simulated")
    graphs = [f"workload={workload}", "workload.step_mode=cuda_graph"]
    assert make_plan([*graphs, "dry_run=true"], device=simulated).groups
    with pytest.raises(
        ConfigError, match=r"on a simulated NVIDIA H100 .*; use dry_run=true to print the plan, or \+re"
    ):
        make_plan(graphs, device=simulated)
    for more in ([], ["dry_run=true"]):
        with pytest.raises(ConfigError, match=r"; use gpu=simulated_h100_80gb dry_run=true to print the plan, or \+re"):
            make_plan([*graphs, "gpu=cpu", *more])


def test_fp16_in_a_cuda_graph_is_refused(make_plan):
    with pytest.raises(ConfigError, match="use precision=bf16"):
        make_plan(["workload.step_mode=cuda_graph", "workload.precision=fp16"], device=GPU)
