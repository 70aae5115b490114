"""A simulation of rates in the turns of a stressor: how far off a rate is if steps are few.

    python -m benchmarks.turn_simulation --turn-s 0.8 --settle-s 0.1 --launches 20000

The scatter of the steps is the standard deviation of their length over its mean: a gamma distribution, which is
exponential with a scatter of 1.
"""

from __future__ import annotations

import argparse
import random
import statistics
from array import array

from pipeline.launch.events import Events
from pipeline.launch.job_steps import NO_EPOCH, Steps
from pipeline.observe.throughput import compute_turn_rate

SCATTERS = (0.05, 0.2, 1.0)
STEPS = (3, 5, 10, 30)
_NUM_TURNS = 2


def simulate_rates(
    chance: random.Random, step_s: float, scatter: float, turn_s: float, settle_s: float, launches: int
) -> list[float]:
    """Return the rates of launches relative to the true rate; launches without a rate are left out."""
    rates = []
    for _ in range(launches):
        t_ns, turns, now_s = array("q"), [], 0.0
        for number in range(_NUM_TURNS):
            begin_s = 3 * turn_s * number + turn_s  # in between is other work
            turns.append((int((begin_s + settle_s) * 1e9), int((begin_s + turn_s) * 1e9)))
        while now_s < 3 * turn_s * _NUM_TURNS:
            now_s += chance.gammavariate(1 / scatter**2, step_s * scatter**2)
            t_ns.append(int(now_s * 1e9) + len(t_ns))
        total = array("d", range(1, len(t_ns) + 1))
        log = Events(steps=Steps(t_ns, total, array("q", [NO_EPOCH]) * len(t_ns)))
        if (rate := compute_turn_rate(log, None, turns)) is not None:
            rates.append(rate * step_s)
    return rates


def main() -> None:
    """Print bias and scatter of the rate of a launch by scatter and number of steps."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--turn-s", type=float, default=0.8)
    parser.add_argument("--settle-s", type=float, default=0.1)
    parser.add_argument("--launches", type=int, default=20_000)
    args = parser.parse_args()
    for scatter in SCATTERS:
        for steps in STEPS:
            step_s = (args.turn_s - args.settle_s) / steps
            chance = random.Random(f"{scatter}-{steps}")  # noqa: S311  a simulation
            rates = simulate_rates(chance, step_s, scatter, args.turn_s, args.settle_s, args.launches)
            bias, spread = 100 * (statistics.fmean(rates) - 1), 100 * statistics.stdev(rates)
            print(f"steps scatter by {100 * scatter:3.0f} %, {steps:2d} in a turn: {bias:+.2f} %, {spread:.1f} %")


if __name__ == "__main__":
    main()
