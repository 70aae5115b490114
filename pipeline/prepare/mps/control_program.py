"""MPS control program for one daemon: sends commands and interprets the replies.

The commands that a control program supports depend on the driver. This module does not derive them from the driver's
version; it recognises an unsupported command by the text of the reply. The exit status cannot be used, because it is 0
even if the program rejects a command.
Sources: NVIDIA's MPS documentation (release 615), and the output of the programs of drivers 535, 550 and 580.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from pipeline.base.system import helper_program
from pipeline.base.system.errors import CommandError, SharingError

CONTROL = "nvidia-cuda-mps-control"
# Version of the commands. Older programs ignore the variable; in newer programs it overrides the command-line option.
# Source: MPS documentation, release 615, mpsv3-interface.
_PROTOCOL = "CUDA_MPS_PROTOCOL_VERSION"
_ASK_LIMIT_S = 10.0
_AGAIN_S = 0.05
_UNKNOWN_STATUS = 'Unknown command "get_server_status"'


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlProgram:
    """The control program for the daemon of one pipe folder. A missing reply is a CommandError."""

    program: str
    pipes: Path

    def ask(self, text: str, limit_s: float | None = None) -> list[str]:
        """Send one command; return the lines of the reply, which may be a rejection."""
        limit_s = _ASK_LIMIT_S if limit_s is None else limit_s
        done = helper_program.run([self.program], stdin=f"{text}\n", environ=self.environ(), timeout_s=limit_s)
        return [line.strip() for line in done.stdout.splitlines() if line.strip()]

    def ask_again(self, text: str, limit_s: float | None = None) -> list[str]:
        """Send a command, and repeat it once after a failure: the daemon may drop a command while a server exits."""
        try:
            return self.ask(text, limit_s)
        except CommandError as error:
            if error.status is None:
                raise
        time.sleep(_AGAIN_S)
        return self.ask(text, limit_s)

    def list_pids(self, text: str, limit_s: float | None = None) -> list[int]:
        """Send a command that lists PIDs, one per line; any other reply is a SharingError."""
        lines = self.ask_again(text, limit_s)
        if not all(line.isdecimal() for line in lines):
            raise SharingError(f"the MPS daemon in {self.pipes} replied to '{text}' with: {' / '.join(lines)}")
        return [int(line) for line in lines]

    def read_status(self, server: int, limit_s: float | None = None) -> str | None:
        """Read the status of a server: `INITIALIZING`, `ACTIVE`, `FAULT`, or another reply of the daemon.

        Return `None` if the control program does not support the command, as in R535.
        """
        answer = self.ask_again(f"get_server_status {server}", limit_s)
        return None if answer[:1] == [_UNKNOWN_STATUS] else " / ".join(answer)

    def environ(self, **variables: str) -> dict[str, str]:
        """Return the orchestrator's variables without settings of other MPS daemons, and with this pipe folder.

        The protocol version selects the commands that this module uses, because since release 615 the program also has
        other commands (MPS v3).
        """
        inherited = {
            k: v for k, v in os.environ.items() if not k.startswith("CUDA_MPS_") and k != "CUDA_VISIBLE_DEVICES"
        }
        return inherited | {"CUDA_MPS_PIPE_DIRECTORY": str(self.pipes), _PROTOCOL: "2"} | variables
