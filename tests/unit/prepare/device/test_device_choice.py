"""Which GPU a study takes where it was granted one."""

from __future__ import annotations

import dataclasses

import pytest

from pipeline.base.system.errors import ConfigError
from pipeline.prepare.device import device_choice, nvml
from tests.conftest import GPU

FOUR = [dataclasses.replace(GPU, index=index, uuid=f"GPU-{index}{index}") for index in range(4)]
VARIABLES = ("CUDA_VISIBLE_DEVICES", "SLURM_STEP_GPUS", "SLURM_JOB_GPUS")


@pytest.fixture(autouse=True)
def _four_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "list_devices", lambda: FOUR)
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)


@pytest.mark.parametrize(
    ("environ", "uuid"),
    [
        ({}, "GPU-00"),
        ({"CUDA_VISIBLE_DEVICES": "1"}, "GPU-11"),
        ({"CUDA_VISIBLE_DEVICES": "GPU-3,GPU-1"}, "GPU-33"),
        ({"SLURM_JOB_GPUS": "2,3"}, "GPU-22"),
        ({"SLURM_JOB_GPUS": "2,3", "SLURM_STEP_GPUS": "3"}, "GPU-33"),
        ({"SLURM_JOB_GPUS": "2,3", "CUDA_VISIBLE_DEVICES": "1"}, "GPU-11"),
    ],
)
def test_auto_is_the_gpu_that_is_granted(environ, uuid, monkeypatch) -> None:
    for variable, value in environ.items():
        monkeypatch.setenv(variable, value)
    assert device_choice.find_device(None, needs_gpu=False).uuid == uuid
    assert device_choice.find_device("2", needs_gpu=False).uuid == "GPU-22"


@pytest.mark.parametrize("nothing", ["", "-1", "NoDevFiles"])
def test_a_grant_of_nothing_is_the_cpus_or_an_error(nothing, monkeypatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", nothing)
    assert device_choice.find_device(None, needs_gpu=False).kind == "cpu"
    with pytest.raises(ConfigError, match=r"CUDA_VISIBLE_DEVICES=.* grants no GPU"):
        device_choice.find_device(None, needs_gpu=True)
    assert device_choice.find_device("2", needs_gpu=False).uuid == "GPU-22"


def test_no_device_at_all_is_said_as_such() -> None:
    with pytest.raises(
        ConfigError, match=r"^--gpu=0 needs an NVIDIA GPU, but NVML lists none; check that `nvidia-smi` lists one"
    ):
        device_choice.choose("--gpu", "0", [])


@pytest.mark.parametrize(
    ("granted", "words"),
    [("4", "CUDA_VISIBLE_DEVICES='4' matches 0 GPUs"), ("MIG-12", "CUDA_VISIBLE_DEVICES='MIG-12' matches 0")],
)
def test_a_grant_that_is_no_whole_gpu_of_this_machine_is_refused(granted, words, monkeypatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", granted)
    with pytest.raises(ConfigError, match=words):
        device_choice.find_device(None, needs_gpu=False)
