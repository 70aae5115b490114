"""Containers in which interpreters of jobs run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

BINDS, CWD, FOLDER, IMAGE = "{binds}", "{cwd}", "{folder}", "{image}"
"""Words of a command for the folders, the working directory, one of the folders, and the image."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """The program that starts an interpreter in a container.

    Attributes:
        command: words before the interpreter, in which `BINDS` and `CWD` are replaced.
        bind: words for each folder that the container must reach, in which `FOLDER` is replaced.
    """

    command: tuple[str, ...]
    bind: tuple[str, ...]

    @property
    def program(self) -> str:
        """The name of the program."""
        return Path(self.command[0]).name

    def spell(self, folders: Iterable[Path], cwd: Path) -> tuple[str, ...]:
        """Return the words before the interpreter; the folders, and `cwd`, have their own paths in the container."""
        return tuple(
            self._list_words([folder for folder in dict.fromkeys((*folders, cwd)) if folder != Path("/")], cwd)
        )

    def _list_words(self, folders: Iterable[Path], cwd: Path) -> Iterator[str]:
        for word in self.command:
            if word == BINDS:
                yield from (part.replace(FOLDER, str(folder)) for folder in folders for part in self.bind)
            else:
                yield word.replace(CWD, str(cwd))
