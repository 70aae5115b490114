"""Processes of a study on two GPUs, of whatever kind, are killed; then the study is resumed until it is whole."""

from __future__ import annotations

import functools
import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from random import Random
from subprocess import Popen

from pipeline.simulation.machine.state_file import StateFile
from tests.attack.bench import ENDING_SIGNALS, PATIENT, Bench, Outcome

_WINDOW = ["window.seconds=0.2", "window.settle_s=0.05"]
_LAUNCHER = "launcher"
_EVERYTHING_SHARE = 0.2
_LATEST_S = 12.0  # after this a study of four groups on two GPUs is nearly over
_FINISH_S = 120.0
"""In which workers finish their units after their launcher was killed."""


class TwoGpus(Bench):
    """A bench whose machine has two GPUs."""

    def __init__(self, folder: Path) -> None:
        StateFile(folder / "machine.json").keep(["a100_40gb", "a100_40gb"], "615")
        super().__init__(folder)

    def rest(self) -> None:
        """Wait until workers that lost their launcher have finished."""
        deadline = time.monotonic() + _FINISH_S
        while self.commands() and time.monotonic() < deadline:
            time.sleep(0.1)


@functools.cache
def _make_two_gpus(bench: Bench) -> TwoGpus:
    folder = bench.folder / "two"
    folder.mkdir()
    return TwoGpus(folder)


def attack(bench: Bench, random: Random) -> Outcome:
    """Kill one to three processes of a study, whichever; look; resume it, and look whether it is whole."""
    two = _make_two_gpus(bench)
    experiment = f"gpus-{random.getrandbits(32):08x}-rehearsal"
    scenarios = random.choice((["naive"], ["mps"], ["serial", "naive"], ["naive", "mps"]))
    study = ["-m", "gpu.count=2", "hydra/launcher=gpus", f"scenario={','.join(scenarios)}", "degree=1,2", "repeats=2"]
    study += [*_WINDOW, *PATIENT, f"tracking.experiment={experiment}"]
    process = two.start_real(*study)
    outcome = Outcome("")
    if random.random() < _EVERYTHING_SHARE:
        time.sleep(random.uniform(0, _LATEST_S))
        outcome.what = "of everything at one instant"
        outcome.num_kills += two.kill_everything(process)
        sent = [signal.SIGKILL]
    else:
        killed = [_kill_one(two, process, random, outcome) for _ in range(random.randint(1, 3))]
        outcome.what = f"of a {killed[0][0]}"
        sent = [signum for kind, signum in killed if kind == _LAUNCHER]
    outcome.problems += two.end(process)
    if process.returncode < 0 and signal.SIGKILL not in sent:
        outcome.problems.append(f"the launcher ended with {process.returncode} after {sent}")
    two.rest()
    outcome.problems += two.problems_after()
    again = two.start_real(*study, "resume=true")
    outcome.problems += two.end(again)
    outcome.problems += two.problems_after()
    if again.returncode != 0:
        outcome.problems.append(f"resumed, it ended with {again.returncode}: {two.printed[-1500:]}")
    results = two.results_of(experiment)
    if set(results.values()) != {1}:  # all groups have one, or else the status is not 0
        outcome.problems.append(f"results a group: {results}")
    return outcome


def _kill_one(two: TwoGpus, process: Popen[str], random: Random, outcome: Outcome) -> tuple[str, int]:
    """Wait a random time; signal a process of those that there are then; return its kind, and the signal."""
    time.sleep(random.uniform(0, _LATEST_S) if outcome.num_kills == 0 else random.uniform(0, 3))
    two.wait_until_handling(process)
    signum = random.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, random.choice(ENDING_SIGNALS)))
    if not (commands := two.commands()):
        return "study that had ended", signum
    pid = random.choice(sorted(commands))
    kind = _LAUNCHER if pid == process.pid else _kind(commands[pid])
    with suppress(ProcessLookupError):
        os.kill(pid, signum)
        outcome.num_kills += 1
    return kind, signum


def _kind(command: str) -> str:
    for part, kind in (
        ("pipeline.tracking", "sender"),
        ("hydra/launcher=worker", "worker"),
        ("toys/toy.py", "job"),
        ("mps.control", "MPS daemon or server"),
    ):
        if part in command:
            return kind
    return "helper process"
