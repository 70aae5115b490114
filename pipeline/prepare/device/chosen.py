"""The device that a study runs on: the one that is asked for, among those that are there."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.base.errors import ConfigError
from pipeline.base.host import cpu_device
from pipeline.base.records import Device
from pipeline.plan.schema import GpuConfig, GpuKind
from pipeline.prepare.device import nvml


def find_device(config: GpuConfig) -> Device:
    """The GPU that a configuration asks for, or the CPUs where it leaves the choice and there is no GPU."""
    if config.kind is GpuKind.cpu:
        return cpu_device()
    assert config.kind is not GpuKind.simulated, "NVML would answer with a real GPU"
    devices = nvml.list_devices()
    if devices:
        return choose("gpu.device", config.device, devices)
    is_named = config.device != GpuConfig().device
    if config.kind is GpuKind.auto and not is_named:
        return cpu_device()
    asked = f"gpu.device={config.device!r} names a GPU" if is_named else "gpu=nvidia"
    raise ConfigError(
        f"{asked}, but NVML does not answer, so there is no NVIDIA driver or no GPU here; use gpu=cpu and no "
        "gpu.device, or check that `nvidia-smi` works"
    )


def choose(key: str, selector: str, devices: Sequence[Device], remedy: str = "") -> Device:
    """The device selected by its index, its UUID or how only its UUID begins; ConfigError if that is not one.

    `key` is that of the configuration, for the error, and `remedy` its end.
    """
    if selector.isdecimal():
        matches = [device for device in devices if device.index == int(selector)]
    else:
        matches = [device for device in devices if selector and device.uuid.startswith(selector)]
    if len(matches) != 1:
        each = (f"{'-' if device.index is None else device.index}: {device.name} {device.uuid}" for device in devices)
        raise ConfigError(
            f"{key}={selector!r} matches {len(matches)} GPUs, not one. There are {'; '.join(each) or 'none'}{remedy}"
        )
    return matches[0]
