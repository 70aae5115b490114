"""The figures of claims from the tables of a report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from pipeline.report.evaluate.claimed_figures import NoFigureError, format_estimate
from pipeline.report.evaluate.statistics import Estimate
from pipeline.report.page.table_format import Table
from pipeline.report.read.claims_file import Query


def format_value(query: Query, tables: Sequence[Table]) -> str:
    """Return the text of a query from its table; the columns after that of an estimate have the ends of its interval.

    Raises:
        NoFigureError: no row of the table, or several, have the texts `row` and a value of the quantity.
    """
    rows = [
        row[table.columns.index(query.quantity) :]
        for table in tables
        if table.name == query.table and query.quantity in table.columns
        for row in table.rows
        if not Counter(query.row) - Counter(map(str, row))
    ]
    values = [value for row in rows for value in (*row, None, None)[:3]]
    if len(rows) != 1 or values[0] is None:
        columns = {table.name: table.columns for table in tables}
        raise NoFigureError(f"{len(rows)} rows of {query.table} have {query.row}, {query.quantity}; tables: {columns}")
    if isinstance(values[0], str):
        return values[0]
    low, high = (value if isinstance(value, int | float) else None for value in values[1:])
    return format_estimate(query, Estimate(median=values[0], low=low, high=high, n=1))
