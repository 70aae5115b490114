"""Judging what jobs wrote takes long if they wrote much: a signal ends it, and the row says so."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from pipeline.base.domain.records import Result
from pipeline.base.domain.window import Window, WindowKind
from pipeline.base.system.interrupts import Interrupted
from pipeline.launch.interleaving import Slice
from pipeline.observe import group_row
from pipeline.observe.idle_power import IdlePower
from pipeline.study import executor, group_execution
from tests.support.rows import FIELDS, S, group, state, steps

SIGNAL_WHILE_JUDGING = """
import os, signal, time
from pipeline.base.system import interrupts
interrupts.install()
try:
    with interrupts.hold_interrupts():
        try:
            with interrupts.allow():
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(60)
        except interrupts.Interrupted as error:
            print("ended", error.exit_status)
        os.kill(os.getpid(), signal.SIGINT)
        print("kept")
finally:
    print("left", interrupts.has_ended_work())
"""


def test_a_signal_goes_through_where_a_held_part_lets_it():
    done = subprocess.run([sys.executable, "-c", SIGNAL_WHILE_JUDGING], capture_output=True, text=True, timeout=60)
    assert done.stdout.split("\n")[:3] == ["ended 143", "kept", "left True"], done.stderr


@pytest.fixture
def ran(tmp_path, monkeypatch):
    """A group whose jobs have ended, and what its record was closed with."""
    alone = group("a")
    job = state(tmp_path, alone.jobs[0], steps(0, 11, 0.5, 10), told_ns=11 * S)
    closed = []

    def run(self):
        self.batches, self.fields = [[job]], FIELDS

    record = SimpleNamespace(
        spool_id="id",
        folder=tmp_path,
        close=closed.append,
        add_artifact=lambda *_: None,
        sink=SimpleNamespace(samples=[]),
    )

    @contextmanager
    def open_spool(_):
        yield record

    monkeypatch.setattr(group_execution.GroupExecution, "run", run)
    resources = SimpleNamespace(spool=SimpleNamespace(open=open_spool), idle_power=IdlePower(), warned=set())
    return SimpleNamespace(group=alone, resources=resources, closed=closed, job=job)


def test_a_signal_while_a_row_is_judged_makes_it_interrupted_and_keeps_what_was_written(ran, monkeypatch):
    def judge(*_):
        if not ran.closed and not hasattr(ran, "was_signalled"):
            ran.was_signalled = True
            raise Interrupted(15)
        return real(*_)

    real = group_row.judge
    monkeypatch.setattr(group_row, "judge", judge)
    with pytest.raises(Interrupted):
        next(executor.run([ran.group], ran.resources))
    (row,) = ran.closed
    assert row.result is Result.INTERRUPTED and row.spool_id == "id"
    assert row.jobs[0].metrics["throughput_samples_per_s"] == pytest.approx(20), "so little is read at once"


def test_after_a_signal_what_takes_long_is_not_read(ran, monkeypatch):
    monkeypatch.setattr(group_execution, "_SMALL_BYTES", 100)

    def judge(*_):
        raise Interrupted(15)

    monkeypatch.setattr(group_row, "judge", judge)
    with pytest.raises(Interrupted):
        next(executor.run([ran.group], ran.resources))
    (row,) = ran.closed
    assert (row.result, row.reason) == (Result.INTERRUPTED, "interrupted by a signal")
    assert [(job.result, job.exit_status, job.metrics) for job in row.jobs] == [(Result.INTERRUPTED, 0, {})]


def test_a_row_that_is_not_interrupted_is_judged_once(ran, capsys, monkeypatch):
    monkeypatch.setattr(group_execution, "_LARGE_BYTES", 100)
    row = next(executor.run([ran.group], ran.resources))
    assert [row] == ran.closed and row.result is Result.OK
    assert "naive-a: reading 0.0 GB of job output" in capsys.readouterr().err
    assert os.path.getsize(ran.job.folder / "events.jsonl") == ran.job.bytes_to_read


def test_all_rows_of_a_launch_are_judged_before_the_first_is_sent_with_the_files_of_its_jobs(ran, monkeypatch):
    """The sender moves the files of a closed record."""
    order = []

    def run(self):
        self.batches, self.fields, self.slices = [[ran.job]], FIELDS, [Slice(num_jobs=1, begin_ns=S, end_ns=2 * S)]

    def judge(group, seen):
        order.append(f"judge {group.name}")
        return real(group, seen)

    def close(row):
        order.append(f"close {row.group.name}")

    real = group_row.judge
    monkeypatch.setattr(group_execution.GroupExecution, "run", run)
    monkeypatch.setattr(group_row, "judge", judge)
    with ran.resources.spool.open(None) as record:
        record.close, record.place = close, lambda _: None
    window = Window(kind=WindowKind.INTERLEAVED, seconds=1, slice_s=1)
    launch = [dataclasses.replace(ran.group, name=name, window=window, launch="a") for name in ("first", "second")]
    assert [row.group.name for row in executor.run(launch, ran.resources)] == ["first", "second"]
    assert order == ["judge first", "judge second", "close first", "close second"]
