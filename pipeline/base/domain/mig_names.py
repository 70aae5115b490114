"""The names of MIG devices: `3g.40gb` has all of a GPU instance, `1c.3g.40gb` one compute slice of it."""

from __future__ import annotations

import re

_PART = re.compile(r"(?P<slices>\d+)c\.(?P<profile>.+)")


def name_of(profile: str, slices: int | None) -> str:
    """Return `1c.3g.40gb` for a compute instance of one slice in a `3g.40gb`; without slices the profile itself."""
    return profile if slices is None else f"{slices}c.{profile}"


def split(name: str) -> tuple[str, int | None]:
    """Split a name into the profile of the GPU instance and the compute slices; `None` for all of it."""
    part = _PART.fullmatch(name)
    return (name, None) if part is None else (part["profile"], int(part["slices"]))


def format_division(profile: str, parts: list[str]) -> str:
    """Format a GPU instance with its compute instances: `3g.40gb(1c+2c)`; without parts the profile itself."""
    return f"{profile}({'+'.join(parts)})" if parts else profile
