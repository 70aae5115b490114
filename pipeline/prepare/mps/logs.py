"""The logs of an MPS daemon and its server: readiness of a server, and reasons for its exit.

Most lines of `control.log` repeat commands of the orchestrator, so its last lines rarely contain the reason.
Sources: logs of drivers 535, 550 and 580, and logs and texts of the control programs of 535.309.01, 550.163.01,
580.178.04, 595.99.02 and 615.71.09.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_PREFIX = re.compile(r"^.*?\s\d+\]\s*")  # `[2026-11-20 22:44:37.398 Control   524] `
_END = re.compile(r"Server \d+ exited with status|Server (\d+ )?encountered a fatal exception")
_TELLING = re.compile(
    r"\b(fail(ed|ure)?|errors?|fatal|exception|exited with status|invalid|insufficient|cannot|unable|denied|ignoring"
    r"|not permitted|(not|only) supported|no such|out of memory)\b",
    re.IGNORECASE,
)
# First lines of logs, lines about commands and their replies, and lines about clients in logs of healthy servers.
_CHATTER = re.compile(
    r"Starting control daemon|To connect CUDA|CUDA MPS Control binary|Using log directory"
    r"|Accepting connection|NEW UI|UI closed|Activating queued UI|Cmd:|Unknown command|Server (\d+ )?not found"
    r"|Removed Shm file|Invalid (percentage|priority)|No default pinned memory limit"
    r"|(GPU|MIG)-[0-9a-f-]+\s+[-\d]|chunks\s+chunks|GPU\s+Partition|\d+(\.\d+)?$|INITIALIZING$|ACTIVE$|FAULT$"
    r"|User did not send valid credentials"
)
_MOST_LINES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class MpsLogs:
    """The log folder of one daemon; a log that cannot be read is treated as empty."""

    folder: Path

    @property
    def is_written(self) -> bool:
        """True if the daemon writes its log; a daemon that cannot write its log runs without one."""
        return bool(self._read("control.log"))

    def is_server_ready(self, server: int) -> bool:
        return f"NEW SERVER {server}: Ready" in self._read("control.log")

    def has_server_ended(self) -> bool:
        return any(_END.match(line) for line in self._read("control.log"))

    def explain(self) -> str:
        """Return the lines with the reason for a server's exit, for the end of an error message: two per log.

        Without such lines, return the last line of each log that is not about a command. The lines are copied into the
        message, because the logs are deleted with the group's folder.
        """
        words = ""
        for name in ("server.log", "control.log"):
            lines = [line for line in self._read(name) if line and _CHATTER.match(line) is None]
            telling = [line for line in lines if _TELLING.search(line)] or lines[-1:]
            if telling:
                words += f"; {name}: {' / '.join(dict.fromkeys(telling[-_MOST_LINES:]))}"
        return words

    def _read(self, name: str) -> list[str]:
        with suppress(OSError):
            lines = (self.folder / name).read_text(errors="replace").splitlines()
            return [_PREFIX.sub("", line).strip() for line in lines]
        return []
