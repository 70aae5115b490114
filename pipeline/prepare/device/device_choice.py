"""Choice of a study's device: the device that the user names, else the device that an allocation grants."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from pipeline.base.domain.machine_state import cpu_device
from pipeline.base.domain.records import Device
from pipeline.base.system import words
from pipeline.base.system.errors import ConfigError, GpuBusyError, InUseError
from pipeline.base.system.interrupts import Interrupted
from pipeline.base.system.words import format_duration
from pipeline.prepare.device import nvml

# Variables in which an allocation lists its GPUs, highest precedence first; Slurm has one for job steps, one for jobs.
_GRANTS = ("CUDA_VISIBLE_DEVICES", "SLURM_STEP_GPUS", "SLURM_JOB_GPUS")
_NOTHING = ("", "-1", "NoDevFiles")  # values that grant no GPU, as set by users and by Slurm


def find_device(name: str | None, *, needs_gpu: bool) -> Device:
    """Find the device with this index or UUID, or else the GPU that an allocation grants, or the first usable GPU.

    Without a name and without a GPU, return the CPUs, unless a GPU is needed.

    Raises:
        ConfigError: the GPU does not exist.
    """
    is_named = name is not None
    key, selector = ("gpu.device", name) if name is not None else read_grant()
    may_be_cpu = not needs_gpu and not is_named
    if selector in _NOTHING and not is_named:
        if may_be_cpu:
            return cpu_device()
        raise ConfigError(
            f"gpu=nvidia needs a GPU, but {key}={selector!r} grants no GPU; request one, or set gpu.device"
        )
    devices = nvml.list_devices()
    if devices:
        if is_named or _find_grant() is not None:
            return choose(key, selector, list_selectable(selector, devices))
        for reason in nvml.list_unusable().values():
            words.say(f"left out: {reason}")
        return devices[0]
    if unusable := nvml.list_unusable():
        raise ConfigError(f"{key}={selector}: {'; '.join(unusable.values())}, or use gpu=cpu")
    if may_be_cpu:
        return cpu_device()
    request = f"gpu.device={selector!r}" if is_named else "gpu=nvidia"
    raise ConfigError(
        f"{request} needs an NVIDIA GPU, but NVML finds none; check that `nvidia-smi` works, or use gpu=cpu without "
        "gpu.device"
    )


def read_grant() -> tuple[str, str]:
    """Return the variable that grants GPUs and the index or UUID of its first GPU; GPU 0 without a grant."""
    variable, names = _find_grant() or ("gpu.device", ["0"])
    return variable, names[0]


def select_granted(devices: Sequence[Device]) -> Sequence[Device]:
    """Select the granted GPUs, or all GPUs without a grant; ConfigError if a granted GPU does not exist."""
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
    """List the devices that a selector can match: MIG devices if the selector is a MIG UUID, else the GPUs."""
    if not selector.startswith(nvml.MIG_PREFIX):
        return devices
    return [mig_device for device in devices for mig_device in nvml.list_mig_devices(device)]


def choose(key: str, selector: str, devices: Sequence[Device], remedy: str = "") -> Device:
    """Choose the device with this index, UUID or beginning of a UUID; ConfigError unless exactly one matches.

    In the error, `key` is the configuration key or environment variable, and `remedy` is appended.
    """
    is_mig = selector.startswith(nvml.MIG_PREFIX)
    if selector.isdecimal():
        matches = [device for device in devices if device.index == int(selector)]
    else:
        matches = [device for device in devices if selector and device.uuid.startswith(selector)]
    if not matches and (unusable := nvml.list_unusable()):
        reasons = {str(index): reason for index, reason in unusable.items()}
        raise ConfigError(f"{key}={selector}: {reasons.get(selector) or '; '.join(reasons.values())}{remedy}")
    if not devices and not is_mig:
        raise ConfigError(
            f"{key}={selector} needs an NVIDIA GPU, but NVML lists none; check that `nvidia-smi` lists one{remedy}"
        )
    if is_mig and devices and not any(device.parent for device in devices):
        raise ConfigError(f"{key}={selector} names a MIG device; name a whole GPU{remedy}")
    if len(matches) != 1:
        rows = (f"{'-' if device.index is None else device.index}: {device.name} {device.uuid}" for device in devices)
        kind = "MIG devices" if is_mig else "GPUs"
        listing = f"choose from {', '.join(rows)}" if devices else "check that `nvidia-smi` lists one"
        raise ConfigError(f"{key}={selector!r} matches {len(matches)} {kind}, not one; {listing}{remedy}")
    return matches[0]


_LOOK_S = 1.0


class WaitBudget:
    """Total time that a study may wait for its devices.

    Args:
        is_wanted: whether waiting is requested.
        limit_s: value of `wait_limit_s`.
        time_limit_s: time limit of the study, which includes the wait; `None` if there is none.
    """

    def __init__(self, *, is_wanted: bool, limit_s: float, time_limit_s: float | None = None) -> None:
        self._is_wanted, self._limit_s, self._limit = is_wanted, limit_s, "wait_limit_s"
        if time_limit_s is not None and time_limit_s < limit_s:
            self._limit_s, self._limit = time_limit_s, "time_limit_s"
        self._said = ""
        self.waited_s = 0.0

    def wait(self, error: InUseError) -> None:
        """Wait until the device of an error is free; print each holder once.

        Raises:
            InUseError: the same error, if waiting is not requested.
            GpuBusyError: the limit is reached.
            Interrupted: the user or the system ended the wait; the time waited is printed.
        """
        if not self._is_wanted:
            raise error
        if error.holder != self._said:
            words.say(f"waiting for {error.holder}; at most {format_duration(self._remaining_s)}, Ctrl-C ends it")
            self._said = error.holder
        begin_s, waited_s = time.monotonic(), self.waited_s
        try:
            while not error.is_over():
                if self._remaining_s <= 0:
                    waited = format_duration(self._limit_s)
                    raise GpuBusyError(f"waited {waited} ({self._limit}), but {error}") from error
                time.sleep(min(_LOOK_S, self._remaining_s))
                self.waited_s = waited_s + time.monotonic() - begin_s
        except Interrupted as interrupted:
            waited = format_duration(waited_s + time.monotonic() - begin_s)
            words.say(f"{interrupted} after waiting {waited} for {error.holder}")
            raise

    @property
    def _remaining_s(self) -> float:
        return self._limit_s - self.waited_s
