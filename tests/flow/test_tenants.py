"""Several jobs in one process: each has its own row, and the rows tell what the process did to all of them."""

from __future__ import annotations

import multiprocessing
import tempfile
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.base.domain import layout
from pipeline.base.domain.records import HostProgram, Result, Slot
from pipeline.base.domain.tags import Tag
from pipeline.base.domain.window import Window, WindowKind
from pipeline.base.system.paths import PROJECT_DIR
from pipeline.clean import processes
from pipeline.launch.interleaving import Interleaving
from pipeline.launch.job_group import GroupFiles, JobGroup, JobStart
from pipeline.launch.spawn import Spawner
from pipeline.launch.warm_start import ForkServer, Starter
from pipeline.observe import group_row
from pipeline.observe.group_result import GroupResult, Observation
from tests.conftest import TOYS
from tests.flow.test_interleaving import WINDOW
from tests.support.rows import group
from tests.support.toy_groups import PATIENT, PYTHON, make_jobs, prepare_launch
from tests.support.waiting import wait_until

pytestmark = pytest.mark.covers("pipeline/launch/host_start.py", "workloads/tenants.py", "workloads/green_trial.py")

THREADS = HostProgram(script=str(PROJECT_DIR / "workloads/host_streams.py"))  # without a GPU, it has no streams
FRAGILE = HostProgram(script=str(TOYS / "host_fragile.py"))
Run = Callable[..., GroupResult]


def make_host(manner: str, limit_s: int = 60) -> HostProgram:
    options = (("manner", manner), ("limit_s", limit_s))
    return HostProgram(script=str(TOYS / "host_on_trial.py"), options=options)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    def run_toys(
        *manners: str, host: HostProgram = THREADS, kind: WindowKind = WindowKind.STEADY, starter: Starter | None = None
    ) -> GroupResult:
        epochs = 0 if kind is WindowKind.STEADY else 2
        window = Window(kind=kind, seconds=0.3, settle_s=0.0, epochs=epochs)
        tenants = group(*("toy" for _ in manners), jobs=make_jobs(*manners, epochs=epochs), window=window)
        with prepare_launch(tmp_path / "group", tenants.jobs, starter=starter, host=host) as running, running:
            assert len(set(running.pids().values())) == 1
            if running.wait_ready():
                running.measure(window)
        return group_row.judge(tenants, Observation(batches=[running.states], samples=()))

    return run_toys


@pytest.mark.smoke
def test_each_job_of_a_process_has_its_row(run: Run) -> None:
    row = run("well", "well", "well")
    assert [job.result for job in row.jobs] == [Result.OK] * 3, row.reason
    assert len({job.pid for job in row.jobs}) == 1
    assert [job.params["jobs_of_process"] for job in row.jobs] == ["3"] * 3
    assert row.tags[Tag.ONE_PROCESS].startswith("3 jobs in one process with one Python interpreter")
    rates = [job.metrics["throughput_samples_per_s"] for job in row.jobs]
    assert row.metrics["throughput_total_samples_per_s"] == pytest.approx(sum(rates))


def test_a_process_that_was_forked_hosts_jobs_too(run: Run) -> None:
    server = ForkServer(PYTHON, "workloads.client")
    server.wait_ready()
    assert run("well", "well", starter=server).result is Result.OK
    server.close()


def test_jobs_of_a_process_end_one_by_one(run: Run) -> None:
    row = run("well", "well", kind=WindowKind.WORK)
    assert row.result is Result.OK, row.reason
    assert all(job.metrics["makespan_s"] > 0 for job in row.jobs)


def test_a_job_that_raises_says_that_the_others_could_go_on(run: Run) -> None:
    row = run("well", "raises", "well")
    assert [job.result for job in row.jobs] == [Result.INTERRUPTED, Result.FAILED, Result.INTERRUPTED]
    expected = "RuntimeError: something went wrong; the other jobs of its process could go on"
    assert row.jobs[1].reason == expected
    assert row.jobs[0].reason == "ended because the group failed"
    assert any("something went wrong" in line for line in row.jobs[1].error_output)
    assert not row.jobs[0].error_output and not row.jobs[2].error_output


def test_a_job_that_runs_out_of_memory_is_the_one_whose_row_says_so(run: Run) -> None:
    row = run("out_of_memory", "well")
    assert [job.result for job in row.jobs] == [Result.OOM, Result.INTERRUPTED]
    assert row.result is Result.OOM and "the other jobs of its process could go on" in row.reason


def test_only_the_job_that_computes_wrong_values_is_marked(run: Run) -> None:
    row = run("well", "computes_wrong", "well")
    assert [job.result for job in row.jobs] == [Result.OK, Result.WRONG_RESULTS, Result.OK]
    assert row.result is Result.WRONG_RESULTS and "1 + 1 = 3" in row.reason


def test_an_error_that_takes_the_process_is_in_all_rows(run: Run) -> None:
    row = run("well", "raises", "well", host=FRAGILE)
    assert [job.result for job in row.jobs] == [Result.FAILED] * 3
    for job in row.jobs:
        expected = "RuntimeError: something went wrong; it ended the process of all jobs; job 1 was the first to see it"
        assert job.reason == expected


def test_a_crash_is_in_all_rows(run: Run) -> None:
    row = run("well", "dies_before_ready")
    assert [job.result for job in row.jobs] == [Result.FAILED] * 2
    assert {job.reason for job in row.jobs} == {"the process of all jobs ended with signal 9"}


@pytest.mark.parametrize(
    ("manner", "reason"),
    [
        ("raises_before_ready", "ValueError: a model that does not exist; the other jobs of its process could go on"),
        ("dies_before_hello", "SystemExit: 3; the other jobs of its process could go on"),
        ("ends_before_ready", "ended before it was ready"),
    ],
)
def test_a_job_that_is_never_ready_fails_alone(run: Run, manner: str, reason: str) -> None:
    row = run("well", manner)
    assert [job.result for job in row.jobs] == [Result.INTERRUPTED, Result.FAILED]
    assert row.jobs[1].reason == reason


def test_a_job_that_breaks_the_protocol_is_named(run: Run) -> None:
    row = run("well", "breaks_protocol")
    assert [job.result for job in row.jobs] == [Result.INTERRUPTED, Result.FAILED]
    assert "invalid message" in row.jobs[1].reason


def test_a_way_of_sharing_that_does_not_work_is_a_skipped_group(run: Run) -> None:
    host = HostProgram(script=FRAGILE.script, options=(("refusal", "cuDNN 9.9 fails in green contexts"),))
    row = run("well", "well", host=host)
    assert row.result is Result.SKIPPED
    assert "cuDNN 9.9 fails in green contexts" in row.reason


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("manner", "reason"),
    [
        ("hangs", "addition in 2 green contexts at once did not finish within 1 s"),
        ("fails", "addition in 2 green contexts at once failed: CUDNN_STATUS_EXECUTION_FAILED"),
        ("differs", "addition in 2 green contexts at once computed wrong values"),
        ("crashes", "addition in 2 green contexts at once ended its process with signal 11"),
    ],
)
def test_what_a_trial_finds_is_the_reason_of_a_skipped_group(run: Run, manner: str, reason: str) -> None:
    row = run("well", "well", host=make_host(manner, limit_s=1))
    assert [job.result for job in row.jobs] == [Result.SKIPPED] * 2
    assert row.result is Result.SKIPPED
    assert row.reason.endswith(f"{reason}; use another mode")


def test_jobs_run_after_a_trial_without_fault(run: Run) -> None:
    assert run("well", "well", host=make_host("works")).result is Result.OK


def test_a_trial_with_an_error_of_its_own_fails_the_group(run: Run) -> None:
    row = run("well", "well", host=make_host("is_unknown"))
    assert row.result is Result.FAILED
    assert "the trial of green contexts ended with status 1; its error is above" in row.reason
    assert any("no such model" in line for line in row.jobs[0].error_output)


def test_a_trial_that_hangs_ends_with_its_orchestrator(tmp_path: Path) -> None:
    mark, slot = uuid.uuid4().hex, Slot(visible_devices="", host=make_host("hangs", limit_s=600))
    starts = [JobStart(job=job, slot=slot, starter=Spawner(PYTHON)) for job in make_jobs("well", "well")]
    with tempfile.TemporaryDirectory(dir="/tmp") as scratch:
        files = GroupFiles(folder=tmp_path / "group", scratch=Path(scratch), mark=mark)

        def orchestrate() -> None:
            with JobGroup(starts, files, PATIENT) as running:
                running.wait_ready()

        orchestrator = multiprocessing.get_context("fork").Process(target=orchestrate)
        orchestrator.start()
        wait_until(lambda: len(processes.list_marked(mark)) == 2)  # the host program, and its trial
        orchestrator.kill()
        orchestrator.join()
        wait_until(lambda: not processes.list_marked(mark))


@pytest.mark.smoke
def test_threads_belong_to_the_job_that_started_them(run: Run, tmp_path: Path) -> None:
    row = run("well", "starts_threads", "starts_threads")
    assert row.result is Result.OK, row.reason
    kinds = ("thread", "nested thread", "thread of a pool", "timer")
    for index in (1, 2):
        folder = tmp_path / "group" / layout.job_path(index)
        assert (folder / layout.STDOUT).read_text().splitlines() == [f"{kind} of job {index}" for kind in kinds]
        assert "ZeroDivisionError" in (folder / layout.STDERR).read_text()
    first = tmp_path / "group" / layout.job_path(0)
    assert (first / layout.STDOUT).read_text() == (first / layout.STDERR).read_text() == ""
    of_process = (tmp_path / "group" / layout.host_path(0) / layout.STDOUT).read_text().splitlines()
    assert sorted(line.partition(":")[0] for line in of_process) == ["nobody's, of job 1", "nobody's, of job 2"]
    assert all("attach() in a thread of no job" in line for line in of_process)


def test_output_of_a_process_is_not_said_to_be_a_jobs(run: Run) -> None:
    row = run("well", "well", host=make_host("is_unknown"))
    assert all(line.startswith("process of all jobs: ") for job in row.jobs for line in job.error_output)


def test_each_tenant_is_held_and_goes_on(tmp_path: Path) -> None:
    jobs = make_jobs("can_be_held", "can_be_held", "can_be_held")
    with prepare_launch(tmp_path / "group", jobs, host=THREADS) as running, running:
        interleaving = Interleaving(running, WINDOW, {3: 1, 1: 2}, "seed")
        assert running.wait_ready()
        interleaving.measure()
    assert Counter(part.num_jobs for part in interleaving.slices) == {0: 1, 1: 8, 3: 4}
    assert all(state.ended_well for state in running.states)
    output = [(state.folder / layout.EVENTS).stat().st_size for state in running.states]
    assert output[0] > output[1]
