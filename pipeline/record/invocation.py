"""The command line and the study of this process, read once at the start."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass

from pipeline.base.system import entry_points, secrets, user_command

STUDY, TASK, OUTPUTS = "COLLOCATION_STUDY", "COLLOCATION_TASK", "COLLOCATION_OUTPUTS"
"""Environment variables that a launcher sets for its workers: the study's command line, the Slurm task, the outputs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Invocation:
    """The command line of this process, and of the launcher that started it.

    Attributes:
        words: command line as typed; `sys.argv` may differ because Hydra does not support `--`.
        words_of_launcher: command line of the launcher if this process is its worker.
        slurm_task: `CLUSTER/ARRAY_TASK` of the Slurm task of this process; empty without Slurm.
        outputs: device and inode of each file to which this process or its launcher writes messages.
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
        """True if a launcher on this host prints the messages of this process."""
        return self.has_launcher and not self.slurm_task

    @property
    def masked_command(self) -> str:
        """Command line of the study as it is recorded, without secrets."""
        words = secrets.mask_words(list(self.words_of_launcher or self.words))
        is_by_command = entry_points.is_by_command()
        return entry_points.spell(entry_points.RUN, *words[1:]) if is_by_command else shlex.join(words)

    @property
    def masked_resume_command(self) -> str:
        """Command line that runs the missing groups, without secrets."""
        return mask_command(spell_resume_command(self.words))

    def make_worker_variables(self) -> dict[str, str]:
        """Return the additional environment variables of a worker on this host."""
        outputs = " ".join(f"{device}:{inode}" for device, inode in sorted(self.outputs))
        return {STUDY: shlex.join(self.words), OUTPUTS: outputs}


_current: Invocation | None = None


def begin() -> None:
    """Read the command line and the launcher's variables, and remove the variables: jobs must not inherit them."""
    global _current
    launcher = None
    if handed := os.environ.pop(STUDY, ""):
        with suppress(ValueError):  # the variable was not set by a launcher
            launcher = shlex.split(handed)
    outputs = set[tuple[int, int]]()
    for pair in os.environ.pop(OUTPUTS, "").split():
        with suppress(ValueError):
            device, _, inode = pair.partition(":")
            outputs.add((int(device), int(inode)))
    for descriptor in (1, 2):
        with suppress(OSError):  # the descriptor is closed
            status = os.fstat(descriptor)
            outputs.add((status.st_dev, status.st_ino))
    _current = Invocation(
        words=tuple(sys.argv),
        words_of_launcher=launcher,
        slurm_task=os.environ.pop(TASK, ""),
        outputs=frozenset(outputs),
    )


def get_current() -> Invocation:
    """Return the invocation of this process."""
    return _current or Invocation(words=tuple(sys.argv))


def mask_command(command: str) -> str:
    """Return a command line without secrets, with a note if it had any."""
    command = shlex.join(secrets.mask_words(shlex.split(command)))
    return f"{command} (with your own values for {secrets.HIDDEN})" if secrets.HIDDEN in command else command


def spell_longer_study(words: Sequence[str], repeats: int) -> str:
    """Return the command line, without secrets, that resumes a study with more blocks; empty with `repeats=auto`."""
    if "repeats=auto" in [word.lstrip("+") for word in words]:
        return ""
    return mask_command(spell_changed_command(words, f"repeats={repeats}", _choose_resume(words)))


def spell_resume_command(words: Sequence[str]) -> str:
    """Return the command line that runs the groups without a result of the study with this command line."""
    return spell_changed_command(words, _choose_resume(words))


def spell_changed_command(words: Sequence[str], *new: str, without: Collection[str] = ()) -> str:
    """Return a command line with new overrides, in place of those of their keys, and without some words or keys.

    The words of the user's program stay as they are.
    """
    start, options = entry_points.divide(words)
    overrides, program = user_command.divide(options)
    dropped = {*map(user_command.key_of, new), *without}
    remaining = [word for word in overrides if dropped.isdisjoint((word, user_command.key_of(word)))]
    return entry_points.spell_again(start, *remaining, *new, *program)


def _choose_resume(words: Sequence[str]) -> str:
    overrides, _ = user_command.divide(entry_points.divide(words)[1])
    return next((word for word in overrides if word.lstrip("+") == "resume=accept_environment"), "resume=true")
