"""MPS control program, pointed at one daemon: questions, and the meaning of its answers.

Which commands a program knows depends on its driver and is never inferred from a version: a program is asked, and says
so. Answers are judged by their text, since it rejects a command with exit status 0.
Sources: NVIDIA's MPS documentation (release 615), and what the programs of drivers 535, 550 and 580 print.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from pipeline.base.system import helper_program
from pipeline.base.system.errors import CommandError, SharingError

CONTROL = "nvidia-cuda-mps-control"
# Programs that know no versions ignore it, and in those that do it counts more than an option.
# Source: MPS documentation, release 615, mpsv3-interface.
_PROTOCOL = "CUDA_MPS_PROTOCOL_VERSION"
_ASK_LIMIT_S = 10.0
_AGAIN_S = 0.05
_UNKNOWN_STATUS = 'Unknown command "get_server_status"'


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlProgram:
    """The control program, pointed at one daemon by its pipe folder. Without an answer it raises CommandError."""

    program: str
    pipes: Path

    def ask(self, text: str, limit_s: float | None = None) -> list[str]:
        """Send one command; returns the lines of the answer, which may as well say that the command was rejected."""
        limit_s = _ASK_LIMIT_S if limit_s is None else limit_s
        done = helper_program.run([self.program], stdin=f"{text}\n", environ=self.environ(), timeout_s=limit_s)
        return [line.strip() for line in done.stdout.splitlines() if line.strip()]

    def ask_again(self, text: str, limit_s: float | None = None) -> list[str]:
        """Ask as `ask` does, and once more if the answer fails: the daemon may drop a question while a server exits."""
        try:
            return self.ask(text, limit_s)
        except CommandError as error:
            if error.status is None:
                raise
        time.sleep(_AGAIN_S)
        return self.ask(text, limit_s)

    def list_pids(self, text: str, limit_s: float | None = None) -> list[int]:
        """Send a command that is answered by PIDs, one a line; any other answer is a SharingError."""
        lines = self.ask_again(text, limit_s)
        if not all(line.isdecimal() for line in lines):
            raise SharingError(f"the MPS daemon in {self.pipes} answered '{text}' with: {' / '.join(lines)}")
        return [int(line) for line in lines]

    def read_status(self, server: int, limit_s: float | None = None) -> str | None:
        """Ask for the status of a server: `INITIALIZING`, `ACTIVE` or `FAULT`, or what else the daemon says of it.

        Returns `None` if the control program does not know the command, as that of R535 does not.
        """
        answer = self.ask_again(f"get_server_status {server}", limit_s)
        return None if answer[:1] == [_UNKNOWN_STATUS] else " / ".join(answer)

    def environ(self, **further: str) -> dict[str, str]:
        """Return our environment without any word about another daemon, and with this one's pipe folder.

        It asks for the commands that are used here: from release 615 on, the program has others besides (MPS v3).
        """
        inherited = {
            k: v for k, v in os.environ.items() if not k.startswith("CUDA_MPS_") and k != "CUDA_VISIBLE_DEVICES"
        }
        return inherited | {"CUDA_MPS_PIPE_DIRECTORY": str(self.pipes), _PROTOCOL: "2"} | further
