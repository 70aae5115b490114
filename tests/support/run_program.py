"""`python run.py` in a folder of its own."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pipeline.base.system.paths import PROJECT_DIR
from tests.support import forks
from tests.support.forks import Process

RUN = PROJECT_DIR / "run.py"


@dataclasses.dataclass
class Program:
    """`run.py` in a folder of its own, which has a store.

    Attributes:
        folder: working directory.
        first: words before the arguments of each start, which override them.
        last: words after the arguments, before `--`.
        environ: further environment variables.
    """

    folder: Path
    first: Sequence[object] = ()
    last: Sequence[object] = ()
    environ: dict[str, str] = dataclasses.field(default_factory=dict)

    def start(
        self, *arguments: object, script: object = RUN, is_real: bool = False, has_stdin: bool = False, **options: Any
    ) -> Process:
        """Start the program, as a fork unless a real process is requested; options are those of `forks.start`."""
        end = arguments.index("--") if "--" in arguments else len(arguments)  # the remaining arguments are not checked
        argv = [script, *self.first, *arguments[:end], *self.last, *arguments[end:]]
        begin = forks.start_real if is_real else forks.start
        return begin(*argv, cwd=self.folder, env=os.environ | self.environ, has_stdin=has_stdin, **options)

    def run(
        self, *arguments: object, killed_when: Callable[[], bool] | None = None, **options: Any
    ) -> tuple[int, str, str]:
        """Run the program until it exits, or kill it once a condition holds; return exit status, output and errors."""
        process = self.start(*arguments, **options)
        try:
            while killed_when is not None and process.poll() is None:
                if killed_when():
                    process.kill()
                time.sleep(0.02)
            out, err = process.communicate(timeout=600)
        finally:
            process.kill()
        return process.returncode, out, err
