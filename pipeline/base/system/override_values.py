"""Values in the grammar of Hydra's overrides."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any


def parse(text: str) -> Any:
    """Return the value of `KEY=text`.

    Raises:
        ValueError: Hydra cannot parse the text, or it has several values.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        override = OverridesParser.create().parse_override(f"key={text}")
    except HydraException as error:
        raise ValueError(f"{text} cannot be read as a value: {error}") from error
    if override.is_sweep_override():
        raise ValueError(f"{text} has several values")
    return override.value()


def format_override(value: Any, *, is_double: bool = False) -> str:
    """Format a value in the grammar: lists, maps, texts, numbers, booleans and `None`.

    Texts are in single quotes, or in double ones (`is_double`).
    """
    from hydra.core.override_parser.types import Quote, QuotedString

    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return str(QuotedString(value, Quote.double if is_double else Quote.single).with_quotes())
    if isinstance(value, Mapping):
        keys = (re.sub(r"([\\()\[\]{}:=,\s])", r"\\\1", str(key)) for key in value)  # keys cannot be quoted
        pairs = zip(keys, map(format_override, value.values()), strict=True)
        return f"{{{','.join(f'{key}: {inner}' for key, inner in pairs)}}}"
    if isinstance(value, Sequence):
        return f"[{','.join(map(format_override, value))}]"
    return str(value)
