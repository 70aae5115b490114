"""Rates in the output of programs: numbers are read whole or refused, and in the unit that stands beside them."""

from __future__ import annotations

import re
import signal
import time

import pytest

from pipeline.base.domain import rate_units
from pipeline.base.domain.records import Result
from pipeline.base.domain.workload import RateSource
from pipeline.base.system.paths import PROJECT_DIR
from pipeline.launch.job_state import Ending
from pipeline.observe import endings, output_rates, throughput
from tests.support.tables import rows
from tests.unit.observe.test_logged import S, judge, log_through_mlflow, make_script_states, read_output

P, Q = "([0-9.]+) samples/s", "([0-9,.]+) samples/s"


def refusal(tmp_path, pattern, line, **source) -> str:
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
    assert remedy in refusal(tmp_path, pattern, line)
    alone, states = make_script_states(tmp_path, RateSource(pattern=pattern))
    (states[0].folder / "stdout.log").write_text(f"{line}\n")
    row = judge(alone, states)
    assert row.result is Result.FAILED and "throughput_total_samples_per_s" not in row.metrics
    assert f"workload.metric_pattern matches an unclear number in `{line}`: " in row.reason
    assert len(row.reason.partition(";")[0]) < 170


@rows("output_rates", "decimal_marks")
def test_the_user_says_the_decimal_mark(tmp_path, line, mark, number):
    if number is None:
        assert refusal(tmp_path, Q, line, decimal_mark=mark)
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
    row = judge(alone, states)
    assert row.metrics[f"throughput_total_{work_unit}_per_s"] == pytest.approx(per_s)
    assert row.jobs[0].work_unit == work_unit and f"logged_{work_unit}_per_s" in row.jobs[0].series


@pytest.mark.parametrize("line", ["12.5", "261.42/s", "12 TFLOPS", "60fps", "12 s/s"])
def test_a_number_without_a_unit_is_no_rate_of_samples(tmp_path, line):
    alone, states = make_script_states(tmp_path, RateSource(pattern=NUMBER))
    (states[0].folder / "stdout.log").write_text(f"{line}\n")
    row = judge(alone, states)
    assert row.result is Result.FAILED
    assert "set workload.work_unit" in row.reason or "set workload.metric_unit" in row.reason
    assert not any("samples" in name for name in row.metrics)


@rows("output_rates", "renamed_units")
def test_the_work_unit_of_the_user_renames_the_unit_but_cannot_contradict_it(tmp_path, work_unit, line, per_s):
    if per_s is None:
        assert f", not {work_unit}; set workload.work_unit=" in refusal(tmp_path, NUMBER, line, unit=work_unit)
    else:
        assert rate(tmp_path, NUMBER, line, unit=work_unit) == pytest.approx(per_s)


def test_lines_of_one_job_count_one_kind_of_work(tmp_path):
    assert "the number counts images, not tokens" in refusal(
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
        row = judge(alone, states)
        if result is None:
            assert f"workload.metric={name}: {name} is a time of unknown work; set workload.metric_unit" in row.reason
        else:
            assert row.metrics[f"throughput_total_{unit}_per_s"] == pytest.approx(result)


def examples() -> list[tuple[str, str, str, str, str]]:
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
    assert {name for name, *_ in examples()} == set(RATES)


@pytest.mark.parametrize(("name", "line", "pattern", "unit_name", "work_unit"), examples())
def test_the_patterns_of_the_page_read_the_lines_of_the_programs(tmp_path, name, line, pattern, unit_name, work_unit):
    unit = rate_units.parse_unit(unit_name) if unit_name else None
    assert rate(tmp_path, pattern, f"{line}\n", unit=work_unit, metric_unit=unit) == pytest.approx(RATES[name])


TQDM = (
    b"\r  0%|          | 0/6 [00:00<?, ?it/s]\r 17%|#6        | 1/6 [00:00<00:01,  4.92it/s]"
    b"\r 33%|###3      | 2/6 [00:00<00:00,  4.91it/s]\r 67%|######6   | 4/6 [00:02<00:01,  1.32it/s]"
    b"\r 83%|########3 | 5/6 [00:03<00:01,  1.06s/it]\r100%|##########| 6/6 [00:05<00:00,  1.24s/it]\n"
)


def test_a_progress_bar_is_read_on_both_sides_of_one_a_second_and_says_so(tmp_path):
    alone, states = make_script_states(tmp_path, RateSource(pattern="([0-9.]+)it/s"))
    (states[0].folder / "stderr.log").write_bytes(TQDM)
    row = judge(alone, states)
    values = [4.92, 4.91, 1.32, 1 / 1.06, 1 / 1.24]
    assert row.metrics["throughput_total_iterations_per_s"] == pytest.approx(sum(values) / 5)
    assert row.jobs[0].params["throughput_from"] == "its output, 5 values"
    words = "2 of 5 values are times, such as s/it"
    assert words in row.tags["collocation.flag"]


def test_a_pattern_that_reads_one_form_only_says_what_it_passes_over(tmp_path):
    alone, states = make_script_states(tmp_path, RateSource(pattern="([0-9.]+)[a-z]+/s"))
    (states[0].folder / "stderr.log").write_bytes(TQDM)
    assert "misses 2 lines with s/it instead of it/s" in judge(alone, states).tags["collocation.flag"]


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
    assert judge(alone, states).reason.endswith(
        "matched no line with a number in the job's output; the output is empty"
    )
    (states[0].folder / "stdout.log").write_text("starting\n")
    (states[0].folder / "stderr.log").write_bytes(TQDM + b"done\n")
    reason = judge(alone, states).reason
    assert "stderr has numbers, such as `100%|##########| 6/6 [00:05<00:00,  1.24s/it]`" in reason
    assert "starting" not in reason and "17%" not in reason, "of a progress bar, its last state"
    (states[0].folder / "stderr.log").write_text("rate: -- it/sec, as (-) it/sec\n")
    alone, states = make_script_states(tmp_path, RateSource(pattern=r"(\S+) it/sec"))
    assert "matched `rate: -- it/sec" in judge(alone, states).reason


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
