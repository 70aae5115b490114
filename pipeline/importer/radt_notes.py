"""Notes on the columns of a radT table whose content is not kept in the experiment file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from pipeline.base.system.words import format_count, list_first, natural_key
from pipeline.importer.radt_table import LISTENERS, Row, RowGroup, find_kept_device

_PROFILERS = {"nsys": "nsys", "ncu": "ncu"}
_RESULTS = ("Status", "Run")
_NAME, _MOST_NAMED = "Name", 3


def describe(groups: Sequence[RowGroup], known: Sequence[Row]) -> Iterator[str]:
    """Yield a note for each column that is not kept completely; `known` has the rows with workloads of this project."""
    rows = [row for group in groups for row in group.rows]
    if note := _describe_devices(groups):
        yield note
    yield from _describe_listeners(rows)
    if len(experiments := _drop_repeats(row.experiment for row in rows)) > 1:
        names = list_first(experiments, _MOST_NAMED)
        yield f"Experiment {names}: merged into one experiment, with groups in random order"
    options = [pair for row in known for pair in zip(row.args, row.args[1:], strict=False)]
    if folders := _drop_repeats(folder for option, folder in options if option == "--data-dir"):
        names = list_first(folders, _MOST_NAMED)
        yield f"--data-dir {names}: not kept; set data.root=FOLDER to the folder of the data sets"
    yield from _describe_columns(rows)


def _describe_devices(groups: Sequence[RowGroup]) -> str:
    counts = Counter(group.device for group in groups if group.device)
    if not counts:
        return ""
    if (device := find_kept_device(groups)) is not None:
        return f"Devices {device}: kept as gpu.device; choose another GPU with gpu.device=INDEX"
    if set(counts) == {"0"} and len({group.device for group in groups}) == 1:
        return "Devices 0: replaced by gpu.device=auto, which is the first GPU or the GPU of the allocation"
    placed = ", ".join(
        f"{format_count(counts[device], 'group')} on GPU {device}" for device in sorted(counts, key=natural_key)
    )
    return f"Devices: not kept ({placed}), because groups are compared on one GPU; select it by gpu.device=INDEX"


def _describe_listeners(rows: Sequence[Row]) -> Iterator[str]:
    listener_words = {word for row in rows for word in row.listeners}
    if absent := sorted(listener_words - LISTENERS.keys() - _PROFILERS.keys()):
        yield f"Listeners {', '.join(absent)}: not kept, because this project has no counterpart"
    for word in sorted(listener_words & _PROFILERS.keys()):
        yield f"Listeners {word}: not kept; run with profiler={_PROFILERS[word]}"
    if len({frozenset(row.listeners).intersection(LISTENERS) for row in rows}) > 1:
        yield "Listeners differ between rows; all groups use the listeners of all rows"


def _describe_columns(rows: Sequence[Row]) -> Iterator[str]:
    columns = _drop_repeats(column for row in rows for column in row.other_cells)
    if names := _drop_repeats(row.other_cells[_NAME] for row in rows if _NAME in row.other_cells):
        yield f"{_NAME} {list_first(names, _MOST_NAMED)}: not kept, because groups are named after their jobs"
    if results := [column for column in _RESULTS if column in columns]:
        yield f"{' and '.join(results)}: results of radT, not kept; every row runs again"
    for column in columns:
        if column not in (_NAME, *_RESULTS):
            values = _drop_repeats(row.other_cells[column] for row in rows if column in row.other_cells)
            yield f"{column} {list_first(values, _MOST_NAMED)}: not kept, because this project has no counterpart"


def _drop_repeats(values: Iterator[str]) -> list[str]:
    return list(dict.fromkeys(values))
