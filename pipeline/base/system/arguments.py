"""The parser of a program's arguments, whose errors are one line with a remedy."""

from __future__ import annotations

import argparse
import difflib
import re
from typing import NoReturn

_INVALID_CHOICE = re.compile(r"argument (?P<name>\S+): invalid choice: '(?P<word>.*)' \(choose from (?P<choices>.*)\)")


class Parser(argparse.ArgumentParser):
    """A parser that prints `error: PROBLEM; REMEDY` and exits with status 2; so do the parsers of its commands."""

    def error(self, message: str) -> NoReturn:
        if match := _INVALID_CHOICE.fullmatch(message):
            choices = re.findall(r"[^\s',]+", match["choices"])
            near = difflib.get_close_matches(match["word"], choices, n=1)
            remedy = f"did you mean {near[0]}?" if near else f"choose one of {', '.join(choices)}"
            message = f"{match['name'].lower()} {match['word']} does not exist; {remedy}"
        else:
            message += f"; see {self.prog} --help"
        self.exit(2, f"error: {message}\n")
