"""Stressors of the host on CPUs: what they report and refuse."""

from __future__ import annotations

import pytest

from tests.unit.workloads.test_micro import Told
from workloads import program, stressor, stressor_turns
from workloads.rates import stressor_loads
from workloads.rates.options import Stressor, StressorTurns


@pytest.mark.parametrize(("resource", "threads"), [("host_cores", 2), ("host_memory", 3)])
def test_a_stressor_of_the_host_reports_its_calls(resource, threads, monkeypatch):
    monkeypatch.setattr(stressor_loads, "_FILE_BYTES", 4 << 20)
    argv = ["--resource", resource, "--dial", "0.5", "--calls", "40", "--epochs", "2", "--threads", str(threads)]
    told = Told()
    stressor.run(program.parse(Stressor, [*argv, "--device", "cpu"]), told)
    assert sum(told.work) >= 80 and min(told.work) >= threads
    assert (told.epochs, told.found_wrong) == (2, [])


def test_wrong_results_of_a_load_are_reported(monkeypatch):
    monkeypatch.setattr(stressor_loads.HostLoad, "count_wrong", lambda self: 3)
    argv = ["--resource", "host_cores", "--calls", "1", "--threads", "1", "--device", "cpu"]
    told = Told()
    stressor.run(program.parse(Stressor, argv), told)
    assert told.found_wrong == ["3 results of the load on host_cores are wrong"]


@pytest.mark.parametrize(("l2_mib", "table_kib"), [(50, 8192), (24, 4096), (4, 1024), (0.0625, 32), (0, 8192)], ids=str)
def test_the_table_of_l2_fits_into_a_quarter_of_it_and_has_a_block_at_least(l2_mib, table_kib):
    reading = stressor_loads.choose_reading("l2", int(l2_mib * 2**20))
    assert reading.num_bytes == table_kib << 10
    assert reading.num_bytes % (4 * reading.block) == 0
    assert stressor_loads.choose_reading("memory_bandwidth", int(l2_mib * 2**20)).num_bytes == 256 << 20


@pytest.mark.parametrize(
    ("argv", "why"),
    [
        (["--resource", "tensor_cores"], "resource=tensor_cores needs a GPU, but the job would run on the CPUs"),
        (["--resource", "host_cores", "--dial", "1.5"], "dial=1.5 must be from 0 to 1"),
        (["--resource", "host_cores", "--dial", "-0.5"], "dial=-0.5 must not be negative"),
        (["--resource", "host_cores", "--dial", "nan"], "dial=nan must be finite"),
    ],
)
def test_wrong_options_are_refused_by_hand(argv, why):
    with pytest.raises(program.UsageError, match=why):
        program.parse(Stressor, [*argv, "--device", "cpu"])


def test_a_stressor_in_turns_reports_the_calls_of_all_its_loads(monkeypatch):
    monkeypatch.setattr(stressor_loads, "_FILE_BYTES", 4 << 20)
    argv = ["--resources", "host_cores", "host_memory", "--dials", "1", "--turn-s", "0.05", "--turn-settle-s", "0.01"]
    argv += ["--lead-s", "0.01", "--threads", "2", "--device", "cpu", "--epochs", "2"]
    told = Told()
    stressor_turns.run(program.parse(StressorTurns, argv), told)
    assert (told.epochs, told.found_wrong) == (2, [])
    assert 0 in told.work and max(told.work) >= 2
