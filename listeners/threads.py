"""CPU waiting times and preemptions of the threads of a job, from /proc; Linux only."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

from pipeline.base.system.host_info import ProcessReading, read_file

# A thread that has not run is read again only after this number of ticks, because most threads of a job sleep.
_IDLE_TICKS = 16
_NOT_COUNTED = b"0 0 0\n"


class Threads:
    """The threads of one job; sleeping threads are read rarely."""

    def __init__(self) -> None:
        self._tick = 0
        self._t_ns: int | None = None
        self._known: dict[int, dict[int, _Thread]] = {}

    def read(self, t_ns: int, processes: Sequence[ProcessReading]) -> dict[str, float]:
        """Return waiting time and preemptions per second since the previous reading, by the source ids of the fields.

        The result is empty at the first reading, and if the kernel counts neither. A new thread counts from its start;
        the last interval of an ended thread is lost.
        """
        self._tick += 1
        before_ns, self._t_ns, was_counted = self._t_ns, t_ns, any(self._known.values())
        self._known = {process.pid: self._known.get(process.pid, {}) for process in processes}
        grown = [self._count_growth(process, self._known[process.pid]) for process in processes]
        if before_ns is None or not was_counted or not any(self._known.values()):
            return {}
        seconds = (t_ns - before_ns) / 1e9
        return {
            "schedstat.wait_s_per_s": sum(waited_ns for waited_ns, _ in grown) / 1e9 / seconds,
            "status.nonvoluntary_ctxt_switches_per_s": sum(switches for _, switches in grown) / seconds,
        }

    def _count_growth(self, process: ProcessReading, known: dict[int, _Thread]) -> tuple[int, int]:
        """Return waiting time in ns and preemptions of a process since its threads were last read; update `known`."""
        tids = [tid for tid, thread in known.items() if thread.is_awake]
        if len(known) != process.num_threads or (self._tick + process.pid) % _IDLE_TICKS == 0:
            tids = _tids(process.pid)
            for tid in known.keys() - set(tids):
                del known[tid]
        waited_ns = switches = 0
        for tid in tids:
            was = known.pop(tid, _NEW)
            if (now := _read(f"/proc/{process.pid}/task/{tid}", was)) is not None:
                known[tid] = now
                waited_ns += now.waited_ns - was.waited_ns
                switches += now.switches - was.switches
        return waited_ns, switches


class _Thread(NamedTuple):
    schedstat: bytes
    waited_ns: int
    switches: int
    is_awake: bool


_NEW = _Thread(b"", 0, 0, is_awake=True)


def _tids(pid: int) -> list[int]:
    try:
        with os.scandir(f"/proc/{pid}/task") as entries:
            return [int(entry.name) for entry in entries]
    except (FileNotFoundError, ProcessLookupError):
        return []


def _read(folder: str, before: _Thread) -> _Thread | None:
    """Return the current reading of a thread; `None` if the thread has ended or the kernel does not count."""
    try:
        text = read_file(f"{folder}/schedstat")
        if before.schedstat == text:  # the thread has not run, so the longer `status` file is unchanged, too
            return before._replace(is_awake=False) if before.is_awake else before
        if text == _NOT_COUNTED:
            return None
        status = read_file(f"{folder}/status")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # Source: proc_pid_schedstat(5): ns on a CPU, ns waiting for one, time slices.
    return _Thread(text, int(text.split()[1]), int(status[status.rindex(b":") + 1 :]), is_awake=True)
