"""The output of the tasks of a Slurm job array: where it lies, and which line of it says how a task ended."""

from __future__ import annotations

import re
from pathlib import Path

from pipeline.base.system import secrets
from pipeline.launch.events import read_last_lines

START = "start "
"""With what the batch script begins the output of each start of a task; a task that is requeued starts again."""

_START = re.compile(rf"{START}\d+ of unit \d+ on ")
_ERROR = re.compile(
    r"(?:[\w./-]+: )*(?:error|fatal|critical)\b.*:|\S+: line \d+: "  # ours, Slurm's and those of shells
    r"|[a-z_][\w.]*(?:Error|Exception|Interrupt|Exit)(?::|$)|Fatal Python error"  # the end of a traceback
    r"|interrupted by SIG|time_limit_s=\S+ is over",
    re.IGNORECASE,
)
_WAIT = re.compile(r"waiting for (?P<whom>.*); at most ")
_SCRIPT = re.compile(r"^\S*/slurm_script: ")
_TAIL_BYTES, _MAX_LENGTH = 1 << 16, 300


def locate(folder: Path, task: str) -> Path:
    """Return the file of a task, such as `12_3`."""
    return folder / f"{task}.log"


def read_last_error(path: Path) -> str:
    """Return the last error line of a task's last start; without one, how its output ends.

    Empty if it wrote nothing, or if its output cannot be read.
    """
    lines = _read_last_start(path)
    if errors := [line for line in lines if _ERROR.match(line.lstrip())]:
        return _shorten(errors[-1])
    return f"no error in its output, which ends with: {_shorten(lines[-1])}" if lines else ""


def read_awaited(path: Path) -> str:
    """Return whom a task waits for, if that is the last that it wrote; else nothing."""
    lines = _read_last_start(path)
    found = _WAIT.match(lines[-1]) if lines else None
    return _shorten(found["whom"]) if found else ""


def _read_last_start(path: Path) -> list[str]:
    lines = [line.decode(errors="replace").rstrip() for line in read_last_lines(path, _TAIL_BYTES)]
    starts = [number for number, line in enumerate(lines) if _START.match(line)]
    return [line for line in lines[starts[-1] + 1 if starts else 0 :] if line]


def _shorten(line: str) -> str:
    text = "".join(character if character.isprintable() else " " for character in line).strip()
    text = _SCRIPT.sub("batch script: ", text)
    return secrets.mask_text(text if len(text) <= _MAX_LENGTH else f"{text[:_MAX_LENGTH]}...")
