"""Attack until the time is over; print what was tried and what did not hold. The exit status says whether all held."""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

from tests.attack import damage, inputs, jobs, kills, limits
from tests.attack.bench import Bench, Outcome

ATTACKS: dict[str, Callable[[Bench, Random], Outcome]] = {
    "kills": kills.attack,
    "inputs": inputs.attack,
    "jobs": jobs.attack,
    "damage": damage.attack,
    "limits": limits.attack,
}


def main(arguments: Sequence[str]) -> int:
    """Print a line for each problem as it comes, then the summary."""
    parser = argparse.ArgumentParser(prog="python -m tests.attack", description=__doc__)
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--seed", type=int, default=1, help="of the first attack; the next has the next number")
    parser.add_argument("--only", choices=sorted(ATTACKS), nargs="+", default=sorted(ATTACKS))
    parser.add_argument("--most", type=int, help="at most so many attacks")
    options = parser.parse_args(arguments)
    tried: Counter[str] = Counter()
    num_failed = 0
    deadline = time.monotonic() + options.seconds
    with tempfile.TemporaryDirectory(prefix="attack-") as folder:
        bench = Bench(Path(folder))
        for number in itertools.count(options.seed):
            if time.monotonic() > deadline or (options.most is not None and number >= options.seed + options.most):
                break
            name = options.only[number % len(options.only)]
            try:
                outcome = ATTACKS[name](bench, Random(number))
            except Exception:  # noqa: BLE001  what was attacked broke the harness: that did not hold either
                outcome = Outcome("an attack that could not be made or judged", [traceback.format_exc()])
            tried[f"{name}: {outcome.what}"] += 1
            if outcome.problems:
                num_failed += 1
                repeat = f"python -m tests.attack --only {name} --seed {number} --most 1"
                print(f"{outcome.what} ({repeat})", *(f"    {problem}" for problem in outcome.problems), sep="\n")
                bench = Bench(Path(tempfile.mkdtemp(dir=folder)))  # the next attack is not blamed for this one
    for what, times in sorted(tried.items()):
        print(f"{times:6}  {what}")
    print(f"{sum(tried.values())} attacks, {num_failed} did not hold")
    return int(num_failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
