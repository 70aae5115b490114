"""Commands of nvidia-smi for one GPU, and the wait for those that a killed orchestrator still runs.

Every command names its GPU by UUID: without it nvidia-smi acts on all there is. What it says and its exit status are
never believed to mean success.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import psutil

from pipeline.base.domain.driver_programs import Programs
from pipeline.base.system import entry_points, helper_program
from pipeline.base.system.errors import CommandError, SharingError

log = logging.getLogger(__name__)

# An Ampere GPU is reset when its MIG mode is switched, which takes seconds.
_COMMAND_LIMIT_S = 60.0
_LOOK_S = 0.05
_SUDO_REFUSES = "sudo:"
_SET_TIME_SLICE = "--set-timeslice"
_WRITES = frozenset({"-mig", "-cgi", "-cci", "-dci", "-dgi", "-c", _SET_TIME_SLICE})


@dataclass(frozen=True, slots=True, kw_only=True)
class Smi:
    """Program nvidia-smi, by its absolute path, for one GPU. Each method returns a command for `run`.

    `admin` is put before a command that needs an administrator.
    """

    uuid: str
    program: str
    admin: tuple[str, ...] = ()

    @classmethod
    def locate(cls, programs: Programs, uuid: str, admin: Sequence[str] = ()) -> Self:
        """Locate the program for a device, with the `admin` of a journal if its programs have none."""
        prefix = tuple(admin) if programs.admin is None else programs.admin
        return cls(uuid=uuid, program=programs.find("nvidia-smi"), admin=prefix)

    def to_record(self) -> dict[str, Any]:
        """Return what undoing needs to find this GPU, for a journal: programs by name, never by path."""
        first, rest = self.admin[:1], self.admin[1:]
        return {"uuid": self.uuid, "admin": [*(Path(word).name for word in first), *rest]}

    def admin_command(self, *arguments: str) -> tuple[str, ...]:
        return (*self.admin, self.program, *arguments)

    def compute_mode_command(self, mode: str) -> tuple[str, ...]:
        return self.admin_command("-i", self.uuid, "-c", mode.upper())

    def time_slice_command(self, number: int) -> tuple[str, ...]:
        return self.admin_command("compute-policy", "-i", self.uuid, _SET_TIME_SLICE, str(number))

    def policy_command(self) -> tuple[str, ...]:
        return (self.program, "compute-policy", "-i", self.uuid, "-l")

    def run(self, words: Sequence[str]) -> helper_program.Completed:
        """Run one of the commands above; whether it did what it should is for the caller to read back.

        Raises:
            SharingError: it could not be run, or we are not allowed to.
        """
        try:
            completed = helper_program.run(words, timeout_s=_COMMAND_LIMIT_S, check=False)
        except CommandError as error:
            raise SharingError(f"changing {self.uuid} failed: {error}") from error
        log.debug("%s: status %d: %s", " ".join(words), completed.status, completed.printed_line)
        is_refused = self.admin and completed.status != 0 and _SUDO_REFUSES in completed.printed_line
        if "permission" in completed.printed_line.lower() or is_refused:
            raise SharingError(
                f"no permission for `{' '.join(words)}`: {completed.printed_line}; have an administrator allow it, as "
                "in sudoers, and set 'gpu.admin=[sudo,-n]', or by hand --admin sudo,-n"
            )
        return completed


def await_last_write(uuid: str) -> None:
    """Wait for a command of an orchestrator that was killed: it runs on by itself and would come after the undoing.

    Raises:
        SharingError: it does not end.
    """
    deadline = time.monotonic() + _COMMAND_LIMIT_S
    while pids := _find_writers(uuid):
        if time.monotonic() > deadline:
            raise SharingError(
                f"nvidia-smi (pid {', '.join(map(str, pids))}) still changes {uuid}, as it hangs in the driver; "
                f"when it is gone, or after a restart of the machine: {entry_points.spell('gpu', 'clean')}"
            )
        time.sleep(_LOOK_S)


def _find_writers(uuid: str) -> list[int]:
    """List the PIDs of programs that change this GPU, by command line: sudo hides everything else."""
    command_lines = ((p.pid, p.info["cmdline"] or ()) for p in psutil.process_iter(["cmdline"]))
    return [pid for pid, line in command_lines if uuid in line and not _WRITES.isdisjoint(line)]
