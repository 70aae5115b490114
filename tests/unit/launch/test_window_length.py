"""The length of a window by need: the rule, and simulated studies of the bias and the scatter of its rate."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline.base.domain.window import TRIAL_S, Window, WindowKind
from pipeline.launch import window_length
from pipeline.launch.events import JobProgress

S = 1_000_000_000
BY_NEED = Window(kind=WindowKind.STEADY, seconds=1, most_s=10, settle_s=2)
FIXED = Window(kind=WindowKind.STEADY, seconds=20, settle_s=2)


def progress(t_s: float, total: float | None, samples: float | None = 1) -> JobProgress:
    return JobProgress("train", 1, total, int(t_s * S), samples)


def read(*speeds_of_jobs: tuple[float, ...], samples: float = 1) -> list[list[JobProgress]]:
    """The readings of jobs with these steps per second in each of the pieces."""
    jobs = [
        [progress(0.24 * edge, samples * 0.24 * sum(speeds[:edge]), samples) for edge in range(5)]
        for speeds in speeds_of_jobs
    ]
    return [list(reading) for reading in zip(*jobs, strict=True)]


def test_the_jobs_are_read_only_between_settling_and_window_and_only_if_the_length_is_open():
    times_ns = window_length.list_reading_times_ns(BY_NEED, 5 * S)
    assert len(times_ns) == 5 and times_ns[0] == 7 * S
    assert times_ns[-1] < 5 * S + int(BY_NEED.begin_s * S) == 8 * S
    assert window_length.list_reading_times_ns(FIXED, 5 * S) == []
    assert window_length.choose_seconds(FIXED, []) == 20


@pytest.mark.parametrize(
    ("scatter", "seconds"), [(0, 1), (0.005, 1), (0.0175, 5.5), (0.03, 10), (0.5, 10)], ids=lambda value: f"{value}"
)
def test_the_length_grows_in_proportion_to_the_scatter_between_its_ends(scatter, seconds):
    # Two pieces above the mean and two below: a standard deviation of `scatter`.
    part = scatter * math.sqrt(3 / 4)
    speeds = (100 * (1 + part), 100 * (1 - part)) * 2
    assert window_length.choose_seconds(BY_NEED, read(speeds)) == pytest.approx(seconds)
    assert window_length.choose_seconds(BY_NEED, read(speeds, samples=32)) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("steps_per_s", "seconds", "slice_s"),
    [(100, 4, 0.5), (99, 4, 1.0), (50, 4, 1.0), (49, 4, 2.0), (1, 4, 2.0), (1, 1.5, 1.0), (1, 0.2, 0.5)],
)
def test_a_slice_has_fifty_steps_of_the_slowest_job_if_the_window_is_long_enough(steps_per_s, seconds, slice_s):
    window = Window(kind=WindowKind.INTERLEAVED, seconds=seconds, settle_s=0.1)
    readings = [[progress(0, 0), progress(0, 0)], [progress(0.5, 100), progress(0.5, steps_per_s / 2)]]
    assert window_length.choose_slice_s(window, readings) == slice_s


def test_a_job_whose_steps_are_unknown_has_the_longest_slices():
    window = Window(kind=WindowKind.INTERLEAVED, seconds=4, settle_s=0.1)
    for end in (progress(0, 0), progress(0.5, 100, None), JobProgress("train", None, None, None, None)):
        assert window_length.choose_slice_s(window, [[progress(0, 0)], [end]]) == 2


def test_jobs_whose_speeds_make_up_for_each_other_scatter_little():
    up_and_down, down_and_up = (104.0, 96.0) * 2, (960.0, 1040.0) * 2
    assert window_length.choose_seconds(BY_NEED, read(up_and_down)) == 10
    assert window_length.choose_seconds(BY_NEED, read(up_and_down, down_and_up)) == 1


def test_a_slow_job_gets_the_time_for_enough_steps():
    assert window_length.choose_seconds(BY_NEED, read((500.0,) * 4, (10.0,) * 4)) == pytest.approx(2.5)
    assert window_length.choose_seconds(BY_NEED, read((2.0,) * 4)) == 10


@pytest.mark.parametrize(
    "readings",
    [
        [[progress(0.24 * edge, None)] for edge in range(5)],
        [[progress(0.24 * edge, 24 * edge, None)] for edge in range(5)],  # requests, not steps
        [[progress(0, 7)] for _ in range(5)],
        [*read((100.0,) * 4)[:4], read((100.0,) * 4)[3]],
    ],
    ids=["no step", "requests", "one step", "no step in the last piece"],
)
def test_jobs_whose_speed_is_unknown_get_the_longest_window(readings):
    assert window_length.choose_seconds(BY_NEED, readings) == 10


class Simulated(NamedTuple):
    """Figures of many simulated windows; rates are relative to the true mean speed.

    `bias` and `counted_bias` (if the trial were a part of the window) have an `error`, two standard errors.
    """

    seconds: float
    bias: float
    counted_bias: float
    error: float
    scatter: float
    fixed_scatter: float
    coverage: float


NUM, DT = 5000, 0.02
LENGTH = int((TRIAL_S + BY_NEED.most_s) / DT)
QUARTER = math.sqrt(0.24 / DT)  # scatter of independent noise in one element of DT over that in a piece
Speeds = NDArray[np.float64]


def simulate_full_gpu(rng: np.random.Generator) -> Speeds:
    """Scatter of 0.3 % in a quarter of a second."""
    return 1 + rng.normal(0, 0.003 * QUARTER, (NUM, LENGTH))


def simulate_unsteady(rng: np.random.Generator) -> Speeds:
    """Scatter of 2 % in a quarter of a second."""
    return 1 + rng.normal(0, 0.02 * QUARTER, (NUM, LENGTH))


def simulate_busy_host(rng: np.random.Generator) -> Speeds:
    """A speed that changes by 10 % within a second."""
    keep = math.exp(-DT / 1.0)
    noise = np.empty((NUM, LENGTH))
    noise[:, 0] = rng.normal(0, 0.1, NUM)
    steps = rng.normal(0, 0.1 * math.sqrt(1 - keep**2), (NUM, LENGTH))
    for index in range(1, LENGTH):
        noise[:, index] = keep * noise[:, index - 1] + steps[:, index]
    return np.exp(noise - 0.1**2 / 2)


def simulate_two_states(rng: np.random.Generator) -> Speeds:
    """Two speeds, 10 % apart, that change about every six seconds; the slow one also scatters ten times as much."""
    flips = rng.random((NUM, LENGTH)) < DT / 6
    is_fast = (np.cumsum(flips, axis=1) + (rng.random((NUM, 1)) < 0.5)) % 2 == 0
    noise = rng.normal(0, QUARTER, (NUM, LENGTH))
    return np.where(is_fast, 1.05 + 0.003 * noise, 0.95 + 0.03 * noise)


def simulate_rare_pauses(rng: np.random.Generator) -> Speeds:
    """Pauses of a tenth of a second, one in five seconds."""
    length = round(0.1 / DT)
    begins = rng.random((NUM, LENGTH + length - 1)) < 0.2 * DT
    paused = sum(begins[:, part : part + LENGTH] for part in range(length)) > 0
    return (1.0 - paused) / (1 - 0.2 * DT) ** length


def simulate(speeds: Speeds) -> Simulated:
    work = np.concatenate([np.zeros((NUM, 1)), np.cumsum(speeds, axis=1) * DT], axis=1)
    times_s = np.array(window_length.list_reading_times_ns(BY_NEED, 0)) / S - BY_NEED.settle_s
    at = np.rint(times_s / DT).astype(int)
    lengths = np.array(
        [
            window_length.choose_seconds(BY_NEED, [[progress(t, w, 1e-3)] for t, w in zip(times_s, done, strict=True)])
            for done in work[:, at]
        ]
    )
    grid = np.arange(LENGTH + 1) * DT

    def measure(begin_s: float, seconds: Speeds) -> Speeds:
        edges = np.stack([np.full(NUM, begin_s), begin_s + seconds], axis=1)
        done = np.array([np.interp(edge, grid, row) for edge, row in zip(edges, work, strict=True)])
        return np.diff(done, axis=1)[:, 0] / seconds

    rates, counted, fixed = (
        measure(begin_s, seconds)
        for begin_s, seconds in ((TRIAL_S, lengths), (0.0, lengths), (TRIAL_S, np.full(NUM, 3.0)))
    )
    logs = np.log(rates).reshape(-1, 5)  # the intervals of studies of five blocks
    half = 2.776 * logs.std(axis=1, ddof=1) / math.sqrt(5)
    return Simulated(
        seconds=float(lengths.mean()),
        bias=float(rates.mean()) - 1,
        counted_bias=float(counted.mean()) - 1,
        error=2 * float(rates.std()) / math.sqrt(NUM),
        scatter=float(rates.std()),
        fixed_scatter=float(fixed.std()),
        coverage=float((abs(logs.mean(axis=1)) <= half).mean()),
    )


SHOWN = """{name}: {0.seconds:.1f} s; bias {0.bias:+.2%}, with the trial {0.counted_bias:+.2%} (+- {0.error:.2%});
    scatter {0.scatter:.2%}, of 3 s {0.fixed_scatter:.2%}; intervals of five blocks cover {0.coverage:.3f}"""


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("model", "seconds", "bias", "coverage"),
    [
        (simulate_full_gpu, (1, 1.05), 0, 0.93),
        (simulate_unsteady, (5, 6.5), 0, 0.93),
        (simulate_busy_host, (8.5, 9.5), 0, 0.93),
        (simulate_two_states, (4, 6), 0.01, 0.86),
        (simulate_rare_pauses, (2, 3), 0, 0.65),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_the_rate_of_a_window_by_need_is_not_biased_by_its_length(model, seconds, bias, coverage):
    figures = simulate(model(np.random.default_rng(20261126)))
    print(SHOWN.format(figures, name=model.__name__))
    assert seconds[0] <= figures.seconds <= seconds[1]
    assert abs(figures.bias) <= bias + 1.5 * figures.error
    assert figures.coverage >= coverage


@pytest.mark.slow
def test_a_rate_that_included_the_trial_would_be_biased():
    figures = simulate(simulate_rare_pauses(np.random.default_rng(20261126)))
    assert figures.counted_bias > 0.01 > figures.bias + figures.error
