"""How a study that did not end goes on: the command for it, ready to be typed."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path


def command(arguments: Sequence[str] | None = None) -> str:
    """The command line that runs the groups which have no result yet.

    Args:
        arguments: of this process, its program first; `sys.argv` if not given.
    """
    program, *options = list(sys.argv if arguments is None else arguments)
    kept = [option for option in options if option.partition("=")[0].lstrip("+") != "resume"]
    return shlex.join([_python(), program, *kept, "resume=true"])


def _python() -> str:
    """The interpreter as a user types it: `python` where that is this one."""
    found = shutil.which("python")
    # By folder: the interpreters of two environments may be links to one file.
    is_this = found is not None and Path(found).parent.samefile(Path(sys.executable).parent)
    return "python" if is_this else sys.executable
