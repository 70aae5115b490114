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
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from random import Random

from tests.attack import (
    container,
    damage,
    disks,
    floods,
    gpus,
    inputs,
    jobs,
    kills,
    leaks,
    limits,
    machines,
    rates,
    servers,
    together,
    truth,
    volumes,
)
from tests.attack.bench import Bench, Outcome, kill_studies
from tests.support import forks

ATTACKS: dict[str, tuple[float, Callable[[Bench, Random], Outcome]]] = {
    "damage": (15, damage.attack),
    "disks": (15, disks.attack),
    "floods": (15, floods.attack),
    "gpus": (50, gpus.attack),
    "inputs": (10, inputs.attack),
    "jobs": (15, jobs.attack),
    "kills": (15, kills.attack),
    "leaks": (15, leaks.attack),
    "limits": (15, limits.attack),
    "machines": (40, machines.attack),
    "rates": (40, rates.attack),
    "servers": (40, servers.attack),
    "together": (30, together.attack),
    "truth": (15, truth.attack),
    "volumes": (40, volumes.attack),
}
"""Each is chosen as often as the others, but none begins with fewer seconds left than it takes."""
_POSSIBLE = {"disks": disks.isolate_mounts, "machines": container.is_possible}
"""What needs rights that not every user has, and whether this one has them."""
_MOST_MARKED, _LEAST_ROWS = 0.05, 20
"""The share of rows of steady programs that may have a mark, and the rows that show it."""
_CUT_S = 5.0
"""In which the attacks end whose programs were killed."""


class Tally:
    """What was tried, and what did not hold; printed as it comes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tried: Counter[str] = Counter()
        self._begin_s = time.monotonic()
        self.num_attacks = self.num_kills = self.num_inputs = self.num_figures = self.num_failed = self.num_cut = 0
        self.num_steady, self._marks = 0, list[str]()

    def add(self, name: str, number: int, outcome: Outcome) -> None:
        with self._lock:
            self._tried[f"{name}: {outcome.what}"] += 1
            self.num_attacks += 1
            self.num_kills += outcome.num_kills
            self.num_inputs += outcome.num_inputs
            self.num_figures += outcome.num_figures
            self.num_steady += outcome.num_steady
            self._marks += outcome.marks
            if outcome.problems:
                self.num_failed += 1
                repeat = f"python -m tests.attack --only {name} --seed {number} --most 1"
                print(f"{outcome.what} ({repeat})", *(f"    {problem}" for problem in outcome.problems), sep="\n")
                sys.stdout.flush()

    @property
    def has_idle_marks(self) -> bool:
        """More marks than steady programs may have."""
        return self.num_steady >= _LEAST_ROWS and len(self._marks) > _MOST_MARKED * self.num_steady

    def print_summary(self) -> None:
        for what, times in sorted(self._tried.items()):
            print(f"{times:6}  {what}")
        if self.num_steady:
            marked = f"{len(self._marks)} of {self.num_steady} rows of steady programs have a mark"
            print(marked, *self._marks, sep="\n    ")
        if self.has_idle_marks:
            print(f"    these are more than {100 * _MOST_MARKED:g} %")
        if self.num_cut:
            print(f"{self.num_cut:6}  not judged, as the time was over")
        print(
            f"{self.num_attacks} attacks in {time.monotonic() - self._begin_s:.0f} s, with {self.num_kills} kills, "
            f"{self.num_inputs} inputs and {self.num_figures} figures of known truth: {self.num_failed} did not hold"
        )


class Round:
    """Attacks on several machines at the same time, until the time is over.

    Args:
        names: of the attacks to choose from.
        numbers: a seed for each attack.
        seconds: after which what has not ended is killed, and not judged.
    """

    def __init__(self, names: Sequence[str], numbers: Iterator[int], seconds: float) -> None:
        self._names, self._numbers = names, numbers
        self._deadline, self._is_cut = time.monotonic() + seconds, False
        self.tally, self.is_over = Tally(), threading.Event()

    def run(self, folder: Path, num_machines: int) -> None:
        """Attack until there is no more time or seed, or `is_over` is set; then end what has begun."""
        workers = [threading.Thread(target=self._work, args=(folder,), daemon=True) for _ in range(num_machines)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(max(0, self._deadline - time.monotonic()))
        self._is_cut, deadline = True, time.monotonic() + _CUT_S
        self.tally.num_cut = sum(worker.is_alive() for worker in workers)
        while any(worker.is_alive() for worker in workers) and time.monotonic() < deadline:
            kill_studies()
            time.sleep(0.1)

    def _work(self, folder: Path) -> None:
        """Attack one machine."""
        bench = Bench(Path(tempfile.mkdtemp(dir=folder)))
        while not self.is_over.is_set() and (possible := self._fitting()):
            if (number := next(self._numbers, None)) is None:
                return
            if (name := Random(f"kind {number}").choice(self._names)) not in possible:
                continue
            try:
                outcome = ATTACKS[name][1](bench, Random(number))
            except Exception:  # noqa: BLE001  what was attacked broke the harness: that did not hold either
                outcome = Outcome("an attack that could not be made or judged", [traceback.format_exc()])
            if self._is_cut:  # what it found is that its programs were killed
                return
            self.tally.add(name, number, outcome)
            if outcome.problems:  # the next attack is not blamed for this one
                bench = Bench(Path(tempfile.mkdtemp(dir=folder)))

    def _fitting(self) -> list[str]:
        """Return the attacks for which there is time."""
        return [name for name in self._names if ATTACKS[name][0] <= self._deadline - time.monotonic()]


def main(arguments: Sequence[str]) -> int:
    """Print a line for each problem as it comes, then the summary."""
    parser = argparse.ArgumentParser(prog="python -m tests.attack", description=__doc__)
    parser.add_argument("--seconds", type=float, default=3600, help="after which it ends, whatever has not")
    parser.add_argument("--seed", type=int, default=1, help="of the first attack; the next has the next number")
    parser.add_argument("--only", choices=sorted(ATTACKS), nargs="+")
    parser.add_argument("--most", type=int, help="at most so many attacks")
    parser.add_argument("--beside", type=int, default=2, help="attacks at the same time, each on a machine of its own")
    options = parser.parse_args(arguments)
    names = options.only or [name for name in ATTACKS if name not in _POSSIBLE or _POSSIBLE[name]()]
    numbers: Iterator[int] = itertools.count(options.seed)
    if options.most is not None:
        numbers = itertools.islice(numbers, options.most)
    attacks = Round(names, numbers, options.seconds)
    for signum in (signal.SIGINT, signal.SIGTERM):  # what has begun comes to its end, and is told
        signal.signal(signum, lambda *_: attacks.is_over.set())
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="attack-", ignore_cleanup_errors=True)))
        stack.callback(servers.end)
        forks.run("-c", "")  # starts the process that all others are forked from
        attacks.run(folder, options.beside)
    attacks.tally.print_summary()
    return int(attacks.tally.num_failed > 0 or attacks.tally.has_idle_marks)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
