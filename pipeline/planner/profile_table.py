"""Profiles: tables of the speed, latency and memory of workloads on shares of a GPU, in CSV.

A row is one measured cell: workload, GPU model, sharing mode, instance or share, number of processes, batch size.
Figures that were not measured are empty fields; nothing is interpolated. Profiles are also made from ParvaGPU's tables
(SC'24; public, measured on an A100 80GB).
"""

from __future__ import annotations

import csv
import hashlib
import io
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from pipeline.base.domain import mig_table, sharing_modes
from pipeline.base.domain.mig_table import find_model_name
from pipeline.base.system import entry_points
from pipeline.base.system.errors import ConfigError
from pipeline.planner import input_files
from pipeline.prepare.mig import layouts, profiles

VERSION = 1
_VERSION_COLUMN, _SIMULATED_COLUMN = "schema_version", "is_simulated"
_TRUTHS = {"": False, "false": False, "true": True}
SIMULATED = "simulated: the profile says nothing about a real GPU"
"""The mark of every result that is computed from a profile of a simulated GPU."""
MEASURED_SIMULATED = "simulated: the measurements say nothing about a real GPU"
PLANNED_AS = {mode.name: mode.planned_as for mode in sharing_modes.MODES.values() if mode.planned_as}
"""The planner's name of each sharing mode. Rows of other modes are read but not used."""
ON_INSTANCES = tuple(name for name, planned in PLANNED_AS.items() if planned == "mig")
"""Sharing modes whose rows name an instance profile."""
# Larger than any figure of a GPU; sums of figures up to this limit are finite.
_MOST = 1e15
_REQUIRED = ("workload", "gpu_model", "sharing_mode", "processes", "throughput_per_s")
PARVAGPU_MODEL = "a100_80gb"
_PARVAGPU_COLUMNS = ["Mig instance", "Batch size", "Workload Number", "Throughput", "Latency"]
_SLICES, _BATCH, _PROCESSES, _THROUGHPUT, _LATENCY = _PARVAGPU_COLUMNS
# Prefix of the publication's scenarios in the same folder.
_SCENARIOS = "slo_"


def list_marks(*, is_simulated: bool) -> list[str]:
    """Return the lines that mark a result as simulated."""
    return [SIMULATED] if is_simulated else []


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One measured cell. Throughput and memory are totals of all processes; latency is the latency of one request.

    Attributes:
        gpu_model: name in the table of MIG profiles (`a100_80gb`), or the driver's name for a model outside that table.
        sharing_mode: name in the configuration (`naive`, `mps`, `mps_percent`, `mps_static`, `mig`, `mig_mps`, ...).
        instance_profile: MIG profile (`3g.40gb`); `None` in a mode without instances.
        share_percent: share of the multiprocessors that each process may use under MPS; `None` without a limit.
        processes: number of processes that run concurrently on the instance or GPU.
        batch: requests or samples per step; `None` for a program without batches.
        memory_mib: peak memory of all processes together.
        runs: ids of the MLflow runs.
        sensitivity_ratio, pressure_ratio: loads of a program alone, measured beside stressors
            (`pipeline.report.evaluate.predictions`).
    """

    workload: str
    gpu_model: str
    sharing_mode: str
    instance_profile: str | None = None
    share_percent: float | None = None
    processes: int = 1
    batch: int | None = None
    throughput_per_s: float
    throughput_low_per_s: float | None = None
    throughput_high_per_s: float | None = None
    latency_mean_ms: float | None = None
    latency_p99_ms: float | None = None
    memory_mib: float | None = None
    energy_per_item_j: float | None = None
    num_blocks: int | None = None
    runs: tuple[str, ...] = ()
    sensitivity_ratio: float | None = None
    pressure_ratio: float | None = None

    @property
    def cell(self) -> tuple[str | float | None, ...]:
        """The fields before the figures, which identify the row in its table."""
        return tuple(getattr(self, column) for column in COLUMNS[: COLUMNS.index("throughput_per_s")])


COLUMNS = tuple(field.name for field in fields(Row))
_LOADS = ("sensitivity_ratio", "pressure_ratio")
# Column names without their unit, for the error about a missing unit.
_WITHOUT_UNIT = {
    column.removesuffix(unit): column
    for unit in ("_per_s", "_ms", "_mib", "_j", "_percent")
    for column in COLUMNS
    if column.endswith(unit)
}


@dataclass(frozen=True)
class Profile:
    """A table with its rows in the order of the file.

    Attributes:
        source: path of the file or files, for messages.
        places: file and line of each row, if read from a file.
        is_simulated: whether all figures come from a simulated GPU.
    """

    rows: tuple[Row, ...]
    source: str = "profile"
    places: tuple[str, ...] = ()
    is_simulated: bool = False

    @cached_property
    def digest(self) -> str:
        """The digest of the content, independent of the order of rows and columns and the spelling of numbers."""
        lines = sorted("\0".join(_list_measured(row)) for row in self.rows)
        head = f"version {VERSION}{' simulated' if self.is_simulated else ''}"
        return hashlib.sha256("\n".join([head, *lines]).encode()).hexdigest()

    def place_of(self, row: Row) -> str:
        """Return file and line of a row, for messages."""
        return self.places[self.rows.index(row)] if self.places else self.source

    @property
    def gpu_models(self) -> tuple[str, ...]:
        """The GPU models that have rows, in the order of the rows."""
        return tuple(dict.fromkeys(row.gpu_model for row in self.rows))


def read(paths: Sequence[Path] | Path) -> Profile:
    """Read one table from one or several files.

    Raises:
        ConfigError: a file or row is invalid, or rows of simulated and real GPUs are mixed; names file, row and key.
    """
    files = [paths] if isinstance(paths, Path) else list(paths)
    source = ", ".join(map(str, files))
    rows: list[Row] = []
    first: dict[tuple[str | float | None, ...], str] = {}
    simulated_at: dict[bool, str] = {}
    for path in files:
        for number, row, is_simulated in _read_file(path):
            origin = f"{path} row {number}"
            simulated_at.setdefault(is_simulated, origin)
            if len(simulated_at) > 1:
                raise ConfigError(
                    f"{origin}, {_SIMULATED_COLUMN}: {simulated_at[True]} is from a simulated GPU, "
                    f"{simulated_at[False]} is from a real GPU; use separate profiles"
                )
            if row.cell in first:
                raise ConfigError(
                    f"{origin}, workload: {_describe(row)} has two rows; remove this row or {first[row.cell]}"
                )
            first[row.cell] = origin
            rows.append(row)
    if not rows:
        raise ConfigError(f"{source}: the profile has no rows; name a profile with rows")
    return Profile(rows=tuple(rows), source=source, places=tuple(first.values()), is_simulated=True in simulated_at)


def write(path: Path, profile: Profile) -> None:
    """Write a table; ConfigError if the file cannot be written."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([_VERSION_COLUMN, *COLUMNS, _SIMULATED_COLUMN])
    writer.writerows([VERSION, *_format_row(row), str(profile.is_simulated).lower()] for row in profile.rows)
    input_files.write(path, text.getvalue())


def _list_measured(row: Row) -> list[str]:
    """Return the fields, without the loads of a row that has none, because older profiles have no such columns."""
    cells = _format_row(row)
    return cells if any(cells[-len(_LOADS) :]) else cells[: -len(_LOADS)]


def _format_row(row: Row) -> list[str]:
    return [_field(getattr(row, column)) for column in COLUMNS]


def _field(cell: object) -> str:
    if cell is None:
        return ""
    if isinstance(cell, tuple):
        return " ".join(cell)
    return f"{cell:.12g}" if isinstance(cell, float) else str(cell)


def _read_file(path: Path) -> Iterable[tuple[int, Row, bool]]:
    """Yield each row with its line number, and whether the row comes from a simulated GPU."""
    reader = csv.DictReader(io.StringIO(input_files.read(path)), restkey="", strict=True)
    try:
        _check_columns(path, reader.fieldnames or ())
        for cells in reader:
            origin = f"{path} row {reader.line_num}"
            row, flag = _row(origin, cells), cells.get(_SIMULATED_COLUMN, "").strip()
            if flag not in _TRUTHS:
                raise ConfigError(f"{origin}, {_SIMULATED_COLUMN}: {flag!r} is not a boolean; write true or false")
            yield reader.line_num, row, _TRUTHS[flag]
    except csv.Error as error:
        raise ConfigError(f"{path} row {reader.line_num}: not a table in CSV: {error}; correct this row") from error


def _check_columns(path: Path, names: Sequence[str]) -> None:
    origin = f"{path} row 1"
    if _VERSION_COLUMN not in names:
        raise ConfigError(
            f"{origin}, {_VERSION_COLUMN}: the column is missing, so this is not a profile of version {VERSION}; "
            f"make a profile with `{entry_points.spell('planner', 'profile')}`"
        )
    for name in names:
        if name in _WITHOUT_UNIT:
            raise ConfigError(f"{origin}, {name}: the unit is missing; the column is called {_WITHOUT_UNIT[name]}")
        if name not in (_VERSION_COLUMN, *COLUMNS, _SIMULATED_COLUMN):
            columns = ", ".join((*COLUMNS, _SIMULATED_COLUMN))
            raise ConfigError(f"{origin}, {name}: unknown column; choose among {columns}")
        if list(names).count(name) > 1:
            raise ConfigError(f"{origin}, {name}: the column occurs twice; remove one of them")
    for name in _REQUIRED:
        if name not in names:
            raise ConfigError(f"{origin}, {name}: the column is missing; add it")


def _row(origin: str, cells: dict[str, Any]) -> Row:
    if "" in cells or None in cells.values():
        raise ConfigError(f"{origin}: the row has more or fewer fields than the header; write one field per column")
    if (version := cells[_VERSION_COLUMN].strip()) != str(VERSION):
        raise ConfigError(
            f"{origin}, {_VERSION_COLUMN}: version is {version or '(none)'}, not {VERSION}; "
            f"make the profile again with `{entry_points.spell('planner', 'profile')}`"
        )
    columns: dict[str, Any] = {}
    for name in COLUMNS:
        text = cells.get(name, "").strip()
        if text:
            columns[name] = _READERS.get(name, _read_positive)(f"{origin}, {name}", text)
        elif name in _REQUIRED:
            raise ConfigError(f"{origin}, {name}: the field is empty; fill it in")
    columns["gpu_model"] = find_model_name(columns["gpu_model"])
    row = Row(**columns)
    _check(origin, row)
    return row


def _check(origin: str, row: Row) -> None:
    if (row.instance_profile is not None) != (row.sharing_mode in ON_INSTANCES):
        remedy = "name the MIG profile" if row.instance_profile is None else "leave the field empty"
        raise ConfigError(f"{origin}, instance_profile: does not fit sharing_mode {row.sharing_mode}; {remedy}")
    if row.share_percent is not None and row.share_percent > 100:
        raise ConfigError(f"{origin}, share_percent: {row.share_percent:g} is above 100; write at most 100")
    for name, low, high in (
        ("throughput_low_per_s", row.throughput_low_per_s, row.throughput_per_s),
        ("throughput_high_per_s", row.throughput_per_s, row.throughput_high_per_s),
    ):
        if low is not None and high is not None and low > high:
            raise ConfigError(
                f"{origin}, {name}: the throughput is outside its interval ({low:g} > {high:g}); correct one of them"
            )


def read_number(origin: str, text: str) -> float:
    """Read a figure that is finite and not negative; ConfigError names `origin`."""
    try:
        figure = float(text)
    except ValueError as error:
        raise ConfigError(f"{origin}: {text!r} is not a number; write a number") from error
    if not math.isfinite(figure):
        raise ConfigError(f"{origin}: {text} is not finite; leave the field empty if it was not measured")
    if figure > _MOST:
        raise ConfigError(f"{origin}: {text} is larger than any measurement; check the unit")
    if figure < 0:
        raise ConfigError(f"{origin}: {text} is negative; leave the field empty if it was not measured")
    return figure


def _read_positive(origin: str, text: str) -> float:
    figure = read_number(origin, text)
    if figure == 0:
        raise ConfigError(f"{origin}: must be above 0; leave the field empty if it was not measured")
    return figure


def read_count(origin: str, text: str) -> int:
    """Read a whole number above 0; ConfigError names `origin`."""
    figure = _read_positive(origin, text)
    if not figure.is_integer():
        raise ConfigError(f"{origin}: {text} is not a whole number; write a whole number")
    return int(figure)


def _name(origin: str, text: str) -> str:
    if not text.isprintable():
        raise ConfigError(f"{origin}: {text!r} has unprintable characters; remove them")
    return text


# The other columns are positive figures.
_READERS: dict[str, Callable[[str, str], Any]] = {
    **dict.fromkeys(("workload", "gpu_model", "sharing_mode", "instance_profile"), _name),
    **dict.fromkeys(("processes", "batch", "num_blocks"), read_count),
    **dict.fromkeys(("throughput_low_per_s", *_LOADS), read_number),
    "runs": lambda _where, text: tuple(text.split()),
}


def _describe(row: Row) -> str:
    share = row.instance_profile or (f"{row.share_percent:g} %" if row.share_percent else "the whole GPU")
    batch = "" if row.batch is None else f" at batch {row.batch}"
    return f"{row.workload} on {share} of {row.gpu_model} ({row.sharing_mode}, {row.processes}x){batch}"


def read_parvagpu(folder: Path) -> Profile:
    """Read the tables of a folder, one file per workload, as one profile.

    Raises:
        ConfigError: the folder has no table, or a field is invalid; the message names file, row and column.
    """
    tables = sorted(path for path in folder.glob("*.csv") if not path.name.startswith(_SCENARIOS))
    if not tables:
        raise ConfigError(f"{folder}: no tables MODEL.csv in this folder; name ParvaGPU's folder")
    rows = tuple(row for path in tables for row in _read_parvagpu_file(path))
    if not rows:
        raise ConfigError(f"{folder}: no configuration in the tables could run; name a folder with other tables")
    return Profile(rows=rows, source=str(folder))


def _read_parvagpu_file(path: Path) -> Iterator[Row]:
    reader = csv.DictReader(io.StringIO(input_files.read(path)))
    if reader.fieldnames != _PARVAGPU_COLUMNS:
        raise ConfigError(f"{path} row 1: not a ParvaGPU table; its columns must be {', '.join(_PARVAGPU_COLUMNS)}")
    gpu = profiles.load_model(mig_table.find(PARVAGPU_MODEL).name)
    names = {profile.compute_slices: profile.name for profile in layouts.list_slice_profiles(gpu)}
    for cells in reader:
        origin = f"{path} row {reader.line_num}"
        if None in cells or None in cells.values():
            raise ConfigError(
                f"{origin}: the row has more or fewer fields than the header; write one field for each column"
            )
        slices, batch, processes = (read_count(f"{origin}, {key}", cells[key]) for key in (_SLICES, _BATCH, _PROCESSES))
        throughput_per_s, latency_s = (read_number(f"{origin}, {key}", cells[key]) for key in (_THROUGHPUT, _LATENCY))
        if slices not in names:
            raise ConfigError(
                f"{origin}, {_SLICES}: an A100 has no instance of {slices} compute slices; correct the number"
            )
        if throughput_per_s == 0 or latency_s == 0:
            continue
        yield Row(
            workload=path.stem,
            gpu_model=PARVAGPU_MODEL,
            sharing_mode=sharing_modes.MIG.name if processes == 1 else sharing_modes.MIG_MPS.name,
            instance_profile=names[slices],
            processes=processes,
            batch=batch,
            throughput_per_s=throughput_per_s * processes,
            latency_mean_ms=latency_s * 1000,
        )
