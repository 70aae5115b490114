"""Jobs on a GPU that never had a process in the driver's list of processes."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

from listeners.host import find_job
from pipeline.base.domain.marks import Marks
from pipeline.base.domain.samples import Sample
from pipeline.base.domain.tags import Tag
from pipeline.launch.job_state import JobState
from pipeline.observe import group_row
from pipeline.observe.group_result import GroupResult, Observation
from tests.support.rows import FIELDS, S, group, state, steps

TEXT = "no process of 1-b was on the GPU; check that the program finds CUDA"


def judge(tmp_path, counts, *, of_gpu=True, **changes):
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
    marks = judge(tmp_path, counts)
    assert (marks.invalid, marks.note) == (invalid, note)


@pytest.mark.parametrize("scenario", ["mps", "mps_percent", "streams", "a_mode_of_a_user"])
def test_it_is_a_note_where_the_list_may_lack_a_job(tmp_path, scenario):
    marks = judge(tmp_path, (0.0,) * 5, scenario=scenario)
    assert (marks.invalid, marks.note) == ("", TEXT)


def test_jobs_on_a_simulated_gpu_run_on_the_cpu(tmp_path):
    assert not judge(tmp_path, (0.0,) * 5, of_gpu=False).text


def test_jobs_in_one_process_are_on_the_gpu_together(tmp_path):
    """Their processes are counted for the first of them."""
    assert not judge(tmp_path, (), scenario="streams").text


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
        "a job waited for a CPU for 38 % of the time while other programs used 7.0 of 8"
    )
