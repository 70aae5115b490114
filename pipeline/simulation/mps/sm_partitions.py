"""Static SM partitions of a simulated MPS daemon: the accounting of chunks, and the texts of its three commands.

The titles and the replies to commands that fail were recorded from the control programs of 595.99.02 and 615.71.09 on a
machine without a GPU. Rows and successful replies follow NVIDIA's MPS documentation, release 615 (common-tasks,
mpsv2-interface); earlier control programs differ slightly (public programs that parse them on H100s:
sgl-project/sglang-omni, `mps/control.py`; NVIDIA-ISAAC-ROS/isaac_ros_common, `isaac_ros_gpu_partitioning`). Standard
library only.
"""

from __future__ import annotations

import base64
from collections.abc import Collection
from dataclasses import dataclass, field

_DASHES_SINCE = 13040
_FAILED = "Failed to create partition"
_USAGE = {
    "add": "Usage: sm_partition add <device UUID> <number of chunks>",
    "rm": "Usage: sm_partition rm <device UUID> <partition ID> or sm_partition rm <device UUID>/<partition ID>",
}


@dataclass(slots=True)
class Device:
    """A GPU of the daemon.

    Attributes:
        multiprocessors: number of multiprocessors.
        chunk: number of multiprocessors in a chunk.
        num_chunks: number of chunks.
        pci: bus id in the daemon's format, `0000:00.06.00`.
        partitions: number of chunks of each partition, by id.
    """

    uuid: str
    multiprocessors: int
    chunk: int
    num_chunks: int
    name: str = ""
    pci: str = ""
    partitions: dict[str, int] = field(default_factory=dict)

    @property
    def free(self) -> int:
        """Chunks that are not in a partition."""
        return self.num_chunks - sum(self.partitions.values())

    def multiprocessors_of(self, partition: str) -> int:
        """Return the multiprocessors of a partition; the last chunk also has the multiprocessors that fill no chunk."""
        is_last = not self.free and partition == list(self.partitions)[-1]
        return self.partitions[partition] * self.chunk + (self._spare if is_last else 0)

    @property
    def _spare(self) -> int:
        return self.multiprocessors - self.num_chunks * self.chunk

    @property
    def free_multiprocessors(self) -> int:
        return self.free * self.chunk + self._spare if self.free else 0


class Partitions:
    """The partitions of all GPUs of a daemon; `version` is the version of the control program."""

    def __init__(self, devices: Collection[Device], version: int) -> None:
        self._devices, self._version = devices, version
        self._num_made = 0

    def find(self, name: str) -> str | None:
        """Return the id of the partition that `CUDA_MPS_SM_PARTITION` names; `None` if it does not exist."""
        uuid, _, partition = name.partition("/")
        device = self._device(uuid)
        return partition if device is not None and partition in device.partitions else None

    def answer(self, words: list[str], in_use: Collection[str]) -> list[str]:
        """Return the answer to a command about partitions.

        `in_use` has the partitions of the clients.
        """
        match words:
            case ["lspart", *_]:
                return self._list(in_use)
            case ["sm_partition", "add", uuid, chunks] if chunks.isdecimal():
                return [self._add(device, int(chunks)) if (device := self._device(uuid)) else _FAILED]
            case ["sm_partition", "rm", uuid, partition] if (
                device := self._device(uuid)
            ) and partition in device.partitions:
                if partition in in_use:
                    return [f"Partition {partition} in use. Terminate all clients before removing."]
                del device.partitions[partition]
                return []
            case ["sm_partition", "rm", _, _]:
                return ["Failed to remove partition"]
            case ["sm_partition", ("add" | "rm") as verb, *_]:
                return [f"Invalid command format: {' '.join(words[1:])}", "", _USAGE[verb]]
        return ["Invalid option for sm_partition"]

    def _device(self, uuid: str) -> Device | None:
        devices = [device for device in self._devices if uuid and device.uuid.startswith(uuid)]
        return devices[0] if len(devices) == 1 else None

    def _add(self, device: Device, chunks: int) -> str:
        if not 0 < chunks <= device.free:
            return _FAILED
        # Ids are base64 and may contain slashes.
        partition = base64.b64encode(bytes([0x0F, 0xFE, 0xFD, self._num_made % 256]) + bytes(23)).decode()
        self._num_made += 1
        device.partitions[partition] = chunks
        name = f"{device.uuid}/{partition}"
        return name if self._version >= _DASHES_SINCE else f"Partition {name} created"

    def _list(self, in_use: Collection[str]) -> list[str]:
        dash = "-" if self._version >= _DASHES_SINCE else ""
        rows: list[tuple[str, ...]] = [
            ("GPU", "Partition", "free", "used", "free", "used", "clients"),
            ("", "", "chunks", "chunks", "SM", "SM", ""),
        ]
        for device in self._devices:
            gpu, used = device.uuid[:12], sum(device.partitions.values())
            counts = (device.free, used, device.free_multiprocessors, used * device.chunk)
            rows.append((gpu, dash, *map(str, counts), dash))
            for partition, chunks in device.partitions.items():
                is_used = "Yes" if partition in in_use else dash or "No"
                multiprocessors = str(device.multiprocessors_of(partition))
                rows.append((gpu, partition, dash, str(chunks), dash, multiprocessors, is_used))
        return [f"{a:<21}{b:<37}{c:<9}{d:<9}{e:<7}{f:<7}{g:<6}" for a, b, c, d, e, f, g in rows]
