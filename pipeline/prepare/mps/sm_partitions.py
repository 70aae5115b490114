"""MPS static partitions: created before the daemon's server starts, one per job, which receives the partition's name.

A partition consists of chunks, and a chunk consists of multiprocessors that no other client can use. The number of
chunks depends on the positions of the multiprocessors on the chip, so it is read from the daemon. Partitions exist
until their daemon exits.

Sources: NVIDIA's MPS documentation, release 615 (common-tasks, Using Static SM Partitioning; mpsv2-interface), and
public programs that read the replies of earlier control programs, which differ slightly (sgl-project/sglang-omni,
`mps/control.py`; NVIDIA-ISAAC-ROS/isaac_ros_common, `isaac_ros_gpu_partitioning`). The reply to `sm_partition add` is
the name, alone or in a sentence. In the output of `lspart`, an inapplicable column is `-` or blank.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.base.system.errors import CommandError, SharingError
from pipeline.prepare.mps.control_program import ControlProgram

# The first command about partitions initialises CUDA, which takes seconds.
_LIMIT_S = 60.0
_NAME = re.compile(r"\bGPU-[0-9a-fA-F-]+/(\S+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """Static partition of a daemon.

    Attributes:
        name: name that a client receives, `GPU-<UUID>/<id>`; the id may contain slashes.
        chunks: number of chunks.
        multiprocessors: number of multiprocessors, as reported by the daemon; the partition with the last chunk also
            has the multiprocessors that belong to no chunk.
    """

    name: str
    chunks: int
    multiprocessors: int

    @property
    def id(self) -> str:
        return self.name.partition("/")[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    gpu: str  # the beginning of a UUID
    partition: str | None  # `None` in the line of the GPU itself
    free: int
    used: int
    multiprocessors: int
    is_in_use: bool


def divide(control: ControlProgram, uuid: str, request: Sequence[int] | None, num_jobs: int) -> list[Partition]:
    """Create a partition for each job with the requested number of chunks, by default of equal size.

    Raises:
        SharingError: the daemon cannot create these partitions; existing partitions disappear with the daemon.
    """
    (free,) = [row.free for row in _list_rows(control, uuid) if row.partition is None]
    chunks = list(request or [free // num_jobs] * num_jobs)
    if sum(chunks) > free or not all(chunks):
        raise SharingError(
            f"{uuid} has {free} chunks of multiprocessors, but {num_jobs} jobs need {sum(chunks) or num_jobs}; lower "
            "scenario.chunks, or use fewer jobs"
        )
    names = [_add(control, uuid, number) for number in chunks]
    rows = {row.partition: row for row in _list_rows(control, uuid)}
    partitions = []
    for name, number in zip(names, chunks, strict=True):
        row = rows.get(name.partition("/")[2])
        if row is None or row.used != number:
            raise SharingError(f"the MPS daemon does not list the new partition {name} with {number} chunks: {rows}")
        partitions.append(Partition(name=name, chunks=number, multiprocessors=row.multiprocessors))
    return partitions


def list_unused(control: ControlProgram, partitions: Sequence[Partition]) -> list[Partition]:
    """List the partitions without a client."""
    uuid = partitions[0].name.partition("/")[0]
    used = {row.partition for row in _list_rows(control, uuid) if row.is_in_use}
    return [partition for partition in partitions if partition.id not in used]


def _add(control: ControlProgram, uuid: str, chunks: int) -> str:
    reply = " / ".join(_ask(control, f"sm_partition add {uuid} {chunks}"))
    name = _NAME.search(reply)
    if name is None:
        raise SharingError(f"the MPS daemon did not create a partition of {chunks} chunks on {uuid}: {reply}")
    return f"{uuid}/{name[1]}"


def _list_rows(control: ControlProgram, uuid: str) -> list[_Row]:
    lines = _ask(control, "lspart")
    rows = [row for line in lines if (row := _parse_row(line)) is not None and uuid.startswith(row.gpu)]
    if sum(row.partition is None for row in rows) != 1:
        raise SharingError(
            f"the MPS daemon lists no chunks of multiprocessors for {uuid} (reply: {' / '.join(lines) or 'none'}); use "
            "driver R590 (CUDA 13.1) or newer, and an Ampere GPU or newer"
        )
    return rows


def _parse_row(line: str) -> _Row | None:
    gpu, *cells = [cell for cell in line.split() if cell != "-"] or [""]
    if not gpu.startswith("GPU-"):
        return None
    if len(cells) == 4 and all(cell.isdecimal() for cell in cells):
        free, used, _, multiprocessors = map(int, cells)
        return _Row(gpu=gpu, partition=None, free=free, used=used, multiprocessors=multiprocessors, is_in_use=used > 0)
    if len(cells) in (3, 4) and cells[1].isdecimal() and cells[2].isdecimal():
        used, multiprocessors = int(cells[1]), int(cells[2])
        is_in_use = cells[3:] == ["Yes"]
        return _Row(
            gpu=gpu, partition=cells[0], free=0, used=used, multiprocessors=multiprocessors, is_in_use=is_in_use
        )
    return None


def _ask(control: ControlProgram, text: str) -> list[str]:
    try:
        return control.ask(text, _LIMIT_S)
    except CommandError as error:
        raise SharingError(f"the MPS daemon did not reply to '{text}': {error}") from error
