"""Assignment of existing MIG devices, created by an administrator, to jobs. Changes nothing, needs no privilege."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from pipeline.base.domain import mig_table
from pipeline.base.domain.records import Device
from pipeline.base.system.command_parser import choose_remedy
from pipeline.base.system.errors import ConfigError
from pipeline.prepare.device import nvml
from pipeline.prepare.device.nvml import pynvml
from pipeline.prepare.mig.profiles import list_offered

_NAME = re.compile(r" MIG (?P<profile>(?:\d+c\.)?\d+g\S*)")


def read_profile(device: Device) -> str:
    """Read the profile in a MIG device's name: `3g.20gb`, or `1c.3g.20gb` for a smaller compute instance."""
    match = _NAME.search(device.name)
    return "" if match is None else match["profile"].rstrip(",")


def assign(gpu: Device, requests: Sequence[str | None]) -> list[Device]:
    """Assign each job the MIG device that it requests (`2g`, `2g.10gb`, `1c.3g`), or else the largest free device.

    Consecutive requests for compute instances, such as `1c.3g,2c.3g`, are served from one GPU instance if one GPU
    instance has all of these compute instances.

    Raises:
        ConfigError: the GPU has no MIG devices, or lacks a requested one; the message lists its MIG devices.
    """
    devices = [device for device in nvml.list_mig_devices(gpu) if read_profile(device)]
    unassigned = sorted(devices, key=_measure)
    by_job: dict[int, Device] = {}
    # More specific requests choose first; otherwise a general request could take the only device that fits them.
    for jobs in sorted(_group_jobs(requests), key=lambda jobs: (-len(jobs), -len(requests[jobs[0]] or ""))):
        one = next(
            (
                assigned
                for gi_id in dict.fromkeys(device.gi_id for device in unassigned)
                if (assigned := _assign_from_instance(unassigned, jobs, requests, gi_id))
            ),
            None,
        )
        for job in jobs:
            request = requests[job]
            fitting = [one[job]] if one else [device for device in unassigned if _fits(device, request)]
            if not fitting:
                listed = ", ".join(read_profile(device) for device in devices) or "none"
                profile_words = "" if request is None else f" of {request}"
                remedy = choose_remedy("set scenario.profiles to profiles of its MIG devices", "its MIG devices are")
                raise ConfigError(
                    f"{choose_remedy('scenario.layout=existing: ', '')}{gpu.name} ({gpu.uuid}) has no free MIG device"
                    f"{profile_words} for job {job}; {remedy}: {listed}"
                )
            by_job[job] = fitting[-1] if request is None else fitting[0]
            unassigned.remove(by_job[job])
    return [by_job[job] for job in sorted(by_job)]


def read_share(device: Device) -> float:
    """Return a MIG device's share of its GPU's compute slices; 1 if the device's name has no profile."""
    with nvml.session(), nvml.translate_errors(f"the MIG profiles of the GPU of {device.name}"):
        gpu = pynvml.nvmlDeviceGetHandleByUUID(device.gpu_uuid)
        of_gpu = max((profile.sliceCount for profile in list_offered(gpu)), default=0)
    return _count_compute_slices(device) / of_gpu if of_gpu and _count_compute_slices(device) else 1.0


def _measure(device: Device) -> tuple[int, int]:
    """Return memory, then compute slices: each compute instance can use all memory of its GPU instance."""
    return device.memory_mib or 0, _count_compute_slices(device)


def _count_compute_slices(device: Device) -> int:
    profile, slices = mig_table.split_name(read_profile(device))
    return _parse_slices(profile) if slices is None else slices


def _group_jobs(requests: Sequence[str | None]) -> Iterator[list[int]]:
    """Yield groups of jobs whose compute instances fit into one GPU instance; each other job is a separate group."""
    jobs: list[int] = []
    of_jobs, used = "", 0
    for job, request in enumerate(requests):
        profile, slices = mig_table.split_name((request or "").strip().lower())
        is_alike = profile.startswith(of_jobs) or of_jobs.startswith(profile)  # `3g` may mean `3g.20gb`
        if slices is not None and of_jobs and is_alike and used + slices <= _parse_slices(profile):
            jobs.append(job)
            used += slices
            continue
        if jobs:
            yield jobs
        jobs, of_jobs, used = [job], "" if slices is None else profile, slices or 0
    yield jobs


def _parse_slices(profile: str) -> int:
    """Return 3 for `3g.20gb`; 0 for a text that is not a profile."""
    number = profile.partition("g")[0]
    return int(number) if number.isdecimal() else 0


def _assign_from_instance(
    unassigned: Sequence[Device], jobs: Sequence[int], requests: Sequence[str | None], gi_id: int | None
) -> dict[int, Device]:
    """Assign devices of one GPU instance to all jobs; return nothing if a device is missing, or for a single job."""
    inside = [device for device in unassigned if device.gi_id == gi_id]
    by_job: dict[int, Device] = {}
    for job in jobs if len(jobs) > 1 else ():
        device = next((candidate for candidate in inside if _fits(candidate, requests[job])), None)
        if device is None:
            return {}
        inside.remove(device)
        by_job[job] = device
    return by_job


def _fits(device: Device, request: str | None) -> bool:
    profile, name = read_profile(device), (request or "").strip().lower()
    return request is None or profile == name or profile.startswith(f"{name}.")
