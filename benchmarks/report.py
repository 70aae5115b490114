"""Time and memory of a report over a synthetic store of a given size.

    python -m benchmarks.report --runs 1000 --samples 1000
    python -m benchmarks.report --runs 1000 --samples 1000 --root FOLDER     # keeps the store

`--runs` is the number of groups. The run of a group has a child run for each job, and an artifact with samples. The
runs are written directly to the database, because MLflow's client needs milliseconds for each value. All figures are
invented.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from listeners.dcgm import DcgmListener
from listeners.gpm import GpmListener
from listeners.nvml import NvmlListener
from pipeline.base.domain.layout import DATABASE, FIELDS
from pipeline.observe.sample_figures import Fields
from pipeline.record.group_folder import Clock
from pipeline.record.sample_series import About, Series, SeriesKey, write_table
from pipeline.record.store.local_store import open_store

EXPERIMENT = "scale"
_SETTINGS = {"device": "NVIDIA H100 80GB HBM3", "window": "steady, 5 s after 1 s", "seed": "0", "pinned CPUs": "false"}
_PLANNED = json.dumps({"settings": _SETTINGS, "options": {}})
_START_MS, _STEP_NS = 1_700_000_000_000, 100_000_000
_WORKLOADS = [f"workload{letter}" for letter in "abcdefghijkl"]
_SPEED = {"serial": 1.0, "naive": 1.4, "mps": 1.8, "mig": 1.7}
_PROFILES = {1: "7g.80gb", 2: "3g.40gb", 3: "2g.20gb", 7: "1g.10gb"}
_RUN_COLUMNS = (
    "run_uuid, name, status, lifecycle_stage, start_time, end_time, artifact_uri, experiment_id, source_name, "
    "entry_point_name, user_id, source_version, source_type"
)


def plan_groups(num_runs: int) -> Iterator[tuple[int, str, str, int]]:
    """Yield block, workload, scenario and degree of each group; a block has every workload in every mode."""
    block = [
        (workload, scenario, degree)
        for workload in _WORKLOADS
        for degree in (1, 2, 3, 7)
        for scenario in _SPEED
        if scenario != "serial" or degree == 1
    ]
    for number in range(num_runs):
        workload, scenario, degree = block[number % len(block)]
        yield number // len(block) + 1, workload, scenario, degree


def fill(root: Path, num_runs: int, num_samples: int, machine: int = 0) -> None:
    """Create a store.

    Args:
        root: folder of the store.
        num_runs: number of groups.
        num_samples: number of samples in each of a group's four series.
        machine: number of the machine, which is part of the runs' ids.
    """
    experiment_id = int(open_store(root).open_experiment(EXPERIMENT))
    artifacts = root.absolute() / "artifacts" / EXPERIMENT
    fields = Fields([DcgmListener(1000).table, GpmListener(1000).table, NvmlListener(1000).table]).as_json()
    runs: list[tuple[Any, ...]] = []
    content: dict[str, list[tuple[Any, ...]]] = {"tags": [], "params": [], "latest_metrics": []}

    def add(
        run_id: str, name: str, start_ms: int, tags: dict[str, str], params: dict[str, str], **metrics: float
    ) -> None:
        uri = (artifacts / run_id / "artifacts").as_uri()
        runs.append(
            (run_id, name, "FINISHED", "active", start_ms, start_ms + 9000, uri, experiment_id, *[""] * 4, "LOCAL")
        )
        content["tags"] += [(key, value, run_id) for key, value in tags.items()]
        content["params"] += [(key, value, run_id) for key, value in params.items()]
        content["latest_metrics"] += [(key, value, 1, 0, 0, run_id) for key, value in metrics.items()]

    table: Path | None = None
    for number, (block, workload, scenario, degree) in enumerate(plan_groups(num_runs)):
        run_id, start_ms = f"{machine:08x}{number:016x}{0:08x}", _START_MS + 10_000 * number
        rate = 1000 * _SPEED[scenario] / degree * (1 + 0.001 * (number % 7)) if degree > 1 else 1000.0
        common = {
            "collocation.study": "20261121-100000-aaaaaa",
            "collocation.block": str(block),
            "collocation.gpu_uuid": "GPU-1",
            "collocation.boot_id": "boot-1",
            "collocation.device": "NVIDIA H100 80GB HBM3",
            "collocation.result": "ok",
            "collocation.digest": f"{number}",
            "collocation.planned": _PLANNED,
        }
        params = {"scenario": scenario, "degree": str(degree), "window": "steady", "window_seconds": "5", "seed": "0"}
        add(
            run_id,
            f"{scenario}-{degree}x-{workload}",
            start_ms,
            common | {"collocation.role": "group"},
            params,
            throughput_total_samples_per_s=degree * rate,
            gract_mean_ratio=0.9,
            smact_mean_ratio=0.6,
            memory_peak_mib=1500.0 * degree,
            energy_per_sample_j=0.05 / degree,
            **{f"system/gpm/series_{k}": 1.0 for k in range(30)},
        )
        for index in range(degree):
            tags = {"collocation.role": "job", "mlflow.parentRunId": run_id, "collocation.index": str(index)}
            tags |= {"collocation.start_ns": "1000", "collocation.end_ns": str(num_samples * _STEP_NS)}
            tags |= {"collocation.workload_digest": f"digest-{workload}"}
            place = {"placement.mig_profile": _PROFILES[degree]} if scenario == "mig" else {}
            job_params = {"workload": workload, "batch_size": "128", "job.samples_per_epoch": "50000"}
            child = f"{machine:08x}{number:016x}{index + 1:08x}"
            add(
                child, f"{index}-{workload}", start_ms, common | tags, job_params | place, throughput_samples_per_s=rate
            )
        folder = artifacts / run_id / "artifacts"
        folder.mkdir(parents=True)
        if table is None:
            clock = Clock(wall_ns=_START_MS * 1_000_000, monotonic_ns=0)
            table = write_table(_samples(num_samples), clock, folder, About(device=_SETTINGS["device"]))
        else:
            shutil.copy(table, folder)
        (folder / FIELDS).write_text(fields, encoding="utf-8")
    with closing(sqlite3.connect(root / DATABASE)) as connection, connection:
        connection.executemany(f"INSERT INTO runs ({_RUN_COLUMNS}) VALUES ({','.join('?' * 13)})", runs)
        for name in ("tags", "params"):
            connection.executemany(f"INSERT INTO {name} (key, value, run_uuid) VALUES (?, ?, ?)", content[name])
        connection.executemany(
            "INSERT INTO latest_metrics (key, value, timestamp, step, is_nan, run_uuid) VALUES (?, ?, ?, ?, ?, ?)",
            content["latest_metrics"],
        )


def _samples(count: int) -> dict[SeriesKey, Series]:
    times = array("q", range(0, count * _STEP_NS, _STEP_NS))
    fields = {"gract_ratio": 0.9, "smact_ratio": 0.6, "dram_active_ratio": 0.3}
    series = {
        SeriesKey("gpm", None, None, name): Series(times, array("d", [value] * count)) for name, value in fields.items()
    }
    series[SeriesKey("nvml", None, None, "memory_used_mib")] = Series(times, array("d", [4000.0] * count))
    return series


def measure(root: Path, out: Path) -> tuple[float, float, float]:
    """Run the command in a separate process; return wall time and CPU time in seconds, and peak memory in MiB."""
    argv = [sys.executable, "-m", "pipeline.report", "--experiment", EXPERIMENT, "--root", str(root), "--out", str(out)]
    begin = time.monotonic()
    process = subprocess.Popen(argv)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise RuntimeError(f"`{' '.join(argv)}` ended with status {process.returncode}")
    return time.monotonic() - begin, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def main() -> None:
    """Create the store, write the report, and print its time and memory."""
    parser = argparse.ArgumentParser(description="Time and memory of a report over a store of a given size.")
    parser.add_argument("--runs", type=int, default=1000, help="groups")
    parser.add_argument("--samples", type=int, default=1000, help="samples a series, four series a group")
    parser.add_argument("--root", type=Path, help="folder of the store, which is kept; a temporary one if not given")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        root = options.root or Path(scratch) / "mlruns"
        begin = time.monotonic()
        if not (root / DATABASE).exists():
            fill(root, options.runs, options.samples)
            print(f"made a store of {options.runs} groups in {time.monotonic() - begin:.1f} s")
        seconds, cpu_s, mib = measure(root, Path(scratch) / "report")
        print(f"report: {seconds:.1f} s, {cpu_s:.1f} s of CPU time, {mib:.0f} MiB at most")


if __name__ == "__main__":
    main()
