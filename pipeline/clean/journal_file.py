"""File of JSON lines that only its user can have written; each line is on disk before the writer continues.

The file's folder is writable only by this user, so another user cannot move a file there, even a file that root owns.
Other users may read the file, to see that steps are left. Every failure is a `JournalError`.
"""

from __future__ import annotations

import json
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any

from pipeline.base.system import entry_points
from pipeline.base.system.command_parser import choose_remedy
from pipeline.base.system.errors import CollocationError

# The sticky bit protects the file from systemd-tmpfiles, which removes old files of /var/tmp. Source: its function
# dir_cleanup; XDG Base Directory Specification, XDG_RUNTIME_DIR.
_FILE_MODE = 0o1644
_REMOVE = f"check it, then remove it; {entry_points.spell('gpu', 'clean')} reads only files that nobody else can write"


class JournalError(CollocationError):
    """A journal cannot be read, written or carried out; the device may still have changes of a study."""


def read(path: Path) -> list[bytes]:
    """Read the complete lines; none if the file does not exist."""
    try:
        descriptor = _open(path, os.O_RDONLY)
    except FileNotFoundError:
        return []
    try:
        return _read_complete_lines(descriptor).splitlines()
    finally:
        os.close(descriptor)


def append(path: Path, record: dict[str, Any]) -> None:
    """Append a line and wait until it is on disk; create the file and its folder if they do not exist."""
    line = json.dumps(record).encode() + b"\n"
    try:
        descriptor = _open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
    except FileNotFoundError as error:
        raise JournalError(
            f"{path.parent.parent} does not exist; create it, or choose another folder with "
            f"{choose_remedy('gpu.lock_dir', '--lock-dir')}"
        ) from error
    try:
        os.fchmod(descriptor, _FILE_MODE)
        # A process that was killed while it wrote leaves an incomplete line; the change of its step was not made.
        length = len(_read_complete_lines(descriptor))
        os.ftruncate(descriptor, length)
        if os.write(descriptor, line) != len(line):
            os.ftruncate(descriptor, length)
            raise JournalError(f"cannot write the journal {path}: the disk is full; free some space")
        os.fsync(descriptor)
        _sync_folder(path.parent)
    except OSError as error:
        raise JournalError(f"cannot write the journal {path}: {error.strerror}") from error
    finally:
        os.close(descriptor)


def remove(path: Path) -> None:
    """Remove the file, if it exists."""
    try:
        path.unlink()
        _sync_folder(path.parent)
    except FileNotFoundError:
        return
    except OSError as error:
        raise JournalError(f"cannot remove the journal {path}: {error.strerror}") from error


def move(path: Path, to: Path) -> None:
    """Rename the file atomically within its folder; no file of the new name may exist."""
    try:
        path.rename(to)
        _sync_folder(path.parent)
    except OSError as error:
        raise JournalError(f"cannot rename the journal {path} to {to.name}: {error.strerror}") from error


def _open(path: Path, flags: int) -> int:
    folder = _open_folder(path.parent, is_made=bool(flags & os.O_CREAT))
    try:
        # Without O_NONBLOCK, a pipe with the name of the journal would block the call.
        flags |= os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        descriptor = os.open(path.name, flags, 0o644, dir_fd=folder)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise JournalError(f"cannot open the journal {path}: {error.strerror}; {_REMOVE}") from error
    finally:
        os.close(folder)
    status = os.fstat(descriptor)
    if not (stat.S_ISREG(status.st_mode) and status.st_nlink == 1 and _is_private(status)):
        os.close(descriptor)
        raise JournalError(f"the journal {path} is not a regular file, or other users can write to it; {_REMOVE}")
    return descriptor


def _open_folder(folder: Path, *, is_made: bool) -> int:
    try:
        if is_made:
            with suppress(FileExistsError):
                folder.mkdir(0o755)
                folder.chmod(0o755)  # despite the umask, because other users must be able to see leftover steps
                _sync_folder(folder.parent)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise JournalError(f"cannot open the folder {folder} of the journals: {error.strerror}; {_REMOVE}") from error
    if not _is_private(os.fstat(descriptor)):
        os.close(descriptor)
        raise JournalError(f"{folder} is not a folder, or other users can write to it; {_REMOVE}")
    return descriptor


def _is_private(status: os.stat_result) -> bool:
    return status.st_uid == os.geteuid() and not status.st_mode & 0o022


def _read_complete_lines(descriptor: int) -> bytes:
    content = os.pread(descriptor, os.fstat(descriptor).st_size, 0)
    return content[: content.rfind(b"\n") + 1]


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
