"""Lease of a device: one orchestrator holds the device, and no process of another program is on it.

The lock is an flock on a file that every user of the machine can open. The kernel releases the lock when its holder
exits for any reason. Child processes do not inherit it, because Python opens files close-on-exec.
"""

from __future__ import annotations

import json
import os
import re
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from pipeline.base.domain import layout
from pipeline.base.domain.records import Device
from pipeline.base.system import host_info, locks
from pipeline.base.system.command_parser import choose_remedy
from pipeline.base.system.errors import GpuBusyError, InUseError
from pipeline.prepare.device import gpu_reader

# A query for the holder locks the file for a short time, which a lease waits for. Unit: s.
_PATIENCE_S = 0.3
_LOOK_S = 0.02
_MOST_BYTES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Holder of a device, from its entry in the lock file; in a container, its PID differs from the PID on the host."""

    pid: int | None = None
    user: str | None = None
    folder: str | None = None

    def __str__(self) -> str:
        who = self.user or "somebody"
        return f"{who} (pid {self.pid or 'unknown'}, started in {self.folder or 'an unknown folder'})"


@contextmanager
def hold(device: Device, folder: Path) -> Iterator[None]:
    """Hold the device for this process; all users must use the same folder, because each lock is a file in it.

    For a MIG device, its GPU is also held, with a lock that is shared with holders of other MIG devices: meanwhile no
    orchestrator can hold the whole GPU.

    Raises:
        InUseError: another orchestrator holds the device.
        GpuBusyError: the lock file cannot be used.
    """
    _check_folder(folder)
    with ExitStack() as stack:
        if device.parent is not None:
            stack.callback(os.close, _lock(_find_path(folder, device.parent), device, is_shared=True))
        stack.enter_context(_hold_alone(_find_path(folder, device.uuid), device))
        yield


@contextmanager
def _hold_alone(path: Path, device: Device) -> Iterator[None]:
    descriptor = _lock(path, device)
    try:
        holder = {"pid": os.getpid(), "user": host_info.user_name(), "folder": str(Path.cwd())}
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(holder).encode(), 0)
        yield
    finally:
        os.ftruncate(descriptor, 0)
        os.close(descriptor)


def find_holder(device_uuid: str, folder: Path) -> Holder | None:
    """Find the holder of a device; `None` if the device is free. Does not hold the device."""
    return _find_blocker(_find_path(folder, device_uuid), is_shared=True)


def describe_holder(device: Device, folder: Path) -> str | None:
    """Describe the holder of a device, or the holders of a GPU's MIG devices; `None` if all are free."""
    if (owner := find_holder(device.uuid, folder)) is not None:
        return str(owner)
    return "; ".join(f"{who} on {uuid}" for uuid, who in find_part_holders(device, folder).items()) or None


def find_part_holders(device: Device, folder: Path) -> dict[str, Holder]:
    """Find the holders of a GPU's MIG devices by UUID; the lock file of the GPU does not name these holders."""
    if not device.mig_enabled:
        return {}
    from pipeline.prepare.device import nvml

    holders = {part.uuid: find_holder(part.uuid, folder) for part in nvml.list_mig_devices(device)}
    return {uuid: who for uuid, who in holders.items() if who is not None}


def refuse_strangers(device: Device, tolerate: Sequence[str]) -> str:
    """Raise InUseError if a process that is not tolerated is on a GPU, because it would affect the measurement.

    Returns a note if the driver cannot list the processes, else an empty text.
    """
    if not device.is_gpu:
        return ""

    def strangers() -> Sequence[gpu_reader.GpuProcess]:
        return gpu_reader.list_staying_processes(device.uuid, lambda process: process.name not in tolerate)

    try:
        processes = strangers()
    except gpu_reader.UnlistedProcessesError:
        return (
            f"the driver cannot list the processes on {device.name}, as in WSL: other programs on the GPU, and jobs "
            "that do not reach it, are not noticed"
        )
    if processes:
        listed = ", ".join(map(str, processes))
        remedy = choose_remedy(
            "end these processes, wait with wait=true, choose another GPU with gpu.device, or accept programs with "
            "little load: 'gpu.tolerate=[NAME]'",
            "end these processes, or choose another GPU with --gpu",
        )
        raise InUseError(
            f"{device.name} ({device.uuid}) is in use by {listed}; {remedy}",
            f"{device.name} ({device.uuid}), which is in use by {listed}",
            lambda: not strangers(),
        )
    return ""


def _find_path(folder: Path, device_uuid: str) -> Path:
    return folder / f"{layout.SHARED_PREFIX}{re.sub('[^A-Za-z0-9-]', '_', device_uuid)}.lock"


def _check_folder(folder: Path) -> None:
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        problem = "is not writable" if folder.is_dir() else "does not exist"
        raise GpuBusyError(
            f"{choose_remedy('gpu.lock_dir=', '--lock-dir ')}{folder} {problem}; choose a folder that survives a "
            "restart and is writable for every user"
        )


def _lock(path: Path, device: Device, *, is_shared: bool = False) -> int:
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        descriptor = _open(path, device)
        if not locks.try_take(descriptor, is_shared=is_shared):
            os.close(descriptor)
            if time.monotonic() < deadline:
                time.sleep(_LOOK_S)
                continue
            other = _find_blocker(path, is_shared=True) or describe_holder(device, path.parent) or Holder()
            remedy = choose_remedy(
                "wait with wait=true, or choose another device with gpu.device",
                "wait until it ends, or choose another device with --gpu",
            )
            raise InUseError(
                f"{device.name} ({device.uuid}) is in use by another study of {other} (lock file {path}); {remedy}",
                f"{device.name} ({device.uuid}), which is held by {other}",
                lambda: _find_blocker(path, is_shared=is_shared) is None,
            )
        try:
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                os.utime(descriptor)  # cleaners of temporary folders remove only old files
                return descriptor
        except FileNotFoundError:
            pass
        os.close(descriptor)  # the file was removed between opening and locking, so its lock has no effect


def _find_blocker(path: Path, *, is_shared: bool) -> Holder | None:
    """Find the holder that prevents an exclusive or shared lock; `None` if there is none."""
    try:
        # O_NONBLOCK avoids waiting if the path is a named pipe.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        return None if locks.try_take(descriptor, is_shared=is_shared) else _read_holder(descriptor)
    finally:
        os.close(descriptor)


def _read_holder(descriptor: int) -> Holder:
    """Read the holder from the lock file, which every user can write."""
    with suppress(OSError, ValueError, AttributeError):
        content = json.loads(os.pread(descriptor, _MOST_BYTES, 0))
        pid, user, folder = (content.get(key) for key in ("pid", "user", "folder"))
        return Holder(
            pid=pid if isinstance(pid, int) else None, user=_keep_printable(user), folder=_keep_printable(folder)
        )
    return Holder()


def _keep_printable(text: object) -> str | None:
    return text if isinstance(text, str) and text.isprintable() else None


def _open(path: Path, device: Device) -> int:
    """Open or create the lock file; O_CREAT is used last, because in sticky folders it fails on other users' files."""
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        try:
            descriptor = os.open(path, flags)
        except FileNotFoundError:
            try:
                descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666)
                os.fchmod(descriptor, 0o666)  # independent of the umask: other users lock it too
            except FileExistsError:
                descriptor = os.open(path, flags)
    except OSError as error:
        raise GpuBusyError(
            f"cannot open the lock file {path} of {device.name}: {error.strerror}; remove the lock file if it is not a "
            f"plain file that every user can write, or choose another {choose_remedy('gpu.lock_dir', '--lock-dir')}"
        ) from error
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:  # otherwise another user's file would be truncated
        os.close(descriptor)
        raise GpuBusyError(f"the lock file {path} of {device.name} is not a plain file with one link; remove it")
    return descriptor
