"""Synthetic rows of a report: a study with invented figures, without a store."""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Sequence
from typing import Any

from pipeline.base.domain.group_names import list_program_params
from pipeline.base.domain.marks import Marks
from pipeline.base.domain.records import Result
from pipeline.base.domain.sharing_modes import mode_of
from pipeline.base.domain.window import WindowKind
from pipeline.report.evaluate.cells import Cell, make_cells
from pipeline.report.evaluate.contrasts import compare_modes
from pipeline.report.evaluate.verdicts import winners
from pipeline.report.page.study_tables import make_tables
from pipeline.report.page.table_format import Table
from pipeline.report.read.rows import study_of
from pipeline.report.read.study_records import JobRow, Row, Study

GPU = "NVIDIA H100 80GB HBM3"
PROFILES = {1: "7g.80gb", 2: "3g.40gb", 3: "2g.20gb", 7: "1g.10gb"}


def params(workload: str = "resnet26_cifar10", **changes: Any) -> dict[str, str]:
    """Return the params of a job's run."""
    values = {
        "workload": workload,
        "model": "resnetv2_50",
        "dataset": "cifar10",
        "source": "synthetic_device",
        "batch_size": "128",
        "step_mode": "eager",
        "precision": "default",
        "seed": "0",
        "job.samples_per_epoch": "49920",
        "job.torch": "2.11.0",
    }
    return values | {key: str(value) for key, value in changes.items()}


def digest_of(job_params: dict[str, str], salt: str = "") -> str:
    """Return a workload digest that depends on the params, like a real digest."""
    return hashlib.sha256(
        repr((job_params["workload"], sorted(list_program_params(job_params).items()), salt)).encode()
    ).hexdigest()


def job(index: int, job_params: dict[str, str], rate: float | None, **changes: Any) -> JobRow:
    """Return a job with a throughput in samples/s in a steady window."""
    name = job_params["workload"]
    size = changes.pop("size", None)
    values: dict[str, Any] = {
        "index": index,
        "label": name,
        "digest": digest_of(job_params, changes.pop("salt", "")),
        "size": size,
        "result": Result.OK,
        "metrics": {} if rate is None else {"throughput_samples_per_s": rate},
        "params": job_params,
        "place": {},
        "start_ns": 1_000_000_000,
        "end_ns": 11_000_000_000,
    }
    return JobRow(**(values | changes))


def row(
    scenario: str = "naive", jobs: tuple[JobRow, ...] = (), block: int = 1, result: Result = Result.OK, **changes: Any
) -> Row:
    """Return a group with a steady window.

    Its total throughput is the sum over its jobs, unless they ran one after another.
    """
    window = changes.pop("window", WindowKind.STEADY)
    options = changes.pop("options", {})
    is_simulated, window_s = changes.get("is_simulated", False), changes.pop("window_s", 10.0)
    device = changes.get("device", GPU)
    rates = [one.metrics.get("throughput_samples_per_s") for one in jobs]
    total = {} if None in rates or not rates else {"throughput_total_samples_per_s": sum(r for r in rates if r)}
    settings = changes.pop(
        "settings",
        (
            ("device", f"simulated {device}" if is_simulated else device),
            ("window", "steady, 5 s after 1 s" if window is WindowKind.STEADY else "work, 2 epochs"),
            ("seed", "0"),
            ("pinned CPUs", "false"),
        ),
    )
    key = repr((scenario, sorted(options.items()), [one.digest for one in jobs], settings))
    start_ms = changes.pop("start_ms", 1_000_000 * block)
    names = "+".join(one.size or one.params["workload"] for one in jobs)
    values: dict[str, Any] = {
        "run_id": hashlib.sha256(repr((key, block, start_ms)).encode()).hexdigest()[:32],
        "key": key,
        "name": f"{scenario}-{names}",
        "scenario": scenario,
        "sharing": mode_of(scenario),
        "detail": "",
        "profiles": (),
        "options": options,
        "setting": "",
        "settings": settings,
        "block": block,
        "result": result,
        "reason": "" if result is Result.OK else f"why it is {result}",
        "marks": Marks(changes.pop("invalid", ""), changes.pop("note", "")),
        "metrics": (total if result in (Result.OK, Result.WRONG_RESULTS) else {}) | changes.pop("metrics", {}),
        "params": {"scenario": scenario, "seed": "0"},
        "window": window,
        "device": device,
        "gpu_uuid": "GPU-1",
        "boot_id": "boot-1",
        "is_simulated": False,
        "start_ms": start_ms,
        "end_ms": start_ms + 10_000,
        "start": "20261121-100000-abcdef",
        "jobs": jobs,
        "facts": {
            "driver_version": "580.159.04",
            "git_commit": "0123abcd",
            "window_start_ns": "1000000000",
            "window_end_ns": str(1_000_000_000 + int(1e9 * window_s)),
        },
    }
    return Row(**(values | changes))


def copies(scenario: str, degree: int, rate: float, block: int = 1, job_params: Any = None, **changes: Any) -> Row:
    """Return equal jobs with `rate` samples/s each."""
    job_params = job_params or params()
    place = {"mig_profile": PROFILES.get(degree, "1g.10gb")} if scenario == "mig" else {}
    jobs = tuple(job(index, job_params, rate, place=place) for index in range(degree))
    return row(scenario, jobs, block, **changes)


def study(*rows: Row) -> Study:
    """Return the study that consists of these rows."""
    return study_of("synthetic", rows)


NAMES = {"S": "resnet26_cifar10", "M": "resnet50_imagenet64", "L": "resnet152_imagenet"}
ALONE = {"S": 12000.0, "M": 6000.0, "L": 400.0}
SHARED = {  # speed-up over serial with naive sharing and with MPS, by size and degree
    "S": {2: (1.45, 1.80), 3: (1.55, 2.20), 7: (1.60, 1.84)},
    "M": {2: (1.03, 1.19), 3: (1.04, 1.06), 7: (1.05, 0.52)},
}
MIXED = {"MS": (1.2, 1.35), "MSS": (1.3, 1.5), "MMMS": (1.05, 1.1), "LS": (1.1, 1.2)}


def collocation_study(num_blocks: int = 5, noise: float = 0.01, seed: int = 1) -> list[Row]:
    """Return a study with figures like those of an H100.

    It has serial, naive and MPS groups of two workloads and four mixes, one group without memory, and wrong results.
    """
    rng = random.Random(seed)
    rows: list[Row] = []
    for block in range(1, num_blocks + 1):
        drift = math.exp(rng.gauss(0, 0.03))
        start = 1_000_000_000 * block

        def speed(value: float, drift: float = drift) -> float:
            return value * drift * math.exp(rng.gauss(0, noise))

        def add(scenario: str, jobs: tuple[JobRow, ...], block: int = block, **changes: Any) -> None:
            nonlocal start
            start += 10_000
            metrics = changes.pop("metrics", {})
            if changes.get("result", Result.OK) is Result.OK:
                busy = min(0.99, 0.5 + 0.07 * len(jobs))
                metrics |= {
                    "gract_mean_ratio": busy,
                    "smact_mean_ratio": 0.7 * busy,
                    "memory_peak_mib": 1500.0 * len(jobs),
                    "energy_per_sample_j": 0.05 / len(jobs),
                    "power_mean_w": 300.0 + 20 * len(jobs),
                    "overlap_ratio": 0.99,
                }
            rows.append(row(scenario, jobs, block, start_ms=start, metrics=metrics, **changes))

        for size, name in NAMES.items():
            job_params = params(name)
            add("serial", (job(0, job_params, speed(ALONE[size])),))
            if size == "L":
                add("naive", tuple(job(i, job_params, None) for i in range(7)), result=Result.OOM)
                continue
            for degree, ratios in SHARED[size].items():
                for scenario, ratio in zip(("naive", "mps"), ratios, strict=True):
                    job_rate = speed(ALONE[size] * ratio / degree)
                    add(scenario, tuple(job(i, job_params, job_rate) for i in range(degree)))
        small = params(NAMES["S"])
        add("serial", (job(0, params(NAMES["S"], step_mode="cuda_graph"), speed(4.0 * ALONE["S"])),))
        place = {"mps_active_thread_percentage": "14"}
        wrong = tuple(job(i, small, speed(2000.0), place=place) for i in range(7))
        add("mps_percent", wrong, result=Result.WRONG_RESULTS)
        for mix, ratios in MIXED.items():
            for scenario, ratio in zip(("naive", "mps"), ratios, strict=True):
                shared = [speed(ALONE[size] * ratio / len(mix)) for size in mix]
                parts = enumerate(zip(mix, shared, strict=True))
                add(scenario, tuple(job(i, params(NAMES[size]), rate, size=size) for i, (size, rate) in parts))
        lmmsss = tuple(job(i, params(NAMES[s]), None, size=s) for i, s in enumerate("LMSSS"))
        add("mig", lmmsss, result=Result.SKIPPED, reason="no partition of this GPU holds 3g+2g+1g+1g+1g")
    return rows


def table_of(name: str, measured: Study | Sequence[Cell]) -> Table:
    """Return a table of the report of a study, or of some of its cells; a table without rows if the report has none."""
    cells = make_cells(measured) if isinstance(measured, Study) else measured
    pairs = compare_modes(cells)
    source = measured if isinstance(measured, Study) else study()
    tables = make_tables(source, cells, pairs, winners(cells, pairs), ())
    return next((table for table in tables if table.name == name), Table(name, "", (), ()))
