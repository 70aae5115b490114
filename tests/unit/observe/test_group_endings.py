"""Results and reasons in the row of a group, and the causes of failures in the output of programs."""

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
from pipeline.launch import event_reader
from pipeline.launch.interleaving import Slice
from pipeline.launch.job_state import Ending, JobState
from pipeline.observe import causes, endings, group_row
from pipeline.observe.causes import Cause
from pipeline.observe.group_result import GroupResult
from pipeline.observe.idle_power import IdlePower
from pipeline.study import executor, group_execution
from tests.support.rows import FIELDS, S, group, judge, judge_events, state, steps
from tests.support.tables import read_texts, rows


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
    row = judge(alone, bad)
    assert row.result is result
    assert words in row.reason
    assert "throughput_total_samples_per_s" not in row.metrics


def test_a_failed_program_without_error_output_is_quoted_from_stdout(tmp_path):
    alone = group("a", kind=WindowKind.WORK)
    bad = state(tmp_path, alone.jobs[0], [{"event": "started", "t_ns": 0}], status=1)
    (bad.folder / "stdout.log").write_text("step 1\nno such data set\n")
    assert judge(alone, bad).jobs[0].error_output[-1] == "stdout: no such data set"


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
    (job,) = judge(alone, bad).jobs
    assert job.result is result
    assert ("out of memory, killed by the kernel (oom_kill 1 in its cgroup)" in job.reason) == (result is Result.OOM)


def test_a_script_has_the_reason_that_its_output_tells(tmp_path):
    alone = group("a", kind=WindowKind.WORK)
    failed = {"event": "error", "t_ns": 1, "type": "ScriptError", "message": "t.py ended with status 1", "status": 1}
    bad = state(tmp_path, alone.jobs[0], [failed], bye="error", status=1)
    trace = 'Traceback (most recent call last):\n  File "t.py", line 5\n    x()\n    ^^^\nMemoryError: no room'
    (bad.folder / "stderr.log").write_text(f"\x1b[31m{trace}\x1b[0m\nwandb: \nwandb: Find logs at: x\n")
    (job,) = judge(alone, bad).jobs
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
    (job,) = judge(alone, bad).jobs
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
    row = judge(pair, ended, oom)
    assert row.result is Result.OOM
    assert row.reason.startswith("job 1-b")
    assert [job.result for job in row.jobs] == [Result.INTERRUPTED, Result.OOM]


def test_a_failure_outside_the_jobs_makes_the_row_fail(tmp_path):
    alone = group("a")
    good = state(tmp_path, alone.jobs[0], steps(0, 11, 0.5, 1), told_ns=11 * S)
    assert judge(alone, good).result is Result.OK
    row = judge(alone, good, reason="listener nvml stopped")
    assert (row.result, row.reason) == (Result.FAILED, "listener nvml stopped")
    assert judge(alone, good, interrupted=True).result is Result.INTERRUPTED


def test_a_script_tells_its_out_of_memory_in_its_own_words(tmp_path):
    alone = group("a", kind=WindowKind.WORK)
    error = {"event": "error", "t_ns": 1, "type": "ScriptError", "message": "train.py ended with status 1"}
    bad = state(tmp_path, alone.jobs[0], [{"event": "started", "t_ns": 0}, error], status=1)
    (bad.folder / "stderr.log").write_text("torch.OutOfMemoryError: CUDA out of memory.\n")
    assert judge(alone, bad).result is Result.OOM


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
        row = judge(pair, ended, failed)
        assert row.result is Result.FAILED and "ended with status 3" in row.reason
        assert [job.result for job in row.jobs] == [Result.INTERRUPTED, Result.FAILED]
        assert row.jobs[0].reason == "ended because the group failed"
    # Nobody signalled it: then the signal is what it failed of.
    alone = state(tmp_path / "alone", pair.jobs[0], [started, errors[0]], status=143, bye=None)
    assert "killed by signal 15" in judge(pair, alone, failed).jobs[0].reason


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
    row = judge(pair, *states)
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
    row = judge(alone, state(tmp_path, alone.jobs[0], events, bye="error", status=1))
    assert row.result is result


def test_the_first_losses_stay_with_the_row(tmp_path):
    losses = [{"event": "metric", "name": "first_loss", "t_ns": S, "step": i, "value": 2.0 - i} for i in (1, 0)]
    row = judge_events(tmp_path, group("a"), [*losses, *steps(0, 11, 0.5, 4)])
    assert row.tags["collocation.first_losses"] == '{"0": [2.0, 1.0]}'


def test_the_first_thing_that_is_noticed_of_a_job_is_its_ending(tmp_path):
    alone = group("a")
    bad = state(tmp_path, alone.jobs[0], [{"event": "started", "t_ns": 0}], status=-9, was_signalled=True)
    bad.notice(Result.OOM, "no room")
    bad.notice(Result.FAILED, "ended too early")
    assert bad.went_wrong and not bad.ended_well
    row = judge(alone, bad)
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
    resources = SimpleNamespace(
        spool=SimpleNamespace(open=open_spool), idle_power=IdlePower(), patterns={}, whole_run_s=0.0
    )
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
    return judge(pair, *states, samples=samples).marks


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
    row = judge(alone, *states, device_marks=health)
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
    return judge(pair, *states, samples=samples)


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
        "a job waited for a CPU for 38 % of the time while other programs used 7.0 of 8"
    )


TEXTS = read_texts("causes")
TRACE, FAILED, STEPS, CUDA_OOM = TEXTS["TRACE"], TEXTS["FAILED"], TEXTS["STEPS"], f"{TEXTS['CUDA_OOM']}\n"
OF_TORCHRUN, OF_ACCELERATE, OF_OPEN_MPI = TEXTS["OF_TORCHRUN"], TEXTS["OF_ACCELERATE"], TEXTS["OF_OPEN_MPI"]
RECORDED = Path(__file__).resolve().parents[2] / "data" / "failed_programs"
SCIENTIFIC = ("OF_IPYTHON", "OF_OPEN_MPI", "OF_MPICH", "OF_SIGNAL")
FOOTERS = {
    **{name: text for name, text in TEXTS.items() if name.startswith("OF_") and name not in SCIENTIFIC},
    "Slurm": "srun: error: n01: task 0: Exited with exit code 1\n",
    "make": "make: *** [Makefile:3: train] Error 1\n",
    "shell": "training failed, see above\n",
    "log": "INFO:root:closing files\nINFO:root:bye\n",
    "destructor": f"Exception ignored in: <function A.__del__>\n{TRACE}OSError: of a destructor\n",
    "Hydra and wandb": TEXTS["OF_HYDRA"] + TEXTS["OF_WANDB"],
    "torchrun and Slurm": f"{OF_TORCHRUN}srun: error: n01: task 0: Exited with exit code 1\n",
}


@pytest.fixture
def judge_texts(tmp_path):
    """Causes read from error output and output."""

    def judge(stderr: str, stdout: str = "") -> Cause:
        (tmp_path / "stderr.log").write_text(stderr, encoding="utf-8", newline="")
        (tmp_path / "stdout.log").write_text(stdout, encoding="utf-8", newline="")
        return causes.judge_output(tmp_path / "stderr.log", tmp_path / "stdout.log")

    return judge


@rows("causes", "recorded_programs")
def test_what_real_programs_wrote_names_their_error(program, text, is_oom):
    cause = causes.judge_output(RECORDED / f"{program}.txt", RECORDED / "nothing")
    assert (cause.text, cause.is_oom, cause.has_kill) == (text, is_oom, "killed" in program)


@pytest.mark.parametrize("footer", FOOTERS.values(), ids=FOOTERS)
def test_below_every_footer_the_error_is_found(judge_texts, footer):
    failed = judge_texts(FAILED + footer)
    assert (failed.text, failed.is_oom) == ("ValueError: bad learning rate", False)
    of_memory = judge_texts(f"{TRACE}{CUDA_OOM}{footer}")
    assert of_memory.is_oom and of_memory.text == CUDA_OOM.strip()


def test_a_footer_that_is_all_there_is_is_said(judge_texts):
    message = "wandb: ERROR api_key not configured (no-tty). call wandb.login(key=[your_api_key])"
    assert judge_texts(f"{message}\nwandb: Find logs at: x\n") == Cause(message)
    assert judge_texts("") == judge_texts("=====\n\n-----\n") == Cause()


def add_prefix(prefix: str, text: str) -> str:
    return "".join(f"{prefix}{line}\n" for line in text.splitlines())


@rows("causes", "forms_of_exceptions")
def test_the_exception_is_found_in_every_form(judge_texts, text):
    assert judge_texts(text).text == judge_texts("", text).text == "ValueError: bad learning rate"


@rows("causes", "other_ends")
def test_other_ends_are_said_in_a_line(judge_texts, text, message):
    assert judge_texts(text) == Cause(message)


def test_of_several_ranks_the_first_to_fail_counts_and_not_those_that_lost_their_connection(judge_texts):
    second = f"{TRACE}RuntimeError: [../third_party/gloo/pair.cc:534] Connection closed by peer [127.0.0.1]:1\n"
    ranks = add_prefix("[rank0]: ", FAILED) + add_prefix("[rank1]: ", second)
    assert (
        judge_texts(ranks + OF_TORCHRUN).text
        == judge_texts(FAILED + second + OF_TORCHRUN).text
        == "ValueError: bad learning rate"
    )
    assert judge_texts(add_prefix("[rank1]: ", second) + add_prefix("[rank0]: ", TRACE + CUDA_OOM)).is_oom


@rows("causes", "out_of_memory")
def test_out_of_memory_in_the_words_of_each_library(judge_texts, error):
    forms = [error, f"{error}\n", f"starting\n{error}\nExiting.\n", f"{error}\n{OF_ACCELERATE}"]
    is_exception = error.partition(":")[0].endswith("Error")
    for text in (*forms, *([TRACE + error, f"{TRACE}{error}\n{OF_TORCHRUN}"] if is_exception else [])):
        assert judge_texts(text) == judge_texts("", text) == Cause(error, is_oom=True), text


@rows("causes", "out_of_memory_in_lines")
def test_out_of_memory_over_several_lines(judge_texts, text):
    assert judge_texts(text).is_oom and judge_texts("", text).is_oom


@rows("causes", "memory_only_mentioned")
def test_a_mention_of_memory_is_not_the_cause_of_another_failure(judge_texts, text, message):
    for cause in (judge_texts(text), judge_texts(text, "out of memory once, going on\nstep 1\n")):
        assert not cause.is_oom and cause.text.startswith(message), cause


def test_output_tells_where_error_output_does_not(judge_texts):
    warning = "/venv/x.py:3: UserWarning: deprecated\n  warnings.warn('deprecated')\n"
    assert judge_texts(warning, "begin\nCUDA error: out of memory\n") == Cause("CUDA error: out of memory", is_oom=True)
    assert judge_texts("error: bad learning rate\n", "CUDA error: out of memory\n") == Cause("error: bad learning rate")
    assert judge_texts(warning, f"{STEPS}").text.startswith("/venv/x.py")


def test_a_reported_exception_has_its_chain_and_one_line():
    trace = f"{TRACE}{CUDA_OOM}\nThe above exception was the direct cause of the following exception:\n\n{FAILED}"
    cause = causes.judge_exception("ValueError", "bad learning rate\nof two lines", trace)
    assert cause.is_oom and cause.text == f"ValueError: bad learning rate, from {CUDA_OOM.strip()[:200]}"
    assert causes.judge_exception("RuntimeError", "CUDNN_STATUS_ALLOC_FAILED").is_oom
    assert causes.judge_exception("MemoryError", "") == Cause("MemoryError", is_oom=True)
    assert causes.judge_exception("KeyError", "'out of memory'") == Cause("KeyError: 'out of memory'")
    assert len(causes.judge_exception("ValueError", "x" * 4000).text) == 500


@pytest.mark.parametrize(
    "text",
    [
        TRACE * 3000,
        FAILED * 3000,
        f"{FAILED}\nDuring handling of the above exception, another exception occurred:\n\n" * 1500,
        "  + Exception Group Traceback (most recent call last):\n  | ExceptionGroup: x\n  +-+---------------- 1 -----\n"
        * 1500,
        "".join(
            f"{' ' * (2 + 2 * depth)}| Traceback (most recent call last):\n{' ' * (2 + 2 * depth)}| ExceptionGroup: x\n"
            for depth in range(800)
        ),
        "out of memory " * 20_000,
        "\x1b[" * 100_000,
        " " * 300_000,
        "5%|" * 100_000,
    ],
    ids=range(9),
)
def test_whatever_a_program_writes_is_looked_at_in_bounded_time(judge_texts, text):
    cause = judge_texts(text)
    assert len(cause.text) <= 500 and "\x1b" not in cause.text


def test_a_line_tells_that_the_program_goes_on():
    assert causes.is_recovery("CUDA out of memory. Retrying with half of it")
    assert not causes.is_recovery("CUDA out of memory. Try reducing batch_size")
    assert causes.is_memory_line("CUDA out of memory. Try reducing batch_size")


@rows("causes", "remedies")
def test_failures_of_sharing_have_a_remedy(tmp_path, printed, remedy):
    written = f"{TRACE}{printed}\n"
    (tmp_path / "stderr.log").write_text(written)
    (tmp_path / "stdout.log").write_text("")
    cause = causes.judge_output(tmp_path / "stderr.log", tmp_path / "stdout.log")
    kind = printed.split(":")[0]
    assert cause.text.startswith(kind) and f"; {remedy}" in cause.text
    assert f"; {remedy}" in causes.judge_exception("RuntimeError", printed).text


def test_other_failures_have_no_remedy():
    assert causes.judge_exception("ValueError", "invalid literal for int() with base 10: 'x'").text.count(";") == 0


@rows("causes", "scientific_codes")
def test_scientific_codes_say_the_cause_before_their_last_lines(judge_texts, text, message):
    for cause in (
        judge_texts(text),
        judge_texts("", text),
        judge_texts(text + OF_ACCELERATE),
        judge_texts(OF_OPEN_MPI, text),
    ):
        assert cause.is_oom and cause.text.startswith(message), cause


@rows("causes", "memory_recovered")
def test_memory_that_ran_out_earlier_is_not_the_cause(judge_texts, text, message):
    cause = judge_texts(text)
    assert not cause.is_oom and cause.text.startswith(message), cause


IN_VLLM = f"EngineCore failed to start.\n{TRACE}ValueError: {{}}\n"
OF_ITS_PARENT = (
    f"{TRACE}RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {{}}\n"
)
FREE = (
    "Free memory on device (31.4/47.4 GiB) on startup is less than desired GPU memory utilization (0.95, 45.0 GiB). "
    "Decrease GPU memory utilization or reduce GPU memory used by other processes."
)
KV_CACHE = (
    "To serve at least one request with the models's max seq len (32768), (4.00 GiB KV cache is needed, which is "
    "larger than the available KV cache memory (1.20 GiB)."
)


@pytest.mark.parametrize("message", [FREE, KV_CACHE, "No available memory for the cache blocks."])
@pytest.mark.parametrize(
    ("child", "parent"),
    [
        ("ERROR 11-28 14:00:01 [core.py:515] ", ""),
        ("(EngineCore_0 pid=77) ERROR 11-28 14:00:01 [core.py:718] ", "(APIServer pid=70) "),
    ],
)
def test_the_cause_in_an_engine_process_of_vllm_is_found(judge_texts, message, child, parent):
    written = add_prefix(child, IN_VLLM.format(message)) + add_prefix(parent, OF_ITS_PARENT)
    assert judge_texts(written) == Cause(f"ValueError: {message}", is_oom=True)
    other = add_prefix(child, IN_VLLM.format("bad model")) + add_prefix(parent, OF_ITS_PARENT)
    assert judge_texts(other) == Cause("ValueError: bad model")


@pytest.mark.parametrize(
    ("ended_s", "interrupted", "result"), [(2, True, Result.INTERRUPTED), (1, True, Result.OK), (2, False, Result.OK)]
)
def test_a_script_that_exits_with_0_after_a_signal_of_the_user_was_interrupted(tmp_path, ended_s, interrupted, result):
    events = [{"event": "started", "t_ns": 0}, {"event": "process_ended", "t_ns": ended_s * S, "status": 0}]
    (job,) = group("a").jobs
    ended = state(tmp_path, job, events, was_signalled=True, signalled_ns=3 * S // 2)
    log = event_reader.read(ended.folder / "events.jsonl", ended.lifetime)
    assert endings.judge_job(ended, log, interrupted=interrupted).result is result
