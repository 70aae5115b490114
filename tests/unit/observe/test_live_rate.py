"""The rates that a running job prints, as they come."""

from __future__ import annotations

import pytest

from pipeline.base.domain.records import Job
from pipeline.base.domain.window import Window, WindowKind
from pipeline.base.domain.workload import RateSource
from pipeline.observe import live_rate
from pipeline.observe.live_rate import LiveRate, PrintedRates
from pipeline.observe.output_rates import OutputReader, is_counter
from tests.support.rows import S, group, state, workload

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


def test_a_trial_without_a_rate_is_read_by_its_counter(make_reader, monkeypatch):
    now_s = iter([10, 12, 13])
    monkeypatch.setattr("time.monotonic_ns", lambda: next(now_s) * S)
    reader, write = make_reader()
    write("step 1\nstep 2\nstep 3\n")
    assert reader.read() is None
    write("step 13\nstep 23\n")
    assert reader.read() == 10
    write("step 1\n")  # of the next epoch
    assert reader.read() is None


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
        (["rate 1 234.5 samples/s"] * 3, "([0-9.]+) samples/s"),
        (["model.safetensors: 12.3M/45.6M [00:01<00:03, 5.2MB/s]", "no rate in 3 s"], None),
    ],
)
def test_the_pattern_of_a_rate_is_found(output, pattern):
    assert live_rate.find_pattern(output) == pattern


TIMM = "Train: {} [{:>4d}/781 ({}%)]  Loss: 2.31 (2.31)  Time: 0.276s,  464.18/s  (0.276s,  464.18/s)  LR: 4.9e-02"


@pytest.mark.parametrize(
    ("output", "counts"),
    [
        ([TIMM.format(epoch, step, step // 8) for epoch in (1, 2) for step in (0, 50, 100)], [0, 50, 100] * 2),
        ([f" 12%|# | {n}/1000 [00:01<00:07, 41.2it/s]" for n in (7, 8, 9)], [7, 8, 9]),
        ([f"[2026/11/30 08:00:0{n}] step {50 * n} 199 samples/s" for n in (1, 2, 3)], [50, 100, 150]),
        ([f"Epoch [1/60], Step [{n}/600], Loss: 0.3" for n in (100, 200, 300)], [100, 200, 300]),
        ([f"{{'loss': 0.3, 'global_step': {n}, 'epoch': 0.{n}}}" for n in (1, 2, 3)], [1, 2, 3]),
        (["   Step    Temp", *(f"{n:7d}  1.2  200.1 timesteps/s" for n in (0, 50, 100))], [0, 50, 100]),
        (["Validating: 5/9", "Validating: 6/9", *(f"epoch {n} acc 0.3" for n in (1, 2, 3))], [1, 2, 3]),
    ],
)
def test_a_counter_is_found_and_read(output, counts):
    reader = OutputReader(RateSource(pattern=live_rate.find_pattern(output)), "")
    values = [reader.read_value(line) for line in output]
    assert [value for value in values if value is not None] == counts and reader.rates.work_unit == "steps"


@pytest.mark.parametrize(
    "output",
    [
        [f"{n} s: loss 0.3, step 5" for n in (1, 2, 3)],
        [f"[08:00:0{n}] batch 128, rank 1/4, {n}.5/80 GB" for n in (1, 2, 3)],
        [f"176449100{n} INFO step 3" for n in (1, 2, 3)],
        ["step 1", "step 2"],
        [f"step {n * '9'}, {n * '9'}/{n * '9'}" for n in (5_000, 6_000, 7_000)],
        [f"step {n}" for n in (5, 1, 9, 2, 7)],
    ],
)
def test_numbers_that_count_no_work_are_no_counter(output):
    assert live_rate.find_counter(output) is None


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
        assert list(filter(None, map(reader.read_value, lines))) == [41.2, *[40.0] * 9]

    def test_a_counter_that_comes_later_takes_the_place_of_a_rate(self, tmp_path):
        states = self.make_states(tmp_path, RateSource(is_sought=True))
        printed = PrintedRates(states, 8.0)
        with (states[0].folder / "stdout.log").open("a", buffering=1) as file:
            file.write("step 1: 50 samples/s\n")
            assert not printed.is_over() and printed.patterns == {"program 0": "([0-9.]+) samples/s"}
            file.writelines(f"step {n}: 50 samples/s\n" for n in range(2, 9))
            self.now_s += 9
            assert not printed.is_over()  # the window begins again
        self.now_s += 9
        assert printed.is_over() and is_counter(printed.patterns["program 0"])

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
