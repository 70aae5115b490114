"""The rates that a running job prints, as they come."""

from __future__ import annotations

import dataclasses

import pytest

from pipeline.base.domain.records import Job
from pipeline.base.domain.tags import Tag
from pipeline.base.domain.window import Window, WindowKind
from pipeline.base.domain.workload import RateSource
from pipeline.observe import live_rate
from pipeline.observe.live_rate import LiveRate, PrintedRates
from pipeline.observe.output_rates import OutputReader
from tests.support.rows import S, group, make_row, state, workload

pytestmark = pytest.mark.covers("pipeline/observe/live_rate.py", "pipeline/observe/output_rates.py")


@pytest.fixture
def make_reader(tmp_path):
    """A reader of a job's output, and a function that writes to it."""

    def make(pattern=None):
        options = {"rate": RateSource(pattern=pattern), "work_unit": "", "ends_by_itself": True}
        job = state(tmp_path, Job(index=0, workload=workload(**options)))

        def write(text, name="stdout.log"):
            with (job.folder / name).open("a") as file:
                file.write(text)

        return LiveRate(job), write

    return make


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("epoch 1: loss 2.3, 5130.4 samples/s\n", 5130.4),
        ("step 3 | 183.3k tok/s | 2 s\n", 183_300),
        (" 10%|# | 1/9 [00:01<00:08,  2.00s/it]\r 20%|# | 2/9 [00:02<00:07,  1.00it/s]\r", 0.75),
        ("loss 0.3 in 12 s\n", None),
        ("Time: 0.012s, 10422.5/s (0.013s, 9800.11/s)\n", 10422.5),
        ("1,050 img/sec 3 s\n2,100 img/sec\n", None),
    ],
)
def test_usual_rates_are_read_without_a_pattern(make_reader, text, rate):
    reader, write = make_reader()
    write(text)
    assert reader.read() == (rate if rate is None else pytest.approx(rate))


def test_each_line_is_read_once_and_only_when_it_is_complete(make_reader):
    reader, write = make_reader()
    assert reader.read() is None
    write("10 it/s\n2", "stderr.log")
    assert reader.read() == 10
    write("0 it/s\n", "stderr.log")
    assert reader.read() == 20
    assert reader.read() is None


def test_a_program_with_several_rates_is_read_by_the_first(make_reader):
    reader, write = make_reader()
    write("10 it/s\n")
    assert reader.read() == 10
    write("9000 tokens/s\n20 it/s\n")
    assert reader.read() == 20


def test_the_users_pattern_is_read_alone(make_reader):
    reader, write = make_reader(r"throughput ([0-9.]+) samples/s")
    write("99 it/s\nthroughput 5 samples/s\nthroughput 7 samples/s\n")
    assert reader.read() == 6


@pytest.mark.parametrize(
    ("output", "pattern"),
    [
        (["epoch 1 loss 2.1 (1805.2 samples/s)", "done"], "([0-9.]+) samples/s"),
        (["1/9 [00:00<00:07, 41.2it/s]", ""], "([0-9.]+)it/s"),
        (["12 kB/s", "1.5k tok/s"], "([0-9.]+)k tok/s"),
        (["step 4 tok/s: 5213.2, loss 0.2"], r"tok/s:\ ([0-9.]+)"),
        (["step 4 | 12.3 ms/step"], "([0-9.]+) ms/step"),
        (["Time: 0.012s, 10422.31/s (0.013s, 9800.11/s) LR: 1.0e-05"], "([0-9.]+)/s"),
        ([f"step {n} 199.33 samples/s" for n in (5, 10, 15)], "[0-9] +([0-9.]+) samples/s"),
        (["rate 1 234.5 samples/s"] * 3, "([0-9.]+) samples/s"),
        (["model.safetensors: 12.3M/45.6M [00:01<00:03, 5.2MB/s]", "no rate in 3 s"], None),
    ],
)
def test_the_pattern_of_a_rate_is_found(output, pattern):
    assert live_rate.find_pattern(output) == pattern


def test_the_found_pattern_reads_a_rate_after_another_number():
    lines = [f"step {n} 199.33 samples/s" for n in (5, 10, 15)]
    found_pattern, bare_pattern = live_rate.find_pattern(lines), "([0-9.]+) samples/s"
    assert OutputReader(RateSource(pattern=bare_pattern), "").read_rate(lines[0]) is None  # may be 5 199.33
    assert OutputReader(RateSource(pattern=found_pattern), "").read_rate(lines[0]) == 199.33


class TestPrintedRates:
    @pytest.fixture(autouse=True)
    def clock(self, monkeypatch):
        self.now_s = 100.0
        monkeypatch.setattr("time.monotonic", lambda: self.now_s)
        monkeypatch.setattr("time.monotonic_ns", lambda: int(self.now_s * S))

    def make_states(self, folder, *sources):
        options = {"work_unit": "", "ends_by_itself": True}
        jobs = [
            Job(index=index, workload=workload(rate=source, digest=f"program {index}", **options))
            for index, source in enumerate(sources)
        ]
        states = [state(folder / str(job.index), job) for job in jobs]
        for one in states:
            one.ended.status = None
        return states

    def print_rates(self, job, number):
        with (job.folder / "stdout.log").open("a") as file:
            file.write("7 steps/s\n" * number)

    def test_the_window_begins_when_the_last_job_prints(self, tmp_path):
        states = self.make_states(tmp_path, *[RateSource(pattern="([0-9.]+) steps/s")] * 2)
        printed = PrintedRates(states, 8.0)
        self.print_rates(states[0], 9)
        assert not printed.is_over()
        self.now_s += 20
        assert not printed.is_over()
        self.print_rates(states[1], 1)
        assert not printed.is_over()
        self.now_s += 20
        assert not printed.is_over()  # one rate is too few
        self.print_rates(states[1], 5)
        assert printed.is_over()

    def test_a_job_that_ends_ends_the_window_of_all(self, tmp_path):
        states = self.make_states(tmp_path, *[RateSource(pattern="([0-9.]+) steps/s")] * 2)
        printed = PrintedRates(states, 8.0)
        for one in states:
            self.print_rates(one, 2)
        assert not printed.is_over()
        states[0].ended.status = 0
        assert printed.is_over()

    def restart(self, folder):
        """Two jobs that have printed rates, of which the second is stopped."""
        states = self.make_states(folder, *[RateSource(pattern="([0-9.]+) steps/s")] * 2)
        printed = PrintedRates(states, 8.0)
        for one in states:
            self.print_rates(one, 9)
        assert not printed.is_over() and printed.begin_ns == 100 * S
        printed.restart(1)
        return states[0], printed

    def test_after_a_restart_only_later_lines_of_the_first_jobs_count(self, tmp_path):
        first, printed = self.restart(tmp_path)
        self.now_s += 20
        assert not printed.is_over() and printed.begin_ns is None
        self.print_rates(first, 9)
        assert not printed.is_over() and printed.begin_ns == 120 * S
        self.now_s += 9
        assert not printed.is_over()  # its lines before the begin do not count
        self.print_rates(first, 6)
        assert printed.is_over() and printed.begin_ns == 120 * S

    @pytest.mark.parametrize(("num_lines", "seconds", "begins"), [(1, 9, False), (9, 1.9, False), (2, 2, True)])
    def test_a_window_begins_once_the_lines_and_the_time_to_settle_have_passed(
        self, tmp_path, num_lines, seconds, begins
    ):
        first, printed = self.restart(tmp_path)
        self.print_rates(first, num_lines)
        self.now_s += seconds
        assert not printed.is_over() and (printed.begin_ns is not None) == begins

    def test_a_rate_that_is_sought_needs_a_long_run(self, tmp_path):
        states = self.make_states(tmp_path, RateSource(is_sought=True))
        printed = PrintedRates(states, 8.0, whole_run_s=20.0)
        self.print_rates(states[0], 9)
        assert not printed.is_over()
        self.now_s += 19
        assert not printed.is_over()
        self.now_s += 2
        assert printed.is_over()
        assert printed.patterns == {"program 0": "([0-9.]+) steps/s"}

    def test_a_rate_without_a_unit_counts_samples(self, tmp_path):
        states = self.make_states(tmp_path, RateSource(is_sought=True))
        (states[0].folder / "stdout.log").write_text("Time: 0.012s, 10422.31/s (0.013s, 9800.11/s)\n" * 9)
        printed = PrintedRates(states, 8.0)
        assert not printed.is_over()
        self.now_s += 9
        assert printed.is_over()
        measured = live_rate.apply_patterns(group(jobs=(states[0].job,)), printed.patterns)
        assert measured.jobs[0].workload.work_unit == "samples"

    def test_rates_of_other_work_do_not_count(self, tmp_path):
        states = self.make_states(tmp_path, RateSource(is_sought=True))
        printed = PrintedRates(states, 8.0)
        with (states[0].folder / "stderr.log").open("a", buffering=1) as file:
            file.write("Map: 9% 5000.0 examples/s\r" * 9)
            assert not printed.is_over()
            file.write("Loading weights: 5000.00it/s\r" * 9 + "10/99 [00:01<00:08, 41.20it/s]\r")
            self.now_s += 9
            assert not printed.is_over()
            file.write("12/99 [00:01<00:08, 40.00it/s]\rEvaluating: 99.0it/s\r" * 9)
            self.now_s += 9
            assert printed.is_over()
        reader = OutputReader(RateSource(pattern=printed.patterns["program 0"]), "")
        lines = (states[0].folder / "stderr.log").read_bytes().decode().split("\r")
        assert list(filter(None, map(reader.read_rate, lines))) == [41.2, *[40.0] * 9]

    def test_a_time_instead_of_a_rate_counts(self, tmp_path):
        states = self.make_states(tmp_path, RateSource(pattern="([0-9.]+)it/s"))
        (states[0].folder / "stderr.log").write_text("\r2.00s/it" * 9 + "\r")
        printed = PrintedRates(states, 8.0)
        assert not printed.is_over()
        self.now_s += 9
        assert printed.is_over()


@pytest.mark.parametrize("pattern", ["([0-9.]+)it/s", None])
def test_groups_get_the_found_pattern_or_whole_runs(pattern):
    planned = group(
        jobs=(Job(index=0, workload=workload(rate=RateSource(is_sought=True), digest="a")),),
        window=Window(kind=WindowKind.LOGGED, seconds=8.0),
    )
    assert live_rate.apply_patterns(planned, {}) is planned
    known = live_rate.apply_patterns(planned, {"a": pattern})
    assert known.jobs[0].workload.rate == RateSource(pattern=pattern)
    assert known.window.kind is (WindowKind.WORK if pattern is None else WindowKind.LOGGED)
    assert known.digest == planned.digest
    tags = live_rate.make_tags(planned, {"a": pattern})
    assert live_rate.read_tags(planned, tags) == {"a": pattern}


def make_printed_row(num_jobs, total, values=(), **changes):
    """The row of copies of a script that printed these values, one a second."""
    row = make_row(
        group(*"a" * num_jobs, window=Window(kind=WindowKind.LOGGED, seconds=8.0)),
        metrics={"throughput_total_samples_per_s": total},
        **changes,
    )
    series = {"logged_samples_per_s": [(step, step * S, float(value)) for step, value in enumerate(values)]}
    return dataclasses.replace(row, jobs=tuple(dataclasses.replace(job, series=series) for job in row.jobs))


@pytest.mark.parametrize(
    ("total", "values", "is_marked"),
    [(80.0, range(60, 80), True), (80.0, [79, 81, 80, 78] * 5, False), (95.0, range(75, 95), False)],
)
def test_rows_of_a_launch_are_marked_if_the_fewest_copies_print_averages(total, values, is_marked):
    rows = [make_printed_row(2, 150.0), make_printed_row(1, total, values)]
    marked = live_rate.mark_averages(rows, {rows[1].group.key: 100.0})
    assert [live_rate.AVERAGES in row.marks.invalid for row in marked] == [is_marked] * 2
    assert live_rate.mark_averages(rows, {}) == rows


@pytest.mark.parametrize("tags", [{}, {Tag.LAUNCH: "id"}, {Tag.INVALID: "a job waited for a CPU"}])
def test_a_rate_to_compare_with_is_valid_and_of_a_launch_without_other_groups(tags):
    rates = {}
    row = make_printed_row(1, 100.0, tags=tags)
    live_rate.note_rate(row, rates)
    assert rates == ({} if tags else {row.group.key: 100.0})
