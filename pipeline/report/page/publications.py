"""The tables of publications on the page. A sentence above each table lists the differences that many rows share."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.base.system.words import group_by
from pipeline.report.evaluate.paper import Agreement
from pipeline.report.page.table_format import Table, Values

_IN_FILES_ONLY = ("low", "high", "mind")
_AGREEMENT, _DIFFERENCE, _MIND = "agreement", "by how much", "mind"


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingsTable:
    """Findings of a publication, and a sentence on the differences that many of them share."""

    table: Table
    differs: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """The findings of a publication.

    Attributes:
        same: findings that were measured at the settings of the publication.
        other: findings that were measured at other settings.
        num_absent: number of findings that were not measured.
    """

    name: str
    about: str
    same: FindingsTable
    other: FindingsTable
    num_absent: int


def split_by_agreement(table: Table) -> Publication:
    """Split the findings of a publication: measured at its settings, at other settings, or not measured."""
    agreement = table.columns.index(_AGREEMENT)
    rows = group_by(table.rows, lambda row: str(row[agreement]))
    absent, other = rows.pop(Agreement.NOT_MEASURED.value, []), rows.pop(Agreement.OTHER_SETTINGS.value, [])
    same = [row for row in table.rows if str(row[agreement]) in rows]
    differs = _describe_parts(_parts(table, same, _MIND))
    return Publication(
        name=table.name,
        about=table.about,
        same=FindingsTable(table=_drop_columns(table, same, _IN_FILES_ONLY), differs=differs),
        other=_merge_settings(table, other),
        num_absent=len(absent),
    )


def _merge_settings(table: Table, rows: Sequence[Values]) -> FindingsTable:
    """Move the differences in settings that all rows of a case share from the rows to the sentence above them."""
    case, difference = table.columns.index("case"), table.columns.index(_DIFFERENCE)
    settings: dict[Values, set[str]] = {row: set(_split(row[difference])) for row in rows}
    cases = group_by(rows, lambda row: row[case])
    case_parts = [
        part
        for part in _parts(table, rows, _DIFFERENCE)
        if all(len({part in settings[row] for row in members}) == 1 for members in cases.values())
    ]
    settings_of_row = {
        row: "; ".join(part for part in _split(row[difference]) if part not in case_parts) for row in rows
    }
    brief = [
        tuple(settings_of_row[row] or None if place == difference else value for place, value in enumerate(row))
        for row in rows
    ]
    hidden = [*_IN_FILES_ONLY, _AGREEMENT, *([] if any(settings_of_row.values()) else [_DIFFERENCE])]
    shown = _drop_columns(table, brief, hidden)
    columns = tuple("other settings" if head == _DIFFERENCE else head for head in shown.columns)
    differs = _describe_parts([*_parts(table, rows, _MIND), *case_parts])
    return FindingsTable(table=dataclasses.replace(shown, columns=columns), differs=differs)


def _parts(table: Table, rows: Sequence[Values], column: str) -> list[str]:
    place = table.columns.index(column)
    return list(dict.fromkeys(part for row in rows for part in _split(row[place])))


def _split(value: object) -> list[str]:
    return [part for part in str(value or "").split("; ") if part]


def _describe_parts(parts: Sequence[str]) -> str:
    return f"Differences from the paper: {'; '.join(parts)}." if parts else ""


def _drop_columns(table: Table, rows: Sequence[Values], hidden: Sequence[str]) -> Table:
    is_visible = [head not in hidden for head in table.columns]
    columns = tuple(itertools.compress(table.columns, is_visible))
    return dataclasses.replace(
        table, columns=columns, rows=tuple(tuple(itertools.compress(row, is_visible)) for row in rows)
    )
