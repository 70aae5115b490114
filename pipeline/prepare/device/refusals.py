"""Reasons to refuse a device: MIG mode, another program's MPS server, missing permission to change settings."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from pipeline.base.domain import driver_programs
from pipeline.base.domain.records import Device, Group
from pipeline.base.system import entry_points, words
from pipeline.base.system.errors import ConfigError, SharingError
from pipeline.prepare.device import gpu_reader


def refuse_mps_clients(device: Device, tolerated: Sequence[str]) -> None:
    """Check that no process on the GPU, or on one of its MIG devices, is a client of an MPS server, if they are listed.

    A client is assumed to be a job, because only tolerated programs were on the GPU at the start of the group. PIDs are
    not compared, because in a container the driver's PIDs differ from the container's.

    Raises:
        SharingError: a process is a client of an MPS server.
        NvmlError: the GPU does not respond.
    """
    clients: Sequence[gpu_reader.GpuProcess] = ()
    with suppress(gpu_reader.UnlistedProcessesError):
        clients = gpu_reader.list_staying_processes(device.uuid, lambda p: p.kind == "mps" and p.name not in tolerated)
    if clients:
        listed = ", ".join(map(str, clients))
        raise SharingError(
            f"MPS clients ({listed}) are on {device.name} ({device.uuid}), but this scenario runs without MPS; do not "
            "change CUDA_MPS_PIPE_DIRECTORY in the job, or stop the machine's MPS daemon: echo quit | "
            "nvidia-cuda-mps-control"
        )


def isolate_from_mps(scratch: Path) -> tuple[tuple[str, str], ...]:
    """Return variables that prevent a job from using the machine's MPS daemon: an empty pipe folder.

    Without these variables, the job would silently become a client of this daemon.
    """
    pipes = scratch / "no-mps"
    pipes.mkdir()
    return ("CUDA_DEVICE_ORDER", "PCI_BUS_ID"), ("CUDA_MPS_PIPE_DIRECTORY", str(pipes))


def refuse_without_admin(group: Group, change: str) -> None:
    """Raise ConfigError if `gpu.admin` forbids a change of the GPU's settings, or names a missing program."""
    admin = group.gpu.admin
    if admin is None:
        raise ConfigError(
            f"{change}, which gpu.admin=null forbids; set gpu.admin=[] if you are root, otherwise gpu.admin=[sudo,-n]"
        )
    if group.device.was_read and not group.device.is_simulated:  # otherwise no command runs on this machine
        driver_programs.refuse_absent_admin(admin, f"gpu.admin={words.format_list(admin)}", "'gpu.admin=[sudo,-n]'")


def refuse_cpus(group: Group, needs: str = "an NVIDIA GPU", rehearsal: str = "gpu=simulated_h100_80gb") -> None:
    """Raise ConfigError if the device is no GPU; `rehearsal` has the overrides that simulate a suitable GPU."""
    if not group.device.is_gpu:
        raise ConfigError(
            f"scenario={group.scenario} needs {needs}, not {group.device.name}; rehearse it with {rehearsal}, "
            "or choose scenario=naive"
        )


def refuse_mig(group: Group) -> None:
    """Raise ConfigError if MIG mode is on, because then jobs cannot use the whole device."""
    device = group.device
    if device.mig_enabled:
        raise ConfigError(
            f"scenario={group.scenario} needs the whole GPU, but MIG mode is on for {device.name} ({device.uuid}); "
            f"switch MIG mode off, after a killed run with `{entry_points.spell('gpu', 'clean')}`, after `create` with "
            f"`{entry_points.spell('gpu', 'destroy')}`, otherwise as administrator with `nvidia-smi -i {device.index} "
            "-mig 0`"
        )
