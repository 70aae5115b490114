"""A process of a study is killed, stopped or interrupted at a random instant; then the study is resumed."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from random import Random

from tests.attack.bench import SHORT, Bench, Outcome

SCENARIOS = ("naive", "mps", "mig", "mig_mps", "serial")
_NAMES = {signal.SIGINT: "INT", signal.SIGTERM: "TERM", signal.SIGKILL: "KILL", signal.SIGSTOP: "STOP"}
_LATEST_S = 4.0  # after this a study of one or two groups is over


def attack(bench: Bench, random: Random) -> Outcome:
    """Signal the orchestrator, its sender or any other process; look; sometimes go on with `resume`."""
    scenario = random.choice(SCENARIOS)
    experiment = f"kills-{random.getrandbits(32):08x}"
    study = [f"scenario={scenario}", f"degree={random.randint(1, 2)}", *SHORT, f"tracking.experiment={experiment}"]
    if random.random() < 0.3:
        study = ["-m", *study, f"repeats={random.randint(1, 2)}"]
    process = bench.start(*study)
    time.sleep(random.uniform(0, _LATEST_S))
    victim = random.choice(("orchestrator", "orchestrator", "sender", "child"))
    signum = random.choice((signal.SIGINT, signal.SIGTERM, signal.SIGKILL) if victim == "orchestrator" else [9, 19])
    outcome = Outcome(f"{_NAMES[signal.Signals(signum)]} to the {victim} under {scenario}")
    others = [pid for pid in bench.pids() if pid not in (process.pid, bench.sender_pid)]
    pid = {"orchestrator": process.pid, "sender": bench.sender_pid}.get(victim, random.choice(others or [0]))
    with suppress(ProcessLookupError):
        if pid:
            os.kill(pid, signum)
    if signum == signal.SIGSTOP and pid:
        time.sleep(random.uniform(0, 2))
        with suppress(ProcessLookupError):
            os.kill(pid, random.choice((signal.SIGCONT, signal.SIGKILL)))
    outcome.problems += bench.end(process)
    outcome.problems += bench.problems_after()
    if random.random() < 0.3:
        outcome.what += ", resumed"
        again = bench.start(*study, "resume=true")
        outcome.problems += bench.end(again)
        outcome.problems += bench.problems_after()
        twice = {digest: number for digest, number in bench.results_of(experiment).items() if number != 1}
        if twice:
            outcome.problems.append(f"results a group: {twice}")
    return outcome
