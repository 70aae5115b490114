"""Functions in processes of their own that SIGKILL ends at one of their steps."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Collection
from typing import Any


def run_killed(
    function: Callable[[], object], fatal: int, events: Collection[str], *, is_start_a_step: bool = False
) -> int:
    """Run a function in a process of its own that SIGKILL ends right before a step; return its wait status.

    Args:
        function: what is run.
        fatal: number of the step from 1; a number beyond the last kills nothing.
        events: audit events that are steps, beside each write to a journal.
        is_start_a_step: whether the moment right after the start of a program is a step too.
    """
    if pid := os.fork():
        return os.waitpid(pid, 0)[1]
    try:
        count = 0

        def step() -> None:
            nonlocal count
            count += 1
            if count == fatal:
                os.kill(os.getpid(), signal.SIGKILL)

        def hear(event: str, args: Any) -> None:
            is_write = event == "open" and str(args[0]).endswith(".journal") and args[2] & (os.O_WRONLY | os.O_RDWR)
            if is_write or event in events:
                step()

        class Popen(subprocess.Popen[bytes]):
            def __init__(self, *arguments: Any, **options: Any) -> None:
                super().__init__(*arguments, **options)
                step()

        sys.addaudithook(hear)
        if is_start_a_step:
            subprocess.Popen = Popen  # type: ignore[misc]
        function()
        os._exit(0)
    finally:
        os._exit(1)
