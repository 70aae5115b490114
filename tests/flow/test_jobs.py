"""Groups of real processes, well-behaved and not: what is seen of them, and that nothing of them is left."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pipeline.base.domain.records import CpuPinning, Interpreter, Limits, Result
from pipeline.base.domain.tags import Tag
from pipeline.base.domain.window import Window, WindowKind
from pipeline.base.system.errors import LaunchError
from pipeline.clean import processes
from pipeline.launch import job_group
from pipeline.launch.environ import choose_ports, list_client_cpus
from pipeline.launch.job_group import JobGroup
from pipeline.launch.spawn import Spawner
from pipeline.launch.warm_start import ForkServer, Starter
from pipeline.observe import group_row
from pipeline.observe.group_result import GroupResult, Observation
from tests.support.job_server import is_alive
from tests.support.rows import group
from tests.support.toy_groups import PYTHON, make_jobs, prepare_launch
from tests.support.waiting import wait_until
from tests.toys.waiting import waited_ms

pytestmark = pytest.mark.covers("pipeline/launch", "workloads/client.py")


@pytest.fixture(scope="module", params=["cold", "warm"])
def starter(request) -> Iterator[Starter]:
    """Both ways in which a job's process comes to life."""
    if request.param == "cold":
        yield Spawner(PYTHON)
        return
    server = ForkServer(PYTHON, "workloads.client")
    server.wait_ready()
    yield server
    server.close()


@pytest.fixture
def impatient(monkeypatch):
    """What ignores SIGTERM is killed soon."""
    monkeypatch.setattr(job_group, "_TERM_GRACE_S", 0.2)


@pytest.fixture
def run(tmp_path, starter) -> Callable[..., GroupResult]:
    """Run toys as one group and judge it; afterwards no process of it may live."""

    def run_toys(
        *manners: str,
        kind: WindowKind = WindowKind.STEADY,
        seconds: float = 0.3,
        most_s: float = 0.0,
        starter: Starter = starter,
        num_co_runners: int = 0,
        **options,
    ) -> GroupResult:
        """Options are those of `prepare_launch`."""
        jobs = make_jobs(*manners, epochs=0 if kind is WindowKind.STEADY else 2, num_co_runners=num_co_runners)
        window = Window(kind=kind, seconds=seconds, settle_s=0.1, most_s=most_s, epochs=2)
        toys = group(*("toy" for _ in manners), kind=kind, jobs=jobs, window=window)
        reason = None
        with prepare_launch(tmp_path / uuid.uuid4().hex, jobs, starter=starter, **options) as running:
            try:
                with running:
                    if running.wait_ready():
                        running.measure(window)
            except LaunchError as error:
                reason = str(error)
        return group_row.judge(toys, Observation(batches=[running.states], samples=(), reason=reason))

    return run_toys


@pytest.mark.smoke
def test_jobs_that_behave_run_together_until_they_are_told_to_stop(run):
    row = run("well", "well", "well")
    assert row.result is Result.OK, row.reason
    opens_ns, closes_ns = (int(row.tags[tag]) for tag in (Tag.WINDOW_START_NS, Tag.WINDOW_END_NS))
    assert all(job.start_ns < opens_ns < closes_ns <= job.end_ns for job in row.jobs)
    # Each toy does 4 samples in 5 ms, or in more on a busy machine.
    assert 0 < row.jobs[0].metrics["throughput_samples_per_s"] <= 800
    assert row.jobs[0].series["loss"][0][2] == 1.0


def test_a_window_by_need_begins_after_its_trial_and_ends_between_its_limits(run):
    row = run("well", "well", seconds=0.1, most_s=0.4)
    assert row.result is Result.OK, row.reason
    opens_ns = int(row.tags[Tag.WINDOW_START_NS])
    assert opens_ns - max(job.start_ns for job in row.jobs) >= 1.1e9
    assert row.metrics["window_s"] > 0.09
    assert row.metrics["window_s"] < 0.4 + 1  # a busy machine may be late


def test_a_job_that_fails_in_the_trial_ends_the_group(run):
    row = run("well", "raises", seconds=0.1, most_s=0.4)
    assert row.result is Result.FAILED
    assert "something went wrong" in row.reason


def test_seven_jobs_start_within_ten_milliseconds_and_what_they_and_we_waited_for_a_cpu(run, monkeypatch):
    release = JobGroup.release
    ours_ms = 0.0

    def timed(group, states):
        nonlocal ours_ms
        before_ms = waited_ms()
        start_ns = release(group, states)
        ours_ms = waited_ms() - before_ms
        return start_ns

    monkeypatch.setattr(JobGroup, "release", timed)
    row = run(*["waits"] * 7, seconds=0.1)
    starts_ms = [job.start_ns / 1e6 for job in row.jobs]
    late_ms = [
        start_ms - min(starts_ms) - ours_ms - job.series["waited_ms"][0][2]
        for start_ms, job in zip(starts_ms, row.jobs, strict=True)
    ]
    assert max(late_ms) <= 10, late_ms


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", [WindowKind.WORK, WindowKind.STEADY])
def test_co_runners_run_from_before_to_after_what_is_measured_and_are_no_part_of_its_figures(run, kind):
    row = run("well", "well", "well", kind=kind, num_co_runners=2)
    assert row.result is Result.OK, row.reason
    first, *co_runners = row.jobs
    assert all(co_runner.start_ns < first.start_ns and first.end_ns < co_runner.end_ns for co_runner in co_runners)
    rate = first.metrics["throughput_samples_per_s"]
    if kind is WindowKind.WORK:
        rate = first.metrics["num_samples"] / row.metrics["makespan_s"]
    assert row.metrics["throughput_total_samples_per_s"] == pytest.approx(rate)
    co_runner_rate = sum(co_runner.metrics["throughput_samples_per_s"] for co_runner in co_runners)
    assert row.metrics["co_runners_throughput_total_samples_per_s"] == co_runner_rate > 0
    assert row.metrics["makespan_s"] == first.metrics["makespan_s"]


def test_a_co_runner_that_ends_before_those_that_are_measured_makes_the_group_fail(run):
    row = run("well", "ends_early", num_co_runners=1, seconds=5)
    assert (row.result, row.jobs[1].reason) == (Result.FAILED, "ended before the request to stop")


def test_what_jobs_do_in_turn_never_overlaps(run):
    row = run("takes_turns", "takes_turns", "takes_turns")
    assert row.result is Result.OK, row.reason
    spans = sorted((series[0][1], series[1][1]) for series in (job.series["inside"] for job in row.jobs))
    assert all(later[0] >= earlier[1] for earlier, later in itertools.pairwise(spans))
    assert spans[-1][1] - spans[0][0] < 30e9, "waited for the children that inherited the descriptor"


def test_a_work_window_ends_when_the_jobs_do(run):
    row = run("well", "well", kind=WindowKind.WORK)
    assert row.result is Result.OK, row.reason
    assert [len(job.series["epoch_time_s"]) for job in row.jobs] == [2, 2]


@pytest.mark.sampled(11)
@pytest.mark.parametrize(
    ("manner", "result", "words"),
    [
        ("dies_before_hello", Result.FAILED, "status 3: no library today"),
        ("dies_before_ready", Result.FAILED, "signal 9"),
        ("ends_before_ready", Result.FAILED, "ended before it was ready"),
        ("raises_before_ready", Result.FAILED, "a model that does not exist"),
        ("breaks_protocol", Result.FAILED, "sent an invalid message over its control socket: b'[[["),
        ("raises", Result.FAILED, "RuntimeError: something went wrong"),
        ("out_of_memory", Result.OOM, "Tried to allocate 2.00 GiB"),
        ("silent_exit", Result.FAILED, "without reporting the end"),
        ("no_steps", Result.FAILED, "no step was completed"),
        ("ends_early", Result.FAILED, "before the request to stop"),
        ("dies_after_bye", Result.FAILED, "signal 11"),
    ],
)
def test_one_job_that_goes_wrong_makes_the_row_and_ends_the_others(run, manner, result, words):
    row = run("well", manner)
    assert row.result is result
    assert row.reason.startswith("job 1-toy: ")
    assert words in row.reason


@pytest.mark.sampled(1)
def test_limits_may_be_longer_than_the_kernel_waits_at_once(run):
    assert run("well", limits=Limits(ready_s=3e6, group_s=3e6, stop_s=3e6)).result is Result.OK


def test_a_full_stdout_does_not_stop_a_job(run):
    assert run("fills_stdout", "well").result is Result.OK


def test_a_job_that_is_never_ready_runs_into_its_deadline(run):
    row = run("well", "never_ready", limits=Limits(ready_s=1, group_s=5, stop_s=5))
    assert row.result is Result.TIMEOUT
    assert "not ready within limits.ready_s=1 s (last phase: setup)" in row.reason


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", [kind for kind in WindowKind if kind is not WindowKind.INTERLEAVED])
def test_a_job_that_hangs_runs_into_its_deadline(run, kind):
    row = run("hangs", "well", kind=kind, limits=Limits(ready_s=60, group_s=1, stop_s=1))
    assert row.result is Result.TIMEOUT
    assert row.reason.startswith("job 0-toy: did not end")


@pytest.mark.usefixtures("impatient")
def test_neither_a_stubborn_job_nor_its_stubborn_children_survive(run):
    row = run("ignores_term", "forks", limits=Limits(ready_s=60, group_s=1, stop_s=0.5))
    assert row.result is Result.TIMEOUT


@pytest.mark.usefixtures("impatient")
def test_a_child_without_our_session_and_mark_ends_with_its_parent(run, tmp_path):
    assert run("hides", limits=Limits(ready_s=60, group_s=1, stop_s=0.5)).result is Result.TIMEOUT
    (output,) = tmp_path.glob("*/jobs/0/stdout.log")
    wait_until(lambda: not is_alive(int(output.read_text())), 5)


@pytest.mark.usefixtures("impatient")
def test_children_that_outlive_a_good_job_are_ended_and_the_row_stays_good(run):
    assert run("forks").result is Result.OK


def test_an_interpreter_that_is_not_there_is_an_error_and_starts_nothing(run):
    row = run("well", starter=Spawner(Interpreter(python=Path("/no/such/python"))))
    assert row.result is Result.FAILED
    assert "/no/such/python" in row.reason


def test_pinned_jobs_get_equal_disjoint_shares(run, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3})
    seen = []

    class Noting(Spawner):
        def start(self, argv, environ, stdout, stderr, cpus, folder=None):
            seen.append(cpus)
            return super().start(argv, environ, stdout, stderr, [])

    assert run("well", "well", starter=Noting(PYTHON), pin_cpus=CpuPinning.JOBS).result is Result.OK
    assert seen == [[0, 1], [2, 3]]


def test_jobs_know_their_copies_and_the_cpus_of_clients(run, tmp_path):
    assert run("well", "well", starter=Spawner(PYTHON), pin_cpus=CpuPinning.SERVERS).result is Result.OK
    specs = [json.loads(file.read_text()) for file in sorted(tmp_path.glob("*/jobs/*/job.json"))]
    assert [(spec["copies"], spec["copies_on_device"]) for spec in specs] == [(2, 2)] * 2
    assert [spec["client_cpus"] for spec in specs] == [list_client_cpus(CpuPinning.SERVERS)] * 2


BROUGHT = {
    "CUDA_VISIBLE_DEVICES": "7",
    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "1",
    "MLFLOW_TRACKING_URI": "https://elsewhere",
    "COLLOCATION_JOB": "/elsewhere",
    processes.MARK_VARIABLE: "of somebody else",
    "COLOUR": "blue",
}


class EnvironmentRecorder:
    """Keeps the environment that a job would have had."""

    interpreter = dataclasses.replace(PYTHON, environ=tuple(BROUGHT.items()))

    def start(self, argv, environ, stdout, stderr, cpus, folder=None):
        self.environ = dict(environ)
        raise LaunchError("not started")


def test_an_environment_decides_neither_about_the_gpu_nor_about_who_hears_of_the_job(run):
    starter = EnvironmentRecorder()
    assert run("well", starter=starter).result is Result.FAILED
    assert {key for key, value in BROUGHT.items() if starter.environ.get(key) == value} == {"COLOUR"}
    assert starter.environ["CUDA_VISIBLE_DEVICES"] == ""


def test_the_processes_of_each_job_meet_at_a_port_of_their_own(run, monkeypatch):
    monkeypatch.delenv("MASTER_PORT", raising=False)
    ports = choose_ports(40)
    assert len({port["MASTER_PORT"] for port in ports}) == 40
    assert all(port["MASTER_PORT"] == port["PET_MASTER_PORT"] for port in ports)
    starter = EnvironmentRecorder()
    run("well", starter=starter)
    assert 1024 < int(starter.environ["MASTER_PORT"]) != 29500
    monkeypatch.setenv("MASTER_PORT", "29999")
    run("well", starter=starter)
    assert starter.environ["MASTER_PORT"] == "29999" and "PET_MASTER_PORT" not in starter.environ
