"""Rows of groups measured in slices of a launch, and rates in the turns of a stressor."""

from __future__ import annotations

import dataclasses
import json
import random
import statistics
from array import array
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from pipeline.base.domain.records import Group, Result
from pipeline.base.domain.samples import Sample
from pipeline.base.domain.tags import Tag
from pipeline.base.domain.window import TurnRates, Window, WindowKind, format_turns, parse_turns
from pipeline.base.domain.workload import RateSource
from pipeline.launch.event_reader import read
from pipeline.launch.events import Events
from pipeline.launch.interleaving import Slice
from pipeline.launch.job_steps import NO_EPOCH, Steps
from pipeline.launch.requests import Requests
from pipeline.observe import group_row, throughput
from pipeline.observe.group_result import GroupResult, Observation
from pipeline.observe.logged_rate import LoggedRate
from tests.support.rows import FIELDS, S, group, judge_events, state, steps
from workloads import client

SLICES = [(1, 2.0, 3.0), (2, 4.0, 5.0), (1, 6.0, 7.0), (2, 8.0, 9.0)]


def judge(
    folder: Path,
    events_of_jobs: list[list[dict[str, Any]]],
    num_jobs: int,
    slices: list[tuple[int, float, float]] = SLICES,
    samples: tuple[Sample, ...] = (),
    slice_s: float = 1.0,
    holds: Sequence[tuple[int, int]] = (),
) -> GroupResult:
    window = Window(kind=WindowKind.INTERLEAVED, seconds=2 * slice_s, settle_s=0.1, slice_s=slice_s)
    toys = group(*"a" * len(events_of_jobs), window=window)
    states = [state(folder, job, events, told_ns=20 * S) for job, events in zip(toys.jobs, events_of_jobs, strict=True)]
    states[-1].holds.extend(holds)
    parts = [Slice(num_jobs=number, begin_ns=int(begin * S), end_ns=int(end * S)) for number, begin, end in slices]
    first_steps = {0: 1, 1: 2}
    seen = Observation(
        batches=[states[:num_jobs]],
        launched=states,
        samples=samples,
        fields=FIELDS,
        slices=parts,
        jobs_at_first_steps=first_steps,
    )
    toys = dataclasses.replace(toys, jobs=toys.jobs[:num_jobs])
    return group_row.judge(toys, seen)


def make_held_events(*spans: tuple[float, float], samples: int = 10, every_s: float = 0.1) -> list[dict[str, Any]]:
    """The events of a job that works between these times only."""
    events: list[dict[str, Any]] = [{"event": "started", "t_ns": S}]
    total = 0
    for begin_s, end_s in spans:
        for number in range(1, int((end_s - begin_s) / every_s + 1e-9) + 1):
            total += samples
            t_ns = int((begin_s + number * every_s) * S)
            events.append({"event": "step", "t_ns": t_ns, "samples": samples, "total": total, "epoch": 1})
    return events


def test_each_number_of_jobs_is_measured_in_its_own_slices(tmp_path: Path) -> None:
    always, in_turns = steps(1, 10, 0.1, 10), make_held_events((3.5, 5.2), (7.5, 9.2), samples=20)
    alone, both = judge(tmp_path, [always], 1), judge(tmp_path, [always, in_turns], 2)
    assert (alone.result, both.result) == (Result.OK, Result.OK)
    assert alone.metrics["throughput_total_samples_per_s"] == pytest.approx(100)
    assert both.metrics["throughput_total_samples_per_s"] == pytest.approx(100 + 200)
    assert both.metrics["window_s"] == pytest.approx(2, abs=0.2)
    assert both.jobs[1].metrics["step_time_p99_ms"] == pytest.approx(100)  # no step lasts from slice to slice


def test_a_slice_counts_from_its_begin_and_a_step_goes_on_where_the_job_was_held(tmp_path: Path) -> None:
    slow = make_held_events((1.0, 1.9), (3.8, 5.2), (7.8, 9.3), every_s=0.3)  # its steps do not end with a slice
    jobs = [steps(1, 10, 0.1, 10), slow]
    holds = [(int(1.9 * S), int(3.8 * S)), (int(5.0 * S), int(7.8 * S))]
    row = judge(tmp_path, jobs, 2, holds=holds)
    assert row.metrics["window_s"] == pytest.approx(2)
    assert row.jobs[1].metrics["throughput_samples_per_s"] == pytest.approx(10 / 0.3, rel=0.02)
    assert row.jobs[1].metrics["step_time_p99_ms"] == pytest.approx(300)
    assert not row.marks.invalid


def test_a_job_that_makes_no_step_for_most_of_a_slice_makes_the_row_invalid(tmp_path: Path) -> None:
    late, holds = (
        make_held_events((1.0, 1.9), (4.55, 5.2), (7.5, 9.2)),
        [(int(1.9 * S), int(3.9 * S)), (int(5.2 * S), int(7.5 * S))],
    )
    row = judge(tmp_path, [steps(1, 10, 0.1, 10), late], 2, holds=holds)
    assert row.marks.invalid.startswith("job 1-a paused for up to 0.75 s between steps of 100 ms, ")
    assert judge(tmp_path, [steps(1, 10, 0.1, 10), make_held_events((7.5, 9.2))], 2).result is Result.FAILED


def test_a_job_that_works_on_while_held_makes_all_rows_of_the_launch_invalid(tmp_path: Path) -> None:
    jobs = [steps(1, 10, 0.1, 10), steps(1, 10, 0.1, 10)]
    for num_jobs in (1, 2):
        row = judge(tmp_path, jobs, num_jobs)
        assert (
            row.marks.invalid == "job 1-a made 20 steps while held; make every step in the loop over job.until_stop()"
        )


@pytest.mark.parametrize(("late_s", "is_wrong"), [(-0.01, False), (0.02, True)])
def test_a_step_in_flight_must_end_before_the_next_slice(tmp_path: Path, late_s: float, is_wrong: bool) -> None:
    jobs = [steps(1, 10, 0.1, 10), make_held_events((3.5, 5.2), (5.2, 6 + late_s), (7.5, 9.2), every_s=0.1)]
    last = next(event for event in reversed(jobs[1]) if event["t_ns"] < 6.5 * S)
    last["t_ns"] = int((6 + late_s) * S)
    assert ["made 1 step while held" in judge(tmp_path, jobs, number).marks.invalid for number in (1, 2)] == [
        is_wrong
    ] * 2


def test_requests_are_not_measured_in_slices(tmp_path: Path) -> None:
    records = b"".join(client.REQUEST.pack(t_ns, t_ns, t_ns, 0, t_ns, 0, 1) for t_ns in range(2 * S, 9 * S, S // 100))
    (tmp_path / "0").mkdir()
    (tmp_path / "0" / client.REQUESTS_FILE).write_bytes(records)
    row = judge(tmp_path, [[{"event": "started", "t_ns": S}]], 1)
    assert row.reason == "job 0-a: requests are not measured in slices; set window=steady"


def test_only_jobs_that_began_at_this_number_of_jobs_are_checked(tmp_path: Path) -> None:
    loss = [{"event": "metric", "name": "first_loss", "t_ns": 2 * S, "step": 0, "value": 2.0}]
    jobs = [steps(1, 10, 0.1, 10) + loss, make_held_events((3.5, 5.2), (7.5, 9.2)) + loss]
    assert json.loads(judge(tmp_path, jobs, 1).tags[Tag.FIRST_LOSSES]) == {"0": [2.0]}
    assert json.loads(judge(tmp_path, jobs, 2).tags[Tag.FIRST_LOSSES]) == {"1": [2.0]}


@pytest.mark.parametrize("slice_s", [1.0, 2.0])
def test_power_needs_slices_of_two_seconds_and_memory_a_launch_of_this_size(tmp_path: Path, slice_s: float) -> None:
    read = {"power_w": 300.0, "memory_used_mib": 5000.0}
    samples = tuple(Sample(source="nvml", t_ns=second * S, values=read) for second in range(1, 20))
    slices = [(1, 2.0, 2.0 + slice_s), (2, 6.0, 6.0 + slice_s), (1, 10.0, 10.0 + slice_s), (2, 14.0, 14.0 + slice_s)]
    jobs = [steps(1, 20, 0.1, 10), make_held_events((5.5, 8.5), (13.5, 16.5))]
    alone = judge(tmp_path, jobs, 1, slices, samples, slice_s)
    both = judge(tmp_path, jobs, 2, slices, samples, slice_s)
    assert ("power_mean_w" in alone.metrics, "power_mean_w" in both.metrics) == (slice_s >= 2,) * 2
    assert "memory_peak_mib" not in alone.metrics and both.metrics["memory_peak_mib"] == 5000
    assert ("slices of 1 s are shorter than 2 s; set window.slice_s=2" in alone.tags.get(Tag.ABSENT_FIGURES, "")) is (
        slice_s < 2
    )


SLICE_S, SETTLE_S, ROUNDS, LAUNCHES = 0.5, 0.1, 8, 6
Durations = Callable[[random.Random], Iterator[tuple[float, float]]]


class Program(NamedTuple):
    """A program: its durations of a step and of the pause after the step, and its true rate."""

    durations: Durations
    per_s: float


def make_steady_program(step_s: float, jitter: float = 0.1) -> Program:
    def durations(chance: random.Random) -> Iterator[tuple[float, float]]:
        while True:
            yield step_s * chance.uniform(1 - jitter, 1 + jitter), 0.0

    return Program(durations, 1 / step_s)


def make_pausing_program(step_s: float, num_steps: int, pause_s: float) -> Program:
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
        job_state = state(folder, toy, events, told_ns=round((clock_s + 9) * S))
        if job.holds:
            job_state.holds.extend(job.holds)
        states.append(job_state)
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
    rates, number = judge_launches(tmp_path, make_steady_program(step_s), is_held=is_held)
    assert number == LAUNCHES
    assert statistics.fmean(rates) == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize("is_held", [False, True])
@pytest.mark.parametrize(
    "program",
    [
        make_pausing_program(0.01, 30, 0.3),
        make_pausing_program(0.01, 47, 0.3),
        make_pausing_program(0.005, 100, 0.5),
        make_pausing_program(0.005, 40, 0.06),
        make_pausing_program(0.1, 5, 0.19),
        make_pausing_program(0.1, 10, 0.35),
        make_pausing_program(0.02, 24, 0.08),
    ],
)
def test_no_job_that_pauses_has_a_wrong_rate_without_a_mark(tmp_path: Path, program: Program, is_held: bool) -> None:
    rates, _ = judge_launches(tmp_path, program, is_held=is_held)
    assert all(rate == pytest.approx(1, abs=0.02) for rate in rates)


def test_short_pauses_are_part_of_the_rate(tmp_path: Path) -> None:
    rates, number = judge_launches(tmp_path, make_pausing_program(0.002, 20, 0.03), is_held=False)
    assert number == LAUNCHES
    assert statistics.fmean(rates) == pytest.approx(1, abs=0.02)


def test_the_mark_of_a_pause_names_the_job_and_the_remedy(tmp_path: Path) -> None:
    row = launch(tmp_path, make_pausing_program(0.01, 30, 0.3), 1, is_held=False)
    assert row.marks.invalid.startswith("job 0-a paused for up to 0.3")
    assert "s between steps of 10" in row.marks.invalid and row.marks.invalid.endswith("; set window=steady")


TURNS = [("idle", 0.0), ("l2", 1.0), ("l2", 0.5), ("idle", 0.0), ("l2", 1.0), ("l2", 0.5)]
SPEED = {("idle", 0.0): 1.0, ("l2", 0.5): 0.8, ("l2", 1.0): 0.5}
"""Speed of a workload in each turn, relative to idle turns."""
CALLS = {("idle", 0.0): 0.0, ("l2", 0.5): 40.0, ("l2", 1.0): 90.0}


def turn_events(begin_s: float = 2.0, turn_s: float = 1.0, places: Sequence[tuple[str, float]] = TURNS) -> list[Any]:
    """The events of a stressor, with a step after each 0.1 s."""
    events: list[dict[str, Any]] = [{"event": "started", "t_ns": S}]
    total = 0.0
    for number, place in enumerate(places):
        at_s = begin_s + number * turn_s
        events.append({"event": "phase", "name": f"turn {place[0]} {place[1]:g}", "t_ns": round(at_s * S)})
        for step in range(1, round(turn_s / 0.1)):
            calls = CALLS[place] * 0.1
            total += calls
            t_ns = round((at_s + 0.1 * step) * S)
            events.append({"event": "step", "t_ns": t_ns, "samples": calls, "total": total, "epoch": 1})
    return [*events, {"event": "phase", "name": "end", "t_ns": round((begin_s + len(places) * turn_s) * S)}]


def step_events(every_s: float = 0.03, samples: int = 3, until_s: float = 9.0) -> list[Any]:
    """The events of a workload that is slower in the turns of `turn_events`, each step as it is when it begins."""
    events: list[dict[str, Any]] = [{"event": "started", "t_ns": S}]
    t_s, total = 1.0, 0
    while t_s < until_s:
        number = int(t_s - 2)
        t_s += every_s / SPEED[TURNS[number] if 0 <= t_s - 2 < len(TURNS) else TURNS[0]]
        total += samples
        events.append({"event": "step", "t_ns": round(t_s * S), "samples": samples, "total": total, "epoch": 1})
    return events


def make_stressed_pair(**measured: Any) -> Group:
    stressor = {"work_unit": "calls", "params": (("turn_s", "1.0"), ("turn_settle_s", "0.2"))}
    window = Window(kind=WindowKind.STEADY, seconds=6, settle_s=0.5)
    return group("a", "stressor", window=window, workloads=[measured, stressor])


def judge_turns(folder: Path, events: list[Any], in_turns: list[Any]) -> GroupResult:
    return judge_events(folder, make_stressed_pair(), events, in_turns, told_s=9)


def map_rates(row: GroupResult) -> dict[tuple[str, float], dict[int, float]]:
    return {(turn.resource, turn.dial): dict(turn.rates) for turn in parse_turns(row.tags[Tag.TURNS])}


def test_a_job_has_a_rate_in_the_turns_of_each_resource_and_dial(tmp_path: Path) -> None:
    row = judge_turns(tmp_path, step_events(), turn_events())
    rates = map_rates(row)
    assert rates.keys() == SPEED.keys()
    for place, by_job in rates.items():
        assert by_job[0] == pytest.approx(100 * SPEED[place], rel=1e-3)
    assert {place: by_job.get(1) for place, by_job in rates.items()} == {
        ("idle", 0.0): None,
        ("l2", 0.5): pytest.approx(40),
        ("l2", 1.0): pytest.approx(90),
    }
    assert [turn.num_turns for turn in parse_turns(row.tags[Tag.TURNS])] == [2, 2, 2]
    assert not row.marks.note


def test_only_complete_turns_inside_the_window_count(tmp_path: Path) -> None:
    early = judge_turns(
        tmp_path / "early", step_events(), turn_events(begin_s=0.9 + 0.2)
    )  # the first one began at 1.1 s
    assert {turn.num_turns for turn in parse_turns(early.tags[Tag.TURNS])} == {1, 2}
    cut = [event for event in turn_events() if event.get("name") != "end"]
    assert [
        turn.num_turns for turn in parse_turns(judge_turns(tmp_path / "cut", step_events(), cut).tags[Tag.TURNS])
    ] == [
        2,
        1,
        2,
    ]
    held = turn_events()
    held.insert(5, {"event": "phase", "name": "held", "t_ns": round(2.35 * S)})
    (idle,) = (
        turn
        for turn in parse_turns(judge_turns(tmp_path / "held", step_events(), held).tags[Tag.TURNS])
        if turn.is_idle
    )
    assert idle.num_turns == 1


def test_a_job_with_long_steps_has_no_rate_and_a_note_with_the_remedy(tmp_path: Path) -> None:
    row = judge_turns(tmp_path, step_events(every_s=0.6), turn_events())
    assert 0 not in map_rates(row)["l2", 1.0]
    assert "job 0-a completed fewer than two steps in a turn of" in row.marks.note
    assert "l2 1" in row.marks.note and "raise turn_s of the stressor" in row.marks.note


def test_a_group_without_turns_has_no_rates_in_turns(tmp_path: Path) -> None:
    row = judge_events(tmp_path, group("a", "b"), step_events(), told_s=9)
    assert Tag.TURNS not in row.tags


def compute(tmp_path: Path, log: Events, logged: LoggedRate | None = None, **workload: Any) -> throughput.BatchTurns:
    pair = make_stressed_pair(**workload)
    states = [state(tmp_path, job, turn_events() if job.index else []) for job in pair.jobs]
    logs = {0: log, 1: read(states[1].folder / "events.jsonl")}
    return throughput.compute_turn_rates(states, logs, {0: logged, 1: None}, (S, 9 * S))


def test_logged_values_count_if_they_cover_no_time_outside_a_turn(tmp_path: Path) -> None:
    def rate_at(t_s: float) -> float:
        return 100 * SPEED[TURNS[int(t_s - 2)]] if 2 <= t_s < 8 else 100.0

    points = [(round((1.05 + 0.3 * number) * S), rate_at(1.05 + 0.3 * number)) for number in range(26)]
    spoilt = [(t_ns, 1e6 if (t_ns / S) % 1 < 0.3 else rate) for t_ns, rate in points]  # the value spans two turns
    logged = LoggedRate(points=spoilt, source="output")
    in_turns = compute(tmp_path, Events(), logged, rate=RateSource(pattern="x"))
    for turn in in_turns.rates:
        assert turn.rates[0] == pytest.approx(100 * SPEED[turn.resource, turn.dial])
    rare = LoggedRate(points=points[::5], source="output")
    (gap,) = compute(tmp_path / "rare", Events(), rare, rate=RateSource(pattern="x")).gaps
    assert gap.startswith("job 0-a logged no value for a turn of idle, l2 0.5, l2 1; raise turn_s")


def test_answers_of_a_service_in_a_turn_count_over_the_whole_turn(tmp_path: Path) -> None:
    done_ns = np.array([event["t_ns"] for event in step_events()[1:]])
    log = Events(requests=Requests({"done_ns": np.repeat(done_ns, 2), "intended_ns": np.repeat(done_ns, 2) - S // 100}))
    for turn in compute(tmp_path, log).rates:  # two requests in each answered batch
        assert turn.rates[0] == pytest.approx(2 / 0.03 * SPEED[turn.resource, turn.dial], rel=0.05)


def test_the_rate_of_jittering_steps_has_no_bias(tmp_path: Path) -> None:
    chance = random.Random(1)
    idle_rates = []
    for number in range(40):
        events: list[dict[str, Any]] = [{"event": "started", "t_ns": S}]
        t_s, total = 1.0, 0
        while t_s < 9:
            t_s += 0.1 * chance.gauss(1, 0.2)
            total += 1
            events.append({"event": "step", "t_ns": round(t_s * S), "samples": 1, "total": total, "epoch": 1})
        idle_rates.append(map_rates(judge_turns(tmp_path / str(number), events, turn_events()))["idle", 0.0][0])
    assert sum(idle_rates) / len(idle_rates) == pytest.approx(10, rel=0.015)


def make_log(times_s: Sequence[float]) -> Events:
    t_ns = array("q", (round(t_s * S) for t_s in times_s))
    return Events(steps=Steps(t_ns, array("d", range(1, len(t_ns) + 1)), array("q", [NO_EPOCH]) * len(t_ns)))


FIVE = [(round((2 * number + 0.2) * S), round((2 * number + 2) * S)) for number in range(5)]
"""Turns of 2 s, of which 1.8 s count."""


def test_turns_in_which_a_job_is_starved_count(tmp_path: Path) -> None:
    starved = [2 * number + 1.1 for number in range(1, 5)]
    log = make_log([0.01 * number for number in range(201)] + starved + [11.0])
    assert throughput.compute_turn_rate(log, None, FIVE) == pytest.approx((180 + 4) / 9, rel=0.02)
    answers = Events(
        requests=Requests({"done_ns": np.array([2 * n + 1.9 + 0.005 * k for n in range(5) for k in range(20)]) * S})
    )
    assert throughput.compute_turn_rate(answers, None, FIVE) == pytest.approx(20 / 1.8)
    points = [(round(0.1 * number * S), 100.0) for number in range(21)] + [(9 * S, 1.0), (11 * S, 1.0)]
    assert throughput.compute_turn_rate(Events(), LoggedRate(points=points, source="output"), FIVE) == pytest.approx(
        20.8
    )
    never = make_log([0.0, *starved, 11.0])
    assert throughput.compute_turn_rate(never, None, FIVE) is None


def test_a_job_that_is_starved_in_a_turn_has_a_note(tmp_path: Path) -> None:
    times_s = [t_s for t_s in (1 + 0.01 * number for number in range(800)) if not 3 <= t_s < 3.995]
    in_turns = compute(tmp_path, make_log(times_s))
    (place,) = (turn for turn in in_turns.rates if turn.place == ("l2", 1.0))
    assert place.rates[0] == pytest.approx(50, rel=0.03)
    (gap,) = in_turns.gaps
    assert gap.startswith("job 0-a completed fewer than two steps in a turn of l2 1; raise turn_s")


@pytest.mark.parametrize("speed_between", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("num_steps", [3, 5, 10, 30])
def test_the_load_after_a_turn_does_not_change_its_rate(num_steps: int, speed_between: float) -> None:
    chance, rates = random.Random(num_steps), []
    for _ in range(200):
        now_s, times_s = chance.random() * 0.1, list[float]()
        while now_s < 10:
            work_s = 1.8 / num_steps * chance.uniform(0.9, 1.1)
            while work_s > 1e-9:  # every second turn is of another resource
                speed = 1.0 if now_s % 4 < 2 else speed_between
                part_s = min(work_s, (2 - now_s % 2) * speed)
                now_s, work_s = now_s + part_s / speed + 1e-9, work_s - part_s
            times_s.append(now_s)
        turns = [(begin, end) for begin, end in FIVE if begin % (4 * S) < 2 * S]
        rate = throughput.compute_turn_rate(make_log(times_s), None, turns[1:])
        assert rate is not None
        rates.append(rate * 1.8 / num_steps)
    assert statistics.fmean(rates) == pytest.approx(1, abs=0.01 if num_steps > 3 else 0.02)


def test_the_text_of_a_tag_keeps_the_rates() -> None:
    rates = [TurnRates(resource="l2", dial=0.33, num_turns=2, rates={0: 12.3456, 1: 7e6})]
    assert parse_turns(format_turns(rates)) == rates
