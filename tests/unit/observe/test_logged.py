"""Samples/s that programs log themselves: the three sources, the window and the rate, by hand."""

from __future__ import annotations

import dataclasses
import struct
import time

import pytest

from pipeline.base.domain.records import Result
from pipeline.base.domain.samples import Sample
from pipeline.base.domain.window import WindowKind
from pipeline.base.domain.workload import RateSource
from pipeline.observe import group_row, logged_rate, output_rates
from pipeline.observe.changed_files import Changes
from pipeline.observe.clock import ClockRecord
from pipeline.observe.group_result import Observation
from tests.support.rows import FIELDS, S, group, state
from tests.toys.event_writer import SummaryWriter

METRIC = RateSource(metric="train/samples_per_second")


def make_script_states(tmp_path, *rates: RateSource, kind=WindowKind.LOGGED, unit=""):
    """A group of scripts that ran from 0 s to 100 s, and the states of its jobs."""
    script_group = group(*"ab"[: len(rates)], kind=kind)
    jobs = [
        dataclasses.replace(
            job, workload=dataclasses.replace(job.workload, rate=rate, ends_by_itself=True, work_unit=unit)
        )
        for job, rate in zip(script_group.jobs, rates, strict=True)
    ]
    states = [state(tmp_path, job, [{"event": "started", "t_ns": 0}]) for job in jobs]
    return dataclasses.replace(script_group, jobs=tuple(jobs)), states


def judge(the_group, states, **seen):
    return group_row.judge(the_group, Observation(batches=[states], **({"samples": ()} | seen)))


def log_through_mlflow(folder, name, points):
    """As MLflow's file store does: seconds and values."""
    run = folder / "mlflow/0/run"
    (run / "metrics" / name).parent.mkdir(parents=True)
    (run / "meta.yaml").write_text("run_id: run\nstart_time: 1\n")
    (run / "metrics" / name).write_text("".join(f"{int(t * 1000)} {v} {i}\n" for i, (t, v) in enumerate(points)))


def test_jobs_are_measured_while_all_of_them_log(tmp_path):
    pair, states = make_script_states(tmp_path, METRIC, METRIC)
    # The first values cover the start-up. The common window is from 12 s to 30 s.
    log_through_mlflow(states[0].folder, METRIC.metric, [(10, 1.0), (20, 100.0), (30, 200.0)])
    log_through_mlflow(states[1].folder, METRIC.metric, [(12, 1.0), (21, 10.0), (30, 30.0), (40, 999.0)])
    row = judge(pair, states)
    assert row.result is Result.OK
    assert row.tags["collocation.window_start_ns"] == str(12 * S)
    assert row.tags["collocation.window_end_ns"] == str(30 * S)
    rates = [job.metrics["throughput_samples_per_s"] for job in row.jobs]
    assert rates == pytest.approx([(8 * 100 + 10 * 200) / 18, 20])
    assert row.metrics["throughput_total_samples_per_s"] == pytest.approx(sum(rates))
    assert row.jobs[1].params["throughput_from"] == "MLflow, 4 values"
    assert row.metrics["makespan_s"] == 100


def test_jobs_that_never_logged_at_the_same_time_have_no_result(tmp_path):
    pair, states = make_script_states(tmp_path, METRIC, METRIC)
    log_through_mlflow(states[0].folder, METRIC.metric, [(10, 100.0), (20, 100.0)])
    log_through_mlflow(states[1].folder, METRIC.metric, [(90, 10.0), (95, 10.0)])
    row = judge(pair, states)
    assert row.result is Result.FAILED
    assert row.reason == "job 0-a: jobs 0-a and 1-b never logged at the same time; let them train longer"
    assert not any("throughput" in name for job in row.jobs for name in job.metrics)


@pytest.mark.parametrize(
    ("first", "second", "window_s", "rates", "mark"),
    [
        ([(92, 7.0)], [(95, 9.0)], 92, [7, 9], None),
        ([(90, 7.0)], [(10, 1.0), (80, 9.0)], 70, [7, 9], "overlap 0.778 is below 0.95"),
        ([(20, 7.0)], [(95, 9.0)], 20, [7, 9], "overlap 0.211 is below 0.95"),
    ],
)
def test_a_single_value_is_of_the_time_from_the_start_to_its_own(tmp_path, first, second, window_s, rates, mark):
    pair, states = make_script_states(tmp_path, METRIC, METRIC)
    for at, points in zip(states, (first, second), strict=True):
        log_through_mlflow(at.folder, METRIC.metric, points)
    row = judge(pair, states)
    assert row.metrics["window_s"] == window_s
    assert [job.metrics["throughput_samples_per_s"] for job in row.jobs] == rates
    assert row.tags.get("collocation.invalid") == mark
    assert "job 0-a logged only 1 value in" in row.tags["collocation.flag"]


@pytest.mark.parametrize(("num_values", "every_s", "is_noted"), [(6, 2.0, False), (4, 5.0, True), (20, 0.2, True)])
def test_few_values_or_seconds_are_noted(tmp_path, num_values, every_s, is_noted):
    alone, states = make_script_states(tmp_path, METRIC)
    log_through_mlflow(states[0].folder, METRIC.metric, [(1 + every_s * i, 5.0) for i in range(num_values)])
    row = judge(alone, states)
    assert ("job 0-a logged only" in row.tags.get("collocation.flag", "")) == is_noted
    assert row.metrics["window_s"] == pytest.approx(every_s * (num_values - 1))
    assert row.metrics["overlap_ratio"] == 1


HOUR = 3600


@pytest.mark.parametrize("step_s", [HOUR, 10, -10, -HOUR])
def test_a_step_of_the_wall_clock_moves_no_figure_and_is_marked(tmp_path, step_s):
    pair, states = make_script_states(tmp_path, METRIC, METRIC)
    points = [(t, 100.0 if t <= 50 else 50.0) for t in range(10, 91, 5)]
    stepped = [(t + (step_s if t > 40 else 0) + 2 * HOUR, value) for t, value in points]
    for at in states:
        log_through_mlflow(at.folder, METRIC.metric, stepped)
    clock = ClockRecord(offsets=((-S, 2 * HOUR * S), (42 * S, (2 * HOUR + step_s) * S)), end_ns=120 * S)
    row = judge(pair, states, clock=clock)
    assert [job.metrics["throughput_samples_per_s"] for job in row.jobs] == pytest.approx([75, 75])
    assert row.metrics["window_s"] == 80
    assert (
        row.tags["collocation.invalid"]
        == f"the wall clock was set by {step_s:+.3g} s while the jobs logged their rates"
    )


def test_a_clock_that_is_slewed_is_followed_and_not_marked(tmp_path):
    alone, states = make_script_states(tmp_path, METRIC)
    log_through_mlflow(states[0].folder, METRIC.metric, [(1.001 * t, 10.0) for t in range(10, 91, 5)])
    clock = ClockRecord(offsets=[(t * S, t * S // 1000) for t in range(0, 100, 2)], end_ns=120 * S)
    row = judge(alone, states, clock=clock)
    assert row.metrics["window_s"] == pytest.approx(80, abs=0.005)
    assert "collocation.invalid" not in row.tags


def test_values_of_another_time_than_the_jobs_own_are_left_out(tmp_path):
    alone, states = make_script_states(tmp_path, METRIC)
    log_through_mlflow(states[0].folder, METRIC.metric, [*((t, 10.0) for t in range(10, 91, 5)), (5000, 99.0)])
    row = judge(alone, states)
    assert row.metrics["throughput_total_samples_per_s"] == 10 and row.metrics["window_s"] == 80
    assert row.tags["collocation.invalid"] == "job 0-a logged 1 value with times outside its run"
    log_through_mlflow(states[0].folder.parent / "later", METRIC.metric, [(5000, 99.0)])
    (tmp_path / "later/mlflow").rename(states[0].folder / "mlflow-later")
    (states[0].folder / "mlflow").rename(tmp_path / "before")
    (states[0].folder / "mlflow-later").rename(states[0].folder / "mlflow")
    row = judge(alone, states)
    assert row.result is Result.FAILED and "with times outside the job's run" in row.reason


def test_a_metric_that_never_came_fails_the_row_and_the_others_are_named(tmp_path):
    alone, states = make_script_states(tmp_path, METRIC)
    log_through_mlflow(states[0].folder, "loss", [(1, 2.0)])
    SummaryWriter(states[0].folder / "output/logs").add_scalar("train/lr", 0.1, 1)
    row = judge(alone, states)
    assert row.result is Result.FAILED
    assert (
        "train/samples_per_second was not logged; logged through MLflow: loss; logged in TensorBoard files: train/lr"
        in row.reason
    )
    assert "throughput_total_samples_per_s" not in row.metrics


def test_a_metric_in_a_tensorboard_file_is_of_the_job_that_wrote_the_file(tmp_path):
    pair, states = make_script_states(tmp_path, METRIC, METRIC)
    for index, pid in enumerate((41, 42)):
        (states[index].folder / "events.jsonl").open("a").write(f'{{"event":"process","t_ns":0,"pid":{pid}}}\n')
        SummaryWriter(tmp_path / str(pid)).add_scalar(METRIC.metric, pid, 1)
        (file,) = (tmp_path / str(pid)).iterdir()
        file.rename(tmp_path / f"events.out.tfevents.1.host.{pid}.0")
    clock = ClockRecord(offsets=((0, time.time_ns() - 50 * S),))
    files = dict.fromkeys(tmp_path.glob("events.out.tfevents.*"), clock.wall_ns(50 * S))
    row = judge(pair, states, clock=clock, changed=Changes(folder=tmp_path, files=files, is_whole=True))
    assert [job.metrics["throughput_samples_per_s"] for job in row.jobs] == [41, 42]
    anonymous = (tmp_path / "events.out.tfevents.1.host.41.0").rename(tmp_path / "events.out.tfevents.x")
    files = {anonymous: clock.wall_ns(50 * S)}
    row = judge(pair, states, clock=clock, changed=Changes(folder=tmp_path, files=files, is_whole=True))
    assert "events.out.tfevents.x may belong to any job" in row.reason


def read_output(path, pattern, text, t_ns=(), sizes=(), end_ns=S, unit="", **source):
    """What is read of an output."""
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    reader = output_rates.OutputReader(RateSource(pattern=pattern, **source), unit)
    reader.read(path, t_ns, sizes, end_ns)
    return reader.rates


def test_numbers_in_the_output_have_the_time_at_which_it_had_grown_so_far(tmp_path):
    text = b"step 1: 10 samples/s\rstep 2: 1,020.5 samples/s\nno number here\nnan samples/s\n30 samples/s"
    output = read_output(tmp_path / "log", r"([\d.,]+|nan) samples/s", text, (1 * S, 2 * S), (21, 50), 9 * S)
    assert output.points == [(S, 10), (2 * S, 1020.5), (9 * S, 30)] and output.num_not_finite == 1


@pytest.mark.parametrize(
    ("pattern", "line", "number"),
    [
        ("([0-9.]+) it/s", "1,050.0 it/s", 1050),
        ("([0-9.]+) it/s", "at 1.2e+04 it/s", 12000),
        ("([0-9.]+) it/s", "loss=0.5,1050.0 it/s", 1050),
        ("([0-9.]+) it/s", "-5 it/s", -5),
        ("([0-9.]+) it", "step-5 it", 5),
        ("rate ([0-9]+)", "rate 1,050.5", 1050.5),
        (",([0-9]+) it/s", "12,105 it/s", 105),  # the pattern says where it begins
        ("([0-9]+)[.]5", "rate 1050.5", 1050),
    ],
)
def test_a_number_is_read_as_a_whole(tmp_path, pattern, line, number):
    assert read_output(tmp_path / "log", pattern, f"{line}\n", unit="steps").points == [(S, number)]


@pytest.mark.parametrize(
    ("values", "words"),
    [((5.0, -5.0), "gave -5; a rate must be above 0"), ((0.0, 0.0), "gave 0; a"), (("nan",), "nan")],
)
def test_what_can_be_no_rate_fails_the_row(tmp_path, values, words):
    alone, states = make_script_states(tmp_path, METRIC)
    log_through_mlflow(states[0].folder, METRIC.metric, list(enumerate(values, start=1)))
    row = judge(alone, states)
    assert row.result is Result.FAILED and words in row.reason
    assert "throughput_total_samples_per_s" not in row.metrics


def test_values_that_are_not_finite_are_counted(tmp_path):
    alone, states = make_script_states(tmp_path, METRIC)
    log_through_mlflow(states[0].folder, METRIC.metric, [(1, 4.0), (2, "nan"), (3, "inf"), (4, 4.0)])
    (job,) = judge(alone, states).jobs
    assert job.params["throughput_from"] == "MLflow (without 2 of 4 values not finite), 2 values"


def test_a_pattern_is_looked_for_in_both_outputs(tmp_path):
    alone, states = make_script_states(tmp_path, RateSource(pattern="([0-9]+) it/s"))
    (states[0].folder / "stdout.log").write_text("starting\n")
    row = judge(alone, states)
    assert row.result is Result.FAILED and "stdout ends with `starting`" in row.reason
    (states[0].folder / "stderr.log").write_text("50%  120 it/s\r")
    row = judge(alone, states)
    assert row.metrics["throughput_total_iterations_per_s"] == 120


def test_the_samples_of_a_whole_run_are_over_its_whole_time(tmp_path):
    pair, states = make_script_states(
        tmp_path, RateSource(samples=500), RateSource(samples=500), kind=WindowKind.WORK, unit="samples"
    )
    states[1].ended.at_ns = 50 * S
    row = judge(pair, states)
    assert [job.metrics["throughput_samples_per_s"] for job in row.jobs] == [5, 10]
    assert row.metrics["throughput_total_samples_per_s"] == 10


def test_a_torn_event_file_gives_what_was_whole(tmp_path):
    writer = SummaryWriter(tmp_path)
    for step in range(300):
        writer.add_scalar("loss", step / 2, step)
    writer.close()
    (file,) = tmp_path.iterdir()
    points = logged_rate.read_scalars(file)["loss"]
    assert [value for _, value in points] == [step / 2 for step in range(300)]
    file.write_bytes(file.read_bytes()[:-7])
    assert logged_rate.read_scalars(file)["loss"] == points[:-1]
    file.write_bytes(file.read_bytes()[:500] + b"\xff" * 500)
    assert len(logged_rate.read_scalars(file)["loss"]) < 20
    assert logged_rate.read_scalars(tmp_path / "absent") == {}


def test_scalars_that_tensorflow_writes_as_tensors_are_read(tmp_path):
    """Built by hand as TensorBoard's own classes serialise them: float_val, and tensor_content of a double."""

    def field(number, content):
        return bytes([number << 3 | 2, len(content)]) + content

    tensors = {
        "t1": b"\x08\x01" + field(5, struct.pack("<f", 2.5)),
        "t2": b"\x08\x02" + field(4, struct.pack("<d", 3.25)),
        "text": b"\x08\x07" + field(8, b"words"),
    }
    values = b"".join(field(1, field(1, tag.encode()) + field(8, tensor)) for tag, tensor in tensors.items())
    event = b"\x09" + struct.pack("<d", 7.5) + field(5, values)
    (tmp_path / "file").write_bytes(struct.pack("<Q", len(event)) + bytes(4) + event + bytes(4))
    assert logged_rate.read_scalars(tmp_path / "file") == {"t1": [(7.5, 2.5)], "t2": [(7.5, 3.25)]}


def test_the_first_use_of_the_gpu_is_the_first_sample_of_the_job_there_after_its_start(tmp_path):
    pair, states = make_script_states(tmp_path, RateSource(), RateSource(), kind=WindowKind.WORK)
    samples = [Sample(source="host", t_ns=1 * S, values={"rss_mib": 5.0}, job=0)]
    samples += [Sample(source="nvml", t_ns=t * S, values={"process_memory_mib": 9.0}, job=0) for t in (-1, 7, 8)]
    row = judge(pair, states, samples=samples, fields=FIELDS)
    assert row.jobs[0].metrics["first_gpu_use_s"] == 7
    assert "first_gpu_use_s" not in row.jobs[1].metrics and "first_gpu_use_s" not in row.metrics
    samples += [Sample(source="nvml", t_ns=9 * S, values={"process_memory_mib": 9.0}, job=1)]
    assert judge(pair, states, samples=samples, fields=FIELDS).metrics["first_gpu_use_s"] == 9
