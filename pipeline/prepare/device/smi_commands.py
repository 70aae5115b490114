"""Commands of nvidia-smi for one GPU, and the wait for commands of a killed orchestrator that still run.

Every command names its GPU by UUID, because without a UUID nvidia-smi changes all GPUs. Output and exit status are
never used as proof of success: callers read the changed setting back.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import psutil

from pipeline.base.domain.driver_programs import Execute, Programs
from pipeline.base.system import entry_points, helper_program
from pipeline.base.system.command_parser import choose_remedy
from pipeline.base.system.errors import CommandError, SharingError

log = logging.getLogger(__name__)

# Switching the MIG mode of an Ampere GPU resets the GPU, which takes seconds.
_COMMAND_LIMIT_S = 60.0
_LOOK_S = 0.05
_SUDO_REFUSES = "sudo:"
_SET_TIME_SLICE = "--set-timeslice"
_WRITES = frozenset({"-mig", "-cgi", "-cci", "-dci", "-dgi", "-c", _SET_TIME_SLICE})


@dataclass(frozen=True, slots=True, kw_only=True)
class Smi:
    """Program nvidia-smi for one GPU. Methods named `*_command` return commands for `run`.

    Attributes:
        uuid: UUID of the GPU.
        program: absolute path of nvidia-smi.
        admin: words before a command that needs an administrator, such as `sudo -n`.
        execute: function that executes the commands; `None` to run them as programs.
    """

    uuid: str
    program: str
    admin: tuple[str, ...] = ()
    execute: Execute | None = None

    @classmethod
    def locate(cls, programs: Programs, uuid: str, admin: Sequence[str] = ()) -> Self:
        """Locate nvidia-smi for a device; `admin` is used unless `programs` sets the words of an administrator."""
        prefix = tuple(admin) if programs.admin is None else programs.admin
        return cls(uuid=uuid, program=programs.find("nvidia-smi"), admin=prefix, execute=programs.execute)

    def to_record(self) -> dict[str, Any]:
        """Return the arguments of this GPU's undo steps for the journal; programs are named without their paths."""
        first, arguments = self.admin[:1], self.admin[1:]
        return {"uuid": self.uuid, "admin": [*(Path(word).name for word in first), *arguments]}

    def admin_command(self, *arguments: str) -> tuple[str, ...]:
        return (*self.admin, self.program, *arguments)

    def compute_mode_command(self, mode: str) -> tuple[str, ...]:
        return self.admin_command("-i", self.uuid, "-c", mode.upper())

    def time_slice_command(self, number: int) -> tuple[str, ...]:
        return self.admin_command("compute-policy", "-i", self.uuid, _SET_TIME_SLICE, str(number))

    def run(self, words: Sequence[str]) -> helper_program.Completed:
        """Run one of the commands above; the caller has to read back its effect.

        Raises:
            SharingError: the command cannot be started, or is not permitted.
        """
        try:
            completed = run_program(words) if self.execute is None else self.execute(words)
        except CommandError as error:
            raise SharingError(f"changing {self.uuid} failed: {error}") from error
        log.debug("%s: status %d: %s", " ".join(words), completed.status, completed.printed_line)
        is_refused = self.admin and completed.status != 0 and _SUDO_REFUSES in completed.printed_line
        if "permission" in completed.printed_line.lower() or is_refused:
            option = choose_remedy("set 'gpu.admin=[sudo,-n]'", "add --admin sudo,-n")
            raise SharingError(
                f"no permission for `{' '.join(words)}`: {completed.printed_line}; ask an administrator to allow this "
                f"command in sudoers, and {option}"
            )
        return completed


def run_program(words: Sequence[str]) -> helper_program.Completed:
    """Run a command of nvidia-smi as a program; the caller checks its status."""
    return helper_program.run(words, timeout_s=_COMMAND_LIMIT_S, check=False)


def await_last_write(uuid: str) -> None:
    """Wait for commands of a killed orchestrator that still run, because they could take effect after the undo.

    Raises:
        SharingError: the command does not exit.
    """
    deadline = time.monotonic() + _COMMAND_LIMIT_S
    while pids := _find_writers(uuid):
        if time.monotonic() > deadline:
            raise SharingError(
                f"nvidia-smi (pid {', '.join(map(str, pids))}) hangs in the driver while it changes {uuid}; wait until "
                f"it exits, or restart the machine, then run: {entry_points.spell('gpu', 'clean')}"
            )
        time.sleep(_LOOK_S)


def is_write(words: Sequence[str]) -> bool:
    """Return whether a command changes a setting or an instance."""
    return not _WRITES.isdisjoint(words)


def _find_writers(uuid: str) -> list[int]:
    """List the PIDs of programs that change this GPU, by command line, because sudo hides all other properties."""
    command_lines = ((p.pid, p.info["cmdline"] or ()) for p in psutil.process_iter(["cmdline"]))
    return [pid for pid, line in command_lines if uuid in line and is_write(line)]
