"""A store, or a spool, with a file that is damaged: what reads it does without, or says so in a line."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from random import Random

from tests.attack.bench import PATIENT, SHORT, Bench, Outcome
from tests.support import forks

_EXPERIMENT = "damaged-rehearsal"
_READERS = {
    "report": ["-m", "pipeline.report", "--experiment", _EXPERIMENT, "--no-log", "--root"],
    "timeline": ["-m", "pipeline.timeline", "--experiment", _EXPERIMENT, "--root"],
    "flush": ["-m", "pipeline.tracking", "flush", "--root"],
}


def attack(bench: Bench, random: Random) -> Outcome:
    """Change some bytes of a file of a store, and read it."""
    original, root = bench.folder / "whole", bench.folder / "damaged"
    if not original.exists():
        _make(bench, original)
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(original, root)
    forks.run("-m", "pipeline.tracking", "relocate", "--root", root)
    path = random.choice(sorted(path for path in root.rglob("*") if path.is_file()))
    how = _damage(path, random)
    reader = random.choice(sorted(_READERS))
    outcome = Outcome(f"{reader} of a store with a {path.suffix or path.name} that is {how}")
    out = ["--out", bench.folder / "out"] if reader != "flush" else []
    done = forks.run(*_READERS[reader], root, *out, cwd=bench.folder, timeout=300)
    details = f"{reader} of {path.relative_to(root)}, {how}: {done.stderr[-1500:]}"
    if done.returncode not in (0, 1, 2):
        outcome.problems.append(f"exit status {done.returncode}: {details}")
    if "Traceback" in done.stderr:
        outcome.problems.append(f"a traceback: {details}")
    return outcome


def _make(bench: Bench, place: Path) -> None:
    study = ["-m", "scenario=serial,naive", "degree=1,2", "repeats=2", f"tracking.experiment={_EXPERIMENT}"]
    process = bench.start(*study, *SHORT, *PATIENT)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    # By another process: one that closes a file of sqlite loses the locks of its own connections to it.
    subprocess.run(["cp", "--recursive", bench.root, place], check=True)


def _damage(path: Path, random: Random) -> str:
    content = bytearray(path.read_bytes())
    how = random.choice(("flipped", "cut", "emptied", "replaced"))
    if how == "flipped" and content:
        for _ in range(random.randint(1, 20)):
            content[random.randrange(len(content))] = random.randrange(256)
    elif how == "cut":
        del content[random.randrange(len(content) + 1) :]
    elif how == "emptied":
        content.clear()
    else:
        content = bytearray(random.randbytes(random.randrange(5000)))
    path.write_bytes(content)
    return how
