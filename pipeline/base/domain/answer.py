"""What a command found that answers a question."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """For programs, for people, and as an exit status."""

    data: dict[str, Any]
    text: str
    status: int = 0
