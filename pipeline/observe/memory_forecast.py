"""Forecast of the device memory that a group needs: the sum of what its jobs used alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pipeline.base.domain.normalisation import MEMORY_PEAK
from pipeline.base.domain.records import Group, Result
from pipeline.base.domain.sharing_modes import mode_of
from pipeline.observe.group_result import GroupResult
from pipeline.observe.study_progress import PastGroup

_MIB_PER_GIB = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryNeed:
    """The forecast of a group on a device.

    Attributes:
        alone_mib: peak memory of each job alone.
        capacity_mib: memory of the device.
    """

    alone_mib: tuple[float, ...]
    capacity_mib: float

    @property
    def needed_mib(self) -> float:
        """The memory that the jobs need together."""
        return sum(self.alone_mib)

    @property
    def fits(self) -> bool:
        """True if the device has this memory."""
        return self.needed_mib <= self.capacity_mib

    @property
    def words(self) -> str:
        """The forecast in words: `needs 92.0 of 79.6 GiB of memory: 6 copies fit (measured: 1 job, 13.1 GiB)`."""
        of_each = dict.fromkeys(self.alone_mib)
        whose, memories = "1 job" if len(of_each) == 1 else "each job alone", " and ".join(map(_gib, of_each))
        measured = f"measured: {whose}, {memories} GiB"
        needs = f"needs {_gib(self.needed_mib)} of {_gib(self.capacity_mib)} GiB of memory"
        if self.fits or len(of_each) > 1:
            return f"{needs} ({measured})"
        num_fitting = int(self.capacity_mib // self.alone_mib[0])
        fitting = "1 copy fits" if num_fitting == 1 else f"{num_fitting} copies fit"
        return f"{needs}: {fitting} ({measured})"


class MemoryForecast:
    """The memory of jobs alone, from earlier studies and from the rows of this one."""

    def __init__(self, groups: Iterable[Group], past: Sequence[PastGroup] = ()) -> None:
        """Take the memory of the groups of one job from earlier groups, newest first, with the same key."""
        self._alone_mib: dict[tuple[str, str], float] = {}
        newest = {ran.key: ran.memory_mib for ran in reversed(past) if ran.memory_mib is not None}
        for group in groups:
            if group.key in newest:
                self._add(group, newest[group.key])

    def add(self, row: GroupResult) -> None:
        """Take the memory of a job from the row of a job that ran alone."""
        if row.result is Result.OK and not row.marks.invalid and MEMORY_PEAK in row.metrics:
            self._add(row.group, row.metrics[MEMORY_PEAK])

    def _add(self, group: Group, memory_mib: float) -> None:
        if len(group.jobs) == 1 and group.sequential:
            self._alone_mib[group.device.name, group.jobs[0].workload.digest] = memory_mib

    def forecast(self, group: Group) -> MemoryNeed | None:
        """Return the need of a group; `None` if a job was not measured alone.

        Also `None` for jobs one after another, for jobs on MIG devices or in one process, and for one job.
        """
        device, mode = group.device, mode_of(group.scenario)
        if group.sequential or len(group.jobs) == 1 or not mode.adds_memory or device.memory_mib is None:
            return None
        alone = [self._alone_mib.get((device.name, job.workload.digest)) for job in group.jobs]
        known = tuple(mib for mib in alone if mib is not None)
        return MemoryNeed(alone_mib=known, capacity_mib=device.memory_mib) if len(known) == len(alone) else None


def _gib(memory_mib: float) -> str:
    return f"{memory_mib / _MIB_PER_GIB:.1f}"
