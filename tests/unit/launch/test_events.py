"""Whatever a job writes into its event file leaves a row: what cannot be is left out, and counted."""

from __future__ import annotations

import json
import os
import random

import pytest

from pipeline.base.domain.records import Result
from pipeline.launch import event_reader, events
from pipeline.observe import group_row
from pipeline.observe.observation import Observation
from tests.support.rows import FIELDS, S, group, state, steps

ODD = [
    b"",
    b"no JSON",
    b"[]",
    b"null",
    b"3",
    b"\xff\xfe",
    b'{"event": []}',
    b'{"event": "step"}',
    b'{"event": "step", "t_ns": 5000000000, "samples": 1, "epoch": null}',
    b'{"event": "step", "t_ns": "5", "total": 5, "epoch": null}',
    b'{"event": "step", "t_ns": 6000000000, "total": -5, "epoch": null}',
    b'{"event": "step", "t_ns": 6000000000, "total": 1e400, "epoch": null}',
    b'{"event": "step", "t_ns": 6000000000, "total": true, "epoch": null}',
    b'{"event": "step", "t_ns": 60000000000000000000000, "total": 7, "epoch": null}',
    b'{"event": "step", "t_ns": 1, "total": 99, "epoch": null}',
    b'{"event": "step", "t_ns": 6000000000, "total": 9, "epoch": {}}',
    b'{"event": "epoch", "epoch": 1, "t_ns": 1, "seconds": -1, "metrics": {}}',
    b'{"event": "epoch", "epoch": 1, "t_ns": 1, "seconds": NaN, "metrics": {}}',
    b'{"event": "epoch", "epoch": 1, "t_ns": 1, "seconds": 1, "metrics": []}',
    b'{"event": "metric", "name": "x", "step": 1e9, "t_ns": 1, "value": 1}',
    b'{"event": "metric", "name": "x", "step": 1, "t_ns": 1, "value": "many"}',
    b'{"event": "param", "params": 3}',
    b'{"event": "error"',
    b'{"event": "phase", "name": "train", "t_ns": null}',
    b'{"event": "process", "pid": -1}',
    b'{"event": "started", "t_ns": -5}',
    b"[" * 100_000,
]


@pytest.mark.parametrize("line", ODD, ids=lambda line: line[:60])
def test_a_line_that_cannot_be_changes_no_figure_and_is_counted(tmp_path, line):
    alone = group("a")
    job = state(tmp_path, alone.jobs[0], steps(0, 11, 0.5, 10), told_ns=11 * S)
    path = job.folder / "events.jsonl"
    lines = path.read_bytes().splitlines()
    path.write_bytes(b"\n".join([*lines[:12], line, *lines[12:]]) + b"\n")
    row = group_row.judge(alone, Observation(batches=[[job]], samples=(), fields=FIELDS))
    assert row.result is Result.OK
    assert row.jobs[0].metrics["throughput_samples_per_s"] == pytest.approx(20)
    assert row.tags["collocation.damaged_events"].startswith("job 0-a: 1 line (number 13): ")
    assert row.tags["collocation.flag"] == f"left out impossible values: {row.tags['collocation.damaged_events']}"
    events.read_progress(path)


def test_any_mixture_of_bytes_and_half_events_is_read(tmp_path):
    chance = random.Random(7)
    good_lines = [json.dumps(event).encode() for event in steps(0, 3, 0.5, 10)]
    for number in range(300):
        lines = [bytearray(chance.choice([*good_lines, *ODD[:-1]])) for _ in range(8)]
        for line in lines:
            for _ in range(chance.randrange(3)):
                if line:
                    line[chance.randrange(len(line))] = chance.randrange(256)
        path = tmp_path / f"{number}.jsonl"
        path.write_bytes(b"\n".join(lines))
        steps_read = event_reader.read(path).steps
        assert list(steps_read.t_ns) == sorted(steps_read.t_ns)
        assert list(steps_read.total) == sorted(steps_read.total)
        events.read_progress(path)


def test_the_torn_last_line_of_a_killed_job_is_nothing_to_speak_of(tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'{"event": "started", "t_ns": 5}\n{"event": "st')
    assert (event_reader.read(path).started_ns, len(event_reader.read(path).damages)) == (5, 0)


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/etc/passwd"), lambda path: path.mkdir()])
def test_an_event_file_that_is_none_fails_the_job_and_is_not_waited_for(tmp_path, make):
    alone = group("a")
    job = state(tmp_path, alone.jobs[0], [], told_ns=11 * S)
    path = job.folder / "events.jsonl"
    path.unlink()
    make(path)
    row = group_row.judge(alone, Observation(batches=[[job]], samples=(), fields=FIELDS))
    assert row.result is Result.FAILED and "EventFileError: events.jsonl cannot be read" in row.reason
