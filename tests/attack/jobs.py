"""Jobs that write into their event file, their folder and their socket whatever they like: each leaves a row."""

from __future__ import annotations

from random import Random

from tests.attack.bench import SHORT, Bench, Outcome

_SECRET = "what only the owner of this machine may read"
_JOB = """
import json, os, random, socket, sys, time
sys.path.insert(0, {project!r})
from workloads import client
chance = random.Random({seed} + int(os.path.basename(os.environ["COLLOCATION_JOB"])))
folder = os.environ["COLLOCATION_JOB"]
values = [None, True, -1, 0, 1, 2**70, -2**70, 1e300, float("nan"), float("inf"), "", "x" * 9000, [], {{}}, [1]]
kinds = ["step", "epoch", "metric", "param", "error", "phase", "wrong", "process", "process_ended", "written",
         "started", "other", None]
keys = ["t_ns", "total", "samples", "epoch", "seconds", "metrics", "name", "step", "value", "params", "type", "message",
        "what", "pid", "stdout", "stderr"]

def nonsense():
    path = os.path.join(folder, "events.jsonl")
    with open(path, "ab") as file:
        for _ in range(chance.randrange(1, 30)):
            event = {{key: chance.choice(values) for key in chance.sample(keys, 6)}} | {{"event": chance.choice(kinds)}}
            line = json.dumps(event).encode()
            if chance.random() < 0.3:
                line = bytes(chance.randrange(256) for _ in range(chance.randrange(200)))
            file.write(line[: chance.randrange(len(line) + 1)] if chance.random() < 0.2 else line)
            file.write(b"\\n")

def litter():
    for name, target in (("link", {secret!r}), ("tree", "/etc"), ("loop", folder)):
        if chance.random() < 0.5 and not os.path.lexists(os.path.join(folder, name)):
            os.symlink(target, os.path.join(folder, name))
    if chance.random() < 0.5 and not os.path.exists(os.path.join(folder, "pipe")):
        os.mkfifo(os.path.join(folder, "pipe"))
    if chance.random() < 0.1:
        path = os.path.join(folder, chance.choice(["events.jsonl", "stdout.log", "stderr.log", "job.json"]))
        os.unlink(path)
        chance.choice([lambda: os.symlink({secret!r}, path), lambda: os.mkdir(path), lambda: os.mkfifo(path)])()

with client.attach() as job:
    if chance.random() < 0.3: nonsense()
    if chance.random() < 0.3:
        said = [b"\\n", b"[]\\n", b"{{}}\\n", b'{{"type": "bye", "status": []}}\\n', b"\\xff" * 99999,
                b'{{"type": "hello", "index": true}}\\n', b'{{"type": "hello", "index": 1}}\\n', b"[" * 4000 + b"\\n",
                b'{{"type": "ready"}}\\n' * 100_000]
        try:
            job._socket.sendall(chance.choice(said))
        except OSError:
            pass
    job.ready()
    while not job.stopping:
        time.sleep(0.01)
        job.step(samples=4)
        if chance.random() < 0.05: nonsense()
        if chance.random() < 0.02: litter()
        if chance.random() < 0.002: os._exit(chance.randrange(256))
"""


def attack(bench: Bench, random: Random) -> Outcome:
    """Run two such jobs."""
    from pipeline.base.system.paths import PROJECT_DIR

    secret, script = bench.folder / "secret.txt", bench.folder / "job.py"
    secret.write_text(_SECRET)
    script.write_text(_JOB.format(project=str(PROJECT_DIR), seed=random.getrandbits(30), secret=str(secret)))
    outcome = Outcome("two jobs that write nonsense")
    process = bench.start("scenario=naive", "degree=2", *SHORT, f"workload.script={script}")
    outcome.problems += bench.end(process)
    outcome.problems += bench.problems_after()
    for path in (bench.root / "artifacts").rglob("*"):
        if path.is_symlink() or (path.is_file() and _SECRET.encode() in path.read_bytes()):
            outcome.problems.append(f"{path} is, or holds, what is not the job's")
    return outcome
