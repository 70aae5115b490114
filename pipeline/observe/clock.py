"""The clocks of the machine while a group runs: steps of the wall clock, and times in which this process was suspended.

Durations are differences of the monotonic clock. Instants in wall time (metrics of MLflow and TensorBoard, modification
times) are converted by the offset between the two clocks at that instant, because NTP, a user or a resumed virtual
machine may set the wall clock.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pipeline.observe.sample_figures import Window

_TICK_NS = 100_000_000
_DRIFT_NS = 1_000_000  # slewing changes the offset by less than this in a tick
STEP_NS = 5_000_000
"""A larger change of the offset within one tick is a step of the wall clock; slewing changes the offset by less."""
PAUSE_NS = 100_000_000
"""A thread was suspended if it wakes later than this, apart from its wait for a CPU and for work of this process."""
_UNKNOWN_PAUSE_NS = 1_000_000_000  # the same limit if the kernel does not report how long a thread waited for a CPU
_READ_NS = 20_000  # reading both clocks takes a fraction of this, unless the thread is interrupted


@dataclass(frozen=True, slots=True)
class ClockRecord:
    """Offsets and pauses of the clocks of a group.

    Attributes:
        offsets: monotonic instants, each with the wall clock's offset from that instant on.
        pauses: monotonic instants at which a suspension of this process began and ended.
        end_ns: end of the record, as a monotonic instant.
    """

    offsets: Sequence[Window] = ((0, 0),)
    pauses: Sequence[Window] = ()
    end_ns: float = math.inf

    def wall_ns(self, t_ns: int) -> int:
        """Convert a monotonic instant to wall time."""
        before = [offset_ns for since_ns, offset_ns in self.offsets if since_ns <= t_ns]
        return t_ns + (before[-1] if before else self.offsets[0][1])

    def find_instants_ns(self, wall_ns: int) -> list[int]:
        """Find the monotonic instants of a wall time: several if the clock was set back.

        For a wall time that the clock skipped, the result is the instant at which the clock was set forward.
        """
        begins = [-math.inf, *(since_ns for since_ns, _ in self.offsets[1:])]
        instants = [
            wall_ns - offset_ns
            for begin_ns, end_ns, (_, offset_ns) in zip(begins, [*begins[1:], self.end_ns], self.offsets, strict=True)
            if begin_ns <= wall_ns - offset_ns < end_ns
        ]
        skipped = (since_ns for since_ns, offset_ns in self.offsets[1:] if wall_ns < since_ns + offset_ns)
        return instants or [next(skipped, wall_ns - self.offsets[-1][1])]

    def convert_in_order_ns(self, wall_ns: Iterable[int]) -> list[int]:
        """Convert wall times that were read one after another to monotonic instants."""
        instants: list[int] = []
        for stamp_ns in wall_ns:
            candidates = self.find_instants_ns(stamp_ns)
            last_ns = instants[-1] if instants else candidates[0]
            instants.append(next((t_ns for t_ns in candidates if t_ns >= last_ns), candidates[-1]))
        return instants

    def find_step_s(self, window: Window) -> float:
        """Return the largest step of the wall clock in a window, in seconds; 0 without any."""
        steps = [
            (after_ns - before_ns) / 1e9
            for (_, before_ns), (t_ns, after_ns) in itertools.pairwise(self.offsets)
            if window[0] <= t_ns <= window[1] and abs(after_ns - before_ns) > STEP_NS
        ]
        return max(steps, key=abs, default=0.0)

    def sum_pauses_s(self, window: Window) -> float:
        """Return how long this process was suspended in a window, in seconds."""
        shares = (min(end_ns, window[1]) - max(begin_ns, window[0]) for begin_ns, end_ns in self.pauses)
        return sum(max(0, share_ns) for share_ns in shares) / 1e9


class ClockWatch:
    """A context in which a thread reads the clocks ten times a second."""

    def __init__(self) -> None:
        self._offsets: list[Window] = [(time.monotonic_ns(), _read_offset_ns())]
        self._pauses: list[Window] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="clock", daemon=True)

    @property
    def record(self) -> ClockRecord:
        return ClockRecord(tuple(self._offsets), tuple(self._pauses), time.monotonic_ns())

    def __enter__(self) -> ClockWatch:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()
        self._note_offset(time.monotonic_ns())

    def _run(self) -> None:
        with contextlib.ExitStack() as stack:
            waited = _CpuWait(stack)
            before_ns, explained_ns = time.monotonic_ns(), waited.read_ns()
            while not self._stop.wait(_TICK_NS / 1e9):
                now_ns, now_explained_ns = time.monotonic_ns(), waited.read_ns()
                late_ns = now_ns - before_ns - _TICK_NS - (now_explained_ns - explained_ns)
                if late_ns > (PAUSE_NS if waited.is_known else _UNKNOWN_PAUSE_NS):
                    self._pauses.append((now_ns - late_ns, now_ns))
                self._note_offset(now_ns)
                before_ns, explained_ns = now_ns, now_explained_ns

    def _note_offset(self, now_ns: int) -> None:
        offset_ns = _read_offset_ns()
        if abs(offset_ns - self._offsets[-1][1]) > _DRIFT_NS:
            self._offsets.append((now_ns, offset_ns))


class _CpuWait:
    """The time that this thread waited for a CPU, if known, or for other threads of this process."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self._file: int | None = None
        with contextlib.suppress(OSError):
            self._file = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
            stack.callback(os.close, self._file)

    @property
    def is_known(self) -> bool:
        return self._file is not None

    def read_ns(self) -> int:
        waited_ns = int(os.pread(self._file, 128, 0).split()[1]) if self._file is not None else 0
        return waited_ns + time.process_time_ns()


def _read_offset_ns() -> int:
    """Read the wall clock's offset; repeat up to five times if reading both clocks takes too long."""
    readings = []
    for _ in range(5):
        before_ns, wall_ns, after_ns = time.monotonic_ns(), time.time_ns(), time.monotonic_ns()
        readings.append((after_ns - before_ns, wall_ns - (before_ns + after_ns) // 2))
        if after_ns - before_ns < _READ_NS:
            break
    return min(readings)[1]
