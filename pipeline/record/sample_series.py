"""Series for MLflow's charts from samples on disk, and a table of all samples. Does not import MLflow."""

from __future__ import annotations

import json
import logging
import math
import os
from array import array
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from pipeline.base.domain.layout import REQUEST_TABLE, SAMPLE_TABLE
from pipeline.base.system import regular_files
from pipeline.launch.requests import RECORD, RECORD_BYTES
from pipeline.observe.sample_figures import Fields
from pipeline.record.group_record import Clock, JobRecord

if TYPE_CHECKING:
    import pyarrow as pa


_AT_ONCE = 1 << 18
_INSTANTS = [name for name, kind in RECORD if kind == "<i8"]
_WORDS = RECORD_BYTES // 8


def write(path: Path, clock: Clock, folder: Path) -> Path | None:
    """Write every complete record of a file to a table, with its intended wall time; return the table's path.

    An instant that was not reached is null. Returns `None` if the file contains no record or cannot be read.
    """
    try:
        num_records = regular_files.measure_size(path) // RECORD_BYTES
        if not num_records:
            return None
        with os.fdopen(regular_files.open_regular_file(path), "rb") as file:
            return _write(file, num_records, clock, folder / REQUEST_TABLE)
    except OSError:
        return None


def _write(file: BinaryIO, num_records: int, clock: Clock, table: Path) -> Path:
    """Write the records in portions because they may not fit into memory together."""
    import pyarrow.parquet as pq

    with ExitStack() as stack:
        writer: pq.ParquetWriter | None = None
        while num_records > 0 and (data := file.read(min(num_records, _AT_ONCE) * RECORD_BYTES)):
            portion = _make_columns(data[: len(data) // RECORD_BYTES * RECORD_BYTES], clock)
            writer = writer or stack.enter_context(pq.ParquetWriter(table, portion.schema))
            writer.write_table(portion)
            num_records -= portion.num_rows
    return table


def _make_columns(data: bytes, clock: Clock) -> pa.Table:
    import pyarrow as pa
    import pyarrow.compute as pc

    count = len(data) // RECORD_BYTES
    words, halves = array("q", data), array("i", data)
    columns = {}
    for number, name in enumerate(_INSTANTS):
        instants = pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(words[number::_WORDS])])
        columns[name] = pc.if_else(pc.equal(instants, 0), pa.scalar(None, pa.int64()), instants)
    for number, name in enumerate(("tokens", "batch"), start=2 * len(_INSTANTS)):
        columns[name] = pa.Array.from_buffers(pa.int32(), count, [None, pa.py_buffer(halves[number :: 2 * _WORDS])])
    wall_ns = pc.add(columns["intended_ns"], clock.to_wall_ns(0))
    columns["wall_time"] = wall_ns.cast(pa.timestamp("ns", tz="UTC"))
    return pa.table(columns)


COLUMNS = ("source", "job", "gi_id", "t_ns", "wall_time", "field", "value")
_ABOUT = b"collocation"  # key in the metadata of a table
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """Description of the sampled device in a table's metadata; `instances` maps GPU instance ids to MIG profiles."""

    device: str
    instances: Mapping[int, str] = field(default_factory=dict)
    is_simulated: bool = False


class SeriesKey(NamedTuple):
    """Origin of a series; `job` is `None` for the device or the machine."""

    source: str
    job: int | None
    gi_id: int | None
    field: str

    @property
    def metric(self) -> str:
        """Name of the series in MLflow, which shows `system/...` on a separate tab."""
        instance = "" if self.gi_id is None else f"gi{self.gi_id}/"
        return f"system/{self.source}/{instance}{self.field}"


@dataclass(frozen=True, slots=True)
class Series:
    """The samples of one quantity, oldest first; 16 bytes per sample."""

    t_ns: array[int] = field(default_factory=lambda: array("q"))
    values: array[float] = field(default_factory=lambda: array("d"))

    def append(self, t_ns: int, value: float) -> None:
        self.t_ns.append(t_ns)
        self.values.append(value)

    def thin(self, points: int) -> Iterator[tuple[int, int, float]]:
        """Yield at most `points` tuples `(index, t_ns, value)`: every k-th sample, including the first and the last."""
        last = len(self.t_ns) - 1
        stride = max(1, math.ceil(last / max(1, points - 1)))
        for index in [*range(0, last, stride), last]:
            yield index, self.t_ns[index], self.values[index]


def read_samples(path: Path) -> dict[SeriesKey, Series]:
    """Read all samples of a spool folder, by origin; skip damaged lines and log their number."""
    by_key: dict[SeriesKey, Series] = {}
    torn = 0
    if not path.exists():
        return by_key
    with path.open("rb") as file:
        for line in file:
            try:
                sample = json.loads(line)
                source, t_ns, job, gi_id = sample["source"], sample["t_ns"], sample["job"], sample["gi_id"]
                values = {name: float(value) for name, value in sample["values"].items()}
            except (ValueError, KeyError, TypeError, AttributeError):
                torn += 1
                continue
            for name, value in values.items():
                by_key.setdefault(SeriesKey(source, job, gi_id, name), Series()).append(t_ns, value)
    if torn:
        log.warning("%s: skipped %d damaged line(s)", path, torn)
    return by_key


def select_child_series(samples: Mapping[SeriesKey, Series], child: JobRecord, fields: Fields) -> dict[str, Series]:
    """Return the series of a job's run: the series of the job and of its device or GPU instance."""
    of_job = {origin.metric: series for origin, series in samples.items() if origin.job == child.index}
    shared = {
        origin.metric: series
        for origin, series in samples.items()
        if child.is_gpu and fields.is_of_device(origin.source, origin.job) and origin.gi_id == child.gi_id
    }
    return {**shared, **of_job}


def write_table(samples: Mapping[SeriesKey, Series], clock: Clock, folder: Path, description: About) -> Path:
    """Write every sample to a tidy table with one value per row, and return its path."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    tables = []
    for origin, series in samples.items():
        count = len(series.t_ns)
        t_ns = pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(series.t_ns)])
        wall_ns = pa.array(map(clock.to_wall_ns, series.t_ns), pa.timestamp("ns", tz="UTC"))
        columns = [
            pa.repeat(pa.scalar(origin.source, pa.string()), count),
            pa.repeat(pa.scalar(origin.job, pa.int64()), count),
            pa.repeat(pa.scalar(origin.gi_id, pa.int64()), count),
            t_ns,
            wall_ns,
            pa.repeat(pa.scalar(origin.field, pa.string()), count),
            pa.Array.from_buffers(pa.float64(), count, [None, pa.py_buffer(series.values)]),
        ]
        tables.append(pa.table(columns, names=list(COLUMNS)))
    path = folder / SAMPLE_TABLE
    metadata = json.dumps(asdict(description)).encode()
    pq.write_table(pa.concat_tables(tables).replace_schema_metadata({_ABOUT: metadata}), path)
    return path


def read_table(path: Path, fields: Collection[str] | None = None) -> dict[SeriesKey, Series]:
    """Read the given fields of a table that `write_table` wrote, by default all.

    Raises:
        OSError, ValueError, KeyError: the table cannot be read, is damaged, or lacks a column.
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    columns = ["source", "job", "gi_id", "field", "t_ns", "value"]
    # The type is explicit, because `fields` may be empty.
    is_selected = None if fields is None else pc.field("field").isin(pa.array(fields, pa.string()))
    table = pq.read_table(path, columns=columns, filters=is_selected)
    by_key: dict[SeriesKey, Series] = {}
    for *origin, t_ns, value in zip(*(table[column].to_pylist() for column in columns), strict=True):
        by_key.setdefault(SeriesKey(*origin), Series()).append(t_ns, value)
    return by_key
