"""Activity of the GPU's units, read from the output of one long-running `dcgmi dmon`, which queries DCGM's host engine.

The listener reads the whole GPU and each GPU instance used by a job. It creates no DCGM group and changes no setting of
the host engine.
"""

from __future__ import annotations

import logging
import re
import shutil
import time
from collections.abc import Generator, Iterable, Mapping, Sequence

from listeners.base import MIB, StopSignal, counter_fields, scale_readings
from listeners.program_listener import ProgramListener, TextTable
from pipeline.base.domain.protocols import RunningGroup
from pipeline.base.domain.records import Device
from pipeline.base.domain.samples import Field, Sample
from pipeline.base.system import helper_program
from pipeline.base.system.errors import CommandError, ListenerError

_log = logging.getLogger(__name__)
# Source: short names of dcgm_fields.cpp, DCGM 4.6, by field id.
_COLUMNS = {
    "1001": "GRACT",
    "1002": "SMACT",
    "1003": "SMOCC",
    "1004": "TENSO",
    "1005": "DRAMA",
    "1006": "FP64A",
    "1007": "FP32A",
    "1008": "FP16A",
    "1009": "PCITX",
    "1010": "PCIRX",
    "1011": "NVLTX",
    "1012": "NVLRX",
}
# Source: dcgm_fields.h: doubles of this value or above mean blank, not found, not supported or not permitted.
_BLANK = 2.0**47
_HEADER = re.compile(r"\s*#\s*Entity\b")
_UNITS = re.compile(r"\s*I[Dd]\b")
_ROW = re.compile(r"\s*(GPU(?:-C?I)?)\s+(\d+)(?!\S)")
_CELL = re.compile(r"\S+")
_LISTED_GPU = re.compile(r"\|\s*(\d+)\s*\|[^+]*?Device UUID:\s*(\S+)")
_HIERARCHY = re.compile(
    r"\|\s*GPU\s+\d+\s*\|\s*GPU\s+(?P<uuid>\S+)"
    r"|\bI\s+\d+/(?P<gi>\d+)\s*\|\s*GPU Instance\s*\(EntityID:\s*(?P<entity>\d+)"
)
_COMMAND_LIMIT_S = 5.0
# A host engine whose profiling is paused, for example by a profiler, prints rows without values.
_BLANK_LIMIT_S = 5.0
# The host engine sees a new instance one or two seconds after its creation (NVIDIA/DCGM#230).
_NEW_INSTANCE_LIMIT_S = 6.0
_NEW_INSTANCE_RETRY_S = 0.5

Entity = tuple[str, int]
"""The key of a dmon row: `GPU` or `GPU-I`, and DCGM's entity id, which differs from NVML's id."""


class DcgmListener(ProgramListener):
    """Samples of the whole GPU and the GPU instances of the slots by `dcgmi dmon`; the time is when a line arrives.

    Fields have the names of listener gpm, for comparison. Ratios of a GPU instance are relative to that instance. In
    layouts of mixed sizes, DCGM may limit a larger instance to the share of a smaller instance (NVIDIA/DCGM#248). A
    field that the host engine refuses is missing, and a warning is logged.

    By default, dcgmi is found on PATH; a simulated GPU has its own dcgmi.
    """

    name = "dcgm"
    rank = 4
    # Traffic is in bytes per second, despite the names in DCGM (DCGM_FI_PROF_PCIE_TX_BYTES ...).
    fields = counter_fields(tuple(_COLUMNS), to_mib=1 / MIB)
    # Time for a host engine to load its profiling module, and for tests of single fields.
    start_limit_s = 30.0

    def __init__(self, interval_ms: int, program: str | None = None, **options: object) -> None:
        super().__init__(interval_ms, **options)
        self._program = program

    def batches(self, group: RunningGroup, stop: StopSignal) -> Generator[Iterable[Sample], None, None]:
        dcgmi = self._find_program(self.gpu(group))
        entities = _find(dcgmi, group, stop)
        fields = list(self.fields)
        first_ns, has_values = None, group.device.is_simulated
        while not stop.is_set():
            table, has_rows = _Table(fields, entities), False
            argv = _dmon(dcgmi, fields, entities, self.interval_ms)
            with self.run_program(argv) as program:
                for t_ns, (entity, readings) in self.rows(program, table.read, stop):
                    has_rows = True
                    values = scale_readings(readings, self.fields)
                    first_ns, has_values = first_ns or t_ns, has_values or bool(values)
                    if not has_values and t_ns - first_ns > _BLANK_LIMIT_S * 1e9:
                        raise ListenerError(
                            f"listener dcgm: `{' '.join(argv)}` prints no values; if a profiler has paused DCGM's "
                            f"profiling, end it or run `{dcgmi} profile --resume`, or leave dcgm out"
                        )
                    yield (Sample(source=self.name, t_ns=t_ns, values=values, gi_id=entities[entity]),)
                if stop.is_set():
                    return
                status = program.status()
                # Without rows, the engine may have refused fields even with status 0. A negative status is a signal.
                if has_rows or status is None or status < 0:
                    raise self.failure(argv, status, table.last_complaints)
            fields = _select_accepted(dcgmi, fields, entities, table.last_complaints, stop)

    def _find_program(self, device: Device) -> str:
        program = self._program
        if device.is_simulated:  # a dcgmi on PATH would read real GPUs
            program = dict(device.programs).get("dcgmi", "")
            if not program:
                raise ListenerError(f"listener dcgm: the simulated {device.name} has no dcgmi; leave dcgm out")
        path = shutil.which(program or "dcgmi")
        if path is None:
            raise ListenerError(
                f"listener dcgm needs {program or 'dcgmi, which is not on PATH'}; install NVIDIA DCGM (package "
                "datacenter-gpu-manager) and start its host engine, or leave dcgm out"
            )
        return path


class _Table(TextTable):
    """A parser of dmon's table; header lines contain the columns, and a later header may have other columns."""

    def __init__(self, fields: Sequence[Field], entities: Iterable[Entity]) -> None:
        super().__init__(DcgmListener.name)
        self._field_ids = {_COLUMNS[field.source_id]: field.source_id for field in fields}
        self._entities = frozenset(entities)
        self._header: list[re.Match[str]] = []

    def read(self, line: str) -> tuple[Entity, dict[str, float]] | None:
        """Return the entity of a row and its available values by field id; `None` for other lines."""
        header, row = _HEADER.match(line), _ROW.match(line)
        if header is not None:
            self._header = list(_CELL.finditer(line, header.end()))
            for column in sorted(self._field_ids.keys() - {cell[0] for cell in self._header}):
                self.warn(column, f"dcgmi prints no column {column}, which is left out: {line.strip()}")
        elif row is not None and (cells := self._split_by_column(list(_CELL.finditer(line, row.end())))) is not None:
            entity = (row[1], int(row[2]))
            values = {
                self._field_ids[name]: self._value(name, cell)
                for name, cell in cells.items()
                if name in self._field_ids
            }
            if entity in self._entities:
                return entity, {field_id: value for field_id, value in values.items() if value is not None}
        elif line.strip() and _UNITS.match(line) is None:
            self.complaints.append(line.strip())
        return None

    def _split_by_column(self, cells: list[re.Match[str]]) -> dict[str, str] | None:
        """Return cells by column name; `None` if their columns are unclear.

        If there are as many cells as columns, the mapping is certain. Otherwise some cells are blank, and the other
        cells are aligned with the left edge (DCGM 3 and later) or right edge (earlier versions) of their column's name.
        """
        if len(cells) == len(self._header):
            return {column[0]: cell[0] for column, cell in zip(self._header, cells, strict=True)}
        for edge in (re.Match.start, re.Match.end):
            columns = {edge(column): column[0] for column in self._header}
            if all(edge(cell) in columns for cell in cells):
                return {columns[edge(cell)]: cell[0] for cell in cells}
        return None

    def _value(self, column: str, cell: str) -> float | None:
        value = None if cell == "N/A" else self.number(column, cell)
        return value if value is not None and value < _BLANK else None


def _dmon(dcgmi: str, fields: Sequence[Field], entities: Iterable[Entity], interval_ms: int) -> list[str]:
    ids = ",".join(field.source_id for field in fields)
    targets = ",".join(f"{'gpu' if kind == 'GPU' else 'i'}:{number}" for kind, number in entities)
    return [dcgmi, "dmon", "-e", ids, "-i", targets, "-d", str(interval_ms)]


def _find(dcgmi: str, group: RunningGroup, stop: StopSignal) -> dict[Entity, int | None]:
    """Return the DCGM entities of the GPU and of the slots' GPU instances, with the NVML ids of the instances.

    DCGM's ids may differ from NVML's ids, and DCGM's ids of instances change with the layout.
    """
    uuid = group.device.gpu_uuid
    listed = _answer(dcgmi, "discovery", "-l")
    gpu = next((int(number) for number, listed_uuid in _LISTED_GPU.findall(listed) if listed_uuid == uuid), None)
    if gpu is None:
        raise ListenerError(
            f"listener dcgm: DCGM's host engine does not list GPU {uuid}; restart the engine, or leave dcgm out "
            f"(`{dcgmi} discovery -l` printed: {_flat(listed)})"
        )
    gi_ids = {slot.gi_id for slot in group.slots if slot.gi_id is not None}
    entities: dict[int, int] = {}
    deadline = time.monotonic() + _NEW_INSTANCE_LIMIT_S
    while not gi_ids <= entities.keys():
        entities = _instances(_answer(dcgmi, "discovery", "-c"), uuid)
        if time.monotonic() > deadline or (not gi_ids <= entities.keys() and stop.wait(_NEW_INSTANCE_RETRY_S)):
            break
    for gi_id in sorted(gi_ids - entities.keys()):
        _log.warning(
            "listener dcgm: DCGM's host engine does not list GPU instance %d of %s, which is left out", gi_id, uuid
        )
    return {("GPU", gpu): None, **{("GPU-I", entities[gi_id]): gi_id for gi_id in sorted(gi_ids & entities.keys())}}


def _instances(hierarchy: str, uuid: str) -> dict[int, int]:
    """Map NVML's ids of the GPU instances of one GPU to DCGM's entity ids, from `dcgmi discovery -c`."""
    entities: dict[int, int] = {}
    is_ours = False
    for match in _HIERARCHY.finditer(hierarchy):
        if match["uuid"] is not None:
            is_ours = match["uuid"] == uuid
        elif is_ours:
            entities[int(match["gi"])] = int(match["entity"])
    return entities


def _answer(dcgmi: str, *arguments: str) -> str:
    try:
        return helper_program.run([dcgmi, *arguments], timeout_s=_COMMAND_LIMIT_S).stdout
    except CommandError as error:
        raise ListenerError(
            f"listener dcgm: {_flat(str(error))}; start DCGM's host engine as root, with `systemctl start nvidia-dcgm` "
            "or `nv-hostengine`, or leave dcgm out"
        ) from error


def _select_accepted(
    dcgmi: str, fields: Sequence[Field], entities: Mapping[Entity, int | None], complaints: str, stop: StopSignal
) -> list[Field]:
    """Return the fields that the host engine accepts.

    Each field is tested alone, because the engine refuses all fields for one bad field without reporting its id.
    """
    refusals: dict[str, str] = {}
    for field in fields:
        if stop.is_set():
            return list(fields)
        refusal = _refusal(dcgmi, field, entities)
        if refusal is not None:
            refusals[field.source_id] = refusal
    if not refusals:
        # The engine accepts each field alone, but not all together; the last field is the least important one.
        refusals[fields[-1].source_id] = f"not together with the other fields: {complaints}"
    if len(refusals) == len(fields):
        remedy = (
            "install DCGM's profiling module (package datacenter-gpu-manager-4-proprietary); GeForce GPUs have none"
            if "not currently loaded" in complaints
            else "run it as root, stop other profilers (ncu, nsys), and list the GPU's fields with `dcgmi profile -l`"
        )
        raise ListenerError(f"listener dcgm: DCGM's host engine refuses every field ({complaints}); {remedy}")
    for field_id, refusal in refusals.items():
        _log.warning(
            "listener dcgm: DCGM refuses field %s (%s), which is left out: %s", field_id, _COLUMNS[field_id], refusal
        )
    return [field for field in fields if field.source_id not in refusals]


def _refusal(dcgmi: str, field: Field, entities: Mapping[Entity, int | None]) -> str | None:
    """Return the error message for this field alone; `None` if the host engine accepts the field."""
    argv = [*_dmon(dcgmi, [field], entities, interval_ms=100), "-c", "1"]
    try:
        done = helper_program.run(argv, timeout_s=_COMMAND_LIMIT_S, check=False)
    except CommandError as error:
        return _flat(str(error))
    table = _Table([field], entities)
    rows = [table.read(line) for line in f"{done.stdout}\n{done.stderr}".splitlines()]
    return None if done.status == 0 and any(rows) else table.last_complaints


def _flat(text: str) -> str:
    return " ".join(text.split()) or "nothing"
