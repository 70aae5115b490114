"""Options and answers of the commands; errors are one line with a remedy.

An error that a study and a command of `pipeline.gpu` can raise names keys for one and options for the other.
"""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, NoReturn

_TYPES = {"int": "a whole number", "float": "a number"}
_WRONG_CHOICE = re.compile(r"invalid choice: (.*) \(choose from (.*)\)")
_WRONG_TYPE = re.compile(rf"invalid ({'|'.join(_TYPES)}) value: (.*)")


class CommandParser(argparse.ArgumentParser):
    """A parser that refuses a command line in one line with exit status 2; its subcommands do so too."""

    def error(self, message: str) -> NoReturn:
        """Print the error with a remedy, and exit."""
        words = " ".join(message.removeprefix("argument ").split())
        remedy = f"see {' '.join(self.prog.split())} --help"
        if (match := _WRONG_TYPE.search(words)) is not None:
            kind = _TYPES[match[1]]
            words, remedy = f"{words[: match.start()]}{match[2]} is not {kind}", f"write {kind}"
        elif (match := _WRONG_CHOICE.search(words)) is not None:
            choices = match[2].replace("'", "")
            near = difflib.get_close_matches(match[1].strip("'"), choices.split(", "), n=1)
            words = f"{words[: match.start()]}{match[1]} is unknown"
            remedy = f"did you mean {near[0]}?" if near else f"choose from {choices}"
        sys.stderr.write(f"error: {words}; {remedy}\n")
        sys.exit(2)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandAnswer:
    """An answer as data, as text and as an exit status."""

    data: dict[str, Any]
    text: str
    status: int = 0


_has_options: ContextVar[bool] = ContextVar("has_options", default=False)


@contextmanager
def name_options() -> Iterator[None]:
    """Make remedies name the options of the commands of `pipeline.gpu` during the body."""
    token = _has_options.set(True)
    try:
        yield
    finally:
        _has_options.reset(token)


def choose_remedy(keys: str, options: str) -> str:
    """Choose the remedy of a study, which names configuration keys, or that of a command, which names its options."""
    return options if _has_options.get() else keys
