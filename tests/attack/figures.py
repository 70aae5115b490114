"""Whether the store has the figures that a study printed: each cell of its table, made anew from the store."""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from pipeline.base import units
from pipeline.base.records import Result
from pipeline.base.tags import GROUP, Tag
from pipeline.observe import table
from tests import fail_everywhere

_RATE = (units.per_second(units.SAMPLES), units.total_of(units.SAMPLES), "{:.1f}")
_FIGURES = {title: (name, form) for title, name, form in (_RATE, *table._COLUMNS, *table._LAST_COLUMNS)}
_METRICS = f"""
SELECT runs.name, block.value, runs.run_uuid, result.value, metric.key, metric.value FROM runs
JOIN experiments USING (experiment_id)
JOIN tags role ON role.run_uuid = runs.run_uuid AND role.key = '{Tag.ROLE}' AND role.value = '{GROUP}'
JOIN tags block ON block.run_uuid = runs.run_uuid AND block.key = '{Tag.BLOCK}'
JOIN tags result ON result.run_uuid = runs.run_uuid AND result.key = '{Tag.RESULT}'
LEFT JOIN latest_metrics metric ON metric.run_uuid = runs.run_uuid AND NOT metric.is_nan
WHERE experiments.name = '{{}}' ORDER BY runs.start_time, runs.rowid
"""
_Run = tuple[str, str, dict[str, float]]  # its number, its result, its metrics


def differences(printed: str, database: Path, experiment: str) -> Iterator[str]:
    """The cells of the last study's table that the store contradicts; nothing if it printed no table.

    Args:
        printed: its standard output.
        database: of the store, once everything was sent.
        experiment: in which no group is in two studies that both print it.
    """
    lines = [re.split(r"\s{2,}", line) for line in printed.splitlines()]
    at = next((number for number, cells in enumerate(lines) if cells[0] == "group"), None)
    if at is None:
        return
    titles = lines[at][lines[at].index("result") :]
    groups = _newest_runs(database, experiment)
    for cells in lines[at + 1 :]:
        if " " in cells[0] or len(cells) <= len(titles):
            return  # the notes below the table: a group's name is a word
        said = dict(zip(titles, cells[-len(titles) :], strict=True))
        stored = _cells(groups.get(cells[0], []))
        for title, text in said.items():
            if title in stored and text.rstrip("*") != stored[title]:
                yield f"{cells[0]}: {title} is {text} in the table, {stored[title]} in the store"


def _newest_runs(database: Path, experiment: str) -> dict[str, list[_Run]]:
    """The last run of each block, by the name of the group."""
    found: dict[str, dict[str, _Run]] = {}
    for name, block, run_id, result, key, value in fail_everywhere.query(database, _METRICS.format(experiment)):
        blocks = found.setdefault(name, {})
        if block not in blocks or blocks[block][0] != run_id:
            blocks[block] = run_id, result, {}
        if key is not None:
            blocks[block][2][key] = value
    return {name: list(blocks.values()) for name, blocks in found.items()}


def _cells(runs: list[_Run]) -> dict[str, str]:
    """What the table must say of a group: its results, and medians over the blocks that ended well, if any did."""
    counts = Counter(result for _, result, _ in runs)
    listed = [f"{counts[result]} {result.value}" for result in Result if counts[result]]
    cells = {"result": next(iter(counts)) if len(counts) == 1 else ", ".join(listed)}
    for title, (name, form) in _FIGURES.items():
        having = [(result, metrics[name]) for _, result, metrics in runs if name in metrics]
        used = [value for result, value in having if result == Result.OK] or [value for _, value in having]
        cells[title] = form.format(statistics.median(used)) if used else "-"
    return cells
