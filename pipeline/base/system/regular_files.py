"""Reading of files that a job may have created or replaced, without following links or blocking on a pipe."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class FolderContent:
    """The content of a folder: regular files, the deepest last, and entries that are neither file nor folder."""

    files: tuple[Path, ...]
    special_files: tuple[Path, ...]


def open_regular_file(path: Path) -> int:
    """Open a regular file for reading and return its descriptor.

    Raises:
        OSError: the file is not readable, or is a link, a pipe or similar.
    """
    # Non-blocking, because opening a pipe would otherwise wait for a writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return descriptor


def measure_size(path: Path) -> int:
    """Return the size of a readable regular file; raises `OSError` as `open_regular_file` does."""
    with os.fdopen(open_regular_file(path), "rb") as file:
        return os.fstat(file.fileno()).st_size


def read_bytes(path: Path) -> bytes:
    """Read a regular file; raises `OSError` as `open_regular_file` does."""
    with os.fdopen(open_regular_file(path), "rb") as file:
        return file.read()


def read_text(path: Path) -> str:
    """Read a regular file as text; bytes that are not UTF-8 are replaced."""
    return read_bytes(path).decode(errors="replace")


def read_line_blocks(path: Path, num_bytes: int) -> Iterator[bytes]:
    """Yield a regular file in blocks of complete lines, each of about this many bytes; the last line may be truncated.

    A longer line is cut to this number of bytes, without its line end. Raises `OSError` as `open_regular_file` does.
    """
    with os.fdopen(open_regular_file(path), "rb") as file:
        partial_line = b""
        while block := file.read(num_bytes):
            block = partial_line + block
            end = block.rfind(b"\n") + 1
            partial_line = block[end:]
            if end:
                yield block[:end]
            elif len(block) >= num_bytes:
                yield block[:num_bytes]
                while block and b"\n" not in block:
                    block = file.read(num_bytes)
                partial_line = block.partition(b"\n")[2]
        if partial_line:
            yield partial_line


def list_files(folder: Path, without: Collection[Path] = ()) -> FolderContent:
    """List everything below a folder except some paths; links and unreadable folders are not followed."""
    files: list[Path] = []
    special_files: list[Path] = []
    folders = [] if folder.is_symlink() else [folder]
    while folders:
        try:
            with os.scandir(folders.pop()) as entries:
                for entry in entries:
                    path = Path(entry.path)
                    if path in without:
                        continue
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(path)
                    else:
                        (files if entry.is_file(follow_symlinks=False) else special_files).append(path)
        except OSError:
            continue  # the folder was removed, or is not readable
    return FolderContent(tuple(sorted(files, key=lambda path: (len(path.parts), path))), tuple(sorted(special_files)))
