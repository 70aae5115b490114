"""A profile from a folder of ParvaGPU's tables (SC'24; public, measured on an A100 80GB).

`MODEL.csv` has one row per configuration: compute slices of the MIG instance, batch size, MPS processes in the
instance, throughput of one process in requests/s, latency of a batch in s. Zeros mean that the configuration did
not run.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path

from pipeline.base.domain import mig_table, sharing_modes
from pipeline.base.system.errors import ConfigError
from pipeline.planner import input_files
from pipeline.planner.profile_table import Profile, Row, read_count, read_number
from pipeline.prepare.mig import layouts, profiles

GPU_MODEL = "a100_80gb"
_COLUMNS = ["Mig instance", "Batch size", "Workload Number", "Throughput", "Latency"]
_SLICES, _BATCH, _PROCESSES, _THROUGHPUT, _LATENCY = _COLUMNS
# Prefix of the publication's scenarios in the same folder.
_SCENARIOS = "slo_"


def read(folder: Path) -> Profile:
    """Read the tables of a folder, one file per workload, as one profile.

    Raises:
        ConfigError: the folder has no table, or a field is invalid; the message names file, row and column.
    """
    tables = sorted(path for path in folder.glob("*.csv") if not path.name.startswith(_SCENARIOS))
    if not tables:
        raise ConfigError(f"{folder}: no tables MODEL.csv in this folder; name ParvaGPU's folder")
    rows = tuple(row for path in tables for row in _rows(path))
    if not rows:
        raise ConfigError(f"{folder}: no configuration in the tables could run; name a folder with other tables")
    return Profile(rows=rows, source=str(folder))


def _rows(path: Path) -> Iterator[Row]:
    reader = csv.DictReader(io.StringIO(input_files.read(path)))
    if reader.fieldnames != _COLUMNS:
        raise ConfigError(f"{path} row 1: not a ParvaGPU table; its columns must be {', '.join(_COLUMNS)}")
    gpu = profiles.load_model(mig_table.find(GPU_MODEL).name)
    names = {profile.compute_slices: profile.name for profile in layouts.list_slice_profiles(gpu)}
    for cells in reader:
        where = f"{path} row {reader.line_num}"
        if None in cells or None in cells.values():
            raise ConfigError(
                f"{where}: the row has more or fewer fields than the header; write one field for each column"
            )
        slices, batch, processes = (read_count(f"{where}, {key}", cells[key]) for key in (_SLICES, _BATCH, _PROCESSES))
        throughput_per_s, latency_s = (read_number(f"{where}, {key}", cells[key]) for key in (_THROUGHPUT, _LATENCY))
        if slices not in names:
            raise ConfigError(
                f"{where}, {_SLICES}: an A100 has no instance of {slices} compute slices; correct the number"
            )
        if throughput_per_s == 0 or latency_s == 0:
            continue
        yield Row(
            workload=path.stem,
            gpu_model=GPU_MODEL,
            sharing_mode=sharing_modes.MIG.name if processes == 1 else sharing_modes.MIG_MPS.name,
            instance_profile=names[slices],
            processes=processes,
            batch=batch,
            throughput_per_s=throughput_per_s * processes,
            latency_mean_ms=latency_s * 1000,
        )
