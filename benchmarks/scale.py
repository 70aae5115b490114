"""The cost of a study on several GPUs compared with one GPU, and of its overview, on any machine with Linux.

    python -m benchmarks.scale gpus      # eight blocks of scripts that sleep 5 s, on one simulated GPU and on four
    python -m benchmarks.scale status    # an overview of 64 shards and 10,000 groups
    python -m benchmarks.scale plan      # a plan of 10,000 groups
    python -m benchmarks.scale sending --uri http://127.0.0.1:5000
                                         # eight workers send a group of seven jobs to a server every 20 s

The table is printed at the end. `sending` runs one group of seven simulated trainings and copies the group for each
worker and round. Its runs remain in the experiment `sending-TIME` of the server, whose database may be PostgreSQL
(docs/tracking.md).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from pipeline.base.domain import layout
from pipeline.base.system.paths import PROJECT_DIR
from pipeline.record.store.local_store import open_store
from pipeline.record.tracking_sender import Sender

RUN = [sys.executable, str(PROJECT_DIR / "run.py")]
SLEEP_S, BLOCKS, GPUS = 5, 8, 4
SHARDS, GROUPS = 64, 10_000
SENDERS, JOBS, EVERY_S, ROUNDS = 8, 7, 20.0, 10


def gpus(folder: Path) -> list[str]:
    """Measure time and CPU time of a study on one GPU and on four, and the memory of a worker with its sender."""
    script = folder / "sleep.py"
    script.write_text(f"import time; time.sleep({SLEEP_S})\n")
    machine = ["gpu=simulated_a100_40gb", f"gpu.count={GPUS}", f"gpu.machine={folder}/machine.json"]
    study = ["-m", "scenario=naive", "degree=1", f"repeats={BLOCKS}", "workload=script", f"workload.script={script}"]
    study += [*machine, f"gpu.lock_dir={folder}", f"tracking.root={folder}/mlruns"]
    _timed([*study, "repeats=1", "tracking.experiment=first"])  # this run creates the store
    alone_s, alone_cpu_s = _timed([*study, "tracking.experiment=alone"])
    shared_s, shared_cpu_s = _timed([*study, "tracking.experiment=shared", "hydra/launcher=gpus"])
    # Memory is measured in a separate study, because reading the memory of processes takes CPU time from the study.
    peak_mib = _peak_mib([*study, f"repeats={GPUS}", "tracking.experiment=memory", "hydra/launcher=gpus"])
    return [
        f"| GPUs | time, s | against {alone_s:.0f} s / {GPUS} | CPU time, s | memory of a worker and its sender, MiB |",
        "|---|---|---|---|---|",
        f"| 1 | {alone_s:.1f} | | {alone_cpu_s:.1f} | |",
        f"| {GPUS} | {shared_s:.1f} | {shared_s / (alone_s / GPUS):.2f} | {shared_cpu_s:.1f} | {peak_mib:.0f} |",
        f"load average {os.getloadavg()[0]:.1f} at the end",
    ]


def status(folder: Path) -> list[str]:
    """Measure time and memory of `pipeline.tracking status` for a store with many groups."""
    from pipeline.base.domain.layout import DATABASE
    from pipeline.base.domain.tags import GROUP, Tag, fact_tag

    store = open_store(folder)
    tags = {fact_tag(f"fact{position}"): "x" * 20 for position in range(30)}
    params = {f"param{position}": "1" for position in range(12)}
    template = store.client.create_run(store.open_experiment("e"), tags={Tag.ROLE: GROUP}).info.run_id
    size = GROUPS // SHARDS
    with closing(sqlite3.connect(folder / DATABASE)) as database, database:
        columns = [row[1] for row in database.execute("PRAGMA table_info(runs)")]
        kept = ", ".join(set(columns) - {"run_uuid", "name", "status", "start_time", "end_time"})
        for number in range(SHARDS * size):
            shard, group = divmod(number, size)
            told: dict[str, object] = {
                Tag.ROLE: GROUP,
                Tag.BLOCK: shard + 1,
                Tag.SHARD: shard + 1,
                Tag.DIGEST: f"{shard}-{group}",
            }
            told |= {Tag.RESULT: "ok", fact_tag("plan"): "p", fact_tag("plan_shards"): f"{size}x{SHARDS}", **tags}
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
    # A small process starts the command, because the command's peak memory includes that of the process that forks it.
    peak = "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL); "
    peak += "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024)"
    done = subprocess.run(
        [sys.executable, "-c", peak, *command], cwd=PROJECT_DIR, check=True, capture_output=True, text=True
    )
    took_s, peak_mib = time.monotonic() - begin, float(done.stdout)
    return [
        "| shards | groups | time, s | memory, MiB |",
        "|---|---|---|---|",
        f"| {SHARDS} | {SHARDS * size} | {took_s:.1f} | {peak_mib:.0f} |",
    ]


def plan(_: Path) -> list[str]:
    """Measure the time of a dry run of many groups."""
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


def measure_sending(folder: Path, uri: str) -> list[str]:
    """Measure, with many workers, the time from a group's end until the server has all its data, and the spools."""
    experiment = f"sending-{time.strftime('%Y%m%dT%H%M%S')}"
    group = _finished_group(folder)
    are_ready = threading.Barrier(SENDERS)

    def work(number: int) -> tuple[list[float], int]:
        return _send(folder / f"worker{number}", group, random.Random(number), are_ready, experiment, uri)  # noqa: S311

    with ThreadPoolExecutor(SENDERS) as workers:
        sent = list(workers.map(work, range(SENDERS)))
    took_s = sorted(delay for took, _ in sent for delay in took)
    client = open_store(folder, uri).client
    store = client.get_experiment_by_name(experiment)
    assert store is not None
    runs, token = 0, None
    while True:
        page = client.search_runs([store.experiment_id], "attributes.status = 'FINISHED'", page_token=token)
        runs, token = runs + len(page), page.token
        if not token:
            break
    left = len(list(folder.glob(f"worker*/{layout.SPOOL}/*/*")))
    quantiles = statistics.quantiles(took_s, n=20, method="inclusive")
    return [
        "| groups | runs, of | p50, s | p95, s | longest, s | longest spool, groups | left in spools |",
        "|---|---|---|---|---|---|---|",
        f"| {len(took_s)} | {runs} of {SENDERS * ROUNDS * (1 + JOBS)} | {quantiles[9]:.2f} | {quantiles[18]:.2f} "
        f"| {took_s[-1]:.2f} | {max(longest for _, longest in sent)} | {left} |",
        f"load average {os.getloadavg()[0]:.1f} at the end",
    ]


def _finished_group(folder: Path) -> Path:
    """Return the folder of a group of small trainings that was not sent to a server."""
    study = ["scenario=naive", f"degree={JOBS}", "workload=tiny", "baseline=never", "window.seconds=15"]
    study += ["gpu=simulated_a100_40gb", f"gpu.lock_dir={folder}", f"tracking.root={folder}/mlruns"]
    away = ["tracking=server", "tracking.uri=http://127.0.0.1:9", "shard=1", f"plan_file={folder}/plan.json"]
    environ = os.environ | {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"}
    done = subprocess.run([*RUN, *study, *away], env=environ, capture_output=True, text=True, check=False)
    records = list((folder / "mlruns" / layout.SPOOL).glob("*/*/record.json"))
    if len(records) != 1:
        raise RuntimeError(f"no group to send: {done.stderr}")
    return records[0].parent


def _send(
    root: Path, group: Path, chance: random.Random, are_ready: threading.Barrier, experiment: str, uri: str
) -> tuple[list[float], int]:
    """Run as one worker; return the time from each group's end until it was sent, and the longest spool."""
    took: list[float] = []
    longest = 0
    known: dict[str, Any] = json.loads((group / layout.RECORD).read_text())
    with Sender() as sender:
        sender.open(experiment, root, uri, 500)
        sender.wait_for_store()
        are_ready.wait()
        # The first end is random, so that the groups of the workers end at different times.
        first_end_s = time.monotonic() + chance.uniform(0, EVERY_S)
        for number in range(ROUNDS):
            text = json.dumps(known | {"experiment": experiment, "uri": uri})
            copy = root / layout.SPOOL / "study" / f"{number:04}"
            shutil.copytree(group, copy)
            (copy / layout.RECORD).write_text(text.replace(known["spool_id"], uuid.uuid4().hex))
            end_s = first_end_s + number * EVERY_S
            time.sleep(max(0.0, end_s - time.monotonic()))
            longest = max(longest, 1 + int(max(0.0, time.monotonic() - end_s) / EVERY_S))
            sender.send(copy)
            sender.finish_requests()
            took.append(time.monotonic() - end_s)
    return took, longest


def _timed(arguments: list[str]) -> tuple[float, float]:
    """Run a study; return its time, and the CPU time of all its processes, in seconds."""
    begin, used_s = time.monotonic(), _cpu_s()
    subprocess.run([*RUN, *arguments], check=True, capture_output=True)
    return time.monotonic() - begin, _cpu_s() - used_s


def _peak_mib(arguments: list[str]) -> float:
    """Return the peak memory (PSS, MiB) of a study's workers and senders, without jobs, per worker."""
    process = subprocess.Popen([*RUN, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    peak = 0.0
    while process.poll() is None:
        time.sleep(0.5)
        every = {child: _words(child) for child in _children(psutil.Process(process.pid))}
        workers = [child for child, words in every.items() if "hydra/launcher=worker" in words]
        # The senders include that of the launcher.
        senders = [child for child, words in every.items() if "pipeline.tracking" in words]
        if workers:
            peak = max(peak, sum(map(_pss_mib, [*workers, *senders])) / len(workers))
    if process.returncode:
        raise RuntimeError(f"{arguments} ended with {process.returncode}")
    return peak


def _cpu_s() -> float:
    """Return the CPU time of the children that have ended, in seconds."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
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
    parser.add_argument("what", choices=["gpus", "status", "plan", "sending"])
    parser.add_argument("--uri", help="address of the tracking server, for sending")
    options = parser.parse_args()
    if (options.uri is None) == (options.what == "sending"):
        parser.error("sending needs --uri, and no other measurement uses it")
    measures: dict[str, Callable[[Path], list[str]]]
    measures = {"gpus": gpus, "status": status, "plan": plan, "sending": partial(measure_sending, uri=options.uri)}
    with tempfile.TemporaryDirectory() as folder:
        sys.stdout.write("\n".join(measures[options.what](Path(folder))) + "\n")


if __name__ == "__main__":
    main()
