"""Rates of simulated jobs with a known rate in interleaved windows: right, marked, or missing."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from pipeline.base.domain.records import Result
from pipeline.base.domain.window import Window, WindowKind
from pipeline.launch.interleaving import Slice
from pipeline.observe import group_row
from pipeline.observe.group_result import GroupResult, Observation
from tests.support.rows import FIELDS, S, group, state

SLICE_S, SETTLE_S, ROUNDS, LAUNCHES = 0.5, 0.1, 8, 6
Durations = Callable[[random.Random], Iterator[tuple[float, float]]]


class Program(NamedTuple):
    """A program: its durations of a step and of the pause after the step, and its true rate."""

    durations: Durations
    per_s: float


def steady(step_s: float, jitter: float = 0.1) -> Program:
    def durations(chance: random.Random) -> Iterator[tuple[float, float]]:
        while True:
            yield step_s * chance.uniform(1 - jitter, 1 + jitter), 0.0

    return Program(durations, 1 / step_s)


def pausing(step_s: float, num_steps: int, pause_s: float) -> Program:
    def durations(chance: random.Random) -> Iterator[tuple[float, float]]:
        number = chance.randrange(num_steps)
        while True:
            number += 1
            pause = pause_s * chance.uniform(0.95, 1.05) if number % num_steps == 0 else 0.0
            yield step_s * chance.uniform(0.95, 1.05), pause

    return Program(durations, num_steps / (num_steps * step_s + pause_s))


class Job:
    """A job that works until an instant and is then held, as the orchestrator does it."""

    def __init__(self, program: Program, chance: random.Random) -> None:
        self.durations = program.durations(chance)
        self.now_s, self.held_s = 1.0 + chance.random(), None
        self.steps_s, self.holds = list[float](), list[tuple[int, int]]()

    def work(self, until_s: float) -> None:
        while self.now_s < until_s:
            step_s, pause_s = next(self.durations)
            self.steps_s.append(self.now_s + step_s)
            self.now_s += step_s + pause_s

    def resume(self, at_s: float) -> None:
        if self.held_s is not None:
            self.holds.append((round(self.held_s * S), round(at_s * S)))
            self.now_s, self.held_s = at_s + 0.0005, None


def launch(folder: Path, program: Program, seed: int, *, is_held: bool) -> GroupResult:
    """Return the row of two jobs, of which the second is held in every other slice, or the row of a single job."""
    chance = random.Random(seed)
    jobs = [Job(program, chance) for _ in range(2 if is_held else 1)]
    clock_s, slices = 3.0, list[Slice]()
    for num_jobs in [number for _ in range(ROUNDS) for number in chance.sample([1, 2], 2)] if is_held else [1] * ROUNDS:
        for job in jobs:
            if job.held_s is None:
                job.work(clock_s)
        for job in jobs[num_jobs:]:
            if job.held_s is None:
                job.held_s = job.now_s
                clock_s = max(clock_s, job.now_s)
        for job in jobs[:num_jobs]:
            job.resume(clock_s)
        begin_s, clock_s = clock_s + SETTLE_S, clock_s + SETTLE_S + SLICE_S
        slices.append(Slice(num_jobs=num_jobs, begin_ns=round(begin_s * S), end_ns=round(clock_s * S)))
        for job in jobs[:num_jobs]:
            job.work(clock_s)
    window = Window(kind=WindowKind.INTERLEAVED, seconds=ROUNDS * SLICE_S, settle_s=SETTLE_S, slice_s=SLICE_S)
    toys = group(*"a" * len(jobs), window=window)
    states = []
    for job, toy in zip(jobs, toys.jobs, strict=True):
        line = {"event": "step", "samples": 1, "epoch": 1}
        times = enumerate(job.steps_s, start=1)
        events = [{"event": "started", "t_ns": S}, *(line | {"t_ns": round(t * S), "total": n} for n, t in times)]
        made = state(folder, toy, events, told_ns=round((clock_s + 9) * S))
        if job.holds:
            made.holds.extend(job.holds)
        states.append(made)
    seen = Observation(batches=[states], samples=(), fields=FIELDS, slices=slices)
    return group_row.judge(toys, seen)


def judge_launches(folder: Path, program: Program, *, is_held: bool) -> tuple[list[float], int]:
    """Return the rates of rows that are neither failed nor marked, relative to the true rate, and their number."""
    rows = [launch(folder / str(seed), program, seed, is_held=is_held) for seed in range(LAUNCHES)]
    right = [row for row in rows if row.result is Result.OK and not row.marks.invalid]
    total = program.per_s * len(rows[0].jobs)
    return [row.metrics["throughput_total_samples_per_s"] / total for row in right], len(right)


@pytest.mark.parametrize("is_held", [False, True])
@pytest.mark.parametrize("step_s", [0.01, 0.03, 0.1, 0.2, 0.3])
def test_steady_jobs_have_their_rate_however_long_their_steps_are(tmp_path: Path, step_s: float, is_held: bool) -> None:
    rates, number = judge_launches(tmp_path, steady(step_s), is_held=is_held)
    assert number == LAUNCHES
    assert statistics.fmean(rates) == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize("is_held", [False, True])
@pytest.mark.parametrize(
    "program",
    [
        pausing(0.01, 30, 0.3),
        pausing(0.01, 47, 0.3),
        pausing(0.005, 100, 0.5),
        pausing(0.005, 40, 0.06),
        pausing(0.1, 5, 0.19),
        pausing(0.1, 10, 0.35),
        pausing(0.02, 24, 0.08),
    ],
)
def test_no_job_that_pauses_has_a_wrong_rate_without_a_mark(tmp_path: Path, program: Program, is_held: bool) -> None:
    rates, _ = judge_launches(tmp_path, program, is_held=is_held)
    assert all(rate == pytest.approx(1, abs=0.02) for rate in rates)


def test_short_pauses_are_part_of_the_rate(tmp_path: Path) -> None:
    rates, number = judge_launches(tmp_path, pausing(0.002, 20, 0.03), is_held=False)
    assert number == LAUNCHES
    assert statistics.fmean(rates) == pytest.approx(1, abs=0.02)


def test_the_mark_of_a_pause_names_the_job_and_the_remedy(tmp_path: Path) -> None:
    row = launch(tmp_path, pausing(0.01, 30, 0.3), 1, is_held=False)
    assert row.marks.invalid.startswith("job 0-a paused for up to 0.3")
    assert "s between steps of 10" in row.marks.invalid and row.marks.invalid.endswith("; set window=steady")
