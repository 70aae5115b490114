"""Rates of jobs in the turns of a stressor that runs beside them."""

from __future__ import annotations

import dataclasses
import random
import statistics
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.base.domain.records import Group
from pipeline.base.domain.tags import Tag
from pipeline.base.domain.window import TurnRates, Window, WindowKind, format_turns, parse_turns
from pipeline.base.domain.workload import RateSource
from pipeline.launch.event_reader import read
from pipeline.launch.events import Events
from pipeline.launch.job_steps import NO_EPOCH, Steps
from pipeline.launch.requests import Requests
from pipeline.observe import group_row, throughput
from pipeline.observe.group_result import GroupResult, Observation
from pipeline.observe.logged_rate import LoggedRate
from tests.support.rows import FIELDS, S, group, state

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


def make_stressed_pair(*, settle_s: float = 0.2, **changes: Any) -> Group:
    pair = group("a", "stressor", window=Window(kind=WindowKind.STEADY, seconds=6, settle_s=0.5), **changes)
    params = (("turn_s", "1.0"), ("turn_settle_s", str(settle_s)))
    stressor = dataclasses.replace(pair.jobs[1].workload, work_unit="calls", params=params)
    return dataclasses.replace(pair, jobs=(pair.jobs[0], dataclasses.replace(pair.jobs[1], workload=stressor)))


def judge(folder: Path, events: list[Any], in_turns: list[Any], **options: Any) -> GroupResult:
    pair = make_stressed_pair(**options)
    states = [
        state(folder, job, job_events, told_ns=9 * S)
        for job, job_events in zip(pair.jobs, (events, in_turns), strict=True)
    ]
    return group_row.judge(pair, Observation(batches=[states], samples=(), fields=FIELDS))


def map_rates(row: GroupResult) -> dict[tuple[str, float], dict[int, float]]:
    return {(turn.resource, turn.dial): dict(turn.rates) for turn in parse_turns(row.tags[Tag.TURNS])}


def test_a_job_has_a_rate_in_the_turns_of_each_resource_and_dial(tmp_path: Path) -> None:
    row = judge(tmp_path, step_events(), turn_events())
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
    early = judge(tmp_path / "early", step_events(), turn_events(begin_s=0.9 + 0.2))  # the first one began at 1.1 s
    assert {turn.num_turns for turn in parse_turns(early.tags[Tag.TURNS])} == {1, 2}
    cut = [event for event in turn_events() if event.get("name") != "end"]
    assert [turn.num_turns for turn in parse_turns(judge(tmp_path / "cut", step_events(), cut).tags[Tag.TURNS])] == [
        2,
        1,
        2,
    ]
    held = turn_events()
    held.insert(5, {"event": "phase", "name": "held", "t_ns": round(2.35 * S)})
    (idle,) = (
        turn for turn in parse_turns(judge(tmp_path / "held", step_events(), held).tags[Tag.TURNS]) if turn.is_idle
    )
    assert idle.num_turns == 1


def test_a_job_with_long_steps_has_no_rate_and_a_note_with_the_remedy(tmp_path: Path) -> None:
    row = judge(tmp_path, step_events(every_s=0.6), turn_events())
    assert 0 not in map_rates(row)["l2", 1.0]
    assert "job 0-a completed fewer than two steps in a turn of" in row.marks.note
    assert "l2 1" in row.marks.note and "raise turn_s of the stressor" in row.marks.note


def test_a_group_without_turns_has_no_rates_in_turns(tmp_path: Path) -> None:
    pair = group("a", "b")
    states = [state(tmp_path, job, step_events(), told_ns=9 * S) for job in pair.jobs]
    row = group_row.judge(pair, Observation(batches=[states], samples=(), fields=FIELDS))
    assert Tag.TURNS not in row.tags


def compute(tmp_path: Path, log: Events, logged: LoggedRate | None = None, **workload: Any) -> throughput.BatchTurns:
    pair = make_stressed_pair()
    first = dataclasses.replace(pair.jobs[0], workload=dataclasses.replace(pair.jobs[0].workload, **workload))
    states = [state(tmp_path, job, turn_events() if job.index else []) for job in (first, pair.jobs[1])]
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
        idle_rates.append(map_rates(judge(tmp_path / str(number), events, turn_events()))["idle", 0.0][0])
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
