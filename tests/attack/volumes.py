"""Jobs that write millions of events or lines: the study keeps its memory, hears signals, and leaves a row in time."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random

from pipeline.base.system.paths import PROJECT_DIR
from tests.attack.bench import SHORT, Bench, Outcome
from tests.attack.store_reader import groups_of, read_runs
from tests.support import forks

_PATTERN = "([0-9.]+) samples/s"
_SIZES_MB = (10, 50, 300)
_VOLUMES = {
    "steps": "block(lambda i: step(total + i), 100_000)",
    "one step again and again": "block(lambda i: step(total), 100_000)",
    "epochs": "block(lambda i: dumps(event='epoch', epoch=i, t_ns=now(), seconds=0.0, metrics={'loss': 1.0}), 100_000)",
    "values of one metric": "block(lambda i: metric('loss', i), 100_000)",
    "metrics of many names": "block(lambda i: metric(f'm{i}', 0), 100_000)",
    "lines that are no events": "block(lambda i: b'nothing of interest' * 5 + b'\\n', 100_000)",
    "a line without an end": "block(lambda i: b'x' * 1000, 1000)",
    "a hole of a gigabyte": "os.truncate(events, os.path.getsize(events) + 2**30)",
    "requests": "block(lambda i: client.REQUEST.pack(now(), now(), now(), 0, now(), 0, 1), 100_000, requests())",
}
_OUTPUTS = {
    "rates in its output": "b'step %d: 5130.4 samples/s\\n' % i",
    "output without a newline": "b'x' * 1000",
    "rates in its output, without newlines": "b'\\rstep %d: 5130.4 samples/s' % i",
    "output without rates": "b'nothing of interest' * 5 + b'\\n'",
}
_PRINTER = """
import os, time
left = {size_mb} * 1_000_000
while left > 0:
    data = b"".join({code} for i in range(100_000))[:left]
    left -= len(data)
    while data:
        data = data[os.write(1, data):]
    time.sleep(0.05)
"""
_JOB = """
import json, os, sys, time
sys.path.insert(0, {project!r})
from workloads import client
now, total, left = time.monotonic_ns, 1000, {size_mb} * 1_000_000
folder = os.environ["COLLOCATION_JOB"]
events = os.path.join(folder, client.EVENTS_FILE)

def dumps(**event):
    return json.dumps(event).encode() + b"\\n"

def step(number):
    return b'{{"event":"step","t_ns":%d,"samples":1,"total":%d,"epoch":null}}\\n' % (now(), number)

def metric(name, number):
    return dumps(event="metric", name=name, value=1.0, step=number, t_ns=now())

def requests():
    return os.open(os.path.join(folder, client.REQUESTS_FILE), os.O_WRONLY | os.O_APPEND | os.O_CREAT)

def block(line, number, descriptor=None):
    global total, left
    descriptor = own if descriptor is None else descriptor
    while left > 0:
        data = b"".join(map(line, range(number)))
        total += number
        left -= len(data)
        while data:
            data = data[os.write(descriptor, data):]

with client.attach() as job:
    own = os.open(events, os.O_WRONLY | os.O_APPEND)
    job.ready()
    job.step(samples=total)
    time.sleep(0.1)
    {code}
    while not job.stopping:
        time.sleep(0.005)
        total += 4
        os.write(own, step(total))
"""
_LIMIT_S = 200.0
"""In which a study of 300 MB ends on a machine that has much else to do."""
_DEAF_S = 30.0
"""In which it ends after SIGTERM."""
_MOST_MIB = 800


@dataclass(slots=True)
class _Watch:
    """What was seen of a study: its largest memory in MiB, and when it was signalled."""

    peak_mib: float = 0.0
    signalled_s: float | None = None


def attack(bench: Bench, random: Random) -> Outcome:
    """Run a job that writes much, and sometimes interrupt what is made of it."""
    kind, size_mb = random.choice([*_VOLUMES, *_OUTPUTS]), random.choice(_SIZES_MB)
    number = random.getrandbits(32)
    script, root = bench.folder / "much.py", bench.folder / f"much-{number:08x}"
    experiment = f"volumes-{number:08x}-rehearsal"
    code, source = (_VOLUMES | _OUTPUTS)[kind], _PRINTER if kind in _OUTPUTS else _JOB
    script.write_text(source.format(project=str(PROJECT_DIR), size_mb=size_mb, code=code))
    signal_after_s = random.choice((None, random.uniform(0, 3)))
    outcome = Outcome(f"of {kind}" + ("" if signal_after_s is None else ", interrupted"))
    words = ["scenario=naive", "degree=1", "baseline=never", *SHORT, "limits.stop_s=60", "limits.ready_s=60"]
    words += [f"workload.script={script}", f"tracking.experiment={experiment}"]
    words += ["workload=script", f"workload.metric_pattern='{_PATTERN}'"] if kind in _OUTPUTS else []
    process, watch = bench.start(*words, root=root), _Watch()
    watching = threading.Thread(target=_look, args=(bench, process, script, signal_after_s, watch), daemon=True)
    watching.start()
    outcome.problems += bench.end(process, limit_s=_LIMIT_S)
    ended_s = time.monotonic()
    watching.join()
    if watch.signalled_s is not None and ended_s - watch.signalled_s > _DEAF_S:
        outcome.problems.append(f"it ended {ended_s - watch.signalled_s:.0f} s after SIGTERM")
    if watch.peak_mib > _MOST_MIB:
        outcome.problems.append(f"it took {watch.peak_mib:.0f} MiB of memory")
    outcome.problems += bench.problems_after(root)
    results = [group.tags.get("result") for group in groups_of(read_runs(root / "mlflow.db", experiment))]
    if len(results) != 1 or not results[0]:
        outcome.problems.append(f"its rows are {results}")
    outcome.problems = [f"{size_mb} MB: {problem}" for problem in outcome.problems]
    shutil.rmtree(root, ignore_errors=True)
    return outcome


def _look(bench: Bench, process: forks.Process, script: Path, signal_after_s: float | None, watch: _Watch) -> None:
    """Watch the memory of a study until it ends, and interrupt it so long after its job has ended."""
    has_begun, job_ended_s = False, None
    while Path(f"/proc/{process.pid}").exists():  # `poll` belongs to the thread that waits for its end
        watch.peak_mib = max(watch.peak_mib, *map(_memory_mib, (process.pid, bench.sender_pid)))
        runs = any(script.name in command for command in bench.commands().values())
        has_begun = has_begun or runs
        if has_begun and not runs and job_ended_s is None:
            job_ended_s = time.monotonic()
        is_due = signal_after_s is not None and time.monotonic() - (job_ended_s or time.monotonic()) > signal_after_s
        if is_due and watch.signalled_s is None:
            watch.signalled_s = time.monotonic()
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGTERM)
        time.sleep(0.2)


def _memory_mib(pid: int) -> float:
    """Return the largest memory that a process had so far."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    return 0.0
