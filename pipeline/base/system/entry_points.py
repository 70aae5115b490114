"""The programs for users, and their spelling in messages and records.

In the folder of a clone the commands are `python run.py` and `python -m pipeline.NAME`; elsewhere they are
`python CLONE/run.py` and `python CLONE/collocate.py NAME`, which finds the modules itself. The command `collocate` sets
an environment variable, which workers and tracking processes inherit; if it is set, the commands are `collocate run`
and `collocate NAME`.
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
"""The variable set by the command; jobs do not inherit it."""
RUN, ADVISE, PACK = "run", "advise", "pack"
PROGRAMS = {
    RUN: "measure jobs side by side",
    ADVISE: "find how many copies of a job to run, and in which sharing mode",
    PACK: "run many trials, several at a time: as many as gain from it",
    "report": "write a study's page, figures and tables; export it to one file",
    "share": "turn a study into an entry of the public table",
    "gpu": "show, partition, check and clean up GPUs",
    "planner": "plan services and training jobs on MIG instances",
    "tracking": "show how far a study is; send its spool, import a study, upgrade or move its store",
    "importer": "turn an experiment of radT into one of this project",
    "timeline": "write a study as a trace for Perfetto",
    "schema": "print a JSON schema of experiment files, for editors",
}
"""The programs by name, with descriptions."""
# Other programs have the name of their module.
_MODULES = {"schema": "pipeline.plan.json_schema", "share": "pipeline.report.share_command"}


def module_of(name: str) -> str:
    """Return the module that `python -m` runs for a program other than `run`."""
    return _MODULES.get(name, f"pipeline.{name}")


def spell(name: str, *words: str) -> str:
    """Return the command line that starts one of `PROGRAMS` with these arguments, as this user would type it."""
    if is_by_command():
        start = [_command(), name]
    elif _is_in_clone():
        start = [_python(), "run.py"] if name == RUN else [_python(), "-m", module_of(name)]
    else:
        start = [_python(), *([f"{PROJECT_DIR}/run.py"] if name == RUN else [f"{PROJECT_DIR}/collocate.py", name])]
    return shlex.join([*start, *words])


def spell_again(start: Sequence[str], *words: str) -> str:
    """Return a command line with the recorded start (from `divide`), or with the current start for a clone.

    Users of the command read `collocate advise --minutes 5`, not the experiment and its key.
    """
    if not is_by_command():
        return shlex.join([*start, *words]) if len(start) > 1 else spell(RUN, *words)
    end = words.index("--") if "--" in words else len(words)
    if "+experiment=advise" not in words[:end]:
        return spell(RUN, *words)
    options = [word.replace("advise_minutes=", "--minutes=") for word in words[:end] if word != "+experiment=advise"]
    return spell(ADVISE, *options, *words[end:])


def is_by_command() -> bool:
    """Return whether the user called `collocate`."""
    return VARIABLE in os.environ


def divide(command_line: Sequence[str]) -> tuple[list[str], list[str]]:
    """Divide a study's recorded command line into the words that start its program and the other words.

    A record has `collocate run ...`, or the path of `run.py` without an interpreter.
    """
    words = list(command_line)
    start = 2 if len(words) > 1 and Path(words[0]).name == COMMAND and words[1] == RUN else 1
    return words[:start], words[start:]


def _is_in_clone() -> bool:
    """Return whether the working directory is the project's folder, in which Python finds the project's modules."""
    try:
        return Path.cwd() == PROJECT_DIR
    except OSError:  # the working directory was removed
        return False


def _python() -> str:
    """Return the current interpreter as a user would type it: `python` if this runs it, else its path."""
    path = shutil.which("python")
    # Compare folders: the interpreters of two environments may link to one file.
    is_this = path is not None and Path(path).parent.resolve() == Path(sys.executable).parent.resolve()
    return "python" if is_this else sys.executable


@cache
def _command() -> str:
    """Return the name of the command if the name runs this environment's command, else the path of the command."""
    installed, on_path = Path(sys.executable).with_name(COMMAND), shutil.which(COMMAND)
    is_known = on_path is not None and Path(on_path).resolve() == installed.resolve()  # pipx and uv put links on PATH
    return COMMAND if is_known or not installed.is_file() else str(installed)
