"""Simulations of services: coverage of intervals of a p99, and the share of equal services that are "worse".

    python -m benchmarks.percentiles p99 --studies 600 --blocks 5
    python -m benchmarks.percentiles services --loads 0.3 0.6

A service takes the same time for each request (M/D/1), so its p99 is known. A window begins 100 service times after the
first arrival, as that of a service of 10 ms with `window.settle_s=1`. Times are in services.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.requests import waiting_quantile
from pipeline.observe.latency import has_enough, select_rank
from pipeline.report.evaluate.contrasts import Decision, decide
from pipeline.report.evaluate.statistics import compare_pairs, correct_p_values, estimate

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

LOADS = (0.3, 0.6, 0.8, 0.9)
REQUESTS = (1000, 2000, 5000, 15_000, 50_000, 150_000)
_SETTLE = 100
PERCENTILE = 99.0


class Coverage(NamedTuple):
    """The p99 of simulated studies.

    Attributes:
        ratio: median of the shown over the true p99, if every window shows one.
        of_all: share of the intervals that cover the true p99, if every window shows one.
        num_shown: number of studies that show a p99, because every window has enough excursions.
        of_shown: share of their intervals that cover the true p99; `None` without such studies.
    """

    num_studies: int
    ratio: float
    of_all: float
    num_shown: int
    of_shown: float | None


def simulate_latencies(rng: np.random.Generator, load: float, requests: int, windows: int = 1) -> Floats:
    """Return latencies of Poisson arrivals at a service that takes one unit for each. Shape: [windows, requests]."""
    import numpy as np

    num_before = int(_SETTLE * load)
    due = np.cumsum(rng.exponential(1 / load, (windows, num_before + requests)), axis=1)
    turns = np.arange(due.shape[1])
    latencies: Floats = (np.maximum.accumulate(due - turns, axis=1) + turns + 1 - due)[:, num_before:]
    return latencies


def measure_coverage(rng: np.random.Generator, load: float, requests: int, blocks: int, studies: int) -> Coverage:
    """Simulate studies of one service and count the intervals that cover its true p99."""
    import numpy as np

    truth = 1 + waiting_quantile(load, PERCENTILE / 100)
    shown, is_covered, is_shown = list[float](), list[bool](), list[bool]()
    for _ in range(studies):
        windows = simulate_latencies(rng, load, requests, blocks)
        values = [select_rank(np.sort(window), PERCENTILE) for window in windows]
        interval = estimate(values)
        assert interval.low is not None
        assert interval.high is not None
        shown += values
        is_covered.append(interval.low <= truth <= interval.high)
        is_shown.append(all(has_enough(window, PERCENTILE) for window in windows))
    num_shown = sum(is_shown)
    covered = sum(covers for covers, shows in zip(is_covered, is_shown, strict=True) if shows)
    return Coverage(
        num_studies=studies,
        ratio=float(np.median(shown)) / truth,
        of_all=sum(is_covered) / studies,
        num_shown=num_shown,
        of_shown=covered / num_shown if num_shown else None,
    )


def simulate_claims(
    rng: np.random.Generator, load: float, blocks: int, studies: int, *, services: int = 7, comparisons: int = 12
) -> tuple[float, float]:
    """Return the shares of tables in which equal, isolated services are "worse" than one alone, by mean latency.

    The first compares the slowest service of a group with the service alone; the second compares the service that has
    the arrivals of the service alone. Runs scatter by 1 %.
    """
    import numpy as np

    slowest, same = 0, 0
    for _ in range(studies):
        ratios = np.empty((2, comparisons, blocks))
        for block in range(blocks):
            alone = simulate_latencies(rng, load, 1000).mean()
            latencies_of_others = simulate_latencies(rng, load, 1000, comparisons * (services - 1)).mean(axis=1)
            copies = np.column_stack([np.full(comparisons, alone), latencies_of_others.reshape(comparisons, -1)])
            copies *= np.exp(rng.normal(0, 0.01, copies.shape))
            ratios[:, :, block] = alone * np.exp(rng.normal(0, 0.01)) / np.stack([copies.max(axis=1), copies[:, 0]])
        slowest, same = slowest + _is_any_worse(ratios[0]), same + _is_any_worse(ratios[1])
    return slowest / studies, same / studies


def _is_any_worse(ratios: Floats) -> bool:
    import numpy as np

    tests = [compare_pairs(row.tolist()) for row in ratios]
    p_different = [test.p_different for test in tests if test.p_different is not None]
    p_equal = [test.p_equal for test in tests if test.p_equal is not None]
    return Decision.WORSE in decide(np.median(ratios, axis=1), *correct_p_values(p_different, p_equal))


def _print_coverage(options: argparse.Namespace) -> None:
    import numpy as np

    print("| load | requests | studies | p99 shown / true | coverage of all | studies with a p99 | their coverage |")
    print("|---|---|---|---|---|---|---|")
    for load in options.loads:
        for requests in REQUESTS:
            studies = min(options.studies, options.most_requests // (options.blocks * requests))
            rng = np.random.default_rng([options.seed, int(100 * load), requests])
            measured = measure_coverage(rng, load, requests, options.blocks, studies)
            covers = "" if measured.of_shown is None else f"{measured.of_shown:.3f}"
            shown = f"{100 * measured.num_shown / studies:.0f} %"
            values = (load, f"{requests:,}", studies, f"{measured.ratio:.2f}", f"{measured.of_all:.3f}", shown, covers)
            print(f"| {' | '.join(map(str, values))} |", flush=True)


def _print_claims(options: argparse.Namespace) -> None:
    import numpy as np

    print("| load | blocks | slowest of seven against one alone | same arrivals |")
    print("|---|---|---|---|")
    for load in options.loads:
        for blocks in (5, 10):
            rng = np.random.default_rng([options.seed, int(100 * load), blocks])
            slowest, same = simulate_claims(rng, load, blocks, options.studies)
            print(f"| {load} | {blocks} | {100 * slowest:.1f} % | {100 * same:.1f} % |", flush=True)


def main(argv: list[str] | None = None) -> int:
    """Run the simulation that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("p99", "services"))
    parser.add_argument("--studies", type=int, default=600)
    parser.add_argument("--blocks", type=int, default=5)
    parser.add_argument("--loads", type=float, nargs="+", default=LOADS)
    parser.add_argument("--most-requests", type=int, default=150_000_000, help="fewer studies for a row with more")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(argv)
    (_print_coverage if options.what == "p99" else _print_claims)(options)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
