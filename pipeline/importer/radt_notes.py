"""Notes on a table of radT: what the experiment does not keep, said once a column."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from pipeline.base.system.words import format_count, natural_key
from pipeline.importer.radt_table import LISTENERS, Row, RowGroup, find_kept_device

_PROFILERS = {"nsys": "nsys", "ncu": "ncu"}
_RESULTS = ("Status", "Run")
_NAME, _MOST_NAMED = "Name", 3


def describe(groups: Sequence[RowGroup], known: Sequence[Row]) -> Iterator[str]:
    """Yield a sentence for each column of which something is not kept.

    Args:
        groups: of the table.
        known: the rows that became workloads of this project, which find their data by themselves.
    """
    rows = [row for group in groups for row in group.rows]
    if note := _describe_devices(groups):
        yield note
    yield from _describe_listeners(rows)
    if len(experiments := _drop_repeats(row.experiment for row in rows)) > 1:
        yield f"Experiment {_join_some(experiments)}: they become one experiment, whose groups run in random order"
    options = [pair for row in known for pair in zip(row.args, row.args[1:], strict=False)]
    if folders := _drop_repeats(folder for option, folder in options if option == "--data-dir"):
        yield f"--data-dir {_join_some(folders)}: not kept; data.root=FOLDER says where the data sets lie"
    yield from _describe_columns(rows)


def _describe_devices(groups: Sequence[RowGroup]) -> str:
    counts = Counter(group.device for group in groups if group.device)
    if not counts:
        return ""
    if (device := find_kept_device(groups)) is not None:
        return f"Devices {device}: kept as gpu.device; gpu.device=INDEX on the command line chooses another GPU"
    if set(counts) == {"0"} and len({group.device for group in groups}) == 1:
        return "Devices 0: left to gpu.device=auto, the first GPU or that which an allocation grants"
    placed = ", ".join(
        f"{format_count(counts[device], 'group')} on GPU {device}" for device in sorted(counts, key=natural_key)
    )
    return f"Devices: not kept ({placed}), as groups are compared on one GPU; gpu.device=INDEX chooses it"


def _describe_listeners(rows: Sequence[Row]) -> Iterator[str]:
    listener_words = {word for row in rows for word in row.listeners}
    if absent := sorted(listener_words - LISTENERS.keys() - _PROFILERS.keys()):
        yield f"listeners without a counterpart here are left out: {', '.join(absent)}"
    for word in sorted(listener_words & _PROFILERS.keys()):
        yield f"listener {word} is a profiler here: profiler={_PROFILERS[word]} on the command line"
    if len({frozenset(row.listeners).intersection(LISTENERS) for row in rows}) > 1:
        yield "Listeners differ from row to row; here all groups have all of them"


def _describe_columns(rows: Sequence[Row]) -> Iterator[str]:
    columns = _drop_repeats(column for row in rows for column in row.other_cells)
    if names := _drop_repeats(row.other_cells[_NAME] for row in rows if _NAME in row.other_cells):
        yield f"{_NAME} {_join_some(names)}: not kept, groups are named after what they run"
    if results := [column for column in _RESULTS if column in columns]:
        yield f"{' and '.join(results)} are results of radT and not kept: every row runs again"
    for column in columns:
        if column not in (_NAME, *_RESULTS):
            values = _drop_repeats(row.other_cells[column] for row in rows if column in row.other_cells)
            yield f"{column} {_join_some(values)}: not kept, it has no counterpart here"


def _drop_repeats(values: Iterator[str]) -> list[str]:
    return list(dict.fromkeys(values))


def _join_some(values: Sequence[str]) -> str:
    more = f" and {len(values) - _MOST_NAMED} more" if len(values) > _MOST_NAMED else ""
    return f"{', '.join(values[:_MOST_NAMED])}{more}"
