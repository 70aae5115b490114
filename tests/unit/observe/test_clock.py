"""The clocks while a group runs, and files that changed in the meantime."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from pipeline.base.domain.samples import Sample
from pipeline.base.domain.window import WindowKind
from pipeline.base.domain.workload import Source
from pipeline.launch.events import Events
from pipeline.observe import changed_files, clock, group_row
from pipeline.observe.changed_files import Changes
from pipeline.observe.clock import ClockRecord, ClockWatch
from pipeline.observe.group_result import Observation
from pipeline.observe.sample_figures import SampleLog
from pipeline.record import sample_series
from pipeline.record.sample_series import SeriesKey
from tests.support.rows import S, group, state

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


CLOCK = ClockRecord(offsets=((0, 1_000_000 * S),))


def test_what_changed_is_found_but_nothing_hidden_old_or_of_ours(tmp_path):
    for name in (
        "new.pt",
        "deep/er/new.csv",
        "old.pt",
        ".git/index",
        "__pycache__/a.pyc",
        "mlruns/spool/x",
        "machine.json",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
        os.utime(tmp_path / name, ns=(0, get_wall_ns(5 if name == "old.pt" else 20)))
    (tmp_path / "linked").symlink_to(tmp_path / "deep")
    with (tmp_path / "messages.log").open("w") as messages:
        status = os.fstat(messages.fileno())
    ignored_paths = {tmp_path / "mlruns", tmp_path / "machine.json"}
    changed = changed_files.find_changes(
        tmp_path, 10 * S, CLOCK, without=ignored_paths, inodes={(status.st_dev, status.st_ino)}
    )
    assert changed.files == {tmp_path / "new.pt": get_wall_ns(20), tmp_path / "deep/er/new.csv": get_wall_ns(20)}
    assert changed.is_whole


def test_no_more_than_some_entries_are_looked_at_the_nearest_first(tmp_path, monkeypatch):
    monkeypatch.setattr(changed_files, "_MAX_ENTRIES", 3)
    (tmp_path / "a/b").mkdir(parents=True)
    for name in ("near", "a/far", "a/b/farthest"):
        (tmp_path / name).write_text("x")
    changed = changed_files.find_changes(tmp_path, 0, CLOCK, without=())
    assert tmp_path / "near" in changed.files and not changed.is_whole


@pytest.fixture
def pair(tmp_path):
    """Two scripts that ran from 0 s to 100 s; the second was process 4711."""
    both = group("a", "b", kind=WindowKind.WORK)
    states = [state(tmp_path, job, [{"event": "started", "t_ns": 0}]) for job in both.jobs]
    (states[1].folder / "events.jsonl").open("a").write('{"event":"process","t_ns":1,"pid":4711}\n')
    return both, states


def get_wall_ns(seconds: int) -> int:
    return CLOCK.wall_ns(seconds * S)


def test_a_file_that_two_jobs_may_have_written_is_named_in_the_row(tmp_path, pair):
    both, states = pair
    files = {
        tmp_path / "x/model.pt": get_wall_ns(50),
        tmp_path / "events.out.tfevents.170.my.host.4711.0": get_wall_ns(50),
    }
    seen = Observation(
        batches=[states],
        samples=(),
        changed=Changes(folder=tmp_path, files=files, is_whole=True),
        clock=CLOCK,
    )
    row = group_row.judge(both, seen)
    assert row.tags["collocation.shared_files"] == "changed while 2 jobs ran: x/model.pt"


@pytest.mark.parametrize(
    ("args", "texts", "is_shared"),
    [
        ((), ("open('result.json', 'w')", "open('log.txt', 'w')"), False),
        ((), ("open('result.json', 'w')", "json.load(open('result.json'))"), True),
        (("--out=result.json",), ("open(args.out, 'w')", "json.load(open('result.json'))"), True),
        (("--out", "result.json"), ("open(args.out, 'w')", None), False),
    ],
)
def test_different_programs_share_a_file_that_both_name(tmp_path, pair, args, texts, is_shared):
    _, states = pair
    for job_state, text, own_args in zip(states, texts, (args, ()), strict=True):
        script = tmp_path / f"{job_state.job.index}.py"
        if text is not None:  # else the script is gone by now
            script.write_text(text)
        workload = dataclasses.replace(
            job_state.job.workload,
            script=str(script),
            argv=(str(script), *own_args),
            sources=(Source(name=script.name, path=str(script), digest=""),),
        )
        job_state.job = dataclasses.replace(job_state.job, workload=workload)
    description = changed_files.describe_shared(tmp_path, {tmp_path / "result.json": None}, states)
    assert description == ("changed while 2 jobs ran: result.json" if is_shared else "")


def test_numbers_in_the_name_of_a_file_are_of_no_account(tmp_path, pair):
    _, states = pair
    for job_state in states:
        argv = (f"{job_state.job.index}.py", "--save=epoch{}.pt")
        workload = dataclasses.replace(job_state.job.workload, script=argv[0], argv=argv, sources=())
        job_state.job = dataclasses.replace(job_state.job, workload=workload)
    assert changed_files.describe_shared(tmp_path, {tmp_path / "epoch12.pt": None}, states).endswith(": epoch12.pt")
    assert not changed_files.describe_shared(tmp_path, {tmp_path / "epochs.csv": None}, states)


def test_jobs_in_folders_of_their_own_share_no_files(tmp_path, pair):
    _, states = pair
    apart = dataclasses.replace(states[1].job.workload, is_in_own_folder=True)
    states[1].job = dataclasses.replace(states[1].job, workload=apart)
    assert changed_files.describe_shared(tmp_path, {tmp_path / "model.pt": None}, states) == ""


@pytest.mark.parametrize(
    ("name", "is_shared"),
    [
        ("model.pt", True),
        ("runs/resnet18.pt", True),
        ("result-1.json", False),  # the number of the job
        ("101.log", False),  # its PID
        ("events.out.tfevents.1.h.101.0", False),
    ],
)
def test_copies_share_a_file_that_the_last_of_them_wrote_last(tmp_path, name, is_shared):
    both = group("a", "a", kind=WindowKind.WORK)
    states = [state(tmp_path, job, [{"event": "started", "t_ns": 0}]) for job in both.jobs]
    states[0].ended.at_ns = 40 * S
    changed = Changes(folder=tmp_path, files={tmp_path / name: get_wall_ns(50)}, is_whole=True)
    whose = changed_files.find_owners(changed, states, {0: Events(), 1: Events()}, CLOCK)
    assert list(whose.values()) == [1]
    shared = changed_files.describe_shared(tmp_path, whose, states)
    assert shared == (f"changed while 2 jobs ran: {name}" if is_shared else "")


def test_whose_a_file_is_follows_from_the_process_in_its_name_or_from_who_ran_alone(tmp_path, pair):
    _, states = pair
    states[0].ended.at_ns = 40 * S
    files = {
        tmp_path / "early": get_wall_ns(30),
        tmp_path / "late": get_wall_ns(50),
        tmp_path / "events.out.tfevents.1.h.4711.0": get_wall_ns(30),
    }
    logs = {0: Events(), 1: Events(processes=[4711])}
    changed = Changes(folder=tmp_path, files=files, is_whole=True)
    whose = changed_files.find_owners(changed, states, logs, CLOCK)
    assert list(whose.values()) == [None, 1, 1]
