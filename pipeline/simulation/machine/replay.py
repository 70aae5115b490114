"""A source of readings that repeats what was once recorded on a real GPU.

What it repeats is a file that `content` describes; who recorded it, and whether it fits, is no matter of this module.
"""

from __future__ import annotations

import functools
import json
from array import array
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from pipeline.simulation.machine import queries
from pipeline.simulation.machine.readings import Quantity
from pipeline.simulation.machine.state import Gpu, GpuInstance, start_ticks

TARGET = f"{__name__}.Replay"
"""By what a machine's state names this source."""
_LEAST_PERIOD_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Subject:
    """What a recorded series is of: the whole GPU (`profile` is `None`), or one of its GPU instances.

    Attributes:
        profile: name of the instance's profile, as `2g.20gb`.
        number: which instance of this profile, from 0 in the order of NVML's ids.
    """

    profile: str | None = None
    number: int = 0


@dataclass(frozen=True, slots=True)
class Recorded:
    """A series: instants in ns since the first sample of the recording, in their order, and values."""

    subject: Subject
    quantity: Quantity
    t_ns: array[int]
    values: array[float]


def content(series: Iterable[Recorded]) -> str:
    """The text of a file from which a `Replay` reads these series."""
    rows = [
        [one.subject.profile, one.subject.number, one.quantity.value, one.t_ns.tolist(), one.values.tolist()]
        for one in series
    ]
    return json.dumps(rows)


class Replay:
    """What was recorded, from its begin on and then again and again, for one GPU of the machine.

    The recording begins at `begin_ns` and lasts from its first sample to one interval after its last one. A reading is
    that of the latest sample. Energy is interpolated between samples, goes on from `energy_j`, and never goes back. A
    GPU instance gets what was recorded of the instance of its profile with the same number; further ones of that
    profile, and other profiles, have no reading. Once the process that plays it has ended there is none at all.

    Args:
        gpu: UUID.
        path: of the file.
        begin_ns: monotonic.
        energy_j: what the counter of energy reads at the begin.
        pid, began: of the process that plays it: its id, and when it began in the kernel's ticks.
    """

    def __init__(self, gpu: str, path: str, begin_ns: int, energy_j: float, pid: int, began: int) -> None:
        self._gpu, self._begin_ns, self._energy_j = gpu, begin_ns, energy_j
        self._series, self._period_ns = _load(path)
        self._owner = pid, began

    def read(self, quantity: Quantity, gpu: Gpu, instance: GpuInstance | None, t_ns: int) -> float | None:
        pid, began = self._owner
        if gpu.uuid != self._gpu or start_ticks(pid) != began:
            return None
        found = self._series.get((_subject(gpu, instance), quantity))
        if found is None:
            return None
        cycle, at_ns = divmod(max(0, t_ns - self._begin_ns), self._period_ns)
        if quantity is Quantity.ENERGY:
            of_a_cycle = _growth(found, self._period_ns)
            return self._energy_j + cycle * of_a_cycle + _growth(found, at_ns)
        return found.values[max(0, bisect_right(found.t_ns, at_ns) - 1)]


def _subject(gpu: Gpu, instance: GpuInstance | None) -> Subject:
    if instance is None:
        return Subject()
    alike = sorted(other.id for other in gpu.instances if other.profile_id == instance.profile_id)
    return Subject(queries.profile_of(gpu, instance).name, alike.index(instance.id))


def _growth(energy: Recorded, at_ns: int) -> float:
    """By how much a counter grew from the begin of the recording to this instant of it; at its mean rate beyond it."""
    t_ns, values = energy.t_ns, energy.values
    span_ns, whole = t_ns[-1] - t_ns[0], values[-1] - values[0]
    rate = whole / span_ns if span_ns else 0.0
    place = bisect_right(t_ns, at_ns)
    if place in (0, len(t_ns)):
        edge = 0 if place == 0 else -1
        grown = values[edge] + rate * (at_ns - t_ns[edge])
    else:
        before_ns, after_ns = t_ns[place - 1], t_ns[place]
        share = (at_ns - before_ns) / (after_ns - before_ns)
        grown = values[place - 1] + share * (values[place] - values[place - 1])
    return grown - (values[0] - rate * t_ns[0])


@functools.lru_cache(maxsize=2)  # a new one begins with each group, and its file is the same
def _load(path: str) -> tuple[dict[tuple[Subject, Quantity], Recorded], int]:
    """The series of a file, and how long it is until they begin again."""
    rows = json.loads(Path(path).read_text(encoding="utf-8"))
    found = {}
    period_ns = _LEAST_PERIOD_NS
    for profile, number, name, instants, values in rows:
        t_ns, quantity, subject = array("q", instants), Quantity(name), Subject(profile, number)
        if quantity is Quantity.ENERGY:
            values = accumulate(values, max)  # a driver that was loaded anew counts from 0
        found[subject, quantity] = Recorded(subject, quantity, t_ns, array("d", values))
        interval_ns = (t_ns[-1] - t_ns[0]) // (len(t_ns) - 1) if len(t_ns) > 1 else 0
        period_ns = max(period_ns, t_ns[-1] + interval_ns)
    return found, period_ns
