"""The timeline of a group, and of a study over several starts."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from rows import S
from rows import group as make_group
from trace_format import problems

from pipeline import phases, timeline
from pipeline.phases import Phase, PhaseLog
from pipeline.spool_format import Clock, Record, RunRecord
from pipeline.types import GroupResult, JobResult, Result, Sample


def record(study: str = "first", wall_s: int = 1_000_000, monotonic_s: int = 0) -> Record:
    return Record(
        spool_id="id",
        experiment="test",
        clock=Clock(wall_ns=wall_s * S, monotonic_ns=monotonic_s * S),
        parent=RunRecord(name="n", status="RUNNING", start_ns=0, tags={"collocation.study": study}),
        children=(),
    )


def log_of(*named: tuple[str, float, float]) -> list[Phase]:
    return [Phase(name=name, begin_ns=int(a * S), end_ns=int(b * S)) for name, a, b in named]


PHASES = log_of(("setup", 10, 11), ("launch", 11, 20), ("run", 20, 30), ("cleanup", 30, 31))


def trace_of(folder: Path, events: dict[int, list[tuple[str, float]]], samples=(), log=None, **group) -> dict[str, Any]:
    jobs = []
    made = make_group(*[f"w{i}" for i in events], **group)
    for job in made.jobs:
        path = folder / "jobs" / str(job.index)
        path.mkdir(parents=True, exist_ok=True)
        lines = [{"event": "phase", "name": name, "t_ns": int(t * S)} for name, t in events[job.index]]
        step = '{"event":"step","t_ns":21000000000,"samples":1,"total":1,"epoch":1}'
        text = "\n".join([*map(json.dumps, lines), step, '{"event": "phase", "na'])
        (path / "events.jsonl").write_text(text)
        jobs.append(JobResult(job=job, result=Result.OK, reason="", pid=7, start_ns=20 * S, end_ns=29 * S))
    tags = {"collocation.window_start_ns": str(22 * S), "collocation.window_end_ns": str(28 * S)}
    row = GroupResult(group=made, result=Result.OK, reason="", jobs=tuple(jobs), tags=tags)
    return timeline.trace_of(folder, record(), row, log or PHASES, samples)


def slices(trace: dict[str, Any], track: int) -> dict[str, tuple[float, float]]:
    return {
        event["name"]: (event["ts"], event["dur"])
        for event in trace["traceEvents"]
        if event["ph"] == "X" and event["tid"] == 1000 + track
    }


def test_groups_and_jobs_are_tracks_and_their_phases_slices(tmp_path):
    trace = trace_of(tmp_path, {0: [("setup", 14), ("warmup", 16), ("ready", 19)], 1: [("ready", 18)]})
    assert problems(trace) == []
    assert slices(trace, 1) == {
        "naive-w0+w1": (0, 21e6),
        "setup": (0, 1e6),
        "launch": (1e6, 9e6),
        "run": (10e6, 10e6),
        "cleanup": (20e6, 1e6),
        "measured window": (12e6, 6e6),
    }
    assert slices(trace, 2) == {
        "0-w0": (1e6, 19e6),
        "start": (1e6, 3e6),
        "setup": (4e6, 2e6),
        "warmup": (6e6, 3e6),
        "ready": (9e6, 10e6),
        "finish": (19e6, 1e6),
    }


def test_what_a_job_says_out_of_turn_does_not_break_the_trace(tmp_path):
    trace = trace_of(tmp_path, {0: [("late", 400), ("early", 1), ("ready", 15), ("back", 14)]})
    assert problems(trace) == []


def test_jobs_one_after_another_have_launches_of_their_own(tmp_path):
    log = log_of(("setup", 1, 2), ("launch", 2, 4), ("run", 4, 9), ("launch", 9, 10), ("run", 10, 30))
    trace = trace_of(tmp_path, {0: [], 1: []}, log=log, sequential=True)
    assert problems(trace) == []
    assert slices(trace, 2)["0-w0"] == (1e6, 7e6)
    assert slices(trace, 3)["1-w1"] == (8e6, 21e6)
    assert "measured window" not in slices(trace, 1)


def test_a_group_that_never_ran_ends_with_its_launch(tmp_path):
    trace = trace_of(tmp_path, {0: []}, log=log_of(("setup", 1, 2), ("launch", 2, 4), ("cleanup", 4, 5)))
    assert problems(trace) == []
    assert slices(trace, 2)["0-w0"] == (1e6, 2e6)


def test_a_group_that_failed_before_its_launch_has_no_job(tmp_path):
    row = GroupResult(group=make_group("a"), result=Result.FAILED, reason="no MIG")
    trace = timeline.trace_of(tmp_path, record(), row, log_of(("setup", 1, 2), ("cleanup", 2, 3)), ())
    assert problems(trace) == []
    assert slices(trace, 1).keys() == {"naive-a", "setup", "cleanup"}


def test_the_devices_readings_are_counters_and_thinned(tmp_path):
    samples = [Sample(source="nvml", t_ns=12 * S + i, values={"power_w": float(i)}) for i in range(5000)]
    samples += [Sample(source="nvml", t_ns=12 * S, values={"power_w": 1.0}, job=0)]
    trace = trace_of(tmp_path, {0: []}, samples)
    assert problems(trace) == []
    counters = [event for event in trace["traceEvents"] if event["ph"] == "C"]
    assert 1000 < len(counters) <= 2000 and {event["name"] for event in counters} == {"nvml/power_w"}


def test_a_simulated_device_says_so_on_its_track(tmp_path):
    device = dataclasses.replace(make_group("a").device, kind="simulated")
    trace = trace_of(tmp_path, {0: []}, device=device)
    assert trace["otherData"]["simulated"] is True
    assert trace["traceEvents"][0]["args"]["name"].startswith("SIMULATED NVIDIA H100")


def test_groups_of_several_starts_are_processes_beside_each_other(tmp_path):
    first = trace_of(tmp_path, {0: []})
    second = json.loads(json.dumps(first))
    second["otherData"] |= {"begin_ns": 60 * S, "begin_wall_ns": first["otherData"]["begin_wall_ns"] + 7 * S}
    later = json.loads(json.dumps(first))
    later["otherData"] |= {"study": "second", "begin_wall_ns": first["otherData"]["begin_wall_ns"] + 3600 * S}
    trace = timeline.merged([later, first, second])
    assert problems(trace) == []
    begins = [(e["pid"], e["ts"]) for e in trace["traceEvents"] if e["ph"] == "X" and e["name"] == "naive-w0"]
    # The clock on the wall was set back by 43 s between two groups of one start; the monotonic one was not.
    assert begins == [(1, 0), (1, 50e6), (2, 3600e6)]
    names = [e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "process_name"]
    assert len(names) == 2 and "first" in names[0] and "second" in names[1]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"dur": -1.0}, "negative length"),
        ({"dur": 15e6}, "ends after it"),
        ({"ph": "Q"}, "unknown kind"),
        ({"name": ""}, "without a name"),
        ({"tid": 77}, "has no name"),
        ({"ts": float("nan")}, "not a number"),
    ],
)
def test_the_check_of_the_format_can_fail(tmp_path, change, problem):
    trace = trace_of(tmp_path, {0: []})
    launch = next(event for event in trace["traceEvents"] if event["name"] == "launch")
    launch.update(change)
    assert any(problem in each for each in problems(trace))


def test_phases_follow_each_other_without_a_gap(tmp_path):
    log = PhaseLog()
    for name in ("setup", "launch", "launch", "run", "cleanup", "cleanup"):
        log.begin(name)
    log.end()
    log.end()
    assert [phase.name for phase in log.phases] == ["setup", "launch", "run", "cleanup"]
    assert all(a.end_ns == b.begin_ns for a, b in zip(log.phases, log.phases[1:], strict=False))
    log.write(tmp_path)
    assert json.loads((tmp_path / phases.FILE).read_text())[0]["name"] == "setup"
    total = phases.seconds_by_name([*PHASES, *PHASES])
    assert total == {"setup": 2, "launch": 18, "run": 20, "cleanup": 2}
