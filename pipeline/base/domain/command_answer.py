"""The answer of a command: data for programs, a text for people, an exit status."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandAnswer:
    """For programs, for people, and as an exit status."""

    data: dict[str, Any]
    text: str
    status: int = 0
