"""Each group is recorded with the state that its GPU has when it begins."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from pipeline.prepare.device import nvml
from pipeline.simulation.machine.state_file import Settings
from pipeline.simulation.nvml import library as simulated
from pipeline.study import executor
from tests.support.nvml_library import NvmlLibrary, installed
from tests.support.rows import group

pytestmark = pytest.mark.covers("pipeline/study/executor.py")


@pytest.fixture
def library(tmp_path: Path) -> Iterator[NvmlLibrary]:
    with installed(NvmlLibrary(tmp_path)) as library:
        yield library


def refresh_device(planned: Any) -> tuple[dict[str, str], list[str]]:
    """The details of the device of a group that begins, and what is said."""
    messages: list[str] = []
    current = executor._refresh_device(planned, SimpleNamespace(warn_once=messages.append))  # type: ignore[arg-type]
    return current.device.facts.as_texts(), messages


def test_a_change_between_two_groups_is_recorded_and_said(library: NvmlLibrary) -> None:
    name = "nvmlDeviceGetEnforcedPowerLimit"
    library.functions[name] = partial(library._fill_numbers, simulated._NUMBERS[name])
    library.change(settings=Settings(power_limit_w=700))
    (device,) = nvml.list_devices()
    planned = group("a", device=device)
    assert refresh_device(planned) == (device.facts.as_texts(), [])
    library.change(settings=Settings(power_limit_w=500))
    details, (message,) = refresh_device(planned)
    assert details == device.facts.as_texts() | {"power_limit_w": "500"}
    assert message.startswith(
        f"the state of {device.name} has changed since the study began (power limit 500 W, was 700 W), "
    )


def test_a_gpu_that_does_not_answer_and_a_group_that_is_skipped_stay_as_planned(library: NvmlLibrary) -> None:
    (device,) = nvml.list_devices()
    planned = group("a", device=device)
    library.fail(nvmlDeviceGetEnforcedPowerLimit=pynvml.NVML_ERROR_GPU_IS_LOST)
    assert refresh_device(planned) == (device.facts.as_texts(), [])
    library.fail(nvmlDeviceGetEnforcedPowerLimit=pynvml.NVML_ERROR_NOT_SUPPORTED)
    assert refresh_device(dataclasses.replace(planned, skip_reason="no room")) == (device.facts.as_texts(), [])
    assert "power_limit_w" not in refresh_device(planned)[0]


def test_the_cpu_needs_no_driver() -> None:
    device = dataclasses.replace(group("a").device, kind="cpu", uuid="CPU-here")
    assert refresh_device(group("a", device=device)) == ({}, [])
