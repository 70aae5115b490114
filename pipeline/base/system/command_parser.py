"""The parser of the commands' options, whose errors are one line with a remedy."""

from __future__ import annotations

import argparse
import re
import sys
from typing import NoReturn

_TYPES = {"int": "a whole number", "float": "a number"}
_WRONG_CHOICE = re.compile(r"invalid choice: (.*) \(choose from (.*)\)")
_WRONG_TYPE = re.compile(rf"invalid ({'|'.join(_TYPES)}) value: (.*)")


class CommandParser(argparse.ArgumentParser):
    """A parser that refuses a command line in one line with exit status 2; its subcommands do so too."""

    def error(self, message: str) -> NoReturn:
        """Print the error with a remedy, and exit."""
        words = " ".join(message.removeprefix("argument ").split())
        remedy = f"see {' '.join(self.prog.split())} --help"
        if (wrong := _WRONG_TYPE.search(words)) is not None:
            kind = _TYPES[wrong[1]]
            words, remedy = f"{words[: wrong.start()]}{wrong[2]} is not {kind}", f"write {kind}"
        elif (wrong := _WRONG_CHOICE.search(words)) is not None:
            choices = wrong[2].replace("'", "")
            words, remedy = f"{words[: wrong.start()]}{wrong[1]} is unknown", f"choose from {choices}"
        sys.stderr.write(f"error: {words}; {remedy}\n")
        sys.exit(2)
