"""Time and memory of a report over a synthetic store of a given size.

    python -m benchmarks.report --runs 1000 --samples 1000
    python -m benchmarks.report --runs 1000 --samples 1000 --root FOLDER     # keeps the store

`--runs` is the number of groups. The run of a group has a child run for each job, and an artifact with samples. The
runs are written directly to the database, because MLflow's client needs milliseconds for each value. All figures are
invented.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from listeners.dcgm import DcgmListener
from listeners.gpm import GpmListener
from listeners.nvml import NvmlListener
from pipeline.base.domain.layout import DATABASE, FIELDS, RECORD
from pipeline.base.domain.records import Result
from pipeline.base.domain.window import Window, WindowKind
from pipeline.observe.sample_figures import Fields
from pipeline.record import group_record
from pipeline.record.group_record import Clock, GroupRecord, JobRecord
from pipeline.record.sample_series import About, Series, SeriesKey, write_table
from pipeline.record.store.local_store import open_store

EXPERIMENT = "scale"
_SETTINGS = {"device": "NVIDIA H100 80GB HBM3", "window": "steady, 5 s after 1 s", "seed": "0", "pinned CPUs": "false"}
_CLOCK, _STEP_NS = Clock(wall_ns=1_700_000_000_000_000_000, monotonic_ns=0), 100_000_000
_WORKLOADS = [f"workload{letter}" for letter in "abcdefghijkl"]
_SPEED = {"serial": 1.0, "naive": 1.4, "mps": 1.8, "mig": 1.7}
_PROFILES = {1: "7g.80gb", 2: "3g.40gb", 3: "2g.20gb", 7: "1g.10gb"}


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
    open_store(root).open_experiment(EXPERIMENT)
    artifacts = root.absolute() / "artifacts" / EXPERIMENT
    fields = Fields([DcgmListener(1000).table, GpmListener(1000).table, NvmlListener(1000).table]).as_json()
    table: Path | None = None
    for number, (block, workload, scenario, degree) in enumerate(plan_groups(num_runs)):
        run_id = f"{machine:08x}{number:016x}"
        group = _make_group(run_id, number, block, workload, scenario, degree, num_samples)
        folder = artifacts / group.run_id / "artifacts"
        folder.mkdir(parents=True)
        (folder / RECORD).write_text(group_record.encode(group), encoding="utf-8")
        if table is None:
            table = write_table(_samples(num_samples), _CLOCK, folder, About(device=_SETTINGS["device"]))
        else:
            shutil.copy(table, folder)
        (folder / FIELDS).write_text(fields, encoding="utf-8")


def _make_group(
    run_id: str, number: int, block: int, workload: str, scenario: str, degree: int, num_samples: int
) -> GroupRecord:
    rate = 1000 * _SPEED[scenario] / degree * (1 + 0.001 * (number % 7)) if degree > 1 else 1000.0
    begin_ns = 10_000_000_000 * number
    times: dict[str, Any] = {"start_ns": begin_ns, "end_ns": begin_ns + 9_000_000_000, "result": Result.OK}
    jobs = tuple(
        JobRecord(
            name=f"{index}-{workload}",
            run_id=f"{run_id}{index + 1:08x}",
            params={"workload": workload, "batch_size": "128", "job.samples_per_epoch": "50000"},
            metrics={"throughput_samples_per_s": rate},
            index=index,
            digest=f"digest-{workload}",
            placement={"mig_profile": _PROFILES[degree]} if scenario == "mig" else {},
            work_start_ns=1000,
            work_end_ns=num_samples * _STEP_NS,
            **times,
        )
        for index in range(degree)
    )
    return GroupRecord(
        name=f"{scenario}-{degree}x-{workload}",
        run_id=f"{run_id}{0:08x}",
        params={"scenario": scenario, "degree": str(degree), "window": "steady", "window_seconds": "5", "seed": "0"},
        facts={"boot_id": "boot-1"},
        metrics={
            "throughput_total_samples_per_s": degree * rate,
            "gract_mean_ratio": 0.9,
            "smact_mean_ratio": 0.6,
            "memory_peak_mib": 1500.0 * degree,
            "energy_per_sample_j": 0.05 / degree,
        },
        spool_id=f"{run_id}{0:08x}",
        experiment=EXPERIMENT,
        clock=_CLOCK,
        jobs=jobs,
        study="20261121-100000-aaaaaa",
        scenario=scenario,
        device=_SETTINGS["device"],
        gpu_uuid="GPU-1",
        block=block,
        digest=f"{number}",
        settings=_SETTINGS,
        window=Window(kind=WindowKind.STEADY, seconds=5, settle_s=1),
        **times,
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
