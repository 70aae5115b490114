"""The clocks while a group runs: wall times placed by the offset of their own instant, and suspensions."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from pipeline.base.domain.samples import Sample
from pipeline.observe import clock
from pipeline.observe.clock import ClockRecord, ClockWatch
from pipeline.observe.sample_figures import SampleLog
from pipeline.record import sample_series
from pipeline.record.sample_series import SeriesKey
from tests.support.rows import S

HOUR = 3600 * S


def test_an_instant_in_wall_time_and_back_is_the_same() -> None:
    record = ClockRecord(offsets=((0, 5 * HOUR), (10 * S, 6 * HOUR), (20 * S, 5 * HOUR + S)), end_ns=30 * S)
    for t_ns in range(0, 30 * S, S // 2):
        assert t_ns in record.find_instants_ns(record.wall_ns(t_ns))


def test_a_wall_time_that_came_twice_is_placed_after_the_one_before_it() -> None:
    record = ClockRecord(offsets=((0, HOUR), (10 * S, HOUR - 4 * S)), end_ns=30 * S)
    assert record.find_instants_ns(HOUR + 8 * S) == [8 * S, 12 * S]
    logged = [record.wall_ns(t_ns) for t_ns in (7 * S, 9 * S, 11 * S, 13 * S, 20 * S)]
    assert logged[2] < logged[1]
    assert record.convert_in_order_ns(logged) == [7 * S, 9 * S, 11 * S, 13 * S, 20 * S]


def test_a_wall_time_that_was_skipped_is_that_of_the_step_and_one_of_the_future_stays_there() -> None:
    record = ClockRecord(offsets=((0, 0), (10 * S, HOUR)), end_ns=30 * S)
    assert record.find_instants_ns(HOUR) == [10 * S]
    assert record.find_instants_ns(2 * HOUR) == [HOUR]
    assert record.find_instants_ns(-HOUR) == [-HOUR]


@pytest.mark.parametrize(
    ("window", "step_s"), [((0, 9), 0), ((0, 10), 3600), ((9, 30), -3602), ((11, 30), -3602), ((21, 30), 0)]
)
def test_the_largest_step_within_a_window_counts(window: tuple[int, int], step_s: float) -> None:
    offsets = [(0, 0), (10 * S, HOUR), (15 * S, HOUR + 4_000_000), (20 * S, -2 * S + 4_000_000), (25 * S, -2 * S)]
    assert ClockRecord(offsets=offsets).find_step_s((window[0] * S, window[1] * S)) == step_s


def test_pauses_count_as_far_as_they_lie_in_the_window() -> None:
    record = ClockRecord(pauses=((1 * S, 3 * S), (8 * S, 12 * S)))
    assert record.sum_pauses_s((2 * S, 10 * S)) == 3
    assert record.sum_pauses_s((4 * S, 7 * S)) == 0


def test_steps_of_the_wall_clock_are_seen_with_their_instants(monkeypatch: pytest.MonkeyPatch) -> None:
    real_ns, ahead_ns = time.time_ns, 0
    monkeypatch.setattr(clock.time, "time_ns", lambda: real_ns() + ahead_ns)
    with ClockWatch() as watch:
        time.sleep(0.3)
        begin_ns, ahead_ns = time.monotonic_ns(), HOUR
        time.sleep(0.3)
        ahead_ns = -7 * S
    record = watch.record
    steps = [after - before for (_, before), (_, after) in zip(record.offsets, record.offsets[1:], strict=False)]
    assert steps == pytest.approx([HOUR, -HOUR - 7 * S], abs=S // 1000)
    assert 0 <= record.offsets[1][0] - begin_ns < S
    assert record.pauses == ()


WATCHING = """
import sys, time
from pipeline.observe.clock import ClockWatch
with ClockWatch() as watch:
    print("ready", flush=True)
    sys.stdin.readline()
print(sum(end - begin for begin, end in watch.record.pauses) / 1e9)
"""


@pytest.mark.slow
def test_a_suspension_is_measured_and_a_busy_machine_is_none() -> None:
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2 * (os.cpu_count() or 1))]
    try:
        command = [sys.executable, "-c", WATCHING]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
            assert program.stdin is not None and program.stdout is not None
            assert program.stdout.readline() == "ready\n"
            time.sleep(0.6)
            program.send_signal(signal.SIGSTOP)
            time.sleep(1)
            program.send_signal(signal.SIGCONT)
            time.sleep(0.6)
            program.stdin.write("\n")
            program.stdin.flush()
            paused_s = float(program.stdout.readline())
    finally:
        for process in busy:
            process.kill()
            process.wait()
    assert paused_s == pytest.approx(1, abs=0.3)


def test_samples_are_kept_in_memory_and_in_the_file(tmp_path):
    log = SampleLog(tmp_path / "samples.jsonl")
    samples = [Sample(source="nvml", t_ns=t, values={"power_w": 70.0 + t}, gi_id=t % 2 or None) for t in range(10)]
    for sample in samples:
        log.put(sample)
    assert log.samples == samples
    read = sample_series.read_samples(tmp_path / "samples.jsonl")  # not closed yet: a killed orchestrator loses none
    assert list(read[SeriesKey("nvml", None, None, "power_w")].values) == [70.0, 72.0, 74.0, 76.0, 78.0]
    assert list(read[SeriesKey("nvml", None, 1, "power_w")].t_ns) == [1, 3, 5, 7, 9]
    log.close()


def test_lines_of_several_threads_stay_whole(tmp_path):
    file = SampleLog(tmp_path / "samples.jsonl")

    def write(source: str) -> None:
        for t in range(200):
            file.put(Sample(source=source, t_ns=t, values={"x": float(t)}))

    threads = [threading.Thread(target=write, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    file.close()
    read = sample_series.read_samples(tmp_path / "samples.jsonl")
    assert {origin.source for origin in read} == set("abcd")
    assert all(list(series.t_ns) == list(range(200)) for series in read.values())
