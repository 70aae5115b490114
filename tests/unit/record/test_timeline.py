"""The timeline of a group, and of a study over several starts."""

from __future__ import annotations

import dataclasses
import json
import socket
from pathlib import Path
from typing import Any

import pytest

from pipeline import timeline
from pipeline.base.domain.records import Result
from pipeline.base.domain.samples import Sample
from pipeline.observe.group_result import JobResult, Span
from pipeline.record import trace as traces
from pipeline.record.group_record import Clock, GroupRecord
from pipeline.record.store import upload
from pipeline.record.store.local_store import open_store
from tests.support.rows import FIELDS, S, make_row
from tests.support.rows import group as make_group
from tests.support.trace_format import problems
from tests.support.tracking_cases import EXPERIMENT, make_spool
from tests.support.tracking_cases import record as stored

pytestmark = pytest.mark.store


def record(study: str = "first", wall_s: int = 1_000_000, monotonic_s: int = 0) -> GroupRecord:
    clock = Clock(wall_ns=wall_s * S, monotonic_ns=monotonic_s * S)
    return stored((), experiment="test", clock=clock, study=study)


def make_spans(*named: tuple[str, float, float], job: int | None = None) -> list[Span]:
    return [Span(name=name, start_ns=int(a * S), end_ns=int(b * S), job=job) for name, a, b in named]


PHASES = make_spans(("setup", 10, 11), ("launch", 11, 20), ("window", 20, 28), ("end", 28, 30), ("cleanup", 30, 31))


def make_group_trace(
    jobs: dict[int, list[tuple[str, float, float]]], samples=(), spans=PHASES, **group
) -> dict[str, Any]:
    toy_group = make_group(*[f"w{i}" for i in jobs], **group)
    results = [
        JobResult(job=job, result=Result.OK, reason="", pid=7, start_ns=20 * S, end_ns=29 * S) for job in toy_group.jobs
    ]
    of_jobs = [span for index, named in jobs.items() for span in make_spans(*named, job=index)]
    tags = {"collocation.window_start_ns": str(22 * S), "collocation.window_end_ns": str(28 * S)}
    row = make_row(toy_group, jobs=tuple(results), tags=tags, spans=(*spans, *of_jobs))
    return traces.make_trace(record(), row, samples, FIELDS)


def read_slices(trace: dict[str, Any], track: int) -> dict[str, tuple[float, float]]:
    return {
        event["name"]: (event["ts"], event["dur"])
        for event in trace["traceEvents"]
        if event["ph"] == "X" and event["tid"] == 1000 + track
    }


WHOLE = [("process", 11, 14), ("setup", 14, 16), ("warmup", 16, 19), ("ready", 19, 29.5)]


def test_groups_and_jobs_are_tracks_and_their_phases_slices():
    trace = make_group_trace({0: WHOLE, 1: [("process", 11, 18), ("ready", 18, 29)]})
    assert problems(trace) == []
    assert read_slices(trace, 1) == {
        "naive-w0+w1": (0, 21e6),
        "setup": (0, 1e6),
        "launch": (1e6, 9e6),
        "window": (10e6, 8e6),
        "measured": (12e6, 6e6),
        "end": (18e6, 2e6),
        "cleanup": (20e6, 1e6),
    }
    assert read_slices(trace, 2) == {
        "0-w0": (1e6, 18.5e6),
        "process": (1e6, 3e6),
        "setup": (4e6, 2e6),
        "warmup": (6e6, 3e6),
        "ready": (9e6, 1e6),
        "work": (10e6, 9e6),
        "finish": (19e6, 0.5e6),
    }


def test_what_a_job_says_out_of_turn_does_not_break_the_trace():
    trace = make_group_trace({0: [("process", 11, 30), ("late", 400, 400), ("early", 1, 11), ("back", 14, 14)]})
    assert [problem for problem in problems(trace) if "ends after it" in problem] == []


def test_jobs_one_after_another_have_no_common_window():
    named = [("setup", 1, 2), ("launch", 2, 4), ("window", 4, 9), ("launch", 9, 10), ("window", 10, 30)]
    trace = make_group_trace(
        {0: [("process", 2, 9)], 1: [("process", 9, 30)]}, spans=make_spans(*named), sequential=True
    )
    assert problems(trace) == []
    assert read_slices(trace, 2)["0-w0"] == (1e6, 7e6)
    assert read_slices(trace, 3)["1-w1"] == (8e6, 21e6)
    assert "measured" not in read_slices(trace, 1)


def test_a_job_that_never_ended_has_no_track():
    trace = make_group_trace({0: []})
    assert problems(trace) == []
    assert read_slices(trace, 2) == {}


def test_a_group_that_failed_before_its_launch_has_no_job():
    spans = tuple(make_spans(("setup", 1, 2), ("cleanup", 2, 3)))
    row = make_row(make_group("a"), result=Result.FAILED, reason="no MIG", jobs=(), spans=spans)
    trace = traces.make_trace(record(), row, (), FIELDS)
    assert problems(trace) == []
    assert read_slices(trace, 1).keys() == {"naive-a", "setup", "cleanup"}


def test_the_devices_readings_are_counters_and_thinned():
    samples = [Sample(source="nvml", t_ns=12 * S + i, values={"power_w": float(i)}) for i in range(5000)]
    samples += [Sample(source="nvml", t_ns=12 * S, values={"power_w": 1.0}, job=0)]
    trace = make_group_trace({0: WHOLE}, samples)
    assert problems(trace) == []
    counters = [event for event in trace["traceEvents"] if event["ph"] == "C"]
    assert 1000 < len(counters) <= 2000 and {event["name"] for event in counters} == {"nvml/power_w"}


def test_a_simulated_device_says_so_on_its_track():
    device = dataclasses.replace(make_group("a").device, kind="simulated")
    trace = make_group_trace({0: WHOLE}, device=device)
    assert trace["otherData"]["simulated"] is True
    assert trace["traceEvents"][0]["args"]["name"].startswith("SIMULATED NVIDIA H100")


def test_groups_of_several_starts_are_processes_beside_each_other():
    first = make_group_trace({0: WHOLE})
    second = json.loads(json.dumps(first))
    second["otherData"] |= {"begin_ns": 60 * S, "begin_wall_ns": first["otherData"]["begin_wall_ns"] + 7 * S}
    later = json.loads(json.dumps(first))
    later["otherData"] |= {"study": "second", "begin_wall_ns": first["otherData"]["begin_wall_ns"] + 3600 * S}
    trace = traces.merge([later, first, second])
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
def test_the_check_of_the_format_can_fail(change, problem):
    trace = make_group_trace({0: WHOLE})
    launch = next(event for event in trace["traceEvents"] if event["name"] == "launch")
    launch.update(change)
    assert any(problem in message for message in problems(trace))


def test_what_cannot_be_read_is_one_error_and_touches_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    absent, out = tmp_path / "absent", tmp_path / "trace.json"
    with socket.create_server(("127.0.0.1", 0)) as closed:
        server = f"http://127.0.0.1:{closed.getsockname()[1]}"
    for store, words in (
        (["--root", str(absent)], f"{absent} does not exist; run a study first"),
        (["--uri", server], "Connection refused"),
        (["--uri", "unknown://server"], "MLflow cannot open unknown://server"),
    ):
        assert timeline.main([*store, "--out", str(out)]) == 2
        error = capsys.readouterr().err
        assert error.startswith("error: ") and error.count("\n") == 1 and words in error
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_timeline_is_named_and_left_out(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    store = open_store(root)
    for number, change in enumerate(DAMAGED, start=1):
        folder = make_spool(root, stored((), number=number), name=f"{number:04d}-mig")
        (folder / "artifacts/timeline.json").write_bytes(change(json.dumps(make_group_trace({0: WHOLE})).encode()))
        upload.send(lambda uri: store, folder, series_points=10)
    out = tmp_path / "trace.json"
    assert timeline.main(["--root", str(root), "--experiment", EXPERIMENT, "--out", str(out)]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith(f"1 group ({len(DAMAGED) - 1} more without a readable timeline)")
    assert printed.err.count("is damaged") == len(DAMAGED) - 1
    assert problems(json.loads(out.read_text())) == []


DAMAGED = [
    lambda content: content,
    lambda content: content[:-20],
    lambda content: b"\xff" + content,
    lambda content: b"[]",
    lambda content: b"{}",
    lambda content: content.replace(b"begin_wall_ns", b"x"),
    lambda content: content.replace(b'"ph"', b'"p"'),
]
