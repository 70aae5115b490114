"""The requests of a job as a table with one row per request.

Imports neither MLflow nor numpy, which the tracking process does not have.
"""

from __future__ import annotations

import os
from array import array
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from pipeline.base.domain.layout import REQUEST_TABLE
from pipeline.base.system import regular_files
from pipeline.launch.requests import RECORD, RECORD_BYTES
from pipeline.record.group_record import Clock

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
