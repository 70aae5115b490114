"""Whether the store has the figures that a study printed: each cell of its table, made anew from the store."""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from pipeline.base.domain import work_units
from pipeline.base.domain.records import Result
from pipeline.observe import table
from tests.attack.store_reader import StoredRun, groups_of, read_runs

_OTHERS = (*table._COLUMNS, *table._LAST_COLUMNS)
_FIGURES: dict[str, tuple[str, Callable[[float], str]]] = {title: (name, form.format) for title, name, form in _OTHERS}
_FIGURES[work_units.per_second(work_units.SAMPLES)] = (work_units.total_of(work_units.SAMPLES), work_units.format_rate)


def differences(printed: str, database: Path, experiment: str, gpu_uuid: str | None = None) -> Iterator[str]:
    """The cells of the last study's table that the store contradicts; nothing if it printed no table.

    Args:
        printed: its standard output.
        database: of the store, once everything was sent.
        experiment: in which no group is in two studies of one GPU that both print it.
        gpu_uuid: of the study, if it is not the only one of the experiment.
    """
    lines = [re.split(r"\s{2,}", line) for line in printed.splitlines()]
    at = next((number for number, cells in enumerate(lines) if cells[0] == "group"), None)
    if at is None:
        return
    titles = lines[at][lines[at].index("result") :]
    groups = _newest_runs(database, experiment, gpu_uuid)
    for cells in lines[at + 1 :]:
        if " " in cells[0] or len(cells) <= len(titles):
            return  # the notes below the table: a group's name is a word
        printed_cells = dict(zip(titles, cells[-len(titles) :], strict=True))
        stored = _cells(groups.get(cells[0], []))
        for title, text in printed_cells.items():
            if title in stored and text.rstrip("*") != stored[title]:
                yield f"{cells[0]}: {title} is {text} in the table, {stored[title]} in the store"


def _newest_runs(database: Path, experiment: str, gpu_uuid: str | None) -> dict[str, list[StoredRun]]:
    """The last run of each block, by the name of the group."""
    newest: dict[str, dict[str, StoredRun]] = {}
    for run in groups_of(read_runs(database, experiment)):
        if "result" in run.tags and gpu_uuid in (None, run.tags.get("gpu_uuid")):
            newest.setdefault(run.name, {})[run.tags["block"]] = run
    return {name: list(runs.values()) for name, runs in newest.items()}


def _cells(runs: Sequence[StoredRun]) -> dict[str, str]:
    """What the table must say of a group: its results, and medians over the blocks that are valid, or else ended well.

    If none did, over those that have a figure.
    """
    counts = Counter(run.tags["result"] for run in runs)
    listed = [f"{counts[result]} {result.value}" for result in Result if counts[result]]
    cells = {"result": next(iter(counts)) if len(counts) == 1 else ", ".join(listed)}
    for title, (name, form) in _FIGURES.items():
        having = [run for run in runs if name in run.metrics]
        well = [run for run in having if run.tags["result"] == Result.OK]
        used = [run for run in well if not run.is_invalid] or well or having
        cells[title] = form(statistics.median(run.metrics[name] for run in used)) if used else "-"
    return cells
