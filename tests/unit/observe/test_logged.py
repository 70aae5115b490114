"""Rates that programs log or print: the sources, the window, and numbers read whole or refused."""

from __future__ import annotations

import dataclasses
import math
import re
import signal
import struct
import time

import pytest

from pipeline.base.domain import rate_units
from pipeline.base.domain.records import Result
from pipeline.base.domain.samples import Sample
from pipeline.base.domain.window import Window, WindowKind
from pipeline.base.domain.workload import RateSource
from pipeline.base.system.paths import PROJECT_DIR
from pipeline.launch.interleaving import Slice
from pipeline.launch.job_state import Ending
from pipeline.observe import endings, logged_rate, output_rates, throughput
from pipeline.observe.changed_files import Changes
from pipeline.observe.clock import ClockRecord
from tests.support.rows import FIELDS, S, group, judge, state
from tests.support.tables import rows
from tests.toys.event_writer import SummaryWriter

METRIC = RateSource(metric="train/samples_per_second")


def make_script_states(tmp_path, *rates: RateSource, kind=WindowKind.LOGGED, unit=""):
    """A group of scripts that ran from 0 s to 100 s, and the states of its jobs."""
    workloads = [{"rate": rate, "ends_by_itself": True, "work_unit": unit} for rate in rates]
    script_group = group(*"ab"[: len(rates)], kind=kind, workloads=workloads)
    return script_group, [state(tmp_path, job, [{"event": "started", "t_ns": 0}]) for job in script_group.jobs]


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
    row = judge(pair, *states)
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
    row = judge(pair, *states)
    assert row.result is Result.FAILED
    assert row.reason == "job 0-a: jobs 0-a and 1-b never logged at the same time; let them train longer"
    assert not any("throughput" in name for job in row.jobs for name in job.metrics)


def test_each_group_of_a_launch_has_the_values_of_its_slice(tmp_path):
    pair, states = make_script_states(tmp_path, METRIC, METRIC)
    pair = dataclasses.replace(pair, window=Window(kind=WindowKind.LOGGED, seconds=8.0))
    # The second job is stopped at 20 s; until 22 s, the speed of the first one settles.
    speeds = {10: 1.0, 22: 70.0} | dict.fromkeys(range(12, 21, 2), 50.0) | dict.fromkeys(range(24, 33, 2), 100.0)
    log_through_mlflow(states[0].folder, METRIC.metric, sorted(speeds.items()))
    log_through_mlflow(states[1].folder, METRIC.metric, sorted(speeds.items())[:6])
    slices = [Slice(num_jobs=2, begin_ns=10 * S, end_ns=20 * S), Slice(num_jobs=1, begin_ns=22 * S, end_ns=30 * S)]
    both = judge(pair, *states, slices=slices)
    alone = judge(dataclasses.replace(pair, jobs=pair.jobs[:1]), states[0], launched=states, slices=slices)
    assert (both.result, alone.result) == (Result.OK, Result.OK)
    assert [job.metrics["throughput_samples_per_s"] for job in (*both.jobs, *alone.jobs)] == [50, 50, 100]
    assert (both.metrics["window_s"], alone.metrics["window_s"]) == (10, 8)
    assert alone.tags["collocation.window_start_ns"] == str(22 * S)
    assert not any("overlap_ratio" in row.metrics or row.marks.invalid for row in (both, alone))


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
    row = judge(pair, *states)
    assert row.metrics["window_s"] == window_s
    assert [job.metrics["throughput_samples_per_s"] for job in row.jobs] == rates
    assert row.tags.get("collocation.invalid") == mark
    assert "job 0-a logged only 1 value in" in row.tags["collocation.flag"]


@pytest.mark.parametrize(("num_values", "every_s", "is_noted"), [(6, 2.0, False), (4, 5.0, True), (20, 0.2, True)])
def test_few_values_or_seconds_are_noted(tmp_path, num_values, every_s, is_noted):
    alone, states = make_script_states(tmp_path, METRIC)
    log_through_mlflow(states[0].folder, METRIC.metric, [(1 + every_s * i, 5.0) for i in range(num_values)])
    row = judge(alone, *states)
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
    row = judge(pair, *states, clock=clock)
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
    row = judge(alone, *states, clock=clock)
    assert row.metrics["window_s"] == pytest.approx(80, abs=0.005)
    assert "collocation.invalid" not in row.tags


def test_values_of_another_time_than_the_jobs_own_are_left_out(tmp_path):
    alone, states = make_script_states(tmp_path, METRIC)
    log_through_mlflow(states[0].folder, METRIC.metric, [*((t, 10.0) for t in range(10, 91, 5)), (5000, 99.0)])
    row = judge(alone, *states)
    assert row.metrics["throughput_total_samples_per_s"] == 10 and row.metrics["window_s"] == 80
    assert row.tags["collocation.invalid"] == "job 0-a logged 1 value with times outside its run"
    log_through_mlflow(states[0].folder.parent / "later", METRIC.metric, [(5000, 99.0)])
    (tmp_path / "later/mlflow").rename(states[0].folder / "mlflow-later")
    (states[0].folder / "mlflow").rename(tmp_path / "before")
    (states[0].folder / "mlflow-later").rename(states[0].folder / "mlflow")
    row = judge(alone, *states)
    assert row.result is Result.FAILED and "with times outside the job's run" in row.reason


def test_a_metric_that_never_came_fails_the_row_and_the_others_are_named(tmp_path):
    alone, states = make_script_states(tmp_path, METRIC)
    log_through_mlflow(states[0].folder, "loss", [(1, 2.0)])
    SummaryWriter(states[0].folder / "output/logs").add_scalar("train/lr", 0.1, 1)
    row = judge(alone, *states)
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
    row = judge(pair, *states, clock=clock, changed=Changes(folder=tmp_path, files=files, is_whole=True))
    assert [job.metrics["throughput_samples_per_s"] for job in row.jobs] == [41, 42]
    anonymous = (tmp_path / "events.out.tfevents.1.host.41.0").rename(tmp_path / "events.out.tfevents.x")
    files = {anonymous: clock.wall_ns(50 * S)}
    row = judge(pair, *states, clock=clock, changed=Changes(folder=tmp_path, files=files, is_whole=True))
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
    row = judge(alone, *states)
    assert row.result is Result.FAILED and words in row.reason
    assert "throughput_total_samples_per_s" not in row.metrics


def test_values_that_are_not_finite_are_counted(tmp_path):
    alone, states = make_script_states(tmp_path, METRIC)
    log_through_mlflow(states[0].folder, METRIC.metric, [(1, 4.0), (2, "nan"), (3, "inf"), (4, 4.0)])
    (job,) = judge(alone, *states).jobs
    assert job.params["throughput_from"] == "MLflow (without 2 of 4 values not finite), 2 values"


def test_a_pattern_is_looked_for_in_both_outputs(tmp_path):
    alone, states = make_script_states(tmp_path, RateSource(pattern="([0-9]+) it/s"))
    (states[0].folder / "stdout.log").write_text("starting\n")
    row = judge(alone, *states)
    assert row.result is Result.FAILED and "stdout ends with `starting`" in row.reason
    (states[0].folder / "stderr.log").write_text("50%  120 it/s\r")
    row = judge(alone, *states)
    assert row.metrics["throughput_total_iterations_per_s"] == 120


def test_the_samples_of_a_whole_run_are_over_its_whole_time(tmp_path):
    pair, states = make_script_states(
        tmp_path, RateSource(samples=500), RateSource(samples=500), kind=WindowKind.WORK, unit="samples"
    )
    states[1].ended.at_ns = 50 * S
    row = judge(pair, *states)
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
    row = judge(pair, *states, samples=samples, fields=FIELDS)
    assert row.jobs[0].metrics["first_gpu_use_s"] == 7
    assert "first_gpu_use_s" not in row.jobs[1].metrics and "first_gpu_use_s" not in row.metrics
    samples += [Sample(source="nvml", t_ns=9 * S, values={"process_memory_mib": 9.0}, job=1)]
    assert judge(pair, *states, samples=samples, fields=FIELDS).metrics["first_gpu_use_s"] == 9


P, Q = "([0-9.]+) samples/s", "([0-9,.]+) samples/s"


def get_refusal(tmp_path, pattern, line, **source) -> str:
    return read_output(tmp_path / "log", pattern, f"{line}\n", **source).unreadable


def rate(tmp_path, pattern, line, **source) -> float | None:
    output = read_output(tmp_path / "log", pattern, f"{line}\n", **source)
    assert not output.unreadable
    return output.points[0][1] if output.points else None


@rows("output_rates", "clear_numbers")
def test_a_number_that_can_be_read_one_way_is(tmp_path, pattern, line, number):
    assert rate(tmp_path, pattern, line, unit="samples") == pytest.approx(number)


@rows("output_rates", "ambiguous_numbers")
def test_a_number_that_can_be_read_two_ways_fails_the_row_with_what_stands_there(tmp_path, pattern, line, remedy):
    assert remedy in get_refusal(tmp_path, pattern, line)
    alone, states = make_script_states(tmp_path, RateSource(pattern=pattern))
    (states[0].folder / "stdout.log").write_text(f"{line}\n")
    row = judge(alone, *states)
    assert row.result is Result.FAILED and "throughput_total_samples_per_s" not in row.metrics
    assert f"workload.metric_pattern matches an unclear number in `{line}`: " in row.reason
    assert len(row.reason.partition(";")[0]) < 170


@rows("output_rates", "decimal_marks")
def test_the_user_says_the_decimal_mark(tmp_path, line, mark, number):
    if number is None:
        assert get_refusal(tmp_path, Q, line, decimal_mark=mark)
    else:
        assert rate(tmp_path, Q, line, decimal_mark=mark) == pytest.approx(number)


@rows("output_rates", "units_in_lines")
def test_a_rate_is_in_the_unit_that_stands_beside_it(tmp_path, pattern, line, per_s):
    assert rate(tmp_path, pattern, line) == pytest.approx(per_s)


NUMBER = "^[^0-9]*([0-9.]+)"


@rows("output_rates", "work_units")
def test_the_unit_beside_a_number_sets_work_unit_and_direction(tmp_path, line, work_unit, per_s):
    alone, states = make_script_states(tmp_path, RateSource(pattern=NUMBER))
    (states[0].folder / "stdout.log").write_text(f"{line}\n")
    row = judge(alone, *states)
    assert row.metrics[f"throughput_total_{work_unit}_per_s"] == pytest.approx(per_s)
    assert row.jobs[0].work_unit == work_unit and f"logged_{work_unit}_per_s" in row.jobs[0].series


@pytest.mark.parametrize("line", ["12.5", "261.42/s", "12 TFLOPS", "60fps", "12 s/s"])
def test_a_number_without_a_unit_is_no_rate_of_samples(tmp_path, line):
    alone, states = make_script_states(tmp_path, RateSource(pattern=NUMBER))
    (states[0].folder / "stdout.log").write_text(f"{line}\n")
    row = judge(alone, *states)
    assert row.result is Result.FAILED
    assert "set workload.work_unit" in row.reason or "set workload.metric_unit" in row.reason
    assert not any("samples" in name for name in row.metrics)


@rows("output_rates", "renamed_units")
def test_the_work_unit_of_the_user_renames_the_unit_but_cannot_contradict_it(tmp_path, work_unit, line, per_s):
    if per_s is None:
        assert f", not {work_unit}; set workload.work_unit=" in get_refusal(tmp_path, NUMBER, line, unit=work_unit)
    else:
        assert rate(tmp_path, NUMBER, line, unit=work_unit) == pytest.approx(per_s)


def test_lines_of_one_job_count_one_kind_of_work(tmp_path):
    assert "the number counts images, not tokens" in get_refusal(
        tmp_path, "rate: ([0-9.]+)", "rate: 8 tok/s\nrate: 3 img/s"
    )


@rows("output_rates", "widened_patterns")
def test_a_pattern_reads_its_unit_with_every_prefix_and_time_and_its_inverse(tmp_path, pattern, lines, per_s):
    assert rate(tmp_path, pattern, lines) == pytest.approx(per_s)


def test_the_label_of_the_next_number_is_no_unit(tmp_path):
    line = "|         ns/day =      100.00   seconds/ns =       864.00"
    assert rate(tmp_path, "ns/day = +([0-9.]+)", line, unit="ns") == pytest.approx(100 / 86400)


@pytest.mark.parametrize("unit_name", ["per_day", "ns_per_day", "ns/day"])
def test_a_rate_a_day_is_said_where_the_line_has_no_unit(tmp_path, unit_name):
    """GROMACS prints the units above the numbers."""
    line, unit = "Performance:      167.966        0.143", rate_units.parse_unit(unit_name)
    got = rate(tmp_path, "Performance: +([0-9.]+)", line, unit="ns", metric_unit=unit)
    assert got == pytest.approx(167.966 / 86400)


def test_a_prefix_that_belongs_to_the_unit_of_the_workload_is_none(tmp_path):
    assert rate(tmp_path, "([0-9.]+) GB/s", "12.5 GB/s", unit="gb") == 12.5
    assert rate(tmp_path, "([0-9.]+) ktok/s", "183.3 ktok/s", unit="ktok") == 183.3


@rows("output_rates", "metric_units")
def test_a_unit_is_said_where_the_line_does_not_say_it(tmp_path, metric_unit, line, per_s):
    pattern = "(?:rate:?|time:?|[(]ms[)]:|^) ?([0-9.]+)"
    unit = rate_units.parse_unit(metric_unit)
    assert rate(tmp_path, pattern, line, unit="" if "tok" in line else "steps", metric_unit=unit) == pytest.approx(
        per_s
    )


def test_a_metric_that_is_named_as_a_time_is_refused_or_read_as_what_it_is(tmp_path):
    for name, unit_name, unit, result in (
        ("train/step_time_ms", None, "", None),
        ("train/step_time_ms", "s_per_step", "steps", 80),
        ("train/ms_per_step", None, "steps", 80),
        ("train_samples_per_second", None, "samples", 12.5),
        ("RunningAvgSamplesPerSec", None, "samples", 12.5),
        ("throughput/min", None, "samples", 12.5),
    ):
        source = RateSource(metric=name, metric_unit=rate_units.parse_unit(unit_name) if unit_name else None)
        alone, states = make_script_states(tmp_path / f"{name.replace('/', '-')}{unit_name}", source, unit=unit)
        log_through_mlflow(states[0].folder, name, [(1, 12.5), (2, 12.5), (3, 12.5)])
        row = judge(alone, *states)
        if result is None:
            assert f"workload.metric={name}: {name} is a time of unknown work; set workload.metric_unit" in row.reason
        else:
            assert row.metrics[f"throughput_total_{unit}_per_s"] == pytest.approx(result)


def read_examples() -> list[tuple[str, str, str, str, str]]:
    """The programs of the page, each with a line of its output, the pattern and the units that the page gives it."""
    page = (PROJECT_DIR / "docs/workloads.md").read_text(encoding="utf-8")
    command = r"""# (\w+): (.*)\npython run.py degree=2 'workload.metric_pattern="(.*)"'"""
    command += r"(?: workload.metric_unit=(\w+))?(?: workload.work_unit=(\w+))?"
    return re.findall(command, page)


RATES = {
    "tqdm": 1.32,
    "Lightning": 27.7,
    "timm": 261.42,
    "transformers": 137,
    "nanoGPT": 1000 / 563.15,
    "torchtitan": 3456,
    "LAMMPS": 12.345 / 86400,
    "NAMD": 1 / 0.0712 / 86400,
    "AMBER": 167.97 / 86400,
    "GROMACS": 167.966 / 86400,
}


def test_the_page_has_a_pattern_for_each_of_these_programs():
    assert {name for name, *_ in read_examples()} == set(RATES)


@pytest.mark.parametrize(("name", "line", "pattern", "unit_name", "work_unit"), read_examples())
def test_the_patterns_of_the_page_read_the_lines_of_the_programs(tmp_path, name, line, pattern, unit_name, work_unit):
    unit = rate_units.parse_unit(unit_name) if unit_name else None
    assert rate(tmp_path, pattern, f"{line}\n", unit=work_unit, metric_unit=unit) == pytest.approx(RATES[name])


TQDM = (
    b"\r  0%|          | 0/6 [00:00<?, ?it/s]\r 17%|#6        | 1/6 [00:00<00:01,  4.92it/s]"
    b"\r 33%|###3      | 2/6 [00:00<00:00,  4.91it/s]\r 67%|######6   | 4/6 [00:02<00:01,  1.32it/s]"
    b"\r 83%|########3 | 5/6 [00:03<00:01,  1.06s/it]\r100%|##########| 6/6 [00:05<00:00,  1.24s/it]\n"
)


@pytest.mark.parametrize(
    ("gaps_of_jobs", "parts"),
    [
        ([[], []], [(10, 20)]),
        ([[(12, 14)], [(13, 15), (18, 25)]], [(10, 12), (15, 18)]),
        ([[(5, 16)], []], [(16, 20)]),
        ([[(5, 16)], [(17, 30)]], [(10, 20)]),  # less than a quarter would be left
    ],
)
def test_the_time_in_which_the_counter_of_any_job_begins_again_is_left_out(gaps_of_jobs, parts):
    def points(gaps):
        return [(0, math.nan), *((t_ns, value) for gap in gaps for t_ns, value in ((gap[0], 5.0), (gap[1], math.nan)))]

    assert throughput.cut_gaps((10, 20), [points(gaps) for gaps in gaps_of_jobs]) == parts


def test_a_progress_bar_is_read_on_both_sides_of_one_a_second_and_says_so(tmp_path):
    alone, states = make_script_states(tmp_path, RateSource(pattern="([0-9.]+)it/s"))
    (states[0].folder / "stderr.log").write_bytes(TQDM)
    row = judge(alone, *states)
    values = [4.92, 4.91, 1.32, 1 / 1.06, 1 / 1.24]
    assert row.metrics["throughput_total_iterations_per_s"] == pytest.approx(sum(values) / 5)
    assert row.jobs[0].params["throughput_from"] == "its output, 5 values"
    words = "2 of 5 values are times, such as s/it"
    assert words in row.tags["collocation.flag"]


def test_a_pattern_that_reads_one_form_only_says_what_it_passes_over(tmp_path):
    alone, states = make_script_states(tmp_path, RateSource(pattern="([0-9.]+)[a-z]+/s"))
    (states[0].folder / "stderr.log").write_bytes(TQDM)
    assert "misses 2 lines with s/it instead of it/s" in judge(alone, *states).tags["collocation.flag"]


COUNTER = r"step (?P<count>[0-9]+)"


def test_the_rate_of_a_counter_is_its_rise_over_the_time_without_restarts(tmp_path):
    text = "".join(f"step {number} 9999 samples/s\n" for number in (10, 20, 40, 5, 25))
    ends = [text.index("\n", text.index(f"step {number} ")) + 1 for number in (20, 40, 5, 25)]
    output = read_output(tmp_path / "log", COUNTER, text, [n * S for n in (1, 2, 9, 11)], ends, 12 * S, unit="")
    assert output.points[1::2] == [(2 * S, 20), (11 * S, 10)]
    assert math.isnan(output.points[0][1]) and math.isnan(output.points[2][1])  # as in a validation between epochs
    assert throughput.average_logged_rate(output.points, [(0, 20 * S)]) == pytest.approx((20 + 20) / 3)
    assert throughput.average_logged_rate(output.points, []) == pytest.approx((20 + 20) / 3)
    assert throughput.average_logged_rate(output.points, [(10 * S, 11 * S)]) == 10
    assert throughput.count_values(output.points, (0, 20 * S)) == 2
    assert throughput.describe_long_value(output.points, (0, 20 * S)) is None


def test_a_counter_that_never_rises_gives_no_rate(tmp_path):
    alone, states = make_script_states(tmp_path, RateSource(pattern=COUNTER))
    (states[0].folder / "stdout.log").write_text(f"step 7\nstep {'9' * 5_000}\n")
    row = judge(alone, *states)
    assert row.result is Result.FAILED and row.reason.endswith("read a counter that rose between no two lines")


def test_values_of_one_look_count_equally(tmp_path):
    """All that is known of them is that they were written between two looks."""
    text = "".join(f"{value} samples/s\n" for value in (10, 90, 20, 80, 50, 50))
    output = read_output(tmp_path / "log", P, text, (1 * S, 2 * S, 3 * S), (26, 52, 78), 9 * S)
    assert output.points == [(S, 50), (2 * S, 50), (3 * S, 50)]


@pytest.mark.parametrize(
    ("gaps", "is_marked"), [((1, 1, 8, 1), True), ((1, 8), True), ((2, 2, 2), False), ((9,), False)]
)
def test_a_value_that_stands_for_much_longer_than_the_others_is_marked(gaps, is_marked):
    t_s = [0, *(sum(gaps[: i + 1]) for i in range(len(gaps)))]
    words = throughput.describe_long_value([(t * S, 5.0) for t in t_s], (0, t_s[-1] * S))
    assert (words is not None) == is_marked
    assert words is None or words.startswith("one logged value covers 8 s of the window, the others 1 s")


def test_where_no_line_matches_the_numbers_of_both_outputs_are_shown(tmp_path):
    alone, states = make_script_states(tmp_path, RateSource(pattern="([0-9.]+) img/sec"))
    assert judge(alone, *states).reason.endswith(
        "matched no line with a number in the job's output; the output is empty"
    )
    (states[0].folder / "stdout.log").write_text("starting\n")
    (states[0].folder / "stderr.log").write_bytes(TQDM + b"done\n")
    reason = judge(alone, *states).reason
    assert "stderr has numbers, such as `100%|##########| 6/6 [00:05<00:00,  1.24s/it]`" in reason
    assert "starting" not in reason and "17%" not in reason, "of a progress bar, its last state"
    (states[0].folder / "stderr.log").write_text("rate: -- it/sec, as (-) it/sec\n")
    alone, states = make_script_states(tmp_path, RateSource(pattern=r"(\S+) it/sec"))
    assert "matched `rate: -- it/sec" in judge(alone, *states).reason


def test_the_error_output_of_a_failed_job_has_no_progress_bar(tmp_path):
    _, (job,) = make_script_states(tmp_path, RateSource(pattern=P))
    (job.folder / "stderr.log").write_bytes(b"one line\r\n" + TQDM + b"\nValueError: no\n")
    lines = endings.read_error_output(job, Ending(Result.FAILED))
    assert lines == ("one line", "ValueError: no")


def test_of_a_flood_only_so_many_values_of_one_look_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(output_rates, "MOST_VALUES", 100)
    parts = [b"%d samples/s\n" % (100 * number) * 50_000 for number in range(1, 6)]
    ends = [sum(map(len, parts[:number])) for number in range(1, 6)]
    instants = [number * S for number in range(1, 6)]
    begin_s = time.monotonic()
    output = read_output(tmp_path / "log", P, b"".join(parts), instants, ends, 9 * S)
    assert output.points == [(number * S, 100 * number) for number in range(1, 6)]
    assert output.num_values <= 5 * 101 and time.monotonic() - begin_s < 5


def test_long_lines_and_lines_over_the_border_of_a_block_are_whole(tmp_path):
    lines = [b"x" * size + b" %d samples/s\r\n" % size for size in (1, 2**16 - 100, 2**20 - 5, 3, 2**21, 7, 2**20 - 77)]
    output = read_output(tmp_path / "log", P, b"".join(lines * 3))
    assert sorted({output.least, output.most}) == [1, 2**16 - 100] and output.num_values == 3 * 4


def test_a_reading_ends_at_a_signal(tmp_path):
    """A pattern may take for ever: the signal is raised within it."""

    def stop(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        with pytest.raises(KeyboardInterrupt):
            read_output(tmp_path / "log", "(?:a+)+b([0-9]+)", b"a" * 40 + b" 1\n")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
