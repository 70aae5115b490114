"""Pages of publications: each figure and table has a row, with a command or the reason why there is none."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from pipeline.base.system.paths import PROJECT_DIR
from pipeline.report.evaluate.publication import publications

pytestmark = pytest.mark.covers("docs")

PAGES = PROJECT_DIR / "docs" / "papers"
COLUMNS = ["command", "the paper says", "measured here"]
_NUMBERS = re.compile(r"(\d+)[a-d]?(?: to (\d+)[a-d]?)?")


def rows_of(name: str, first: str, second: str) -> Iterator[list[str]]:
    """Yield the cells of each row of the tables of a page that begin with these two columns."""
    is_inside = False
    for line in (PAGES / f"{name}.md").read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|"):
            is_inside = False
        elif cells[:2] == [first, second]:
            is_inside = True
        elif is_inside and not set(line) <= set("|- "):
            yield cells


def numbers_of(label: str) -> set[int]:
    """Return the numbers of figures in a label: `3a, 5a to 7a`."""
    ends = _NUMBERS.findall(label.partition(":")[0].removeprefix("table "))
    return {number for low, high in ends for number in range(int(low), int(high or low) + 1)}


@pytest.mark.parametrize(("name", "last_figure", "last_table"), [("migperf", 11, 4), ("robroek", 12, 0)])
def test_a_page_has_a_row_for_each_figure_and_table(name: str, last_figure: int, last_table: int) -> None:
    rows = list(rows_of(name, "figure", "command"))
    is_table = [row[0].startswith("table") for row in rows]
    numbers = [
        {number for row, kind in zip(rows, is_table, strict=True) if kind is of_tables for number in numbers_of(row[0])}
        for of_tables in (False, True)
    ]
    assert numbers == [set(range(1, last_figure + 1)), set(range(1, last_table + 1))]
    assert all(len(row) == 4 and row[1] for row in rows), "a command, or the reason why there is none"


def test_a_page_names_all_authors_of_its_publication() -> None:
    for publication in publications():
        name = {"paper": "robroek"}.get(publication.table, publication.table)
        page = " ".join((PAGES / f"{name}.md").read_text(encoding="utf-8").split())
        authors = publication.about.partition(", arXiv")[0] if "arXiv" in publication.about else "CERN"
        assert [author for author in authors.split(", ") if author not in page] == [], name


def test_the_page_of_cern_has_a_row_for_each_of_its_tables() -> None:
    rows = list(rows_of("cern", "table", "command"))
    assert len(rows) == 11 and all(len(row) == 4 and all(row) for row in rows)


def test_migperf_makes_no_statement_of_its_last_figures() -> None:
    silent = {8, 9, 10, 11}
    rows = [row for row in rows_of("migperf", "figure", "command") if not row[0].startswith("table")]
    assert [row[2] for row in rows if numbers_of(row[0]) <= silent] == 4 * ["shown without a statement"]
