"""The real device that a study runs on."""

from __future__ import annotations

from pipeline.base.errors import ConfigError
from pipeline.base.host import cpu_device
from pipeline.base.records import Device
from pipeline.plan.schema import GpuConfig, GpuKind
from pipeline.prepare.device import nvml


def find_device(config: GpuConfig) -> Device:
    """The GPU that a configuration asks for, or the CPUs where it leaves the choice and there is no GPU.

    Raises:
        ConfigError: there is no such GPU.
    """
    if config.kind is GpuKind.cpu:
        return cpu_device()
    assert config.kind is not GpuKind.simulated, "NVML would answer with a real GPU"
    device = nvml.find_device(config.device)
    if device is not None:
        return device
    if config.kind is GpuKind.auto:
        if config.device != GpuConfig().device:
            raise ConfigError(
                f"gpu.device={config.device!r} names a GPU, but NVML does not answer, so there is no NVIDIA driver or "
                "no GPU here; leave it out to use the CPUs, or check that `nvidia-smi` works"
            )
        return cpu_device()
    raise ConfigError(
        "gpu=nvidia: NVML does not answer, so there is no NVIDIA driver or no GPU here; "
        "use gpu=cpu, or check that `nvidia-smi` works"
    )
