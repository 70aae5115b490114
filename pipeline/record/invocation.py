"""How this process was started and for which study: what it was given once, and no study of it changes."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from pipeline.base.system import entry_points, secrets

STUDY, TASK, OUTPUTS = "COLLOCATION_STUDY", "COLLOCATION_TASK", "COLLOCATION_OUTPUTS"
"""Variables by which a launcher tells a worker the command line and outputs of the study; a batch script its task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Invocation:
    """The start of a program.

    Attributes:
        words: the command line as typed, where that of `sys.argv` is another: Hydra understands no `--`.
        words_of_launcher: the command line that the launcher was given, where this is its worker.
        slurm_task: cluster, job array and number of the Slurm task that this worker is, `CLUSTER/12_3`; empty if none.
        outputs: device and inode of each file to which this process, and its launcher, write their messages.
    """

    words: Sequence[str]
    words_of_launcher: Sequence[str] | None = None
    slurm_task: str = ""
    outputs: frozenset[tuple[int, int]] = frozenset()

    @property
    def has_launcher(self) -> bool:
        return self.words_of_launcher is not None

    @property
    def has_launcher_here(self) -> bool:
        """Whether a launcher on this host speaks to the user."""
        return self.has_launcher and not self.slurm_task

    @property
    def masked(self) -> str:
        """The command line of the study as it is recorded: without secrets."""
        words = secrets.mask_words(list(self.words_of_launcher or self.words))
        is_by_command = entry_points.is_by_command()
        return entry_points.spell(entry_points.RUN, *words[1:]) if is_by_command else shlex.join(words)

    @property
    def masked_to_resume(self) -> str:
        """The command line that runs what is left, without secrets; it says so where one must be given again."""
        command = shlex.join(secrets.mask_words(shlex.split(command_to_resume(self.words))))
        return f"{command} (with your own values for {secrets.HIDDEN})" if secrets.HIDDEN in command else command

    def variables_of_workers(self) -> dict[str, str]:
        """Return the environment that a worker on this host gets beside that of this process."""
        outputs = " ".join(f"{device}:{inode}" for device, inode in sorted(self.outputs))
        return {STUDY: shlex.join(self.words), OUTPUTS: outputs}


_current: Invocation | None = None


def begin() -> None:
    """Read the command line, and what a launcher handed over; that leaves the environment: no job is its worker."""
    global _current
    launcher = None
    if handed := os.environ.pop(STUDY, ""):
        with suppress(ValueError):  # nothing of a launcher's
            launcher = shlex.split(handed)
    outputs = set[tuple[int, int]]()
    for pair in os.environ.pop(OUTPUTS, "").split():
        with suppress(ValueError):
            device, _, inode = pair.partition(":")
            outputs.add((int(device), int(inode)))
    for descriptor in (1, 2):
        with suppress(OSError):  # it is closed
            status = os.fstat(descriptor)
            outputs.add((status.st_dev, status.st_ino))
    _current = Invocation(
        words=tuple(sys.argv),
        words_of_launcher=launcher,
        slurm_task=os.environ.pop(TASK, ""),
        outputs=frozenset(outputs),
    )


def current() -> Invocation:
    """Return how this process was started."""
    return _current or Invocation(words=tuple(sys.argv))


def command_to_resume(words: Sequence[str]) -> str:
    """Return the command line that runs the groups of another one which have no result yet."""
    start, options = entry_points.divide(words)
    end = options.index("--") if "--" in options else len(options)
    ours, theirs = options[:end], options[end:]
    resume = next((option for option in ours if option.lstrip("+") == "resume=accept_environment"), "resume=true")
    kept = [option for option in ours if option.partition("=")[0].lstrip("+") != "resume"]
    return entry_points.spell_again(start, *kept, resume, *theirs)
