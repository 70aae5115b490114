"""A study whose disk becomes full; then there is room again, and the study is resumed."""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from random import Random

from tests.attack.bench import PATIENT, SHORT, Bench, Outcome

_CLONE_NEWNS, _MS_REC, _MS_PRIVATE = 0x20000, 0x4000, 1 << 18  # Source: linux/sched.h, linux/mount.h


def isolate_mounts() -> bool:
    """Let what this process and its children mount be seen by nobody else, and end with them; whether it may mount."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNS) or libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None):
        return False
    with tempfile.TemporaryDirectory() as folder, suppress(OSError, subprocess.CalledProcessError):
        _mount(Path(folder), "size=4k")
        subprocess.run(["umount", folder], check=True)
        return True
    return False


def attack(bench: Bench, random: Random) -> Outcome:
    """Run a study on a small disk, enlarge it, and resume."""
    place = bench.folder / "small"
    place.mkdir(exist_ok=True)
    # A store takes 0.8 MB, a group some 20 kB on its way.
    _mount(place, f"size={random.choice((random.randint(4, 900), random.randint(800, 1500)))}k")
    try:
        return _study(bench, random, place)
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)


def _study(bench: Bench, random: Random, place: Path) -> Outcome:
    root, experiment = place / "mlruns", f"disks-{random.getrandbits(32):08x}-rehearsal"
    study = [f"scenario={random.choice(('naive', 'mps', 'mig'))}", "degree=2", *SHORT]
    study.append(f"tracking.experiment={experiment}")
    outcome = Outcome("resumed on a larger one")
    outcome.problems += bench.end(bench.start(*study, root=root))
    usage = f"{sum(path.stat().st_size for path in place.rglob('*') if path.is_file())} bytes on it"
    _mount(place, "remount,size=64m")
    outcome.problems += bench.problems_after(root)
    again = bench.start(*study, *PATIENT, "resume=true", root=root)
    outcome.problems += bench.end(again)
    if again.returncode != 0:
        outcome.problems.append(f"resumed with room enough, it ended with {again.returncode}")
    outcome.problems += bench.problems_after(root)
    outcome.problems += bench.wrong_figures(experiment, root / "mlflow.db")
    results = bench.results_of(experiment, root / "mlflow.db")
    if set(results.values()) != {1}:
        outcome.problems.append(f"results a group: {results}")
    outcome.problems = [f"{problem} ({usage})" for problem in outcome.problems]
    return outcome


def _mount(place: Path, options: str) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "attack", place], check=True)
