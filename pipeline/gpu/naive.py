"""Plain collocation: every job sees the whole device, and the driver time-slices between them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pipeline.errors import ConfigError, SharingError
from pipeline.gpu import compute_mode, nvml
from pipeline.types import Device, Group, Slot


@dataclass(frozen=True, slots=True)
class WholeDevice:
    """One slot a job, all of them on the same device."""

    slots: Sequence[Slot]
    device: Device
    tolerated: Sequence[str] = ()

    def verify(self, pids: Mapping[int, int]) -> None:
        """Check that no job is under MPS, which would turn "naive" into something else.

        Raises:
            SharingError: there are MPS clients on the GPU.
            NvmlError: its processes cannot be listed.
        """
        if self.device.is_gpu:
            refuse_mps_clients(self.device, self.tolerated)


def refuse_mps_clients(device: Device, tolerated: Sequence[str]) -> None:
    """Check that no process on the GPU, or on one of its MIG devices, is a client of an MPS server.

    Nobody else was on the GPU when the group began, so a client is a job, whatever its PID is called here: in a
    container the driver's PIDs are not ours.

    Args:
        device: a GPU.
        tolerated: names of programs of others that may be there.

    Raises:
        SharingError: there is one.
        NvmlError: the processes cannot be listed.
    """
    clients = [p for p in nvml.processes(device.uuid) if p.kind == "mps" and p.name not in tolerated]
    if clients:
        listed = ", ".join(f"{client.name or 'a program'} (pid {client.pid})" for client in clients)
        raise SharingError(
            f"clients of an MPS server on {device.name} ({device.uuid}): {listed}; this scenario runs without MPS. A "
            "job must keep the CUDA_MPS_PIPE_DIRECTORY that it is given, else it finds a daemon of the machine; end "
            "that daemon (echo quit | nvidia-cuda-mps-control) or keep the variable"
        )


def refuse_mig(group: Group) -> None:
    """Check that the whole device can be used.

    Raises:
        ConfigError: MIG mode is on.
    """
    device = group.device
    if device.mig_enabled:
        raise ConfigError(
            f"scenario={group.scenario} needs the whole of {device.name} ({device.uuid}), but MIG mode is on; "
            f"an administrator can switch it off: nvidia-smi -i {device.index} -mig 0; if a killed run left it "
            "on: python -m pipeline.gpu clean"
        )


class Naive:
    """Also the serial baseline: then there is one job at a time."""

    def check(self, group: Group) -> None:
        """Check that the whole device can be used.

        Raises:
            ConfigError: MIG mode is on, or the compute mode does not allow so many processes.
        """
        refuse_mig(group)
        compute_mode.refuse(group, "lets every job compute on the GPU itself")
        compute_mode.refuse_one_process_only(group)

    def warnings(self, group: Group) -> tuple[str, ...]:
        """Nothing is known to go wrong."""
        return ()

    def privileged(self, group: Group) -> tuple[tuple[str, ...], ...]:
        """Nothing is changed on the device."""
        return ()

    @contextmanager
    def prepare(self, device: Device, group: Group, scratch: Path) -> Iterator[WholeDevice]:
        """One slot a job; on a GPU with an MPS pipe folder that no daemon serves.

        A machine-wide MPS daemon would otherwise turn "naive" into MPS, and nothing would say so.

        Raises:
            ConfigError: as `check`.
        """
        self.check(group)
        if not device.is_gpu:
            yield WholeDevice(tuple(Slot(visible_devices="") for _ in group.jobs), device)
            return
        pipes = scratch / "no-mps"
        pipes.mkdir()
        environ = (("CUDA_DEVICE_ORDER", "PCI_BUS_ID"), ("CUDA_MPS_PIPE_DIRECTORY", str(pipes)))
        slot = Slot(visible_devices=device.uuid, environ=environ, gpu_uuid=device.uuid)
        yield WholeDevice(tuple(slot for _ in group.jobs), device, group.gpu.tolerate)
