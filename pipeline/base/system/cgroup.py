"""Number of processes in this process's control group that the kernel has killed for lack of memory.

The control group and the groups below it contain the jobs, unless a job moves itself to another group.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

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
