"""Attack until the time is over; print what was tried and what did not hold. The exit status says whether all held."""

from __future__ import annotations

import argparse
import itertools
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from random import Random

from tests import forks
from tests.attack import (
    damage,
    disks,
    floods,
    gpus,
    inputs,
    jobs,
    kills,
    limits,
    machines,
    servers,
    together,
    truth,
    volumes,
)
from tests.attack.bench import Bench, Outcome

ATTACKS: dict[str, tuple[float, Callable[[Bench, Random], Outcome]]] = {
    "kills": (6, kills.attack),
    "gpus": (1, gpus.attack),
    "inputs": (4, inputs.attack),
    "truth": (4, truth.attack),
    "machines": (1, machines.attack),
    "floods": (1, floods.attack),
    "together": (1, together.attack),
    "volumes": (1, volumes.attack),
    "jobs": (1, jobs.attack),
    "damage": (1, damage.attack),
    "limits": (0.5, limits.attack),
    "disks": (0.5, disks.attack),
    "servers": (0.15, servers.attack),
}
"""How often each is chosen: so that an hour holds hundreds of kills and thousands of inputs."""
_LONG_S = 300
"""What starts a server is worth its time in attacks that are longer than this."""


class Tally:
    """What was tried, and what did not hold; printed as it comes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tried: Counter[str] = Counter()
        self._begin_s = time.monotonic()
        self.num_attacks = self.num_kills = self.num_inputs = self.num_figures = self.num_failed = 0

    def add(self, name: str, number: int, outcome: Outcome) -> None:
        with self._lock:
            self._tried[f"{name}: {outcome.what}"] += 1
            self.num_attacks += 1
            self.num_kills += outcome.num_kills
            self.num_inputs += outcome.num_inputs
            self.num_figures += outcome.num_figures
            if outcome.problems:
                self.num_failed += 1
                repeat = f"python -m tests.attack --only {name} --seed {number} --most 1"
                print(f"{outcome.what} ({repeat})", *(f"    {problem}" for problem in outcome.problems), sep="\n")
                sys.stdout.flush()

    def print_summary(self) -> None:
        for what, times in sorted(self._tried.items()):
            print(f"{times:6}  {what}")
        print(
            f"{self.num_attacks} attacks in {time.monotonic() - self._begin_s:.0f} s, with {self.num_kills} kills, "
            f"{self.num_inputs} inputs and {self.num_figures} figures of known truth: {self.num_failed} did not hold"
        )


def main(arguments: Sequence[str]) -> int:
    """Print a line for each problem as it comes, then the summary."""
    parser = argparse.ArgumentParser(prog="python -m tests.attack", description=__doc__)
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--seed", type=int, default=1, help="of the first attack; the next has the next number")
    parser.add_argument("--only", choices=sorted(ATTACKS), nargs="+")
    parser.add_argument("--most", type=int, help="at most so many attacks")
    parser.add_argument("--beside", type=int, default=2, help="attacks at the same time, each on a machine of its own")
    options = parser.parse_args(arguments)
    cannot = set() if disks.own_mounts() else {"disks"}
    if options.seconds <= _LONG_S:
        cannot.add("servers")
    names = options.only or [name for name in ATTACKS if name not in cannot]
    numbers = itertools.count(options.seed)
    if options.most is not None:
        numbers = itertools.islice(numbers, options.most)
    tally, deadline, is_over = Tally(), time.monotonic() + options.seconds, threading.Event()

    def work(folder: Path) -> None:
        bench = Bench(Path(tempfile.mkdtemp(dir=folder)))
        while not is_over.is_set() and time.monotonic() < deadline and (number := next(numbers, None)) is not None:
            (name,) = Random(f"kind {number}").choices(names, [ATTACKS[name][0] for name in names])
            try:
                outcome = ATTACKS[name][1](bench, Random(number))
            except Exception:  # noqa: BLE001  what was attacked broke the harness: that did not hold either
                outcome = Outcome("an attack that could not be made or judged", [traceback.format_exc()])
            tally.add(name, number, outcome)
            if outcome.problems:  # the next attack is not blamed for this one
                bench = Bench(Path(tempfile.mkdtemp(dir=folder)))

    for signum in (signal.SIGINT, signal.SIGTERM):  # what has begun comes to its end, and is told
        signal.signal(signum, lambda *_: is_over.set())
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="attack-", ignore_cleanup_errors=True)))
        stack.callback(servers.end)
        forks.run("-c", "")  # starts the process that all others are forked from
        workers = [threading.Thread(target=work, args=(folder,), daemon=True) for _ in range(options.beside)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    tally.print_summary()
    return int(tally.num_failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
