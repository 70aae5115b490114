"""The answer of a command: data for programs, text for people, and an exit status."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandAnswer:
    """An answer as data, as text and as an exit status."""

    data: dict[str, Any]
    text: str
    status: int = 0
