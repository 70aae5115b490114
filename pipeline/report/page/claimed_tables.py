"""The figures of claims from the tables of a report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from pipeline.report.evaluate.claimed_figures import NoFigureError, format_estimate
from pipeline.report.evaluate.statistics import Estimate
from pipeline.report.page.table_format import Table
from pipeline.report.read.claims_file import Query


def format_value(query: Query, tables: Sequence[Table]) -> str:
    """Return the text of a query in the only row of its table that has the texts `row`.

    The columns after that of an estimate have the ends of its interval.

    Raises:
        NoFigureError: the report has no such table, column or row, or no value there.
    """
    columns = {table.name: table.columns for table in tables}
    if query.quantity not in columns.get(query.table, ()):
        raise NoFigureError(f"no table {query.table} has a column {query.quantity!r}; tables are {columns}")
    start = columns[query.table].index(query.quantity)
    rows = [row for table in tables if table.name == query.table for row in table.rows]
    rows = [row[start:] for row in rows if not Counter(query.row) - Counter(map(str, row))]
    values = [value for row in rows for value in (*row, None, None)[:3]]
    if len(rows) != 1 or values[0] is None:
        raise NoFigureError(f"table {query.table} has {len(rows)} rows with {query.row}, or no {query.quantity} there")
    if isinstance(values[0], str):
        return values[0]
    low, high = (value if isinstance(value, int | float) else None for value in values[1:])
    return format_estimate(query, Estimate(median=values[0], low=low, high=high, n=1))
