"""Jobs on a GPU that never had a process in the driver's list of processes."""

from __future__ import annotations

import dataclasses

import pytest

from pipeline.base.domain.marks import Marks
from pipeline.base.domain.samples import Sample
from pipeline.observe import group_row
from pipeline.observe.group_result import Observation
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
