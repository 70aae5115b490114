"""Plain collocation: every job sees the whole device, and the driver time-slices between them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pipeline.errors import ConfigError
from pipeline.types import Device, Group, Slot


@dataclass(frozen=True, slots=True)
class WholeDevice:
    """One slot a job, all of them on the same device."""

    slots: Sequence[Slot]

    def verify(self, pids: Mapping[int, int]) -> None:
        """Nothing can be misplaced on a device that is not divided."""


def refuse_mig(group: Group) -> None:
    """Check that the whole device can be used.

    Raises:
        ConfigError: MIG mode is on.
    """
    device = group.device
    if device.mig_enabled:
        raise ConfigError(
            f"scenario={group.scenario} needs the whole of {device.name} ({device.uuid}), but MIG mode is on; "
            f"an administrator can switch it off: nvidia-smi -i {device.index} -mig 0"
        )


class Naive:
    """Also the serial baseline: then there is one job at a time."""

    def check(self, group: Group) -> None:
        """Check that the whole device can be used.

        Raises:
            ConfigError: MIG mode is on.
        """
        refuse_mig(group)

    def warnings(self, group: Group) -> tuple[str, ...]:
        """Nothing is known to go wrong."""
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
            yield WholeDevice(tuple(Slot(visible_devices="") for _ in group.jobs))
            return
        pipes = scratch / "no-mps"
        pipes.mkdir()
        environ = (("CUDA_DEVICE_ORDER", "PCI_BUS_ID"), ("CUDA_MPS_PIPE_DIRECTORY", str(pipes)))
        slot = Slot(visible_devices=device.uuid, environ=environ, gpu_uuid=device.uuid)
        yield WholeDevice(tuple(slot for _ in group.jobs))
