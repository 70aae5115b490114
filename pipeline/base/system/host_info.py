"""This machine and its users: CPUs and memory, boot, user name, processes from /proc (Linux)."""

from __future__ import annotations

import getpass
import os
import platform
import re
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

BOOT_ID_FILE = Path("/proc/sys/kernel/random/boot_id")
MACHINE_ID_FILES = (Path("/etc/machine-id"), Path("/var/lib/dbus/machine-id"))
_MACHINE_ID = re.compile("[0-9a-f]{32}")
CPU_PREFIX = "CPU-"
"""Prefix of the UUID of a device that is not a GPU."""
_SYSTEM = Path("/sys/devices/system")


class ProcessReading(NamedTuple):
    """One reading of /proc/PID/stat.

    Attributes:
        start_ticks: start of the process in clock ticks since boot; distinguishes two processes with the same PID.
        thread_ticks: CPU time of all threads, including ended ones, in clock ticks.
        children_ticks: CPU time of the reaped children and, recursively, of their reaped children.
        rss_pages: resident memory; the kernel's approximation, off by a few pages per thread.
        cpu: number of the CPU on which the process last ran.
        read_bytes, write_bytes: storage traffic, including reaped children; `None` if not read or not permitted.
    """

    pid: int
    parent: int
    session: int
    start_ticks: int
    thread_ticks: int
    children_ticks: int
    num_threads: int
    rss_pages: int
    cpu: int
    is_zombie: bool
    read_bytes: int | None = None
    write_bytes: int | None = None


def read_process(pid: int) -> ProcessReading | None:
    """Read a process; `None` if it has ended or is hidden. Source of the columns: proc_pid_stat(5)."""
    try:
        text = read_file(f"/proc/{pid}/stat")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    # The second column is the program's name in parentheses, which may contain blanks and parentheses.
    columns = text[text.rindex(b")") + 2 :].split()
    return ProcessReading(
        pid=pid,
        parent=int(columns[1]),
        session=int(columns[3]),
        start_ticks=int(columns[19]),
        thread_ticks=int(columns[11]) + int(columns[12]),
        children_ticks=int(columns[13]) + int(columns[14]),
        num_threads=int(columns[17]),
        rss_pages=int(columns[21]),
        cpu=int(columns[36]),
        is_zombie=columns[0] in (b"Z", b"X"),
    )


def read_file(path: str) -> bytes:
    """Read a file of /proc in two thirds of the time of `open` (9 us instead of 13 us)."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return b"".join(iter(lambda: os.read(descriptor, 65536), b""))
    finally:
        os.close(descriptor)


class CpuTicks(NamedTuple):
    """CPU time of some CPUs since boot, in clock ticks; time stolen by a hypervisor counts as busy."""

    busy: int
    idle: int

    def since(self, before: CpuTicks) -> CpuTicks:
        return CpuTicks(self.busy - before.busy, self.idle - before.idle)

    @property
    def busy_ratio(self) -> float | None:
        return self.busy / sum(self) if sum(self) > 0 else None


def read_cpu_ticks(cpus: Collection[int] = ()) -> tuple[CpuTicks, CpuTicks]:
    """Read the CPU time of all CPUs, and of the CPUs with the given numbers. Source of the columns: proc_stat(5)."""
    text = read_file("/proc/stat")
    names = {f"cpu{number}".encode() for number in cpus}
    all_ticks, some_ticks = CpuTicks(0, 0), CpuTicks(0, 0)
    for line in text.splitlines():
        if not line.startswith(b"cpu"):
            break
        name, *columns = line.split()
        # user nice system idle iowait irq softirq steal; guest time is included in user and nice
        ticks = [int(column) for column in columns[:8]]
        idle = ticks[3] + ticks[4]
        if name == b"cpu":
            all_ticks = CpuTicks(sum(ticks) - idle, idle)
        elif name in names:
            some_ticks = CpuTicks(some_ticks.busy + sum(ticks) - idle, some_ticks.idle + idle)
    return all_ticks, some_ticks


class CpuUse(NamedTuple):
    """Cumulative use of the CPUs that are available to this process.

    Attributes:
        t_ns: monotonic instant of the reading.
        ticks: CPU time of these CPUs.
        process_s: CPU time of this process and its descendants, in seconds.
    """

    t_ns: int
    ticks: CpuTicks
    process_s: float

    def foreign_since(self, before: CpuUse) -> float:
        """Return how many of these CPUs other programs used on average since an earlier reading."""
        busy_s = self.ticks.since(before.ticks).busy / os.sysconf("SC_CLK_TCK")
        seconds = (self.t_ns - before.t_ns) / 1e9
        return max(0.0, busy_s - (self.process_s - before.process_s)) / seconds if seconds > 0 else 0.0


def read_cpu_use() -> CpuUse:
    """Read the use of this process's CPUs, by itself and by all processes."""
    import psutil

    own_s, this = 0.0, psutil.Process()
    for process in (this, *this.children(recursive=True)):
        with suppress(psutil.Error):
            own_s += sum(process.cpu_times()[:4])  # user and system time of itself and of reaped children
    _, ticks = read_cpu_ticks(os.sched_getaffinity(0))
    return CpuUse(time.monotonic_ns(), ticks, own_s)


def describe_load() -> str:
    """Describe how many programs compete for CPUs: `load 14 on 2 CPUs`."""
    return f"load {os.getloadavg()[0]:.2g} on {len(os.sched_getaffinity(0))} CPUs"


def user_name() -> str:
    """Return the user's name; the user's number if the system has no name, as in many containers."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def boot_id() -> str:
    """Return the id of this boot; empty if the system has none."""
    try:
        return BOOT_ID_FILE.read_text(encoding="ascii").strip()
    except OSError:
        return ""


def machine_id() -> str:
    """Return the machine id assigned by systemd or D-Bus at installation; empty if there is none.

    A container has the machine id of its image, which is often empty or missing.
    """
    for file in MACHINE_ID_FILES:
        with suppress(OSError, UnicodeDecodeError):
            text = file.read_text(encoding="ascii").strip()
            if _MACHINE_ID.fullmatch(text) and set(text) != {"0"}:  # `uninitialized` or zeros: not set
                return text
    return ""


def describe_machine() -> dict[str, str]:
    """Describe CPU model, sockets, NUMA nodes, memory and operating system; unknown values are missing.

    In a virtual machine or container, these are the values that it reports.
    """
    sockets = {path.read_text() for path in _SYSTEM.glob("cpu/cpu[0-9]*/topology/physical_package_id")}
    facts = {
        "cpu_model": cpu_model(),
        "cpu_sockets": str(len(sockets) or ""),
        "numa_nodes": str(len(list(_SYSTEM.glob("node/node[0-9]*"))) or ""),
        "memory_mib": str(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2**20),
    }
    with suppress(OSError):
        facts["os"] = platform.freedesktop_os_release().get("PRETTY_NAME", "")
    return {name: value for name, value in facts.items() if value}


def cpu_model() -> str:
    """Return the name of the CPUs of this machine."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


_PROC = Path("/proc")
_OOM_KILLS = "oom_kill"


def count_oom_kills() -> int | None:
    """Count the kills by the kernel's out-of-memory killer in the control group; `None` if not readable.

    Source: `memory.events` of version 2, which includes groups below, and `memory.oom_control` of version 1 (kernel
    4.13). The root group of version 2 has neither file; the count of the machine is then returned.
    """
    for file in _list_files():
        with suppress(OSError, ValueError):
            for line in file.read_text(encoding="ascii").splitlines():
                name, _, number = line.partition(" ")
                if name == _OOM_KILLS:
                    return int(number)
    return None


def _list_files() -> list[Path]:
    """List the files that may have the count, the most specific first."""
    try:
        # Source: cgroups(7), proc_pid_mountinfo(5).
        groups = [line.split(":", 2) for line in (_PROC / "self/cgroup").read_text("utf-8").splitlines()]
        mounts = [line.split(" ") for line in (_PROC / "self/mountinfo").read_text("utf-8").splitlines()]
    except (OSError, ValueError):
        return []
    files: list[Path] = []
    is_root = False
    for number, controllers, path in groups:
        is_newer = number == "0" and not controllers
        if not is_newer and "memory" not in controllers.split(","):
            continue
        for mount in mounts:
            kind, _, options = mount[mount.index("-") + 1 :][:3]
            if kind == "cgroup2" and is_newer:
                is_root = is_root or path == "/" == mount[3]
                files.append(_locate_group(mount, path) / "memory.events")
            elif kind == "cgroup" and not is_newer and "memory" in options.split(","):
                files.append(_locate_group(mount, path) / "memory.oom_control")
    return [*files, _PROC / "vmstat"] if is_root and not any(file.exists() for file in files) else files


def _locate_group(mount: list[str], path: str) -> Path:
    """Return the folder of a group below a mount point, at which only a portion of the hierarchy may be mounted."""
    root, point = mount[3], mount[4]
    shown = path.removeprefix(root if path.startswith(root) else path)
    return Path(point) / shown.lstrip("/")
