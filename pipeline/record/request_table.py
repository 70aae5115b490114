"""The requests of a job as a table, one row a request. Knows no MLflow, and no numpy, which the sender does without."""

from __future__ import annotations

from array import array
from pathlib import Path

from pipeline.base import regular_files
from pipeline.base.layout import REQUEST_TABLE
from pipeline.launch.requests import RECORD, RECORD_BYTES
from pipeline.record.group_folder import Clock

_INSTANTS = [name for name, kind in RECORD if kind == "<i8"]
_WORDS = RECORD_BYTES // 8


def write(path: Path, clock: Clock, folder: Path) -> Path | None:
    """Write every whole record of a file, and when each was to be sent by the wall clock; return the table's path.

    An instant that never came is missing: the request was not begun or not answered, or its answer has no tokens.
    `None` of a file that holds no record, or cannot be read.
    """
    try:
        data = regular_files.read_bytes(path)
    except OSError:
        return None
    count = len(data) // RECORD_BYTES
    if not count:
        return None
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    whole = data[: count * RECORD_BYTES]
    words, halves = array("q", whole), array("i", whole)
    columns = {}
    for number, name in enumerate(_INSTANTS):
        instants = pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(words[number::_WORDS])])
        columns[name] = pc.if_else(pc.equal(instants, 0), pa.scalar(None, pa.int64()), instants)
    for number, name in enumerate(("tokens", "batch"), start=2 * len(_INSTANTS)):
        columns[name] = pa.Array.from_buffers(pa.int32(), count, [None, pa.py_buffer(halves[number :: 2 * _WORDS])])
    wall_ns = pc.add(columns["intended_ns"], clock.to_wall_ns(0))
    columns["wall_time"] = wall_ns.cast(pa.timestamp("ns", tz="UTC"))
    table = folder / REQUEST_TABLE
    pq.write_table(pa.table(columns), table)
    return table
