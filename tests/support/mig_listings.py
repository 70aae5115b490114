"""A reader of `nvidia-smi mig -lgip` and `-lgipp`. It ignores the widths of columns, which differ between drivers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from tests.conftest import DATA

LISTINGS = DATA / "mig_listings"
_FIRST_LINE = re.compile(
    r"\|\s*\d+\s+MIG (?P<name>\S+)\s+(?P<id>\d+)\s+\d+/(?P<most>\d+)\s+(?P<gib>[\d.]+)\s+(?:No|Yes)"
    r"\s+(?P<sm>\d+)\s+(?P<decoder>\d+)\s+(?P<encoder>\d+)\s*\|"
)
_SECOND_LINE = re.compile(r"\|\s+(?P<copy>\d+)\s+(?P<jpeg>\d+)\s+(?P<ofa>\d+)\s*\|")
_PLACEMENTS = re.compile(r"GPU\s+\d+ Profile ID\s+(\d+) Placements? ?: ?\{([\d,]+)\}:(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedProfile:
    """A row of `-lgip`. The keys of `values` are attributes of `mig_table.GiProfile`; a cut row has fewer keys."""

    name: str
    id: int
    memory_mib: int
    values: dict[str, int]


def parse_profiles(text: str) -> Iterator[ListedProfile]:
    """Yield the profiles of a listing, in the order of the listing."""
    lines = text.splitlines()
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        if (first := _FIRST_LINE.fullmatch(line)) is None:
            continue
        second = _SECOND_LINE.fullmatch(following)
        counts = {"decoder": first["decoder"], "encoder": first["encoder"]} | (second.groupdict() if second else {})
        values = {"num_multiprocessors": int(first["sm"]), "max_instances": int(first["most"])}
        yield ListedProfile(
            name=first["name"],
            id=int(first["id"]),
            memory_mib=round(float(first["gib"]) * 16) * 64,
            values=values | {f"num_{unit}": int(count) for unit, count in counts.items()},
        )


def parse_placements(text: str) -> dict[int, tuple[tuple[int, ...], int]]:
    """Return the starts and the size of each profile, by profile id."""
    return {
        int(number): (tuple(map(int, starts.split(","))), int(size))
        for number, starts, size in _PLACEMENTS.findall(text)
    }
