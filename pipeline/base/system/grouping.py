"""Grouping by a key, in any order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

_Key = TypeVar("_Key", bound=Hashable)
_Member = TypeVar("_Member")


def group_by(members: Iterable[_Member], key_of: Callable[[_Member], _Key]) -> dict[_Key, list[_Member]]:
    """Return the members per key; keys and members keep their order of appearance."""
    groups: dict[_Key, list[_Member]] = defaultdict(list)
    for member in members:
        groups[key_of(member)].append(member)
    return dict(groups)
