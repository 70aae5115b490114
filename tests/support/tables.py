"""Tables of inputs and expected results in `tests/data/tables`, for tests of parsers."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

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
