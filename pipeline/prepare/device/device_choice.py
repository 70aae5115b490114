"""Choice of the device of a study: the one that is named, or else granted."""

from __future__ import annotations

import os
from collections.abc import Sequence

from pipeline.base.domain.machine_state import cpu_device
from pipeline.base.domain.records import Device
from pipeline.base.system.errors import ConfigError
from pipeline.prepare.device import nvml

# By which an allocation says what it grants, the one that counts most first. Slurm's are of the job step and the job.
_GRANTS = ("CUDA_VISIBLE_DEVICES", "SLURM_STEP_GPUS", "SLURM_JOB_GPUS")
_NOTHING = ("", "-1", "NoDevFiles")  # what CUDA programs, and Slurm without a GPU, set to see none


def find_device(name: str | None, *, needs_gpu: bool) -> Device:
    """Find the GPU that is named, by its index or UUID, or else granted.

    Without a name, and unless a GPU is needed, these are the CPUs where there is no GPU.

    Raises:
        ConfigError: there is no such GPU.
    """
    is_named = name is not None
    key, selector = ("gpu.device", name) if name is not None else read_grant()
    may_be_cpu = not needs_gpu and not is_named
    if selector in _NOTHING and not is_named:
        if may_be_cpu:
            return cpu_device()
        raise ConfigError(f"gpu=nvidia needs a GPU, but {key}={selector!r} grants none; request one, or set gpu.device")
    devices = nvml.list_devices()
    if devices:
        return choose(key, selector, list_selectable(selector, devices))
    if may_be_cpu:
        return cpu_device()
    request = f"gpu.device={selector!r}" if is_named else "gpu=nvidia"
    raise ConfigError(
        f"{request} needs an NVIDIA GPU, but NVML finds none; check that `nvidia-smi` works, or use gpu=cpu without "
        "gpu.device"
    )


def read_grant() -> tuple[str, str]:
    """Return the variable that grants GPUs, and the first of them by index or UUID; GPU 0 without a grant."""
    variable, names = _find_grant() or ("gpu.device", ["0"])
    return variable, names[0]


def select_granted(devices: Sequence[Device]) -> Sequence[Device]:
    """Select the GPUs that this process may use: all without a grant; ConfigError if one does not exist."""
    if (grant := _find_grant()) is None:
        return devices
    variable, names = grant
    return [choose(variable, name, devices) for name in names if name not in _NOTHING]


def _find_grant() -> tuple[str, list[str]] | None:
    for variable in _GRANTS:
        if (value := os.environ.get(variable)) is not None:
            return variable, [name.strip() for name in value.split(",")]
    return None


def list_selectable(selector: str, devices: Sequence[Device]) -> Sequence[Device]:
    """List what a selector may mean: MIG devices for the UUID of one, else the GPUs."""
    if not selector.startswith(nvml.MIG_PREFIX):
        return devices
    return [mig_device for device in devices for mig_device in nvml.list_mig_devices(device)]


def choose(key: str, selector: str, devices: Sequence[Device], remedy: str = "") -> Device:
    """Choose the device with this index, UUID or beginning of a UUID; ConfigError if it is not exactly one.

    `key` is that of the configuration or environment, for the error, and `remedy` its end.
    """
    is_mig = selector.startswith(nvml.MIG_PREFIX)
    if not devices and not is_mig:
        raise ConfigError(
            f"{key}={selector} needs an NVIDIA GPU, but there is none; check that `nvidia-smi` lists one{remedy}"
        )
    if is_mig and devices and not any(device.parent for device in devices):
        raise ConfigError(f"{key}={selector} names a MIG device; name a whole GPU{remedy}")
    if selector.isdecimal():
        matches = [device for device in devices if device.index == int(selector)]
    else:
        matches = [device for device in devices if selector and device.uuid.startswith(selector)]
    if len(matches) != 1:
        rows = (f"{'-' if device.index is None else device.index}: {device.name} {device.uuid}" for device in devices)
        what = "MIG devices" if is_mig else "GPUs"
        listing = f"choose from {', '.join(rows)}" if devices else "check that `nvidia-smi` lists one"
        raise ConfigError(f"{key}={selector!r} matches {len(matches)} {what}, not one; {listing}{remedy}")
    return matches[0]
