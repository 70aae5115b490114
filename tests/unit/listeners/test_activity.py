"""Listener activity over the libraries and programs with which gpm and dcgm are tested."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path

import pynvml
import pytest

from listeners.activity import ActivityListener
from pipeline.base.domain.records import Device, DeviceFacts
from pipeline.base.system.errors import ListenerError, NoSensorError
from tests.support.listener_contract import CPU, GPU, Collected, OneDevice, wait_until
from tests.support.nvml_library import UUID, installed
from tests.unit.listeners.test_dcgm import Dcgmi
from tests.unit.listeners.test_gpm import GpmLibrary

A100 = dataclasses.replace(GPU, name="NVIDIA A100-SXM4-40GB", facts=DeviceFacts(compute_capability=(8, 0)))


@pytest.fixture(autouse=True)
def library(tmp_path: Path) -> Iterator[GpmLibrary]:
    with installed(GpmLibrary(tmp_path)) as library:
        yield library


@pytest.fixture(autouse=True)
def dcgmi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Dcgmi:
    """A dcgmi on PATH, once it is written."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return Dcgmi(tmp_path / "dcgmi")


def get_refusal(device: Device = GPU) -> str:
    with (
        pytest.raises(ListenerError) as caught,
        ActivityListener(1000).observe(OneDevice(device), Collected()),
    ):
        pytest.fail("there is nothing to observe")
    return str(caught.value)


def list_sources(listener: ActivityListener) -> set[str]:
    sink = Collected()
    with listener.observe(OneDevice(), sink):
        wait_until(lambda: sink)
        assert {type(pid) for pid in listener.pids()} <= {int}
    assert {sample.source for sample in sink} == {listener.table.source}
    assert all("gract_ratio" in sample.values for sample in sink)
    return {sample.source for sample in sink}


def test_a_gpu_with_gpm_is_read_through_gpm(dcgmi: Dcgmi) -> None:
    dcgmi.write()
    assert list_sources(ActivityListener(1000)) == {"gpm"}
    assert not Path(f"{dcgmi.path}.log").exists()


def test_a_gpu_without_gpm_is_read_through_dcgm_and_keeps_its_interval(library: GpmLibrary, dcgmi: Dcgmi) -> None:
    library.is_supported = 0
    listener = ActivityListener(700, program=dcgmi.write())
    assert [list_sources(listener) for _ in range(2)] == [{"dcgm"}] * 2
    assert listener.table.interval_ms == 700 and listener.pids() == ()
    assert dcgmi.list_calls("dmon")[0][-1] == "700"


def test_a_gpu_whose_gpm_may_not_be_read_is_read_through_dcgm(library: GpmLibrary, dcgmi: Dcgmi) -> None:
    dcgmi.write()
    library.fail(nvmlGpmSampleGet=pynvml.NVML_ERROR_NO_PERMISSION)
    assert list_sources(ActivityListener(1000)) == {"dcgm"}


def test_without_either_source_one_line_has_the_remedy_for_dcgm(
    library: GpmLibrary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library.is_supported = 0
    monkeypatch.setenv("PATH", str(tmp_path))
    assert get_refusal(A100) == (
        "listener activity: NVIDIA A100-SXM4-40GB has no GPM counters, which came with Hopper GPUs (H100, H200, "
        "GH200), and listener dcgm needs dcgmi, which is not on PATH; install NVIDIA DCGM (package "
        "datacenter-gpu-manager) and start its host engine, or leave activity out"
    )


def test_a_gpu_that_dcgm_does_not_profile_is_not_sent_to_dcgm(library: GpmLibrary, dcgmi: Dcgmi) -> None:
    library.is_supported = 0
    geforce = dataclasses.replace(A100, name="NVIDIA GeForce RTX 4090", facts=DeviceFacts(compute_capability=(8, 9)))
    for _ in range(2):
        text = get_refusal(geforce)
        assert "DCGM profiles data center GPUs only; use listener nvml" in text and "install" not in text
        assert "data center GPUs only" in str(ActivityListener(1000).describe_missing_source(geforce))
        dcgmi.write()
    assert not Path(f"{dcgmi.path}.log").exists()


def test_a_gpu_with_gpm_that_may_not_be_read_has_the_remedy_for_gpm(
    library: GpmLibrary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library.fail(nvmlGpmSampleGet=pynvml.NVML_ERROR_NO_PERMISSION)
    monkeypatch.setenv("PATH", str(tmp_path))
    text = get_refusal()
    assert text.startswith("listener activity: NVML cannot read counters") and "NVreg_Restrict" in text
    assert "dcgm" not in text


@pytest.mark.parametrize("device", [CPU, Device(kind="simulated", uuid=UUID, name="H100")], ids=lambda d: d.kind)
def test_a_device_without_counters_has_no_sensor_and_nothing_is_started(device: Device, dcgmi: Dcgmi) -> None:
    dcgmi.write()
    with pytest.raises(NoSensorError, match="no counters"), ActivityListener(1000).observe(OneDevice(device), []):  # type: ignore[arg-type]
        pytest.fail("there is nothing to observe")
    assert not Path(f"{dcgmi.path}.log").exists()


def test_a_missing_dcgmi_is_known_before_a_study_on_an_earlier_gpu(
    dcgmi: Dcgmi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    listener, hopper = ActivityListener(1000), dataclasses.replace(A100, facts=DeviceFacts(compute_capability=(9, 0)))
    assert "dcgmi is not on PATH; install NVIDIA DCGM" in str(listener.describe_missing_source(A100))
    assert [*map(listener.describe_missing_source, (hopper, GPU, CPU))] == [None] * 3
    dcgmi.write()
    assert listener.describe_missing_source(A100) is None
