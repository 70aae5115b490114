"""A device of known power, as a listener reads it and as NVML does; both can fail as NVML does: docs/reliability.md."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from listeners.base import PollingListener
from pipeline.base.domain.protocols import RunningGroup
from pipeline.base.domain.samples import Field, Sample, Summary
from pipeline.simulation.machine.readings import Quantity

_WATTS, _GROWS_IN_S = 100.0, 15.0
_HANGS_S = 2.5
_COUNTED_J = 1e6  # what the counter of energy reads in the beginning


def power_w(since_s: float) -> float:
    """Return the power so many seconds after the begin: e times as much every 15 s, so that no time is like another."""
    return _WATTS * math.exp(since_s / _GROWS_IN_S)


def energy_j(since_s: float) -> float:
    """Return the energy until then."""
    return _GROWS_IN_S * (power_w(since_s) - _WATTS)


class Meter(PollingListener):
    """Energy and power of the device.

    Args:
        begin_ns: since when it is counted.
        fault: `reset` (the counter begins anew), `silent` (readings end), `once` (a single reading), `gaps` (readings
            come in heaps), `hangs` (a reading takes seconds), `raises` (the source fails), or nothing.
        at_s: when the fault begins, in seconds after the first reading.
    """

    name = "meter"
    rank = 9
    fields = (
        Field("energy", "energy_j", "J", summary=Summary.GROWTH),
        Field("power", "power_w", "W", summary=Summary.MEAN),
    )

    def __init__(self, interval_ms: int, begin_ns: int = 0, fault: str = "", at_s: float = 1.0) -> None:
        super().__init__(interval_ms)
        self._begin_ns, self._fault, self._at_s = begin_ns, fault, at_s

    @contextmanager
    def source(self, group: RunningGroup) -> Iterator[Callable[[], Iterable[Sample]]]:
        first_ns, times = time.monotonic_ns(), 0

        def read() -> Iterable[Sample]:
            nonlocal times
            times += 1
            passed_s = (time.monotonic_ns() - first_ns) / 1e9
            is_faulty = passed_s > self._at_s
            if is_faulty and self._fault == "raises":
                raise OSError("the driver was unloaded")
            if is_faulty and self._fault == "hangs":
                self._fault = ""
                time.sleep(_HANGS_S)
            if (is_faulty and self._fault == "silent") or (times > 1 and self._fault == "once"):
                return
            if self._fault == "gaps" and int(passed_s) % 2:
                return
            t_ns = time.monotonic_ns()
            since_s = (t_ns - self._begin_ns) / 1e9
            base_j = -energy_j(since_s - passed_s + self._at_s) if is_faulty and self._fault == "reset" else _COUNTED_J
            values = {"energy_j": base_j + energy_j(since_s), "power_w": power_w(since_s)}
            yield Sample(source=self.name, t_ns=t_ns, values=values)

        yield read


class Sensor:
    """The same device as the source of a simulated GPU's readings (`pipeline.simulation.machine.readings`).

    Args:
        begin_ns: as of a meter.
        reset_ns, hangs_ns: when its counter begins anew, and when a reading takes seconds; 0 for never.
    """

    def __init__(self, begin_ns: int, reset_ns: int = 0, hangs_ns: int = 0) -> None:
        self._begin_ns, self._reset_ns, self._hangs_ns = begin_ns, reset_ns, hangs_ns

    def read(self, quantity: Quantity, _gpu: object, instance: object, t_ns: int) -> float | None:
        if instance is not None or quantity not in (Quantity.ENERGY, Quantity.POWER):
            return None
        if self._hangs_ns and t_ns > self._hangs_ns:
            self._hangs_ns = 0
            time.sleep(_HANGS_S)
        since_s = (time.monotonic_ns() - self._begin_ns) / 1e9
        if quantity is Quantity.POWER:
            return power_w(since_s)
        if self._reset_ns and t_ns > self._reset_ns:
            return energy_j(since_s) - energy_j((self._reset_ns - self._begin_ns) / 1e9)
        return _COUNTED_J + energy_j(since_s)
