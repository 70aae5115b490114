"""Declaration of a key of the configuration: a dataclass field with its type, default, bounds and meaning.

The class with the field is the schema of the key. docs/configuration.md, the JSON schema and the checks of values read
the same field.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

MAX_S = 366 * 86_400
"""Largest number of seconds of most options."""


def option(
    help: str,
    default: Any = dataclasses.MISSING,
    *,
    least: float | None = None,
    above: float | None = None,
    most: float = math.inf,
    values: str = "",
    shown: str = "",
) -> Any:
    """Return a field of an option.

    Args:
        help: meaning of the option, as Markdown.
        default: default value; without a default, a YAML file or the user must set the option.
        least: smallest allowed number.
        above: number that the value must exceed.
        most: largest allowed number.
        values: description of the allowed values, if the type does not tell it.
        shown: description of the default, if YAML files set other defaults.
    """
    metadata = {"help": help, "values": values, "shown": shown, "bounds": (least, above, most)}
    if isinstance(default, dict | list):
        return dataclasses.field(default_factory=lambda: type(default)(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def explain_out_of_bounds(field: dataclasses.Field[Any], value: Any) -> str | None:
    """Explain which bound of an option a number violates, as the end of a sentence; `None` if it violates none."""
    least, above, most = field.metadata.get("bounds", (None, None, math.inf))
    if not isinstance(value, int | float) or (least is None and above is None):
        return None
    if not math.isfinite(value) or (value < least if above is None else value <= above):
        bound = f"at least {least}" if above is None else f"greater than {above}"
        return f"must be {bound}{'' if isinstance(value, int) else ', and finite'}"
    return f"must be at most {most}" if value > most else None
