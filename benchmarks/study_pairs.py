"""Simulated pairs of studies: how often `report compare` makes a wrong claim, and how often it finds a slowdown.

    python -m benchmarks.study_pairs                          # the table of docs/statistics.md
    python -m benchmarks.study_pairs --pairs 100 --jobs HOST_BOUND --slowdown 20

Two studies of five blocks with equal speeds are made up as in `benchmarks.window_designs`, then compared: the first and
the last five blocks of one study, or two studies at different times. The slowdown is that of seven naive jobs.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from unittest import mock

import numpy as np

from benchmarks.window_designs import (
    DESIGNS,
    GRAPH_SPEED,
    GROUPS,
    Floats,
    Jobs,
    Noise,
    SimulatedGroup,
    make_study,
    measure_rates,
)
from pipeline.base.domain.normalisation import SPEEDUP
from pipeline.base.domain.sharing_modes import NAIVE
from pipeline.base.domain.window import Window
from pipeline.report.evaluate import statistics
from pipeline.report.evaluate.comparison import CaseChange, Change, Side, compare_sides, make_side
from pipeline.report.evaluate.metrics import BEST_SOLO
from pipeline.report.evaluate.statistics import MARGIN
from pipeline.report.read.labels import STEP_MODE

DEVICE_NOISE = 0.003
"""Standard deviation, of the logarithm, of the speed of every group between blocks, besides the noise of the host."""
NUM_BLOCKS = 5
NOISES = (Noise.INDEPENDENT, Noise.DRIFTING, Noise.STATES)
CLAIMS = (Change.FASTER, Change.SLOWER)
SLOWED = SimulatedGroup(NAIVE.name, 7)
_CHUNK = 25


@dataclass(slots=True)
class Findings:
    """The findings in many pairs of studies: pairs with a wrong claim, and pairs in which the slowdown is found."""

    num_pairs: int = 0
    num_wrong: int = 0
    num_found: int = 0


def simulate_pairs(
    window: Window, noise: Noise, jobs: Jobs, num_pairs: int, *, is_split: bool
) -> Iterator[tuple[Floats, Floats]]:
    """Yield the rates of two studies with equal speeds; with `is_split`, they are halves of one study."""
    for begin in range(0, num_pairs, _CHUNK):
        num = min(_CHUNK, num_pairs - begin)
        if is_split:
            both, _ = measure_rates(window, noise, jobs, 1, 2 * NUM_BLOCKS, num, seed=begin)
        else:
            sessions = [measure_rates(window, noise, jobs, 1, NUM_BLOCKS, num, seed=begin + at) for at in (1, 2)]
            both = np.concatenate([rates for rates, _ in sessions], axis=1)
        both = both * np.exp(np.random.default_rng([begin, NUM_BLOCKS]).normal(0, DEVICE_NOISE, both.shape))
        for rates in both:
            yield rates[:NUM_BLOCKS], rates[NUM_BLOCKS:]


def judge_pairs(
    window: Window, noise: Noise, jobs: Jobs, num_pairs: int, *, is_split: bool, slowdown: float = 0.0
) -> Findings:
    """Compare pairs of studies as they are, then with a slowdown of seven naive jobs of the second study, if any."""
    findings = Findings()
    for rates in simulate_pairs(window, noise, jobs, num_pairs, is_split=is_split):
        before, after = map(make_quick_side, rates)
        findings.num_pairs += 1
        findings.num_wrong += any(change.change in CLAIMS for change in _compare(before, after))
        if slowdown:
            slower = rates[1].copy()
            slower[..., GROUPS.index(SLOWED)] /= 1 + slowdown
            changes = _compare(before, make_quick_side(slower))
            findings.num_found += any(
                change.change is Change.SLOWER and (change.mode, change.case.degree) == (NAIVE.label, SLOWED.degree)
                for change in changes
            )
    return findings


def _compare(before: Side, after: Side) -> tuple[CaseChange, ...]:
    (comparison,) = compare_sides([before], after, lambda _: MARGIN)
    return comparison.changes


def make_quick_side(rates: Floats) -> Side:
    """Return the side of a study, as `make_side(make_study(rates, 1.0))`, without estimates and much faster."""
    template = _make_template()
    blocks = range(1, len(rates) + 1)
    speeds = rates[:, 0] * [GRAPH_SPEED if group.is_graph else 1.0 for group in GROUPS]
    alone, graph = (speeds[:, number] for number in (0, 1))
    cases = []
    for case in template.cases:
        cells = {}
        for mode, cell in case.cells.items():
            is_graph = STEP_MODE in cell.case.params[0] and cell.case.params[0][STEP_MODE] == "cuda_graph"
            group = SimulatedGroup({"MPS": "mps"}.get(mode, mode), cell.degree, is_graph=is_graph)
            speed = speeds[:, GROUPS.index(group)]
            figures = {cell.throughput: speed, SPEEDUP: speed / alone, BEST_SOLO: speed / graph}
            values = {name: dict(zip(blocks, figure.tolist(), strict=True)) for name, figure in figures.items()}
            cells[mode] = dataclasses.replace(cell, values=values, estimates={}, gpus=dict.fromkeys(blocks, "GPU-1"))
        cases.append(dataclasses.replace(case, cells=cells))
    return Side(cases, template.metrics)


@functools.cache
def _make_template() -> Side:
    return make_side(make_study(np.ones((NUM_BLOCKS, 1, len(GROUPS))), 1.0))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=1000, help="pairs for each kind of noise, jobs and studies")
    parser.add_argument("--design", default="interleaved, 3 s", choices=DESIGNS)
    parser.add_argument("--slowdown", type=float, default=5.0, metavar="PCT", help="0: compare equal studies only")
    for option, kinds, default in (("--jobs", Jobs, Jobs), ("--noise", Noise, NOISES)):
        names = [kind.name for kind in default]
        parser.add_argument(option, nargs="+", choices=[kind.name for kind in kinds], default=names)
    parser.add_argument("--no-drift", action="store_true", help="judge as if no case followed its host")
    arguments = parser.parse_args()
    if arguments.no_drift:
        mock.patch.object(statistics, "follows_host", return_value=False).start()
    columns = ("jobs", "noise of the host", "studies", "wrong", "slowdown found")
    print(f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|")
    window, slowdown = DESIGNS[arguments.design], arguments.slowdown / 100
    for jobs, noise, studies in itertools.product(arguments.jobs, arguments.noise, ("halves of one", "two")):
        is_split = studies != "two"
        findings = judge_pairs(window, Noise[noise], Jobs[jobs], arguments.pairs, is_split=is_split, slowdown=slowdown)
        numbers = (findings.num_wrong, findings.num_found)
        wrong, num_found = (f"{100 * number / findings.num_pairs:.1f} %" for number in numbers)
        cells = (Jobs[jobs].words, Noise[noise].value, studies, wrong, num_found if slowdown else "-")
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
