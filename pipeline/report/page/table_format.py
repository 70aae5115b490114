"""A table of text and numbers, which can be written as CSV or LaTeX."""

from __future__ import annotations

import csv
import io
import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pipeline.report.evaluate.statistics import Estimate, keep_stable_digits

Value = str | float | int | None
Values = tuple[Value, ...]
Item = TypeVar("Item")

_FORMULA = ("=", "@", "\t", "\r", "+", "-")
_NUMBER = r"[+-]?(\d[\d.]*|\.\d+)(e[+-]?\d+)? ?%?"
_NO_FORMULA = re.compile(rf"-|{_NUMBER}( \({_NUMBER} to {_NUMBER}\))?")
_LATEX = str.maketrans(
    {character: rf"\{character}" for character in "{}%_&#$"}
    | {"\\": r"\textbackslash{}", "^": r"\textasciicircum{}", "~": r"\textasciitilde{}"}
    | {"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}"}
    | {'"': "''"}  # a quotation mark is not in every font encoding
)
MISSING = "-"
_WIDE, _LONG = 6, 40


@dataclass(frozen=True, slots=True)
class Table:
    """A titled table.

    Attributes:
        name: name of the table's files, without a suffix.
        columns: headings, with units.
        rows: one value for each column; `None` is a missing value.
        about: introduction to the publication with which the table compares.
        is_for_machines: whether only the files contain the whole table; the page has a shorter form.
    """

    name: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[Values, ...]
    note: str = ""
    about: str = ""
    is_for_machines: bool = False

    @property
    def is_numeric(self) -> tuple[bool, ...]:
        """True for each column that contains only numbers; such a column is aligned to the right."""
        columns = [[row[i] for row in self.rows if row[i] is not None] for i in range(len(self.columns))]
        return tuple(bool(column) and all(isinstance(value, float | int) for value in column) for column in columns)


@dataclass(frozen=True, slots=True)
class Column(Generic[Item]):
    """A column of a table of items: its title, the value of an item, and the form of this value in a row.

    Without a `format`, an estimate is text, `1.57 (1.53 to 1.62)`, and any other value is itself.
    """

    title: str
    value: Callable[[Item], Any]
    format: Callable[[Any], Value] | None = None

    def show(self, item: Item) -> Value:
        """Return the value of an item as it stands in a row."""
        value = self.value(item)
        if self.format is not None and value is not None:
            return self.format(value)
        shown: Value = format_estimate(value) if isinstance(value, Estimate) else value
        return shown


def list_columns(attributes: Mapping[str, str]) -> list[Column[Any]]:
    """Return a column for each title, with the value of an attribute of an item, such as `case.label`."""
    return [Column(title, operator.attrgetter(attribute)) for title, attribute in attributes.items()]


def list_end_columns(
    title: str, value: Callable[[Item], Estimate | None], low: str = "low", high: str = "high"
) -> list[Column[Item]]:
    """Return three columns with the median, low and high of an estimate in full."""
    return [
        Column(name, value, operator.attrgetter(end)) for name, end in ((title, "median"), (low, "low"), (high, "high"))
    ]


def make_table(
    name: str, title: str, columns: Sequence[Column[Item]], items: Iterable[Item], note: str = "", **changes: Any
) -> Table:
    """Make a table with a row for each item; `changes` are the other attributes of the table."""
    rows = tuple(tuple(column.show(item) for column in columns) for item in items)
    return Table(name, title, tuple(column.title for column in columns), rows, note, **changes)


def format_value(value: Value) -> str:
    """Format a value for readers: numbers with four significant digits, a missing value as `-`."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return MISSING
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return str(value)


def format_estimate(estimate: Estimate) -> str:
    """Format an estimate with three significant digits and its interval, if there is one: `1.57 (1.53 to 1.62)`."""
    if estimate.low is None or estimate.high is None or estimate.low == estimate.high:
        return format_value(estimate.median)
    texts = [round_value(number) for number in (estimate.median, estimate.low, estimate.high)]
    return texts[0] if len(set(texts)) == 1 else "{} ({} to {})".format(*texts)


def round_value(value: float) -> str:
    """Round to three significant digits, or to a whole number if the number is 100 or more."""
    return f"{value:.0f}" if abs(value) >= 99.95 else f"{value:#.3g}"  # a number that is rounded to 100 has no decimals


def to_csv(table: Table) -> str:
    """Return comma-separated text with the stable digits of numbers; a missing value is an empty field.

    The note is the first line, after `#`: `pandas.read_csv(..., comment="#")` skips it.
    """
    text = io.StringIO()
    if table.note:
        text.write("# " + " ".join(table.note.split()) + "\n")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(table.columns)
    for row in table.rows:
        writer.writerow("" if value is None else _format_field(value) for value in row)
    return text.getvalue()


def _format_field(value: object) -> object:
    """Round a number; put an apostrophe before text that a spreadsheet would take for a formula."""
    if isinstance(value, float):
        return keep_stable_digits(value)
    may_be_one = isinstance(value, str) and value.startswith(_FORMULA) and not _NO_FORMULA.fullmatch(value)
    return f"'{value}" if may_be_one else value


def to_latex(table: Table) -> str:
    """Return a LaTeX `table` that needs `booktabs` and `graphicx`; a wide table is scaled to the width of the text."""
    alignment = "".join(_alignment(table, column) for column in range(len(table.columns)))
    shrunk = r"\resizebox{\linewidth}{!}{" if len(table.columns) > _WIDE else ""
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{escape(table.title)}}}",
        rf"\label{{tab:{re.sub('[^A-Za-z0-9-]', '-', table.name)}}}",
        rf"{shrunk}\begin{{tabular}}{{{alignment}}}",
        r"\toprule",
        _latex_row(table.columns),
        r"\midrule",
        *(_latex_row(tuple(map(format_value, row))) for row in table.rows),
        r"\bottomrule",
        rf"\end{{tabular}}{'}' if shrunk else ''}",
        *([rf"\par\smallskip\footnotesize {escape(table.note)}"] if table.note else []),
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _alignment(table: Table, column: int) -> str:
    if table.is_numeric[column]:
        return "r"
    longest = max((len(format_value(row[column])) for row in table.rows), default=0)
    return r"p{0.3\linewidth}" if longest > _LONG else "l"


def escape(text: str) -> str:
    """Escape text for LaTeX, so that LaTeX prints it unchanged."""
    escaped = " ".join(text.split()).translate(_LATEX)
    # LaTeX would read text that begins with a bracket as an option of `\\`.
    return "{[}" + escaped[1:] if escaped.startswith("[") else escaped


def _latex_row(values: tuple[str, ...]) -> str:
    return " & ".join(escape(value) for value in values) + r" \\"
