"""CPU, memory and I/O of every job's processes and of the machine, read from /proc and /sys; Linux only.

One scan of /proc reads the processes of all jobs. psutil would read several files of every process, for each job.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from listeners.base import MIB, PollingListener, scale_readings
from pipeline.base.domain.protocols import RunningGroup
from pipeline.base.domain.samples import Chart, Field, Sample, Summary
from pipeline.base.system.host_info import CpuTicks, ProcessReading, read_cpu_ticks, read_file, read_process

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

    def _count_growth(self, process: ProcessReading, threads: dict[int, _Thread]) -> tuple[int, int]:
        """Return waiting time in ns and preemptions of a process since its threads were last read; update `threads`."""
        tids = [tid for tid, thread in threads.items() if thread.is_awake]
        if len(threads) != process.num_threads or (self._tick + process.pid) % _IDLE_TICKS == 0:
            tids = _tids(process.pid)
            for tid in threads.keys() - set(tids):
                del threads[tid]
        waited_ns = switches = 0
        for tid in tids:
            was = threads.pop(tid, _NEW)
            if (latest := _read(f"/proc/{process.pid}/task/{tid}", was)) is not None:
                threads[tid] = latest
                waited_ns += latest.waited_ns - was.waited_ns
                switches += latest.switches - was.switches
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


MEAN, PEAK, RATE = Summary.MEAN, Summary.PEAK, Summary.RATE
_PCT = "% of one core"
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_SECTOR_BYTES = 512  # Source: Documentation/admin-guide/iostats.rst: 512 for every disk, independent of its sector size
_CLOCK_FILE = "/sys/devices/system/cpu/cpu{}/cpufreq/scaling_cur_freq"
_HAS_CLOCKS = Path(_CLOCK_FILE.format(0)).exists()  # most virtual machines lack the file
# A PSS reading walks every page table of a process and holds its mmap lock (25 us per MiB on a Xeon). Readings are
# limited to 1 % of one core, and to 5 % while a job starts or ends processes.
_PSS_REST_FACTOR = 100
_PSS_REST_FACTOR_OF_OTHERS = 20


def find_job(pid: int, jobs: Mapping[int, int]) -> int | None:
    """Return the job of a process, by its session, or by its ancestor that is the job's leading process."""
    return _job_above(read_process(pid), _map_roots(jobs), read_process)


def _map_roots(jobs: Mapping[int, int]) -> dict[int, int]:
    """Return the job of each leading process; of several jobs in one process, the first."""
    return {root: job for job, root in reversed(list(jobs.items()))}


def _job_above(
    process: ProcessReading | None, roots: Mapping[int, int], find: Callable[[int], ProcessReading | None]
) -> int | None:
    while process is not None:
        job = roots.get(process.session, roots.get(process.pid))
        if job is not None:
            return job
        process = find(process.parent)
    return None


class JobProcesses:
    """The processes of all jobs, from one listing of /proc.

    A process that belongs to no job is read only once, because it cannot join a job later: no process can join an
    existing session, or become a descendant of a job.
    """

    def __init__(self) -> None:
        self._jobs: dict[int, int] = {}
        self._foreign: set[int] = set()
        self._members: dict[int, tuple[int, ProcessReading]] = {}

    def scan(self, jobs: Mapping[int, int]) -> dict[int, dict[int, ProcessReading]]:
        """Return the processes by job and PID, for jobs with processes; `jobs` has the PID of each leading process."""
        if dict(jobs) != self._jobs:
            self._jobs = dict(jobs)
            self._foreign.clear()  # a process of a new job may have counted as foreign before
        if not jobs:
            return {}
        with os.scandir("/proc") as entries:
            listed = {int(entry.name) for entry in entries if entry.name.isdecimal()}
        self._foreign &= listed
        roots = _map_roots(jobs)
        read: dict[int, ProcessReading] = {}
        members: dict[int, tuple[int, ProcessReading]] = {}
        # Parents are read before their children. If a child is reaped after its parent was read, the child's previous
        # reading is used once more. Its CPU time is then counted once: as its own, or later in the parent's counter.
        for pid in sorted(listed - self._foreign):
            process = read_process(pid)
            if process is not None:
                read[pid] = process
                job = self._owner(process, read, roots)
                if job is None:
                    self._foreign.add(pid)
                    continue
                process = _read_traffic(process)
                if process is not None:
                    members[pid] = (job, process)
            if process is None and pid in self._members:
                members[pid] = self._members[pid]
        self._members = members
        processes: dict[int, dict[int, ProcessReading]] = {}
        for pid, (job, process) in members.items():
            processes.setdefault(job, {})[pid] = process
        return processes

    def _owner(
        self, process: ProcessReading, read: Mapping[int, ProcessReading], roots: Mapping[int, int]
    ) -> int | None:
        member = self._members.get(process.pid)
        if member is not None and member[1].start_ticks == process.start_ticks and member[0] in self._jobs:
            return member[0]  # even if its parent has ended, which makes the process a child of init
        return _job_above(process, roots, read.get)


def growth(
    before: Mapping[int, ProcessReading],
    after: Mapping[int, ProcessReading],
    count_own: Callable[[ProcessReading], int],
    count_inherited: Callable[[ProcessReading], int],
) -> int:
    """Return the growth of a process tree's counter between two readings; processes may start and end in between.

    A parent inherits the counter of a child that it reaps. For this reason, the last counter of an ended process is
    subtracted from the inherited counter of its nearest living ancestor. The growth in the last interval is lost only
    for a process that no process of the tree reaps: an orphan, or a child of a process that ignores SIGCHLD.

    Args:
        before: the tree at the first reading, by PID.
        after: the tree at the second reading, by PID.
        count_own: function that returns a process's own counter.
        count_inherited: function that returns the counter of the children that a process has reaped.
    """
    total = 0
    gained: dict[int, int] = {}
    for pid, process in after.items():
        earlier = before.get(pid)
        if earlier is None or earlier.start_ticks != process.start_ticks:
            total += count_own(process) + count_inherited(process)
        else:
            total += count_own(process) - count_own(earlier)
            gained[pid] = count_inherited(process) - count_inherited(earlier)
    for pid, process in before.items():
        if pid in gained:
            continue
        ancestor = process.parent
        while ancestor not in gained and ancestor in before:
            ancestor = before[ancestor].parent
        if ancestor in gained:
            gained[ancestor] -= count_own(process) + count_inherited(process)
    return total + sum(max(amount, 0) for amount in gained.values())


class HostListener(PollingListener):
    """Samples of the processes of each job, and of the machine (`job` is `None`).

    `cpu_pct` of a job is 100 per busy core; `cpu_machine_pct` is 100 if every CPU is busy. Rates and CPU shares are
    means since the previous sample, so the first sample has none. The kernel's clock tick (10 ms) limits their
    resolution. A job's traffic is its traffic with storage, without the page cache. Disks and network interfaces are
    hardware only, so no traffic is counted twice.

    PSS is read as often as its cost allows (below 1 % of a core). `pss_peak_mib` is the maximum since the previous
    sample, which includes short peaks: the sum of the kernel's maxima of resident memory, minus the memory that each
    process shared at its last PSS reading. The field is missing while a process has no PSS reading.

    `busy_cpus` and `idle_cpus` count only the CPUs that this process, and therefore its jobs, may use.

    `process_cpu_pct` is the CPU use of the job's busiest process. `cpu_clock_mhz` is the clock of the CPU on which this
    process last ran. `run_queue_delay_pct` is the time that the job's runnable threads waited for a CPU: 100 per
    waiting thread.
    """

    name = "host"
    of_machine = True
    fields = (
        Field("stat.cpu_s_per_s", "cpu_pct", _PCT, scale=100, summary=RATE, figure="host_cpu_mean_pct"),
        Field("stat.busiest_s_per_s", "process_cpu_pct", _PCT, scale=100, summary=RATE, figure="process_cpu_mean_pct"),
        Field("schedstat.wait_s_per_s", "run_queue_delay_pct", _PCT, scale=100, summary=RATE),
        Field("status.nonvoluntary_ctxt_switches_per_s", "involuntary_switches_per_s", "1/s", summary=RATE),
        Field("cpufreq.scaling_cur_freq", "cpu_clock_mhz", "MHz", scale=1e-3, summary=MEAN),
        # A shared page counts once in PSS, but once per process in RSS.
        Field("smaps_rollup.Pss", "pss_mib", "MiB", scale=1 / 1024, is_live=True),
        Field(
            "status.VmHWM-shared",
            "pss_peak_mib",
            "MiB",
            scale=1 / 1024,
            summary=PEAK,
            figure="host_memory_peak_mib",
        ),
        Field("stat.rss", "rss_mib", "MiB", scale=_PAGE_BYTES / MIB, is_live=True),
        Field("stat", "num_processes", "processes"),
        Field("stat.num_threads", "num_threads", "threads"),
        Field("io.read_bytes_per_s", "read_mib_per_s", "MiB/s", scale=1 / MIB),
        Field("io.write_bytes_per_s", "write_mib_per_s", "MiB/s", scale=1 / MIB),
        Field("/proc/stat.busy_ratio", "cpu_machine_pct", "% of all CPUs", scale=100),
        Field("/proc/stat.busy", "busy_cpus", "CPUs", summary=RATE, figure="busy_mean_cpus"),
        Field("/proc/stat.idle", "idle_cpus", "CPUs", summary=RATE, figure="idle_mean_cpus"),
        Field("/proc/loadavg.1", "load_1min", "processes, mean of 1 min"),
        Field("MemTotal-MemAvailable", "memory_used_mib", "MiB", scale=1 / 1024, chart=Chart()),
        Field("MemAvailable", "memory_available_mib", "MiB", scale=1 / 1024),
        Field("SwapTotal-SwapFree", "swap_used_mib", "MiB", scale=1 / 1024),
        Field("diskstats.read", "disk_read_mib_per_s", "MiB/s", scale=_SECTOR_BYTES / MIB),
        Field("diskstats.written", "disk_write_mib_per_s", "MiB/s", scale=_SECTOR_BYTES / MIB),
        Field("net/dev.received", "network_receive_mib_per_s", "MiB/s", scale=1 / MIB),
        Field("net/dev.sent", "network_send_mib_per_s", "MiB/s", scale=1 / MIB),
    )

    @contextmanager
    def source(self, group: RunningGroup) -> Iterator[Callable[[], Iterable[Sample]]]:
        processes, machine = JobProcesses(), _Machine()
        trees: dict[int, _JobTree] = {}

        def read() -> Iterator[Sample]:
            t_ns = time.monotonic_ns()
            yield Sample(source=self.name, t_ns=t_ns, values=scale_readings(machine.read(t_ns), self.fields))
            jobs = group.pids()
            t_ns = time.monotonic_ns()
            for job, members in processes.scan(jobs).items():
                readings = trees.setdefault(job, _JobTree()).read(t_ns, members, num_jobs=len(jobs))
                yield Sample(source=self.name, t_ns=t_ns, values=scale_readings(readings, self.fields), job=job)

        yield read


@dataclass(slots=True)
class _JobTree:
    """The last reading of one job, for its rates and the timing of its next PSS reading."""

    t_ns: int | None = None
    members: Mapping[int, ProcessReading] = field(default_factory=dict)
    threads: Threads = field(default_factory=Threads)
    memory: _Memory = field(default_factory=lambda: _Memory())

    def read(self, t_ns: int, members: Mapping[int, ProcessReading], num_jobs: int) -> dict[str, float]:
        alive = [process for process in members.values() if not process.is_zombie]
        readings = self.threads.read(t_ns, alive)
        if self.t_ns is not None:
            readings |= self._rates((t_ns - self.t_ns) / 1e9, members)
        self.t_ns, self.members = t_ns, members
        if not alive:
            return readings
        readings["stat"] = len(alive)
        readings["stat.num_threads"] = sum(process.num_threads for process in alive)
        readings["stat.rss"] = sum(process.rss_pages for process in alive)
        return readings | self.memory.read(alive, num_jobs)

    def _rates(self, seconds: float, members: Mapping[int, ProcessReading]) -> dict[str, float]:
        ticks = growth(self.members, members, lambda p: p.thread_ticks, lambda p: p.children_ticks)
        grown = {"stat.cpu_s": ticks / _TICKS_PER_S}
        if all(p.read_bytes is not None for p in (*self.members.values(), *members.values())):
            grown["io.read_bytes"] = growth(self.members, members, lambda _: 0, lambda p: p.read_bytes or 0)
            grown["io.write_bytes"] = growth(self.members, members, lambda _: 0, lambda p: p.write_bytes or 0)
        ticks, busiest = max((self._count_ticks(process), pid) for pid, process in members.items())
        grown["stat.busiest_s"] = ticks / _TICKS_PER_S
        readings = {f"{name}_per_s": amount / seconds for name, amount in grown.items()}
        if _HAS_CLOCKS:
            with suppress(OSError):  # the CPU is offline
                readings["cpufreq.scaling_cur_freq"] = int(read_file(_CLOCK_FILE.format(members[busiest].cpu)))
        return readings

    def _count_ticks(self, process: ProcessReading) -> int:
        earlier = self.members.get(process.pid)
        is_known = earlier is not None and earlier.start_ticks == process.start_ticks
        return process.thread_ticks - (earlier.thread_ticks if earlier is not None and is_known else 0)


@dataclass(slots=True)
class _Memory:
    """The last memory reading of one job's processes, by PID and start time, in KiB."""

    maxima: Mapping[tuple[int, int], int] = field(default_factory=dict)
    shared: Mapping[tuple[int, int], int] = field(default_factory=dict)
    due_ns: int = 0
    due_for_others_ns: int = 0

    def read(self, alive: Iterable[ProcessReading], num_jobs: int) -> dict[str, float]:
        keys = [(process.pid, process.start_ticks) for process in alive]
        resident = {key: memory for key in keys if (memory := _resident_kib(key[0])) is not None}
        maxima = {key: most for key, (_, most) in resident.items()}
        since = {key: most if most > self.maxima.get(key, 0) else current for key, (current, most) in resident.items()}
        self.maxima = maxima
        readings: dict[str, float] = {}
        start_ns = time.monotonic_ns()
        if start_ns >= (self.due_ns if self.shared.keys() == resident.keys() else self.due_for_others_ns):
            pss = {key: _pss_kib(key[0]) for key in resident}
            end_ns = time.monotonic_ns()
            self.due_ns = end_ns + _PSS_REST_FACTOR * num_jobs * (end_ns - start_ns)
            self.due_for_others_ns = end_ns + _PSS_REST_FACTOR_OF_OTHERS * num_jobs * (end_ns - start_ns)
            read = {key: kib for key, kib in pss.items() if kib is not None}
            self.shared = {key: resident[key][0] - kib for key, kib in read.items()}
            if read and len(read) == len(resident):
                readings["smaps_rollup.Pss"] = sum(read.values())
        if resident and self.shared.keys() >= resident.keys():
            readings["status.VmHWM-shared"] = sum(most - self.shared[key] for key, most in since.items())
        return readings


class _Machine:
    """Readings of the whole machine; in a container, readings of the host."""

    def __init__(self) -> None:
        self._before: tuple[int, dict[str, int]] | None = None
        self._cpus = os.sched_getaffinity(0)
        self._ticks = read_cpu_ticks(self._cpus)
        # Only hardware has a `device` entry; partitions, loop devices, bridges and container interfaces have none.
        self._disks = _list_hardware(Path("/sys/block"))
        self._interfaces = _list_hardware(Path("/sys/class/net"))

    def read(self, t_ns: int) -> dict[str, float]:
        memory = {line.split(b":")[0]: int(line.split()[1]) for line in read_file("/proc/meminfo").splitlines()}
        readings: dict[str, float] = {
            "/proc/loadavg.1": float(read_file("/proc/loadavg").split()[0]),
            "MemTotal-MemAvailable": memory[b"MemTotal"] - memory[b"MemAvailable"],
            "MemAvailable": memory[b"MemAvailable"],
            "SwapTotal-SwapFree": memory[b"SwapTotal"] - memory[b"SwapFree"],
        }
        counters, ticks = self._counters(), read_cpu_ticks(self._cpus)
        if self._before is not None:
            before_ns, before = self._before
            grown = {name: counters[name] - before[name] for name in counters if name in before}
            # There is no rate if a counter decreased, because a device was unplugged or the counter wrapped.
            readings.update({name: n / (t_ns - before_ns) * 1e9 for name, n in grown.items() if n >= 0})
            machine, usable = (after.since(before) for after, before in zip(ticks, self._ticks, strict=True))
            readings |= _cpu_readings(machine, usable, len(self._cpus))
        self._before, self._ticks = (t_ns, counters), ticks
        return readings

    def _counters(self) -> dict[str, int]:
        counters: dict[str, int] = {}
        if self._disks:
            rows = [line.split() for line in read_file("/proc/diskstats").splitlines()]
            rows = [row for row in rows if row[2] in self._disks]
            counters["diskstats.read"] = sum(int(row[5]) for row in rows)
            counters["diskstats.written"] = sum(int(row[9]) for row in rows)
        if self._interfaces:
            lines = [line.split(b":", 1) for line in read_file("/proc/net/dev").splitlines()[2:]]
            rows = [columns.split() for name, columns in lines if name.strip() in self._interfaces]
            counters["net/dev.received"] = sum(int(row[0]) for row in rows)
            counters["net/dev.sent"] = sum(int(row[8]) for row in rows)
        return counters


def _cpu_readings(machine: CpuTicks, usable: CpuTicks, num_cpus: int) -> dict[str, float]:
    readings = {}
    if (ratio := machine.busy_ratio) is not None:
        readings["/proc/stat.busy_ratio"] = ratio
    if (ratio := usable.busy_ratio) is not None:
        readings |= {"/proc/stat.busy": ratio * num_cpus, "/proc/stat.idle": (1 - ratio) * num_cpus}
    return readings


def _list_hardware(folder: Path) -> set[bytes]:
    return {path.parent.name.encode() for path in folder.glob("*/device")}


def _read_traffic(process: ProcessReading) -> ProcessReading | None:
    """Return the process with its storage traffic, if readable; `None` if the process has ended."""
    try:
        lines = read_file(f"/proc/{process.pid}/io").splitlines()
    except PermissionError:
        return process
    except (FileNotFoundError, ProcessLookupError):
        return None
    counters = dict(line.split(b": ") for line in lines)
    return process._replace(read_bytes=int(counters[b"read_bytes"]), write_bytes=int(counters[b"write_bytes"]))


def _resident_kib(pid: int) -> tuple[int, int] | None:
    """Return the resident memory of a process and its maximum, in KiB; `None` if the process has just ended."""
    try:
        lines = read_file(f"/proc/{pid}/status").splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return None
    sizes = {name: int(line.split()[1]) for line in lines for name in (b"VmRSS", b"VmHWM") if line.startswith(name)}
    return (sizes[b"VmRSS"], sizes[b"VmHWM"]) if len(sizes) == 2 else None


def _pss_kib(pid: int) -> int | None:
    """Return the proportional set size of a process in KiB; `None` if the process has just ended or is not readable."""
    try:
        lines = read_file(f"/proc/{pid}/smaps_rollup").splitlines()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    return sum(int(line.split()[1]) for line in lines if line.startswith(b"Pss:"))
