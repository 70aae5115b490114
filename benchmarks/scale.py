"""What a study on several GPUs costs beside one GPU, and what its overview costs; on any machine with Linux.

    python -m benchmarks.scale gpus      # eight blocks of scripts that sleep 5 s, on one simulated GPU and on four
    python -m benchmarks.scale status    # an overview of 64 units and 10,000 groups
    python -m benchmarks.scale plan      # a plan of 10,000 groups

The table comes last.
"""

from __future__ import annotations

import argparse
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import closing
from pathlib import Path

import psutil

from pipeline.base.paths import PROJECT_DIR

RUN = [sys.executable, str(PROJECT_DIR / "run.py")]
SLEEP_S, BLOCKS, GPUS = 5, 8, 4
UNITS, GROUPS = 64, 10_000


def gpus(folder: Path) -> list[str]:
    """Seconds of a study on one GPU and on four, and the memory of a worker with its sender."""
    script = folder / "sleep.py"
    script.write_text(f"import time; time.sleep({SLEEP_S})\n")
    machine = ["gpu=simulated_a100_40gb", f"gpu.count={GPUS}", f"gpu.machine={folder}/machine.json"]
    study = ["-m", "scenario=naive", "degree=1", f"repeats={BLOCKS}", "workload=script", f"workload.script={script}"]
    study += [*machine, f"gpu.lock_dir={folder}", f"tracking.root={folder}/mlruns"]
    _timed([*study, "repeats=1", "tracking.experiment=first"])  # makes the store
    alone_s, _ = _timed([*study, "tracking.experiment=alone"])
    shared_s, peak_mib = _timed([*study, "tracking.experiment=shared", "hydra/launcher=gpus"])
    return [
        f"| GPUs | time, s | against {alone_s:.0f} s / {GPUS} | memory of a worker with its sender, MiB |",
        "|---|---|---|---|",
        f"| 1 | {alone_s:.1f} | | |",
        f"| {GPUS} | {shared_s:.1f} | {shared_s / (alone_s / GPUS):.2f} | {peak_mib:.0f} |",
    ]


def status(folder: Path) -> list[str]:
    """Seconds and memory of `pipeline.tracking status` over a store with many groups."""
    from pipeline.base.layout import DATABASE
    from pipeline.base.tags import GROUP, Tag, fact_tag
    from pipeline.record.store.local import open_store

    store = open_store(folder)
    tags = {fact_tag(f"fact{each}"): "x" * 20 for each in range(30)}
    params = {f"param{each}": "1" for each in range(12)}
    template = store.client.create_run(store.experiment_id("e"), tags={Tag.ROLE: GROUP}).info.run_id
    size = GROUPS // UNITS
    with closing(sqlite3.connect(folder / DATABASE)) as database, database:
        columns = [row[1] for row in database.execute("PRAGMA table_info(runs)")]
        kept = ", ".join(set(columns) - {"run_uuid", "name", "status", "start_time", "end_time"})
        for number in range(UNITS * size):
            unit, group = divmod(number, size)
            told = {Tag.ROLE: GROUP, Tag.BLOCK: unit + 1, Tag.PLAN_UNIT: unit + 1, Tag.DIGEST: f"{unit}-{group}"}
            told |= {Tag.RESULT: "ok", fact_tag("plan"): "p", fact_tag("plan_units"): f"{size}x{UNITS}", **tags}
            database.execute(
                f"INSERT INTO runs (run_uuid, name, status, start_time, end_time, {kept}) "
                f"SELECT ?, ?, 'FINISHED', ?, ?, {kept} FROM runs WHERE run_uuid = ?",
                (f"run{number}", f"g{number}", number, number + 1, template),
            )
            for table, values in (("tags", told), ("params", params)):
                rows = [(str(key), str(value), f"run{number}") for key, value in values.items()]
                database.executemany(f"INSERT INTO {table} (key, value, run_uuid) VALUES (?, ?, ?)", rows)
    store.client.delete_run(template)
    command = [sys.executable, "-m", "pipeline.tracking", "status", "--experiment", "e", "--root", str(folder)]
    begin = time.monotonic()
    # Through a small process, or the memory of this process, from which it is forked, would count.
    peak = "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL); "
    peak += "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024)"
    done = subprocess.run(
        [sys.executable, "-c", peak, *command], cwd=PROJECT_DIR, check=True, capture_output=True, text=True
    )
    took_s, peak_mib = time.monotonic() - begin, float(done.stdout)
    return [
        "| units | groups | time, s | memory, MiB |",
        "|---|---|---|---|",
        f"| {UNITS} | {UNITS * size} | {took_s:.1f} | {peak_mib:.0f} |",
    ]


def plan(_: Path) -> list[str]:
    """Seconds of a dry run of many groups."""
    sizes = ",".join(map(str, range(1, 101)))
    study = [
        "-m",
        "scenario=naive",
        "workload=tiny",
        f"workload.batch_size={sizes}",
        "degree=1",
        "repeats=50",
        "gpu=cpu",
    ]
    begin = time.monotonic()
    done = subprocess.run([*RUN, *study, "dry_run=json"], check=True, capture_output=True, text=True)
    took_s, num = time.monotonic() - begin, done.stdout.count('"digest"')
    return ["| groups | time, s |", "|---|---|", f"| {num} | {took_s:.1f} |"]


def _timed(arguments: list[str]) -> tuple[float, float]:
    """Seconds, and the most memory (PSS, MiB) that a worker held with its sender and not its jobs."""
    begin = time.monotonic()
    process = subprocess.Popen([*RUN, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    peak = 0.0
    said: list[str] = []
    reader = threading.Thread(target=lambda: said.append(process.stderr.read() if process.stderr else ""))
    reader.start()
    while process.poll() is None:
        time.sleep(1)
        for worker in psutil.Process(process.pid).children():
            if any(word.startswith("unit=") for word in _words(worker)):
                peak = max(peak, sum(map(_pss_mib, [worker, *_senders(worker)])))
    reader.join()
    if process.returncode:
        raise RuntimeError(f"{arguments} ended with {process.returncode}: {said}")
    return time.monotonic() - begin, peak


def _senders(worker: psutil.Process) -> list[psutil.Process]:
    try:
        return [child for child in worker.children() if "pipeline.tracking" in _words(child)]
    except psutil.Error:
        return []


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def _pss_mib(process: psutil.Process) -> float:
    try:
        return process.memory_full_info().pss / 2**20
    except psutil.Error:
        return 0.0


def main() -> None:
    """Run one measurement and print its table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__)
    parser.add_argument("what", choices=["gpus", "status", "plan"])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        sys.stdout.write("\n".join({"gpus": gpus, "status": status, "plan": plan}[options.what](Path(folder))) + "\n")


if __name__ == "__main__":
    main()
