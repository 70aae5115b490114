"""Reader of radT's tables, which returns groups of jobs.

A row is a job, and rows with equal Experiment and Workload run together. `Devices` is an index, or several joined by
`+`; `Collocation` is `-`, `MPS` or a MIG profile; `Params` has arguments in shell syntax or, in older tables, as
`x=1+y=2`. radT fills the columns Status and Run after a run; they are not imported. Source: radT's README and the
tables that its authors published.
"""

from __future__ import annotations

import csv
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.base.system.errors import ConfigError
from pipeline.base.system.words import format_count, list_first, natural_key

_PROFILERS = {"nsys": "nsys", "ncu": "ncu"}
_RESULTS = ("Status", "Run")
_NAME, _MOST_NAMED = "Name", 3


def describe_groups(groups: Sequence[RowGroup], project_rows: Sequence[Row]) -> Iterator[str]:
    """Yield a note for each column that is not kept completely; `project_rows` run workloads of this project."""
    rows = [row for group in groups for row in group.rows]
    if note := _describe_devices(groups):
        yield note
    yield from _describe_listeners(rows)
    if len(experiments := _drop_repeats(row.experiment for row in rows)) > 1:
        names = list_first(experiments, _MOST_NAMED)
        yield f"Experiment {names}: merged into one experiment, with groups in random order"
    options = [pair for row in project_rows for pair in zip(row.args, row.args[1:], strict=False)]
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


_COLUMNS = ("Experiment", "Workload", "Devices", "Collocation", "Listeners", "Params")
_PROGRAM_COLUMNS = (("File",), ("Model", "Data"))
_BEYOND = "beyond the last column"
LISTENERS = {"smi": "smi", "top": "host", "ps": "host", "dcgmi": "dcgm"}
"""Listeners of this project, by radT's names of listeners."""
# Texts that mean an empty cell; `nan` and `None` are in tables that pandas wrote.
_EMPTY = frozenset({"", "-", "nan", "None"})
_INDEX = re.compile(r"(\d+)(\.0)?")  # pandas may write the index 0 as 0.0
_UUID = re.compile(r"(GPU|MIG)-[\w/-]+")
_PROFILE = re.compile(r"[1-9]\d*g(\.\d+gb)?([+-][a-z.]+)*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One job of a table.

    Attributes:
        line: number of the row's last line in the file, from 1.
        experiment: column Experiment.
        devices: index or UUID of the GPU; empty if the row names none.
        collocation: column Collocation.
        file: path of the training script; empty in older tables, which name `model` and `data` instead.
        model: column Model of older tables.
        data: column Data of older tables.
        listeners: radT's names of listeners.
        args: arguments of the program.
        other_cells: non-empty cells of further columns.
    """

    line: int
    experiment: str
    devices: str
    collocation: str
    file: str
    model: str
    data: str
    listeners: tuple[str, ...]
    args: tuple[str, ...]
    other_cells: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowGroup:
    """Rows that run together under the scenario `naive`, `mps` or `mig`; `mig` has one profile per job."""

    rows: tuple[Row, ...]
    scenario: str
    profiles: tuple[str, ...] = ()

    @property
    def device(self) -> str:
        """Index or UUID of the GPU that all rows share; empty if the rows name none."""
        return self.rows[0].devices


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A row that cannot be imported, with the reason."""

    line: int
    reason: str


def read(path: Path) -> tuple[list[RowGroup], list[Refused]]:
    """Return the groups of a table, in the order of their first rows, and the rows that cannot be imported.

    If a row cannot be imported, its whole group is left out.

    Raises:
        ConfigError: the file cannot be read, is not a radT table, or has no rows.
    """
    by_group: dict[tuple[str, str], list[Row | Refused]] = {}
    for line, cells in _cells(path):
        try:
            entry: Row | Refused = _row(line, cells)
        except ValueError as error:
            entry = Refused(line=line, reason=str(error))
        by_group.setdefault((cells["Experiment"], cells["Workload"]), []).append(entry)
    groups, refused = list[RowGroup](), list[Refused]()
    for entries in by_group.values():
        rows = [entry for entry in entries if isinstance(entry, Row)]
        if refusals := [entry for entry in entries if isinstance(entry, Refused)]:
            lines = ", ".join(str(refusal.line) for refusal in refusals)
            reason = f"runs together with line {lines}, which cannot be imported"
            refused += [*refusals, *(Refused(line=row.line, reason=reason) for row in rows)]
            continue
        try:
            groups.append(_group(rows))
        except ValueError as error:
            refused += [Refused(line=row.line, reason=str(error)) for row in rows]
    return groups, refused


def find_kept_device(groups: Sequence[RowGroup]) -> str | None:
    """Return the GPU of all groups for `gpu.device`; `None` if the groups use several GPUs, or GPU 0 (the default)."""
    devices = {group.device for group in groups}
    device = devices.pop() if len(devices) == 1 else ""
    return device if device not in ("", "0") else None


def _cells(path: Path) -> list[tuple[int, dict[str, str]]]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, skipinitialspace=True)
            names = [name.strip() for name in reader.fieldnames or ()]
            _require_columns(path, names)
            reader.fieldnames = names
            rows = [(reader.line_num, _strip_cells(cells)) for cells in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"cannot read the table {path}: {reason}; it must be a CSV file in UTF-8") from error
    rows = [(line, cells) for line, cells in rows if any(cells.values())]
    if not rows:
        raise ConfigError(f"the table {path} has no row below its header; add one row per job")
    return rows


def _strip_cells(cells: dict[str | Any, str | Any]) -> dict[str, str]:
    """Strip the cells of a row; join the cells beyond the last column."""
    beyond = cells.pop(None, [])
    stripped = {key: (value or "").strip() for key, value in cells.items()}
    return stripped | {_BEYOND: ",".join(beyond).strip(" ,")}


def _require_columns(path: Path, names: Sequence[str]) -> None:
    missing = [name for name in _COLUMNS if name not in names]
    if not any(set(columns) <= set(names) for columns in _PROGRAM_COLUMNS):
        missing.append("File")
    if missing:
        raise ConfigError(
            f"{path} is not a radT table, because its first line lacks {', '.join(missing)}; begin it with "
            "Experiment,Workload,Status,Run,Devices,Collocation,File,Listeners,Params"
        )


def _row(line: int, cells: dict[str, str]) -> Row:
    if cells[_BEYOND]:
        raise ValueError(
            f"the row has more cells than columns, from {cells[_BEYOND]!r} on; quote cells that contain commas"
        )
    if not cells["Experiment"] or not cells["Workload"]:
        raise ValueError("Experiment or Workload is empty; fill in both, because they name the group")
    devices = _blank_to_empty(cells["Devices"])
    if "+" in devices:
        raise ValueError(
            f"Devices {devices} are several GPUs; name one GPU, because jobs on several GPUs are not supported"
        )
    if index := _INDEX.fullmatch(devices):
        devices = str(int(index[1]))
    elif devices and not _UUID.fullmatch(devices):
        raise ValueError(f"Devices {devices} is not a GPU; use an index or UUID")
    file, model = _blank_to_empty(cells.get("File", "")), _blank_to_empty(cells.get("Model", ""))
    read = {*_COLUMNS, "File", *(() if file else ("Model", "Data"))}
    if not file and not model:
        raise ValueError("File is empty; name a program")
    return Row(
        line=line,
        experiment=cells["Experiment"],
        devices=devices,
        collocation=cells["Collocation"],
        file=file,
        model=model,
        data=_blank_to_empty(cells.get("Data", "")),
        listeners=tuple(word.strip() for word in _blank_to_empty(cells["Listeners"]).split("+") if word.strip()),
        args=_arguments(_blank_to_empty(cells["Params"])),
        other_cells={
            column: cell
            for column, cell in cells.items()
            if column not in read and column != _BEYOND and _blank_to_empty(cell)
        },
    )


def _blank_to_empty(cell: str) -> str:
    return "" if cell in _EMPTY else cell


def _arguments(params: str) -> tuple[str, ...]:
    """Split arguments like a shell; convert `x=1+y=2` of older tables to `--x 1 --y 2`."""
    try:
        words = shlex.split(params)
    except ValueError as error:
        raise ValueError(f"Params {params!r}: {error}") from error
    closed = re.sub(r"\s+\+\s+", "+", params)
    # Several words, such as `x=1 y=2`, are Hydra overrides and stay unchanged.
    if closed.startswith("-") or "=" not in closed or len(closed.split()) > 1:
        return tuple(words)
    older = [part.partition("=") for part in closed.split("+")]
    return tuple(word for key, equals, value in older for word in (f"--{key}", *([value] if equals else [])))


def _group(rows: Sequence[Row]) -> RowGroup:
    devices = sorted({row.devices for row in rows})
    if len(devices) > 1:
        named = " and ".join(device or "none" for device in devices)
        raise ValueError(f"the rows of its group use several GPUs ({named}); set Devices to the same GPU in each")
    modes = [row.collocation for row in rows]
    if all(mode in _EMPTY for mode in modes):
        return RowGroup(rows=tuple(rows), scenario="naive")
    if all(mode.lower() == "mps" for mode in modes):
        return RowGroup(rows=tuple(rows), scenario="mps")
    if all(_PROFILE.fullmatch(mode) for mode in modes):
        return RowGroup(rows=tuple(rows), scenario="mig", profiles=tuple(modes))
    recognised = (mode in _EMPTY or mode.lower() == "mps" or _PROFILE.fullmatch(mode) for mode in modes)
    if unknown := sorted({mode for mode, is_known in zip(modes, recognised, strict=True) if not is_known}):
        raise ValueError(f"its group has the unknown Collocation {', '.join(unknown)}; use -, MPS or a MIG profile")
    raise ValueError(f"its group has several values of Collocation: {', '.join(sorted(set(modes)))}; use one of them")
