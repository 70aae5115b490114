"""The rates that a running job prints, as they come."""

from __future__ import annotations

import pytest

from pipeline.base.domain.records import Job
from pipeline.base.domain.workload import RateSource
from pipeline.observe.live_rate import LiveRate, suggest_pattern
from tests.support.rows import state, workload

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
        ("epoch 1 loss 2.1 (1805.2 samples/s)\n" * 3, "([0-9.]+) samples/s"),
        ("\r 1/9 [00:00<00:07, 41.2it/s]" * 4, "([0-9.]+)it/s"),
        ("12 kB/s\n" + "1.5k tok/s\n" * 3, "([0-9.]+)k tok/s"),
        ("Performance: 35.4 ns/day, 409.6 timesteps/s\n", None),
        ("no rate\n", None),
    ],
)
def test_a_pattern_is_suggested_for_rates_that_come_again(output, pattern):
    assert suggest_pattern(output) == pattern
