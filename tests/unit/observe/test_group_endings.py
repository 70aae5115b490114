"""Results and reasons in the row of a group, and jobs that never had a process on the GPU."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from listeners.host import find_job
from pipeline.base.domain.marks import Marks
from pipeline.base.domain.records import Result
from pipeline.base.domain.samples import Sample
from pipeline.base.domain.tags import Tag
from pipeline.base.domain.window import Window, WindowKind
from pipeline.base.system.interrupts import Interrupted
from pipeline.launch.interleaving import Slice
from pipeline.launch.job_state import Ending, JobState
from pipeline.observe import endings, group_row
from pipeline.observe.group_result import GroupResult, Observation
from pipeline.observe.idle_power import IdlePower
from pipeline.study import executor, group_execution
from tests.support.rows import FIELDS, S, group, state, steps
from tests.unit.observe.test_group_row import judge


@pytest.mark.parametrize(
    ("changes", "events", "result", "words"),
    [
        ({"status": 3, "bye": None}, [], Result.FAILED, "status 3: the last words"),
        ({"status": -11, "bye": None}, [], Result.FAILED, "signal 11"),
        ({"bye": None}, [], Result.FAILED, "without reporting"),
        ({}, [], Result.FAILED, "lost result"),
        ({"noticed": Ending(Result.TIMEOUT, "did not end")}, [], Result.TIMEOUT, "did not end"),
        ({"noticed": Ending(Result.FAILED, "ended before the request to stop")}, [], Result.FAILED, "request to stop"),
        ({"status": 1}, [("OutOfMemoryError", "CUDA out of memory")], Result.OOM, "CUDA out of memory"),
        ({"status": 1}, [("RuntimeError", "CUDNN_STATUS_ALLOC_FAILED")], Result.OOM, "ALLOC_FAILED"),
        ({"status": 1}, [("NonFiniteLossError", "loss is nan in epoch 1")], Result.FAILED, "nan in epoch 1"),
    ],
)
def test_every_bad_ending_has_its_result_and_its_reason(tmp_path, changes, events, result, words):
    alone = group("a", kind=WindowKind.WORK)
    errors = [{"event": "error", "t_ns": 1, "type": kind, "message": message} for kind, message in events]
    bad = state(tmp_path, alone.jobs[0], [{"event": "started", "t_ns": 0}, *errors], **changes)
    (bad.folder / "stderr.log").write_text("first words\n\nthe last words\n")
    row = judge(tmp_path, alone, bad)
    assert row.result is result
    assert words in row.reason
    assert "throughput_total_samples_per_s" not in row.metrics


SCRIPT_KILLED = {"type": "ScriptError", "message": "t.py was killed by signal 9", "status": 137}
LOADER_KILLED = {"type": "RuntimeError", "message": "DataLoader worker (pid 7) is killed by signal: Killed."}
OTHER_ERROR = {"type": "ValueError", "message": "bad learning rate"}


@pytest.mark.parametrize(
    ("changes", "error", "kills", "result"),
    [
        ({"status": -9}, None, 1, Result.OOM),
        ({"status": 137}, SCRIPT_KILLED, 1, Result.OOM),
        ({"status": 1}, LOADER_KILLED, 1, Result.OOM),
        ({"status": -9}, None, 0, Result.FAILED),
        ({"status": 137}, SCRIPT_KILLED, 0, Result.FAILED),
        ({"status": 1}, OTHER_ERROR, 1, Result.FAILED),  # the kernel killed what is no part of it
        ({"status": -9, "was_signalled": True}, None, 1, Result.INTERRUPTED),
    ],
)
def test_what_the_kernel_kills_for_lack_of_memory_is_out_of_memory(tmp_path, changes, error, kills, result):
    alone = group("a", kind=WindowKind.WORK)
    errors = [{"event": "error", "t_ns": 1, **error}] if error else []
    bad = state(tmp_path, alone.jobs[0], errors, bye=None, oom_kills=3 + kills, **changes)
    bad.started = dataclasses.replace(bad.started, oom_kills=3)
    (job,) = judge(tmp_path, alone, bad).jobs
    assert job.result is result
    assert ("out of memory, killed by the kernel (oom_kill 1 in its cgroup)" in job.reason) == (result is Result.OOM)


def test_a_script_has_the_reason_that_its_output_tells(tmp_path):
    alone = group("a", kind=WindowKind.WORK)
    failed = {"event": "error", "t_ns": 1, "type": "ScriptError", "message": "t.py ended with status 1", "status": 1}
    bad = state(tmp_path, alone.jobs[0], [failed], bye="error", status=1)
    trace = 'Traceback (most recent call last):\n  File "t.py", line 5\n    x()\n    ^^^\nMemoryError: no room'
    (bad.folder / "stderr.log").write_text(f"\x1b[31m{trace}\x1b[0m\nwandb: \nwandb: Find logs at: x\n")
    (job,) = judge(tmp_path, alone, bad).jobs
    assert (job.result, job.reason) == (Result.OOM, "t.py ended with status 1: MemoryError: no room")
    assert job.error_output == tuple(trace.splitlines())


def test_a_server_that_ended_has_the_reason_that_its_output_tells(tmp_path):
    alone = group("a", kind=WindowKind.WORK)
    message = "the server ended with status 1: serve model"
    failed = {"event": "error", "t_ns": 1, "type": "ServerEndedError", "message": message}
    bad = state(tmp_path, alone.jobs[0], [failed], bye="error", status=1)
    trace = 'Traceback (most recent call last):\n  File "t.py", line 5\n'
    server_error = f"{trace}torch.OutOfMemoryError: CUDA out of memory\n"
    (bad.folder / "stderr.log").write_text(f"{server_error}{trace}workloads.ask_server.ServerEndedError: {message}\n")
    (job,) = judge(tmp_path, alone, bad).jobs
    assert (job.result, job.reason) == (Result.OOM, f"{message}: torch.OutOfMemoryError: CUDA out of memory")


def test_the_job_that_failed_names_the_result_not_those_that_were_ended_for_it(tmp_path):
    pair = group("a", "b")
    ended = state(tmp_path, pair.jobs[0], steps(0, 1, 0.1, 1), status=-15, bye=None, was_signalled=True)
    oom = state(
        tmp_path,
        pair.jobs[1],
        [{"event": "error", "t_ns": 1, "type": "OutOfMemoryError", "message": "no"}],
        status=1,
    )
    row = judge(tmp_path, pair, ended, oom)
    assert row.result is Result.OOM
    assert row.reason.startswith("job 1-b")
    assert [job.result for job in row.jobs] == [Result.INTERRUPTED, Result.OOM]


def test_a_failure_outside_the_jobs_makes_the_row_fail(tmp_path):
    alone = group("a")
    good = state(tmp_path, alone.jobs[0], steps(0, 11, 0.5, 1), told_ns=11 * S)
    assert judge(tmp_path, alone, good).result is Result.OK
    row = judge(tmp_path, alone, good, reason="listener nvml stopped")
    assert (row.result, row.reason) == (Result.FAILED, "listener nvml stopped")
    assert judge(tmp_path, alone, good, interrupted=True).result is Result.INTERRUPTED


def test_a_script_tells_its_out_of_memory_in_its_own_words(tmp_path):
    alone = group("a", kind=WindowKind.WORK)
    error = {"event": "error", "t_ns": 1, "type": "ScriptError", "message": "train.py ended with status 1"}
    bad = state(tmp_path, alone.jobs[0], [{"event": "started", "t_ns": 0}, error], status=1)
    (bad.folder / "stderr.log").write_text("torch.OutOfMemoryError: CUDA out of memory.\n")
    assert judge(tmp_path, alone, bad).result is Result.OOM


def test_a_script_that_was_ended_because_another_failed_is_not_blamed(tmp_path):
    pair = group("a", "b", kind=WindowKind.WORK)
    started = {"event": "started", "t_ns": 0}
    errors = [
        {"event": "error", "t_ns": 1, "type": "ScriptError", "message": f"train.py {how}", "status": status}
        for how, status in (("was killed by signal 15", 143), ("ended with status 3", 3))
    ]
    failed = state(tmp_path, pair.jobs[1], [started, errors[1]], status=3, bye=None)
    for status in (143, -9):  # its runner came to its end, or was killed before
        ended = state(tmp_path, pair.jobs[0], [started, errors[0]], status=status, bye=None, was_signalled=True)
        row = judge(tmp_path, pair, ended, failed)
        assert row.result is Result.FAILED and "ended with status 3" in row.reason
        assert [job.result for job in row.jobs] == [Result.INTERRUPTED, Result.FAILED]
        assert row.jobs[0].reason == "ended because the group failed"
    # Nobody signalled it: then the signal is what it failed of.
    alone = state(tmp_path / "alone", pair.jobs[0], [started, errors[0]], status=143, bye=None)
    assert "killed by signal 15" in judge(tmp_path, pair, alone, failed).jobs[0].reason


WRONG = {
    "event": "wrong",
    "what": "mm of 1x4096 by 4096x4096 in bfloat16: off by inf times the expected rounding error",
}


def test_what_a_job_finds_wrong_is_kept_and_shown_but_not_ok(tmp_path):
    pair = group("a", "b")
    events = [WRONG, WRONG, *steps(0, 11, 0.5, 4)]
    states = [
        state(tmp_path, pair.jobs[0], steps(0, 11, 0.5, 4), told_ns=11 * S),
        state(tmp_path, pair.jobs[1], events, told_ns=11 * S),
    ]
    row = judge(tmp_path, pair, *states)
    assert row.result is Result.WRONG_RESULTS
    assert row.reason.startswith("job 1-b: computes wrong results: mm of 1x4096 by 4096x4096 in bfloat16")
    assert row.reason.endswith("(and 1 more)")
    assert [job.result for job in row.jobs] == [Result.OK, Result.WRONG_RESULTS]
    assert row.metrics["throughput_total_samples_per_s"] == pytest.approx(16)


@pytest.mark.parametrize(
    ("error", "result"),
    [("NonFiniteLossError", Result.WRONG_RESULTS), ("OutOfMemoryError", Result.OOM), ("ValueError", Result.FAILED)],
)
def test_wrong_results_explain_a_loss_that_is_no_number_and_nothing_else(tmp_path, error, result):
    alone = group("a")
    events = [WRONG, {"event": "error", "type": error, "message": "m", "traceback": ""}]
    row = judge(tmp_path, alone, state(tmp_path, alone.jobs[0], events, bye="error", status=1))
    assert row.result is result


def test_the_first_losses_stay_with_the_row(tmp_path):
    alone = group("a")
    losses = [{"event": "metric", "name": "first_loss", "t_ns": S, "step": i, "value": 2.0 - i} for i in (1, 0)]
    row = judge(tmp_path, alone, state(tmp_path, alone.jobs[0], [*losses, *steps(0, 11, 0.5, 4)], told_ns=11 * S))
    assert row.tags["collocation.first_losses"] == '{"0": [2.0, 1.0]}'


def test_the_first_thing_that_is_noticed_of_a_job_is_its_ending(tmp_path):
    alone = group("a")
    bad = state(tmp_path, alone.jobs[0], [{"event": "started", "t_ns": 0}], status=-9, was_signalled=True)
    bad.notice(Result.OOM, "no room")
    bad.notice(Result.FAILED, "ended too early")
    assert bad.went_wrong and not bad.ended_well
    row = judge(tmp_path, alone, bad)
    assert (row.result, row.reason) == (Result.OOM, "job 0-a: no room")


def test_a_job_that_never_ran_has_the_result_of_its_group_and_never_ok():
    assert endings.judge_absent_job(Result.OOM).result is Result.OOM
    assert endings.judge_absent_job(Result.OK).result is Result.FAILED


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
def ended_group(tmp_path, monkeypatch):
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


def test_a_signal_while_a_row_is_judged_makes_it_interrupted_and_keeps_what_was_written(ended_group, monkeypatch):
    def judge(*_):
        if not ended_group.closed and not hasattr(ended_group, "was_signalled"):
            ended_group.was_signalled = True
            raise Interrupted(15)
        return real(*_)

    real = group_row.judge
    monkeypatch.setattr(group_row, "judge", judge)
    with pytest.raises(Interrupted):
        next(executor.run([ended_group.group], ended_group.resources))
    (row,) = ended_group.closed
    assert row.result is Result.INTERRUPTED and row.spool_id == "id"
    assert row.jobs[0].metrics["throughput_samples_per_s"] == pytest.approx(20), "so little is read at once"


def test_after_a_signal_what_takes_long_is_not_read(ended_group, monkeypatch):
    monkeypatch.setattr(group_execution, "_SMALL_BYTES", 100)

    def judge(*_):
        raise Interrupted(15)

    monkeypatch.setattr(group_row, "judge", judge)
    with pytest.raises(Interrupted):
        next(executor.run([ended_group.group], ended_group.resources))
    (row,) = ended_group.closed
    assert (row.result, row.reason) == (Result.INTERRUPTED, "interrupted by a signal")
    assert [(job.result, job.exit_status, job.metrics) for job in row.jobs] == [(Result.INTERRUPTED, 0, {})]


def test_a_row_that_is_not_interrupted_is_judged_once(ended_group, capsys, monkeypatch):
    monkeypatch.setattr(group_execution, "_LARGE_BYTES", 100)
    row = next(executor.run([ended_group.group], ended_group.resources))
    assert [row] == ended_group.closed and row.result is Result.OK
    assert "naive-a: reading 0.0 GB of job output" in capsys.readouterr().err
    assert os.path.getsize(ended_group.job.folder / "events.jsonl") == ended_group.job.bytes_to_read


def test_all_rows_of_a_launch_are_judged_before_the_first_is_sent_with_the_files_of_its_jobs(ended_group, monkeypatch):
    """The sender moves the files of a closed record."""
    order = []

    def run(self):
        self.batches, self.fields, self.slices = (
            [[ended_group.job]],
            FIELDS,
            [Slice(num_jobs=1, begin_ns=S, end_ns=2 * S)],
        )

    def judge(group, seen):
        order.append(f"judge {group.name}")
        return real(group, seen)

    def close(row):
        order.append(f"close {row.group.name}")

    real = group_row.judge
    monkeypatch.setattr(group_execution.GroupExecution, "run", run)
    monkeypatch.setattr(group_row, "judge", judge)
    with ended_group.resources.spool.open(None) as record:
        record.close, record.place = close, lambda _: None
    window = Window(kind=WindowKind.INTERLEAVED, seconds=1, slice_s=1)
    launch = [
        dataclasses.replace(ended_group.group, name=name, window=window, launch="a") for name in ("first", "second")
    ]
    assert [row.group.name for row in executor.run(launch, ended_group.resources)] == ["first", "second"]
    assert order == ["judge first", "judge second", "close first", "close second"]


TEXT = "no process of 1-b was on the GPU; check that the program finds CUDA"


def judge_num_processes(tmp_path, counts, *, of_gpu=True, **changes):
    """Two jobs on a GPU; `counts` are the readings of the second one's processes."""
    pair = group("a", "b", **changes)
    if not of_gpu:
        pair = dataclasses.replace(pair, device=dataclasses.replace(pair.device, kind="simulated"))
    states = [state(tmp_path, job, steps(0, 20, 0.1, 1), told_ns=12 * S) for job in pair.jobs]
    samples = [Sample(source="nvml", t_ns=t * S, values={"gpu_num_processes": 1.0}, job=0) for t in range(2, 6)]
    samples += [
        Sample(source="nvml", t_ns=t * S, values={"gpu_num_processes": num}, job=1) for t, num in enumerate(counts, 2)
    ]
    return group_row.judge(pair, Observation(batches=[states], samples=samples, fields=FIELDS)).marks


@pytest.mark.parametrize(
    ("counts", "invalid", "note"),
    [
        ((0.0, 0.0, 0.0), TEXT, ""),
        ((0.0, 0.0, 2.0), "", ""),  # a child of the job
        ((0.0, 0.0), "", TEXT),  # too few readings
        ((), "", ""),  # the list cannot be read, or nobody read it
    ],
)
def test_a_job_that_was_never_on_the_gpu_makes_its_row_invalid(tmp_path, counts, invalid, note):
    marks = judge_num_processes(tmp_path, counts)
    assert (marks.invalid, marks.note) == (invalid, note)


@pytest.mark.parametrize("scenario", ["mps", "mps_percent", "streams", "a_mode_of_a_user"])
def test_it_is_a_note_where_the_list_may_lack_a_job(tmp_path, scenario):
    marks = judge_num_processes(tmp_path, (0.0,) * 5, scenario=scenario)
    assert (marks.invalid, marks.note) == ("", TEXT)


def test_jobs_on_a_simulated_gpu_run_on_the_cpu(tmp_path):
    assert not judge_num_processes(tmp_path, (0.0,) * 5, of_gpu=False).text


def test_jobs_in_one_process_are_on_the_gpu_together(tmp_path):
    """Their processes are counted for the first of them."""
    assert not judge_num_processes(tmp_path, (), scenario="streams").text


def test_the_health_of_the_gpu_marks_the_row(tmp_path):
    alone = group("a")
    states = [state(tmp_path, alone.jobs[0], steps(0, 20, 0.1, 1), told_ns=12 * S)]
    health = Marks("2 uncorrected ECC errors while the jobs ran", "rows are pending for remapping")
    row = group_row.judge(alone, Observation(batches=[states], samples=(), fields=FIELDS, device_marks=health))
    assert row.marks == health


HOST = {"cpu_pct": 120.0, "process_cpu_pct": 120.0, "run_queue_delay_pct": 30.0, "pss_peak_mib": 900.0}


def sample(job: int, **values: float) -> list[Sample]:
    return [Sample(source="host", t_ns=t * S, values=values, job=job) for t in (1, 2, 4, 6, 8, 10, 11)]


def judge_tenants(folder: Path, *, is_one_process: bool, samples: list[Sample]) -> GroupResult:
    pair = group("a", "b")
    states: list[JobState] = []
    for job in pair.jobs:
        tenant = state(folder, job, steps(0, 11.5, 0.5, 50), told_ns=11 * S)
        if is_one_process:
            started = dataclasses.replace(tenant.started, process=dataclasses.replace(tenant.started.process, pid=100))
            tenant = dataclasses.replace(tenant, host_folder=folder, started=started)
        states.append(tenant)
    return group_row.judge(pair, Observation(batches=[states], samples=samples, fields=FIELDS))


def test_figures_of_a_process_are_those_of_the_group_and_not_of_a_job(tmp_path: Path) -> None:
    row = judge_tenants(tmp_path, is_one_process=True, samples=sample(0, **HOST))
    assert row.metrics["host_cpu_total_pct"] == row.metrics["process_cpu_mean_pct"] == pytest.approx(120.0)
    assert row.metrics["host_memory_total_mib"] == 900.0
    assert not any("cpu" in name or "memory" in name for job in row.jobs for name in job.metrics)
    assert (
        "memory of the driver and the host, CPU time and exit status are those of the process"
        in row.tags[Tag.ONE_PROCESS]
    )


def test_figures_of_processes_are_added_for_the_group(tmp_path: Path) -> None:
    row = judge_tenants(tmp_path, is_one_process=False, samples=[*sample(0, **HOST), *sample(1, **HOST)])
    assert row.metrics["host_cpu_total_pct"] == pytest.approx(240.0)
    assert row.metrics["host_memory_total_mib"] == 1800.0
    assert [job.metrics["host_memory_peak_mib"] for job in row.jobs] == [900.0, 900.0]
    assert Tag.ONE_PROCESS not in row.tags


def test_a_total_needs_the_figure_of_every_process(tmp_path: Path) -> None:
    row = judge_tenants(tmp_path, is_one_process=False, samples=sample(0, **HOST))
    assert not {"host_cpu_total_pct", "host_memory_total_mib"} & row.metrics.keys()


def test_the_samples_of_a_process_are_those_of_its_first_job() -> None:
    pid = os.getpid()
    assert find_job(pid, {3: pid, 4: pid, 5: pid}) == 3


def test_load_of_other_programs_is_seen_in_the_process_of_all_jobs(tmp_path: Path) -> None:
    machine = [Sample(source="host", t_ns=t * S, values={"busy_cpus": 8.0, "idle_cpus": 0.0}) for t in range(12)]
    waiting = sample(0, **HOST | {"cpu_pct": 100.0, "run_queue_delay_pct": 60.0})
    row = judge_tenants(tmp_path, is_one_process=True, samples=[*waiting, *machine])
    assert row.marks.invalid.startswith(
        "job 0-a waited for a CPU for 38 % of the time while other programs used 7.0 of 8"
    )
