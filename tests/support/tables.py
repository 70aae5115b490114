"""Tables of inputs and expected results in `tests/data/tables`, for tests of parsers."""

from __future__ import annotations

import re
import shlex
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

_WORD = re.compile(r" (?=[+~]?[\w.@/]+=)")
TABLES = Path(__file__).resolve().parents[1] / "data" / "tables"


@cache
def _read(file: str) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((TABLES / f"{file}.yaml").read_text(encoding="utf-8"))
    return content


@cache
def read_texts(file: str) -> dict[str, str]:
    """Return the texts of a file by name; `<NAME>` in a text or row stands for another text."""
    texts: dict[str, str] = _read(file).get("texts", {})
    return {name: _expand(text, texts) for name, text in texts.items()}


def read_names(file: str, name: str) -> list[str]:
    """Return a list of names of a file."""
    names: list[str] = _read(file)[name]
    return names


def _expand(value: Any, texts: dict[str, str]) -> Any:
    if not isinstance(value, str):
        return value
    return re.sub(
        r"<([A-Z_]+)>", lambda match: _expand(texts[match[1]], texts) if match[1] in texts else match[0], value
    )


def rows(file: str, table: str) -> pytest.MarkDecorator:
    """Run a test once for each row of a table, whose columns are parameters of the test."""
    content, texts = _read(file)[table], read_texts(file)
    return pytest.mark.parametrize(
        content["columns"], [[_expand(cell, texts) for cell in row] for row in content["rows"]]
    )


def refused_plans() -> pytest.MarkDecorator:
    """Run a test once for each refused plan: its overrides, a pattern of the message, and whether it is of a sweep."""
    cases = []
    for section in _read("refusals")["plans"]:
        marks = [getattr(pytest.mark, section["needs"])] if "needs" in section else []
        for line in section["refused"].splitlines():
            overrides, message = line.split(" => ")
            words = _WORD.split(f"{section.get('begin', '')} {overrides}".strip())
            cases.append(
                pytest.param(words, _make_pattern(message), section.get("is_sweep"), id=overrides, marks=marks)
            )
    return pytest.mark.parametrize(("words", "pattern", "is_sweep"), cases)


def _make_pattern(message: str) -> str:
    return re.escape(message).replace(re.escape("..."), ".*")


def refused_programs() -> pytest.MarkDecorator:
    """Run a test once for each refused command line: its words, and a pattern of the whole message."""
    cases = [line.split(" => ") for line in _read("refusals")["programs"].splitlines()]
    return pytest.mark.parametrize(
        ("argv", "pattern"), [pytest.param(shlex.split(argv), _make_pattern(text), id=argv) for argv, text in cases]
    )


def refused_words() -> pytest.MarkDecorator:
    """Run a test once for each refused command line of one word, with its whole message."""
    lines = _read("refusals")["words"].splitlines()
    return pytest.mark.parametrize(("argument", "message"), [line.split(" => ") for line in lines])
