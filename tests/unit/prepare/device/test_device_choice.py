"""The GPU of a study: which one is chosen, and how long a study waits for it."""

from __future__ import annotations

import dataclasses
import signal

import pytest

from pipeline.base.system.errors import ConfigError, GpuBusyError, InUseError
from pipeline.base.system.interrupts import Interrupted
from pipeline.prepare.device import device_choice, nvml
from pipeline.prepare.device.device_choice import WaitBudget
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


def make_busy_error(*looks: bool, by: str = "alice") -> InUseError:
    answers = iter(looks)
    return InUseError("busy; wait=true", f"GPU 0, which is held by {by}", lambda: next(answers, looks[-1]))


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(device_choice, "_LOOK_S", 0.001)


def test_it_waits_until_the_device_is_free_and_says_once_for_whom(capsys):
    patience = WaitBudget(is_wanted=True, limit_s=60.0)
    patience.wait(make_busy_error(False, False, True))
    patience.wait(make_busy_error(False, True))  # taken again before we came
    patience.wait(make_busy_error(True, by="bob"))
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(";")[0] for line in lines] == [
        "waiting for GPU 0, which is held by alice",
        "waiting for GPU 0, which is held by bob",
    ]
    assert "at most 60 s, Ctrl-C ends it" in lines[0]


def test_the_limit_is_for_all_waits_together():
    patience = WaitBudget(is_wanted=True, limit_s=0.05)
    with pytest.raises(GpuBusyError, match=r"waited 0 s \(wait_limit_s\), but busy"):
        patience.wait(make_busy_error(False))
    with pytest.raises(GpuBusyError, match=r"\(wait_limit_s\), but busy"):
        patience.wait(make_busy_error(False))


def test_the_time_limit_of_the_study_holds_while_it_waits_and_counts_what_was_waited():
    patience = WaitBudget(is_wanted=True, limit_s=60.0, time_limit_s=0.05)
    with pytest.raises(GpuBusyError, match=r"waited 0 s \(time_limit_s\), but busy"):
        patience.wait(make_busy_error(False))
    assert patience.waited_s >= 0.05


def test_a_signal_ends_the_wait_which_is_said(capsys):
    def look() -> bool:
        raise Interrupted(signal.SIGTERM)

    with pytest.raises(Interrupted):
        WaitBudget(is_wanted=True, limit_s=60.0).wait(InUseError("busy", "GPU 0, which is held by alice", look))
    *_, line = capsys.readouterr().err.splitlines()
    assert line == "interrupted by SIGTERM after waiting 0 s for GPU 0, which is held by alice"


def test_who_does_not_want_to_wait_is_refused():
    error = make_busy_error(True)
    with pytest.raises(InUseError) as refused:
        WaitBudget(is_wanted=False, limit_s=60.0).wait(error)
    assert refused.value is error
