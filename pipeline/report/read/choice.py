"""The rows of an experiment that a report shows: those that the user chose, either real or simulated."""

from __future__ import annotations

import dataclasses
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from pipeline.base.system.errors import ConfigError
from pipeline.base.system.grouping import group_by
from pipeline.base.system.words import format_count
from pipeline.report.read.study_records import Row

STUDY, DEVICE = "--study", "--device"
"""Options of the report."""

_MOST_NAMED = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The studies and devices that a user chose; an empty choice includes all rows.

    Attributes:
        studies: values of the tag `collocation.study`.
        devices: names of devices, or unique parts of names; `simulated NAME` for a simulated device.
    """

    studies: Sequence[str] = ()
    devices: Sequence[str] = ()

    def __bool__(self) -> bool:
        return bool(self.studies or self.devices)

    @property
    def words(self) -> str:
        """The options of the report that make this choice."""
        return shlex.join([*_repeat(STUDY, self.studies), *_repeat(DEVICE, self.devices)])

    def check(self, rows: Sequence[Row]) -> Choice:
        """Return the choice with full device names.

        Raises:
            ConfigError: a study or device is unknown, or real and simulated devices are mixed.
        """
        starts = group_by(rows, lambda row: row.start).values()
        newest_first = sorted(starts, key=lambda members: -max(row.start_ms for row in members))
        for study in self.studies:
            if study not in {row.start for row in rows}:
                raise ConfigError(f"{STUDY} {study}: no such study; choose one of: {_list(map(_study, newest_first))}")
        chosen = [row for row in rows if row.start in self.studies or not self.studies]
        devices = Counter(row.device_in_words for row in chosen)
        names = tuple(_find(device, devices) for device in self.devices)
        if len({row.is_simulated for row in chosen if row.device_in_words in names}) > 1:
            raise ConfigError(f"{self.words} mixes real and simulated devices; write one report for each kind")
        return dataclasses.replace(self, devices=names)

    def includes(self, row: Row) -> bool:
        """Return whether this choice, after `check`, includes the study and the device of a row."""
        is_of_study = not self.studies or row.start in self.studies
        return is_of_study and (not self.devices or row.device_in_words in self.devices)


def separate_simulated(rows: Sequence[Row]) -> tuple[list[Row], Mapping[str, int]]:
    """Return the rows of real devices, or all rows if none is real; and the number of simulated rows left out."""
    real = [row for row in rows if not row.is_simulated]
    devices = Counter(row.device_in_words for row in rows if row.is_simulated) if real else Counter[str]()
    left_out = {f"{name}; {shlex.join([DEVICE, name])} shows them": number for name, number in devices.items()}
    return real or list(rows), left_out


def _repeat(option: str, values: Sequence[str]) -> list[str]:
    return [word for value in values for word in (option, value)]


def _find(name_or_part: str, devices: Mapping[str, int]) -> str:
    same = [name for name in devices if name.casefold() == name_or_part.casefold()]
    matches = same or [name for name in devices if name_or_part.casefold() in name.casefold()]
    if len(matches) != 1:
        wrong = f"{len(matches)} devices match" if matches else "no such device"
        raise ConfigError(f"{DEVICE} {name_or_part}: {wrong}; choose one of: {_list(matches or devices)}")
    return matches[0]


def _list(names: Iterable[str]) -> str:
    all_names = list(names)
    more = len(all_names) - _MOST_NAMED
    return ", ".join([*all_names[:_MOST_NAMED], *([f"and {more} more"] if more > 0 else [])]) or "none"


def _study(rows: Sequence[Row]) -> str:
    """Describe one start of a study: `ID (17 groups on NVIDIA A100, 2026-11-25 17:49)`."""
    begin = datetime.fromtimestamp(min(row.start_ms for row in rows) / 1000, UTC).strftime("%Y-%m-%d %H:%M")
    devices = " and ".join(dict.fromkeys(row.device_in_words for row in rows))
    return f"{rows[0].start} ({format_count(len(rows), 'group')} on {devices}, {begin})"
