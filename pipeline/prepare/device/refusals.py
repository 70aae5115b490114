"""Refusals of a device: MIG mode, another's MPS server, a setting that must not be changed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pipeline.base.domain import driver_programs
from pipeline.base.domain.records import Device, Group
from pipeline.base.system import entry_points, words
from pipeline.base.system.errors import ConfigError, SharingError
from pipeline.prepare.device import gpu_reader


def refuse_mps_clients(device: Device, tolerated: Sequence[str]) -> None:
    """Check that no process on the GPU, or on one of its MIG devices, is a client of an MPS server.

    Nobody but the programs that are tolerated was on the GPU when the group began, so a client is a job, whatever its
    PID is called here: in a container the driver's PIDs are not ours.

    Raises:
        SharingError: there is one.
        NvmlError: the processes cannot be listed.
    """
    clients = gpu_reader.list_staying_processes(device.uuid, lambda p: p.kind == "mps" and p.name not in tolerated)
    if clients:
        listed = ", ".join(map(str, clients))
        raise SharingError(
            f"MPS clients are on {device.name} ({device.uuid}), though this scenario runs without MPS: {listed}; keep "
            "CUDA_MPS_PIPE_DIRECTORY in the environment of the job, or stop the machine's MPS daemon: echo quit | "
            "nvidia-cuda-mps-control"
        )


def isolate_from_mps(scratch: Path) -> tuple[tuple[str, str], ...]:
    """Return variables that keep a job from the machine's MPS daemon: a pipe folder without one.

    Such a daemon would otherwise take the job for its client, and nothing would say so.
    """
    pipes = scratch / "no-mps"
    pipes.mkdir()
    return ("CUDA_DEVICE_ORDER", "PCI_BUS_ID"), ("CUDA_MPS_PIPE_DIRECTORY", str(pipes))


def refuse_without_admin(group: Group, change: str) -> None:
    """Raise ConfigError if `gpu.admin` forbids a change of the GPU's settings, or names no program that is there."""
    admin = group.gpu.admin
    if admin is None:
        raise ConfigError(f"{change}, which gpu.admin=null forbids; set gpu.admin=[] as root, else gpu.admin=[sudo,-n]")
    if group.device.details and not group.device.is_simulated:  # else nothing is run here
        driver_programs.refuse_absent_admin(admin, f"gpu.admin={words.format_list(admin)}", "'gpu.admin=[sudo,-n]'")


def refuse_cpus(group: Group, needs: str = "an NVIDIA GPU", rehearsal: str = "gpu=simulated_h100_80gb") -> None:
    """Raise ConfigError if the device is no GPU; `rehearsal` is what rehearses the sharing mode without one."""
    if not group.device.is_gpu:
        raise ConfigError(
            f"scenario={group.scenario} needs {needs}, not {group.device.name}; rehearse it with {rehearsal}, "
            "or choose scenario=naive"
        )


def refuse_mig(group: Group) -> None:
    """Raise ConfigError if MIG mode is on: the whole device cannot be used."""
    device = group.device
    if device.mig_enabled:
        raise ConfigError(
            f"scenario={group.scenario} needs the whole of {device.name} ({device.uuid}), but MIG mode is on; "
            f"switch it off as administrator: nvidia-smi -i {device.index} -mig 0; after a killed run: "
            f"{entry_points.spell('gpu', 'clean')}; after `create`: {entry_points.spell('gpu', 'destroy')}"
        )
