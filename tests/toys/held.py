"""The options of a toy that can be held at a step."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(kw_only=True)
class HeldToy:
    script = "tests/toys/toy.py"

    def explain_own_launch(self) -> str:
        return ""

    def explain_own_process(self) -> str:
        return ""
