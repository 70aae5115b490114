"""The MIG devices that an administrator made, and which job gets which. Changes nothing and needs no privilege."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pipeline.base.errors import ConfigError
from pipeline.base.records import Device
from pipeline.prepare.device import nvml

_NAME = re.compile(r" MIG (?P<profile>\d+g\S*)")  # of a compute instance of less than its GPU instance: ` MIG 1c.3g.`


def profile_of(device: Device) -> str:
    """The profile of a MIG device (`3g.20gb`), as its name says it; empty of a part of a GPU instance."""
    found = _NAME.search(device.name)
    return "" if found is None else found["profile"].rstrip(",")


def assigned(gpu: Device, requests: Sequence[str | None]) -> list[Device]:
    """A MIG device for each job, by the profile it asks for (`2g`, `2g.10gb`), or the largest that is left.

    Raises:
        ConfigError: the GPU is not divided, or lacks what is asked for; it says what is there.
    """
    there = [device for device in nvml.list_mig_devices(gpu) if profile_of(device)]
    left = sorted(there, key=lambda device: device.memory_mib or 0)
    found: dict[int, Device] = {}
    # Who asks for more detail chooses first, so that nobody takes the only one that fits another.
    for job in sorted(range(len(requests)), key=lambda job: -len(requests[job] or "")):
        request = requests[job]
        fitting = [device for device in left if request is None or _fits(device, request.strip().lower())]
        if not fitting:
            listed = ", ".join(profile_of(device) for device in there) or "none"
            such = "no MIG device" if request is None else f"no MIG device of {request}"
            raise ConfigError(
                f"scenario.layout=existing: {such} is left for job {job} on {gpu.name} ({gpu.uuid}); it has {listed}: "
                "choose among them with scenario.profiles, or let an administrator divide it"
            )
        found[job] = fitting[-1] if request is None else fitting[0]
        left.remove(found[job])
    return [found[job] for job in sorted(found)]


def _fits(device: Device, request: str) -> bool:
    profile = profile_of(device)
    return profile == request or profile.startswith(f"{request}.")
