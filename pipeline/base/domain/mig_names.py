"""The names of MIG devices: `3g.40gb` has all compute slices of its GPU instance, `1c.3g.40gb` has one of them."""

from __future__ import annotations

import re

_PART = re.compile(r"(?P<slices>\d+)c\.(?P<profile>.+)")


def name_of(profile: str, slices: int | None) -> str:
    """Return `1c.3g.40gb` for one compute slice of a `3g.40gb`; without slices, the profile itself."""
    return profile if slices is None else f"{slices}c.{profile}"


def split(name: str) -> tuple[str, int | None]:
    """Split a name into GPU instance profile and number of compute slices; `None` for all slices."""
    part = _PART.fullmatch(name)
    return (name, None) if part is None else (part["profile"], int(part["slices"]))


def format_division(profile: str, parts: list[str]) -> str:
    """Format a GPU instance with its compute instances: `3g.40gb(1c+2c)`; the profile alone if not partitioned."""
    return f"{profile}({'+'.join(parts)})" if parts else profile
