"""A listener whose device takes exactly 100 W, and which can fail as NVML does: docs/reliability.md."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from listeners.base import PollingListener
from pipeline.base.protocols import Watch
from pipeline.base.samples import Field, Sample, Summary

WATTS = 100.0


class Meter(PollingListener):
    """Energy and power of the device.

    Args:
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

    def __init__(self, interval_ms: int, fault: str = "", at_s: float = 1.0) -> None:
        super().__init__(interval_ms)
        self._fault, self._at_s = fault, at_s

    @contextmanager
    def source(self, watch: Watch) -> Iterator[Callable[[], Iterable[Sample]]]:
        begin_ns, times = time.monotonic_ns(), 0

        def read() -> Iterable[Sample]:
            nonlocal times
            times += 1
            t_ns = time.monotonic_ns()
            since_s = (t_ns - begin_ns) / 1e9
            is_faulty = since_s > self._at_s
            base_j = 1e6
            if is_faulty and self._fault == "raises":
                raise OSError("the driver was unloaded")
            if is_faulty and self._fault == "hangs":
                self._fault = ""
                time.sleep(2.5)
            if is_faulty and self._fault == "reset":
                base_j = -WATTS * self._at_s
            if (is_faulty and self._fault == "silent") or (times > 1 and self._fault == "once"):
                return
            if self._fault == "gaps" and int(since_s) % 2:
                return
            yield Sample(source=self.name, t_ns=t_ns, values={"energy_j": base_j + WATTS * since_s, "power_w": WATTS})

        yield read
