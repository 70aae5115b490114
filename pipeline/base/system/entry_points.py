"""The programs that a user calls, and how they are spelled where a message or a record names one.

In the folder of a clone they are `python run.py` and `python -m pipeline.NAME`, elsewhere `python CLONE/run.py` and
`python CLONE/collocate.py NAME`, which finds the modules by itself; below the command `collocate`, which announces
itself in the environment, they are `collocate run` and `collocate NAME`. Workers and tracking processes inherit that.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from pipeline.base.system.paths import PROJECT_DIR

COMMAND = "collocate"
VARIABLE = "COLLOCATION_COMMAND"
"""What the command sets in its environment; jobs do not inherit it."""
RUN = "run"
PROGRAMS = {
    RUN: "measure jobs side by side",
    "report": "write a study's page, figures and tables",
    "gpu": "show, divide, check and clean up GPUs",
    "planner": "plan services and training jobs on MIG instances",
    "tracking": "show how far a study is; send its spool, upgrade or move its store",
    "importer": "turn an experiment of radT or CARMA into one of this project",
    "timeline": "write a study as a trace for Perfetto",
    "schema": "print a JSON schema of experiment files, for editors",
}
"""The programs by name, with what each does."""
_MODULES = {"schema": "pipeline.plan.json_schema"}  # the others are named as their modules are


def module_of(name: str) -> str:
    """Return the module that `python -m` runs for a program other than `run`."""
    return _MODULES.get(name, f"pipeline.{name}")


def spell(name: str, *words: str) -> str:
    """Return a command line that starts one of `PROGRAMS` with these arguments, as this user types it."""
    if is_by_command():
        start = [_command(), name]
    elif _is_in_clone():
        start = [_python(), "run.py"] if name == RUN else [_python(), "-m", module_of(name)]
    else:
        start = [_python(), *([f"{PROJECT_DIR}/run.py"] if name == RUN else [f"{PROJECT_DIR}/collocate.py", name])]
    return shlex.join([*start, *words])


def spell_again(start: Sequence[str], *words: str) -> str:
    """Return a command line with the start of a recorded one, as `divide` gives it; from here if that was a clone."""
    return shlex.join([*start, *words]) if len(start) > 1 and not is_by_command() else spell(RUN, *words)


def is_by_command() -> bool:
    """Return whether the user called `collocate`."""
    return VARIABLE in os.environ


def divide(command_line: Sequence[str]) -> tuple[list[str], list[str]]:
    """Divide the recorded command line of a study into the words that start its program, and the others.

    A record has `collocate run ...`, or the path of `run.py` without its interpreter.
    """
    words = list(command_line)
    start = 2 if len(words) > 1 and Path(words[0]).name == COMMAND and words[1] == RUN else 1
    return words[:start], words[start:]


def _is_in_clone() -> bool:
    """Tell whether the working directory is the project's folder, where its names are the first that Python finds."""
    try:
        return Path.cwd() == PROJECT_DIR
    except OSError:  # it was removed
        return False


def _python() -> str:
    """Return the interpreter as a user types it: `python` where that is this one."""
    path = shutil.which("python")
    # By folder: the interpreters of two environments may be links to one file.
    is_this = path is not None and Path(path).parent.resolve() == Path(sys.executable).parent.resolve()
    return "python" if is_this else sys.executable


@cache
def _command() -> str:
    """Return the command by its name where that leads to this environment's, or else its path."""
    installed, on_path = Path(sys.executable).with_name(COMMAND), shutil.which(COMMAND)
    is_known = on_path is not None and Path(on_path).resolve() == installed.resolve()  # pipx and uv put links on PATH
    return COMMAND if is_known or not installed.is_file() else str(installed)
