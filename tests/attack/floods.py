"""Jobs that flood their control socket, nest what they send, or never speak: the study ends, and names the job."""

from __future__ import annotations

import time
from random import Random

from pipeline.base.system.paths import PROJECT_DIR
from tests.attack.bench import SHORT, Bench, Outcome
from tests.attack.store_reader import groups_of, jobs_of, read_runs

_FLOODS = {
    "megabytes without a newline": "send(b'x' * 4_000_000)",
    "a line of megabytes": "send(b'\"' + b'x' * 4_000_000 + b'\"\\n')",
    "a million messages": 'send(b\'{"type": "ready"}\\n\' * 1_000_000)',
    "messages without an end": 'while True: send(b\'{"type": "ready"}\\n\' * 1000)',
    "empty lines without an end": "while True: send(b'\\n' * 10_000)",
    "nested lists": "send(b'[' * 100_000 + b']' * 100_000 + b'\\n')",
    "nested objects": "send(b'{\"a\":' * 100_000 + b'1' + b'}' * 100_000 + b'\\n')",
    "a nested index": "send(b'{\"type\": \"hello\", \"index\": ' + b'[' * 100_000 + b'\\n')",
    "an index that is true": 'send(b\'{"type": "hello", "index": true}\\n\')',
    "an index that is a list": 'send(b\'{"type": "hello", "index": [0]}\\n\')',
    "an index that nobody has": 'send(b\'{"type": "hello", "index": 7000}\\n\')',
    "the index of another": 'send(b\'{"type": "hello", "index": %d, "pid": 1, "protocol": 1}\\n\' % (1 - me))',
    "the end of another": 'send(b\'{"type": "hello", "index": %d}\\n{"type": "bye", "status": "ok"}\\n\' % (1 - me))',
    "numbers beyond any": 'send(b\'{"type": "hello", "index": 1e999, "protocol": \' + b\'9\' * 4000 + b\'}\\n\')',
    "bytes of no encoding": "send(b'\\xff\\xfe\\x00' * 300 + b'\\n')",
}
"""What is sent by a connection of its own, or by that of the job protocol."""
_OTHERS = {
    "hundreds of connections": "keep += [connect() for _ in range(400)]",
    "connections that come and go": "for _ in range(3000): connect().close()",
    "a connection that never speaks": "keep.append(connect())",
    "connections that never stop": "while True: keep.append(connect())",
    "a connection that never reads": 'keep.append(connect()); keep[-1].sendall(b\'{"type": "hel\')',
}
_HARMLESS = ("connections that come and go", "a connection that never speaks", "a connection that never reads")
_JOB = """
import os, socket, sys, threading, time
sys.path.insert(0, {project!r})
from workloads import client
from contextlib import suppress
me, keep = int(os.path.basename(os.environ["COLLOCATION_JOB"])), []

def connect():
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(job._address)
    return connection

def flood():
    own = connect() if {is_own} else job._socket
    send = own.sendall
    with suppress(OSError):
        {code}
    keep.append(own)

with client.attach() as job:
    if me == {who} and {is_early}:
        flood()
    job.ready()
    if me == {who} and not {is_early}:
        threading.Thread(target=flood, daemon=True).start()
    while not job.stopping:
        time.sleep(0.005)
        job.step(samples=4)
"""
_LIMIT_S = 90.0
"""In which a study of two jobs ends that takes 3 s on a quiet machine; its own deadlines add up to 45 s."""


def attack(bench: Bench, random: Random) -> Outcome:
    """Let one of two jobs flood its socket."""
    kind = random.choice([*_FLOODS, *_OTHERS])
    who = random.randrange(2)
    fields = {
        "project": str(PROJECT_DIR),
        "code": (_FLOODS | _OTHERS)[kind],
        "who": who,
        "is_own": kind in _OTHERS or random.random() < 0.5,
        "is_early": random.random() < 0.5,
    }
    script, experiment = bench.folder / "flood.py", f"floods-{random.getrandbits(32):08x}-rehearsal"
    script.write_text(_JOB.format(**fields))
    outcome = Outcome(f"of {kind}")
    began_s = time.monotonic()
    words = ["scenario=naive", "degree=2", "baseline=never", *SHORT, f"workload.script={script}"]
    process = bench.start(*words, f"tracking.experiment={experiment}")
    outcome.problems += bench.end(process, limit_s=_LIMIT_S)
    took_s = time.monotonic() - began_s
    outcome.problems += bench.problems_after()
    runs = read_runs(bench.root / "mlflow.db", experiment)
    if not groups_of(runs) and process.returncode == 1:
        outcome.problems.append(f"it left no row after {took_s:.0f} s")
    for group in groups_of(runs):
        result, reason = group.tags.get("result"), group.tags.get("reason", "")
        if result != "ok" and not any(job.name in reason for job in jobs_of(runs, group) if _is_of(job.name, who)):
            outcome.problems.append(f"{result}, and the reason names not the job that flooded: {reason!r}")
        if result != "ok" and kind in _HARMLESS:
            outcome.problems.append(f"harmless, but {result}: {reason}")
    outcome.problems = [f"by job {who}{', early' if fields['is_early'] else ''}: {text}" for text in outcome.problems]
    return outcome


def _is_of(name: str, index: int) -> bool:
    return name.startswith(f"{index}-")
