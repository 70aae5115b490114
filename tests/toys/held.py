"""The options of a toy that can be held at a step."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(kw_only=True)
class HeldToy:
    script = "tests/toys/toy.py"

    def can_be_held(self) -> bool:
        return True
