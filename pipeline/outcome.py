"""How the studies of this process ended: the exit status, and the command that runs what they left.

Kept here, by `study.py`, because Hydra drops what its task function returns.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from pipeline.base import invocation

typed: Sequence[str] | None = None
"""The command line as it was typed, where that of `sys.argv` is another: Hydra understands no `--`."""

STUDY, TASK = "COLLOCATION_STUDY", "COLLOCATION_TASK"
"""The variables in which a launcher hands the command line of the study to its workers, and a batch script its task."""

typed_for_study: Sequence[str] | None = None
"""The command line that the launcher was given, where this is its worker."""

slurm_task = ""
"""Cluster, job array and number of the Slurm task that this worker is, `CLUSTER/12_3`; empty if it is none."""

outputs: set[tuple[int, int]] = set()
"""Device and inode of each file to which this process writes its messages, or the launcher of which it is a fork."""

is_composed = False
"""Whether a study has begun: what fails before it lies in the command line or in a file of the configuration."""

has_started = False
"""Whether a group has begun: from then on the exit status speaks of groups, before it of the configuration."""

exit_status = 0
"""The worst status of the studies that this process ran."""


def command_line() -> list[str]:
    """The command line as it was typed."""
    return list(sys.argv if typed is None else typed)


def command_line_of_study() -> list[str]:
    """The command line that a user typed for the study of which this process runs all, or a unit as a worker."""
    return command_line() if typed_for_study is None else list(typed_for_study)


def take_what_is_handed() -> None:
    """Take note of what a launcher has left in the environment, from which it goes: no job is a worker of it."""
    global typed_for_study, slurm_task
    for descriptor in (1, 2):
        with suppress(OSError):  # it is closed
            status = os.fstat(descriptor)
            outputs.add((status.st_dev, status.st_ino))
    slurm_task = os.environ.pop(TASK, "")
    if handed := os.environ.pop(STUDY, ""):
        with suppress(ValueError):  # nothing of a launcher's
            typed_for_study = shlex.split(handed)


def command_to_resume(arguments: Sequence[str] | None = None) -> str:
    """The command line that runs the groups which have no result yet; from the one that was typed if not given."""
    start, options = invocation.divide(command_line() if arguments is None else arguments)
    end = options.index("--") if "--" in options else len(options)
    ours, theirs = options[:end], options[end:]
    resume = next((option for option in ours if option.lstrip("+") == "resume=accept_environment"), "resume=true")
    kept = [option for option in ours if option.partition("=")[0].lstrip("+") != "resume"]
    if invocation.is_by_command():
        return invocation.spell(invocation.RUN, *kept, resume, *theirs)
    return shlex.join([*(start if len(start) > 1 else [python(), *start]), *kept, resume, *theirs])


def python() -> str:
    """The interpreter as a user types it: `python` where that is this one."""
    found = shutil.which("python")
    # By folder: the interpreters of two environments may be links to one file.
    is_this = found is not None and Path(found).parent.samefile(Path(sys.executable).parent)
    return "python" if is_this else sys.executable
