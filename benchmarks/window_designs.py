"""Simulated studies: how often verdicts are wrong and intervals miss the truth, by window and by noise of the host.

    python -m benchmarks.window_designs                            # the tables of docs/statistics.md
    python -m benchmarks.window_designs --tables 50 --jobs FULL

Each table is a study of five blocks with known truth, like `robroek_quick`: copies of each workload alone, eager and as
a CUDA graph, two, three and seven naive, and one, two, three and seven under MPS. Speeds over time are made up, then
measured in the windows of each design, and judged by `pipeline.report.evaluate`.
"""

from __future__ import annotations

import argparse
import dataclasses
import enum
import itertools
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from pipeline.base.domain.normalisation import SPEEDUP
from pipeline.base.domain.records import Result
from pipeline.base.domain.sharing_modes import NAIVE, SERIAL, mode_of
from pipeline.base.domain.window import Window, WindowKind
from pipeline.base.domain.work_units import SAMPLES, rate_of, total_of
from pipeline.report.evaluate.cells import Cell, make_cells
from pipeline.report.evaluate.contrasts import Decision, compare_modes
from pipeline.report.evaluate.metrics import BEST_SOLO
from pipeline.report.evaluate.statistics import MARGIN, Estimate
from pipeline.report.read.labels import STEP_MODE
from pipeline.report.read.study_records import JobRow, Row, Study

Floats = NDArray[np.float64]

CELL_S = 0.05
"""Resolution of the simulated time."""
LAUNCH_S = 3.0
"""Time from the start of a launch until its jobs are ready, and from its end to the next launch."""
SCATTER = 0.001
"""Standard deviation, of the logarithm, of a group between launches without any noise of the host."""
FAST, FAST_S = 0.113, 1.0
SLOW, SLOW_S = 0.10, 170.0
STATE, STATE_S, FAST_OF_STATES = 0.04, 60.0, 0.02
GRAPH_SPEED = 2.0
"""Speed of a CUDA graph alone, compared with eager steps."""

DESIGNS = {
    "ordinary, 3 s": Window(kind=WindowKind.STEADY, seconds=3.0, settle_s=1.0),
    "ordinary, 10 s": Window(kind=WindowKind.STEADY, seconds=10.0, settle_s=1.0),
    "interleaved, 3 s": Window(kind=WindowKind.INTERLEAVED, seconds=3.0, settle_s=0.15, slice_s=0.5),
    "interleaved, 6 s": Window(kind=WindowKind.INTERLEAVED, seconds=6.0, settle_s=0.15, slice_s=0.5),
}


class Noise(enum.Enum):
    """The noise of the host's speed.

    `INDEPENDENT`: Gaussian, correlated for one second. `DRIFTING`: the same, and a second part that is correlated for
    minutes. `STATES`: two states that last a minute on average, with little other noise. `PURE_STATES`: without any.
    """

    INDEPENDENT = "independent"
    DRIFTING = "drifting"
    STATES = "two states"
    PURE_STATES = "two states without other noise"


class Jobs(enum.Enum):
    """The jobs, by the part of the host's noise that groups of several jobs have: all, half or none."""

    HOST_BOUND = ("wait for the host", 1.0)
    HALF_BOUND = ("wait for the host in part", 0.5)
    FULL = ("fill the GPU", 0.0)

    @property
    def words(self) -> str:
        return self.value[0]

    @property
    def exponent(self) -> float:
        return self.value[1]


@dataclass(frozen=True, slots=True)
class SimulatedGroup:
    """A group of the simulated study: equal jobs in one sharing mode."""

    scenario: str
    degree: int
    is_graph: bool = False

    def follows(self, jobs: Jobs) -> float:
        """Return the part of the host's noise in the logarithm of the group's speed."""
        if self.is_graph:
            return 0.0
        return jobs.exponent if self.degree > 1 else 1.0


GROUPS = (
    SimulatedGroup("serial", 1),
    SimulatedGroup("serial", 1, is_graph=True),
    *(SimulatedGroup("naive", degree) for degree in (2, 3, 7)),
    *(SimulatedGroup("mps", degree) for degree in (1, 2, 3, 7)),
)
LAUNCHES = ((0,), (1,), (2, 3, 4), (5, 6, 7, 8))
"""The groups that share a launch of an interleaved window (`pipeline.plan.plan_builder`)."""

Place = tuple[int, int, int]
"""Block, workload and group."""
Span = tuple[int, int]


def schedule(
    window: Window, num_workloads: int, num_blocks: int, rng: np.random.Generator
) -> tuple[dict[Place, list[Span]], int]:
    """Return the measured spans of each group, and the length of the study, in cells; launches are shuffled."""
    spans: dict[Place, list[Span]] = defaultdict(list)
    launches = LAUNCHES if window.slice_s else tuple((number,) for number in range(len(GROUPS)))
    settle, length = _count_cells(window.settle_s), _count_cells(window.slice_s or window.seconds)
    now = 0
    for block in range(num_blocks):
        study = list(itertools.product(range(num_workloads), launches))
        for workload, launch in (study[index] for index in rng.permutation(len(study))):
            now += _count_cells(LAUNCH_S)
            for _ in range(window.num_slices):
                for group in rng.permutation(launch):
                    spans[block, workload, int(group)].append((now + settle, now + settle + length))
                    now += settle + length
    return dict(spans), now


def _count_cells(seconds: float) -> int:
    return round(seconds / CELL_S)


def simulate_host(noise: Noise, num_tables: int, num_cells: int, rng: np.random.Generator) -> Floats:
    """Return the logarithm of the host's speed. Shape: [table, cell]."""
    shape = (num_tables, num_cells)
    if noise in (Noise.STATES, Noise.PURE_STATES):
        begin = np.where(rng.random((num_tables, 1)) < 0.5, 0, 1)
        states = begin + np.cumsum(rng.random(shape) < CELL_S / STATE_S, axis=1)
        speed: Floats = STATE * (1.0 - 2.0 * (states % 2))
        return speed if noise is Noise.PURE_STATES else speed + _simulate_correlated(FAST_OF_STATES, FAST_S, shape, rng)
    speed = _simulate_correlated(FAST, FAST_S, shape, rng)
    return speed + _simulate_correlated(SLOW, SLOW_S, shape, rng) if noise is Noise.DRIFTING else speed


def _simulate_correlated(deviation: float, time_s: float, shape: tuple[int, int], rng: np.random.Generator) -> Floats:
    """Return an Ornstein-Uhlenbeck process."""
    from scipy.signal import lfilter  # takes a second, which tests of other functions need not wait for

    factor = math.exp(-CELL_S / time_s)
    steps = rng.standard_normal(shape)
    steps[:, 1:] *= math.sqrt(1 - factor**2)
    process: Floats = deviation * lfilter([1.0], [1.0, -factor], steps, axis=1)
    return process


def expected_speed(noise: Noise, exponent: float) -> float:
    """Return the long-run mean of the host's speed to the power of `exponent`."""
    fast, slow, state = {
        Noise.INDEPENDENT: (FAST, 0.0, 0.0),
        Noise.DRIFTING: (FAST, SLOW, 0.0),
        Noise.STATES: (FAST_OF_STATES, 0.0, STATE),
        Noise.PURE_STATES: (0.0, 0.0, STATE),
    }[noise]
    return math.exp(exponent**2 * (fast**2 + slow**2) / 2) * math.cosh(exponent * state)


def measure_rates(
    window: Window, noise: Noise, jobs: Jobs, num_workloads: int, num_blocks: int, num_tables: int, seed: int
) -> tuple[Floats, float]:
    """Return rates over their long-run means, and the length of a study in s. Shape: [table, block, workload, group].

    The rate of a launch is its work over all its spans. The tables of one call have the same order of launches.
    """
    rng = np.random.default_rng(seed)
    spans, num_cells = schedule(window, num_workloads, num_blocks, rng)
    host = simulate_host(noise, num_tables, num_cells, rng)
    work = {}
    for exponent in {group.follows(jobs) for group in GROUPS}:
        speed = np.exp(exponent * host) / expected_speed(noise, exponent)
        work[exponent] = np.concatenate([np.zeros((num_tables, 1)), np.cumsum(speed, axis=1)], axis=1)
    shape = (num_tables, num_blocks, num_workloads, len(GROUPS))
    rates: Floats = np.exp(rng.normal(0, SCATTER, shape))
    for (block, workload, group), parts in spans.items():
        begins, ends = np.array(parts).T
        done = work[GROUPS[group].follows(jobs)]
        rates[:, block, workload, group] *= (done[:, ends] - done[:, begins]).sum(1) / (ends - begins).sum()
    return rates, num_cells * CELL_S


def make_study(rates: Floats, naive_speed: float) -> Study:
    """Return a study with the rates of one table, in which naive jobs are `naive_speed` times as fast as all others."""
    rows = []
    for (block, workload, number), rate in np.ndenumerate(rates):
        group = GROUPS[number]
        speed = GRAPH_SPEED if group.is_graph else naive_speed if group.scenario == NAIVE.name else 1.0
        rows.append(_make_row(group, block + 1, "AB"[workload], float(rate) * speed))
    return Study(experiment="simulated", rows=tuple(rows), blocks=(), left_out={}, num_planned=None, facts={})


def _make_row(group: SimulatedGroup, block: int, workload: str, rate: float) -> Row:
    step_mode = "cuda_graph" if group.is_graph else "eager"
    job = JobRow(
        index=0,
        label=f"{workload} {step_mode}",
        digest=f"{workload} {step_mode}",
        size=None,
        result=Result.OK,
        metrics={rate_of(SAMPLES): rate / group.degree},
        params={"workload": workload, STEP_MODE: step_mode},
        place={},
        start_ns=None,
        end_ns=None,
    )
    name = f"{group.scenario}-{group.degree}x-{job.label}"
    return Row(
        run_id=f"{block} {name}",
        key=name,
        name=name,
        scenario=group.scenario,
        sharing=mode_of(group.scenario),
        options={},
        settings=(),
        block=block,
        result=Result.OK,
        reason="",
        metrics={total_of(SAMPLES): rate},
        params={},
        window=WindowKind.STEADY,
        device="simulated",
        gpu_uuid="GPU-1",
        boot_id="",
        is_simulated=True,
        start_ms=block,
        end_ms=None,
        start="",
        jobs=tuple(dataclasses.replace(job, index=index) for index in range(group.degree)),
        facts={},
    )


@dataclass(slots=True)
class Coverage:
    """Intervals of one kind: their number, how many cover the truth, and their half-widths."""

    num: int = 0
    num_covering: int = 0
    half_widths: list[float] = field(default_factory=list)

    def add(self, estimate: Estimate | None, truth: float) -> None:
        """Count an estimate with an interval."""
        if estimate is not None and estimate.low is not None and estimate.high is not None:
            self.num += 1
            self.num_covering += estimate.low <= truth <= estimate.high
            self.half_widths.append(math.sqrt(estimate.high / estimate.low) - 1)

    @property
    def share(self) -> float:
        return self.num_covering / self.num

    @property
    def half_width(self) -> float:
        """The median half-width, as a share of the ratio."""
        return float(np.median(self.half_widths))


VS_SERIAL, MPS_VS_NAIVE, VS_GRAPH = "against serial", "MPS against naive", "against the CUDA graph"


@dataclass(slots=True)
class Judgement:
    """The judgement of many tables of one design, with one kind of noise and of jobs.

    Attributes:
        num_wrong: tables with a wrong claim, by the truth.
        coverage: of groups of several jobs, by kind of comparison.
        num_drifting: speed-ups over serial with a note that the baseline drifts, of `coverage[VS_SERIAL].num`.
    """

    study_s: float = 0.0
    num_tables: int = 0
    num_wrong: dict[float, int] = field(default_factory=lambda: defaultdict(int))
    coverage: dict[str, Coverage] = field(default_factory=lambda: defaultdict(Coverage))
    num_drifting: int = 0

    @property
    def wrong_share(self) -> float:
        """The share of tables with a wrong claim, for the truth with most of them."""
        return max(self.num_wrong.values()) / self.num_tables

    @property
    def drifting_share(self) -> float:
        return self.num_drifting / self.coverage[VS_SERIAL].num


TRUTHS = (1.0, 1 + MARGIN)
"""Speeds of naive jobs, compared with all others: equal, and apart by exactly the margin."""
_CHUNK = 25


def judge_design(
    window: Window, noise: Noise, jobs: Jobs, *, num_tables: int, num_workloads: int = 1, num_blocks: int = 5
) -> Judgement:
    """Simulate and judge `num_tables` tables for each of `TRUTHS`."""
    judgement = Judgement(num_tables=num_tables, num_wrong=dict.fromkeys(TRUTHS, 0))
    for begin in range(0, num_tables, _CHUNK):
        num = min(_CHUNK, num_tables - begin)
        rates, judgement.study_s = measure_rates(window, noise, jobs, num_workloads, num_blocks, num, seed=begin)
        for table, naive_speed in itertools.product(rates, TRUTHS):
            _judge_table(make_cells(make_study(table, naive_speed)), naive_speed, judgement)
    return judgement


def _judge_table(cells: Sequence[Cell], naive_speed: float, judgement: Judgement) -> None:
    is_wrong = False
    for verdict in compare_modes(cells):
        is_over_graph = verdict.against not in (SERIAL.label, NAIVE.label)
        reference = GRAPH_SPEED if is_over_graph else _speed(verdict.against, naive_speed)
        truth = _speed(verdict.mode, naive_speed) / reference
        is_wrong |= is_wrong_claim(verdict.decision, truth)
        if verdict.degree > 1 and not is_over_graph:
            kind = VS_SERIAL if verdict.against == SERIAL.label else MPS_VS_NAIVE
            judgement.coverage[kind].add(verdict.ratio, truth)
    judgement.num_wrong[naive_speed] += is_wrong
    for cell in cells:
        if cell.degree > 1 and not cell.is_derived:
            truth = _speed(cell.mode, naive_speed) / GRAPH_SPEED
            judgement.coverage[VS_GRAPH].add(cell.estimates.get(BEST_SOLO), truth)
            judgement.num_drifting += cell.is_drifting(cell.values[SPEEDUP])


def _speed(mode: str, naive_speed: float) -> float:
    return naive_speed if mode == NAIVE.label else 1.0


def is_wrong_claim(decision: Decision, truth: float) -> bool:
    """Return whether a decision about a ratio is wrong: a difference of the wrong sign, or equality without it."""
    if decision is Decision.EQUAL:
        return abs(math.log(truth)) >= math.log1p(MARGIN) - 1e-9
    return (decision is Decision.BETTER and truth <= 1) or (decision is Decision.WORSE and truth >= 1)


def format_tables(
    num_tables: int, num_workloads: int, num_blocks: int, kinds: Sequence[Jobs], noises: Sequence[Noise]
) -> Iterator[str]:
    """Yield the lines of a Markdown table for each kind of jobs: share of intervals that cover, median half-width."""
    for jobs in kinds:
        yield f"\nJobs that {jobs.words}, {num_workloads} workload(s), {num_blocks} blocks, {num_tables} tables:\n"
        columns = ("window", "study", "noise of the host", "wrong tables", VS_SERIAL, "drifts", MPS_VS_NAIVE, VS_GRAPH)
        yield f"| {' | '.join(columns)} |"
        yield "|---" * len(columns) + "|"
        for (name, window), noise in itertools.product(DESIGNS.items(), noises):
            judged = judge_design(
                window, noise, jobs, num_tables=num_tables, num_workloads=num_workloads, num_blocks=num_blocks
            )
            serial, naive, graph = (
                f"{coverage.share:.3f}, {100 * coverage.half_width:.1f} %"
                for coverage in (judged.coverage[kind] for kind in (VS_SERIAL, MPS_VS_NAIVE, VS_GRAPH))
            )
            yield (
                f"| {name} | {judged.study_s:.0f} s | {noise.value} | {100 * judged.wrong_share:.1f} % | {serial} | "
                f"{100 * judged.drifting_share:.0f} % | {naive} | {graph} |"
            )


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=int, default=400, help="tables for each design, noise, jobs and truth")
    parser.add_argument("--workloads", type=int, choices=(1, 2), default=1, help="workloads of a study")
    parser.add_argument("--blocks", type=int, default=5)
    for option, kinds in (("--jobs", Jobs), ("--noise", Noise)):
        names = [kind.name for kind in kinds]
        parser.add_argument(option, nargs="+", choices=names, default=names)
    arguments = parser.parse_args()
    jobs, noises = [Jobs[name] for name in arguments.jobs], [Noise[name] for name in arguments.noise]
    for line in format_tables(arguments.tables, arguments.workloads, arguments.blocks, jobs, noises):
        print(line, flush=True)


if __name__ == "__main__":
    main()
