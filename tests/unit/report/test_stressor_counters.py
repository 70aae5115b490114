"""Hardware counters of stressors alone: means over samples in turns, leaks into other resources, the table."""

from __future__ import annotations

import dataclasses
import json
from array import array
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from listeners.gpm import GpmListener
from listeners.host import HostListener
from pipeline.base.domain.samples import FieldTable
from pipeline.base.domain.window import Place
from pipeline.observe.sample_figures import Fields
from pipeline.record.sample_series import Series, SeriesKey
from pipeline.report.evaluate.stressors import StressorLoad, describe_loads, list_loads
from pipeline.report.page.page import make_content, render
from pipeline.report.page.table_format import Table
from pipeline.report.read import stressor_counters
from pipeline.report.read.stressor_counters import COUNTERS, average_counters, choose_rows, read_counters
from pipeline.report.read.study_records import Row, StressorCounters, Study
from tests.support.report_rows import GPU, copies, job, row, study
from tests.support.rows import S

KNOWN = Fields(FieldTable(source=kind.name, fields=kind.fields, rank=kind.rank) for kind in (GpmListener, HostListener))
DRAM, CPU = SeriesKey("gpm", None, None, "dram_active_ratio"), SeriesKey("host", 0, None, "cpu_pct")
TURN_PARAMS = {"workload": "stressor", "resources": '["l2"]', "dials": "[1.0]", "turn_s": "1.0", "turn_settle_s": "0.2"}
FULL = {
    ("idle", 0.0): {"smact_ratio": 0.0, "tensor_active_ratio": 0.0, "dram_active_ratio": 0.02, "cpu_pct": 0.1},
    ("tensor_cores", 1.0): {"smact_ratio": 0.9, "tensor_active_ratio": 0.8, "dram_active_ratio": 0.06, "cpu_pct": 0.5},
    ("memory_bandwidth", 1.0): {"smact_ratio": 1.0, "tensor_active_ratio": 0.0, "dram_active_ratio": 0.82},
    ("l2", 1.0): {"smact_ratio": 1.0, "tensor_active_ratio": 0.04, "dram_active_ratio": 0.26, "cpu_pct": 1.0},
}
"""Counters of stressors, of which `l2` reads 30 % of what `memory_bandwidth` reads from DRAM, above the idle turns."""


def make_series(*readings: tuple[float, float]) -> Series:
    """Return a series of instants in seconds and values."""
    return Series(array("q", [round(t_s * S) for t_s, _ in readings]), array("d", [value for _, value in readings]))


def average(samples: Mapping[SeriesKey, Series], *turns_s: tuple[float, float]) -> dict[str, float]:
    windows = [(round(begin_s * S), round(end_s * S)) for begin_s, end_s in turns_s]
    return average_counters(samples, KNOWN, 0, windows)


def test_a_sample_counts_if_all_of_its_time_is_in_one_turn() -> None:
    # The samples at 1.1 and 2.1 also cover time outside the turns from 1 to 2 and from 2 to 3.
    series = make_series((0.5, 0.0), (1.1, 9.0), (1.5, 0.4), (1.9, 0.6), (2.1, 9.0), (2.5, 0.2), (3.1, 9.0))
    assert average({DRAM: series}, (1, 2)) == {"dram_active_ratio": pytest.approx(0.5)}
    assert average({DRAM: series}, (1, 2), (2, 3)) == {"dram_active_ratio": pytest.approx(0.4)}
    assert average({DRAM: series}, (1.2, 1.6)) == {} == average({DRAM: series}) == average({}, (1, 2))


def test_a_longer_sample_has_more_weight() -> None:
    series = make_series((1.0, 9.0), (1.3, 0.2), (1.4, 0.6))
    assert average({DRAM: series}, (1, 2)) == {"dram_active_ratio": pytest.approx(0.3)}


def test_a_counter_is_of_the_whole_gpu_or_of_the_job_and_of_the_best_source() -> None:
    low, high = make_series((1, 0), (1.5, 25.0)), make_series((1, 0), (1.5, 150.0))
    other = {SeriesKey("host", None, None, "cpu_pct"): low, DRAM._replace(gi_id=1): low, CPU._replace(job=1): low}
    assert average({CPU: high, **other}, (1, 2)) == {"cpu_pct": pytest.approx(1.5)}, "in CPUs"
    rx = SeriesKey("gpm", None, None, "pcie_rx_mib_per_s")
    assert average({rx: make_series((1, 0), (1.5, 1000.0))}, (1, 2)) == {rx.field: pytest.approx(1.048576)}, "in GB/s"
    two = Fields([FieldTable(source="gpm", fields=GpmListener.fields, rank=3),
                  FieldTable(source="dcgm", fields=GpmListener.fields, rank=2)])  # fmt: skip
    samples = {DRAM._replace(source="dcgm"): low, DRAM: high}
    assert average_counters(samples, two, 0, [(S, 2 * S)]) == {"dram_active_ratio": 150.0}


def test_each_counter_is_a_quantity_of_a_listener() -> None:
    known = {field.name for _, field in KNOWN}
    assert {counter.field for counter in COUNTERS} <= known


@pytest.fixture
def put(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    """Return a function that sets the samples of all groups and the events of all jobs."""

    def put(samples: dict[SeriesKey, Series], *phases: tuple[str, float]) -> None:
        path = tmp_path / "events.jsonl"
        events = [{"event": "phase", "name": name, "t_ns": round(t_s * S)} for name, t_s in phases]
        path.write_text("".join(json.dumps(event) + "\n" for event in [{"event": "started", "t_ns": 1}, *events]))
        monkeypatch.setattr(stressor_counters, "fetch_samples", lambda *_: (samples, KNOWN if samples else Fields()))
        monkeypatch.setattr(stressor_counters, "fetch", lambda *_: path if phases else None)

    return put


def stressor_row(stressor_params: dict[str, str] = TURN_PARAMS, scenario: str = "serial", **changes: Any) -> Row:
    """Return a stressor alone, with a window from 1 to 11 s."""
    return row(scenario, (job(0, stressor_params, None),), **changes)


def test_the_time_in_which_a_turn_settles_and_incomplete_turns_do_not_count(put: Callable[..., None]) -> None:
    readings = [(2 + 0.1 * step, 0.9 if step <= 2 else 0.5) for step in range(11)]  # 0.9 in the first 0.2 s
    rest = [(3.1 + 0.1 * step, 0.1) for step in range(10)] + [(4.2, 7.0), (4.3, 7.0)]
    phases = (("lead", 0.5), ("turn l2 1", 2.0), ("turn idle 0", 3.0), ("turn l2 1", 4.05), ("end", 4.5))
    put({DRAM: make_series(*readings, *rest)}, *phases)
    counters = {one.place: one for one in read_counters(stressor_row(facts={**stressor_row().facts, "cpus": "8"}))}
    assert counters["l2", 1.0].means == {"dram_active_ratio": pytest.approx(0.5)}
    assert counters["idle", 0.0].means == {"dram_active_ratio": pytest.approx(0.1)}
    assert (counters["l2", 1.0].num_cpus, counters["l2", 1.0].device, counters["l2", 1.0].block) == (8, GPU, 1)


def test_a_stressor_of_one_resource_has_its_window_as_a_turn(put: Callable[..., None]) -> None:
    put({DRAM: make_series((0.9, 9.0), (1.1, 9.0), (6.0, 0.3), (10.9, 0.5), (11.2, 9.0))})
    (counters,) = read_counters(stressor_row({"workload": "stressor", "resource": "l2", "dial": "0.5"}))
    assert counters.place == ("l2", 0.5) and counters.means == {"dram_active_ratio": pytest.approx(0.4)}


def test_without_samples_turns_or_a_window_there_are_no_counters(put: Callable[..., None]) -> None:
    phases = ("turn l2 1", 2.0), ("end", 3.0)
    put({}, *phases)
    assert read_counters(stressor_row()) == []
    samples = {DRAM: make_series((2.3, 0.0), (2.5, 0.4))}
    put(samples)
    assert read_counters(stressor_row()) == []
    put(samples, *phases)
    assert read_counters(stressor_row(facts={})) == []
    assert [one.means for one in read_counters(stressor_row())] == [{"dram_active_ratio": pytest.approx(0.4)}]
    put({DRAM: make_series((1.9, 0.0), (3.1, 0.4))}, *phases)
    assert read_counters(stressor_row()) == [], "no sample lies in the turn"


def test_only_valid_rows_of_a_stressor_alone_have_counters() -> None:
    alone = stressor_row()
    left_out = [
        stressor_row(scenario="mps"),
        stressor_row(block=2, invalid="another program"),
        copies("serial", 1, 9.0),
    ]
    assert [chosen.run_id for chosen in choose_rows(study(alone, *left_out))] == [alone.run_id]


def make_counter_study(
    counters: Mapping[Place, Mapping[str, float]] = FULL, *more: StressorCounters, num_cpus: int | None = 16
) -> Study:
    """Return a study of stressors alone with these counters."""
    by_place = [
        StressorCounters(device=GPU, gpu_uuid="GPU-1", block=1, place=place, num_cpus=num_cpus, means=means)
        for place, means in counters.items()
    ]
    return dataclasses.replace(study(stressor_row()), counters=(*by_place, *more))


def map_loads(stressor_study: Study) -> dict[Place, StressorLoad]:
    return {load.place: load for load in list_loads(stressor_study)}


def map_leaks(load: StressorLoad) -> dict[str, Any]:
    return {counter.title: ratio for counter, ratio in load.leaks.items()}


def make_table(stressor_study: Study) -> Table | None:
    return next((table for table in make_content(stressor_study).tables if table.name == "stressors"), None)


def test_a_leak_is_relative_to_the_stressor_of_the_resource_above_the_idle_turns() -> None:
    loads = map_loads(make_counter_study())
    assert list(loads) == [("idle", 0.0), ("l2", 1.0), ("memory_bandwidth", 1.0), ("tensor_cores", 1.0)]
    assert map_leaks(loads["l2", 1.0]) == {"DRAM": pytest.approx(0.3)}, (
        "1 of 16 CPUs and 5 % of the tensor cores do not"
    )
    assert map_leaks(loads["tensor_cores", 1.0]) == map_leaks(loads["memory_bandwidth", 1.0]) == {}
    assert not loads["idle", 0.0].is_checked and not any(load.is_weak for load in loads.values())


def test_a_leak_is_relative_to_the_same_dial_or_else_to_the_peak() -> None:
    half = {("memory_bandwidth", 0.5): {"dram_active_ratio": 0.42}, ("l2", 0.5): {"dram_active_ratio": 0.08}}
    loads = map_loads(make_counter_study({**FULL, **half}))
    assert map_leaks(loads["l2", 0.5]) == {"DRAM": pytest.approx(0.06 / 0.4)}
    loads = map_loads(make_counter_study({**FULL, ("l2", 0.5): {"dram_active_ratio": 0.13}}))
    assert map_leaks(loads["l2", 0.5]) == {"DRAM": pytest.approx(0.11)}
    assert loads["l2", 0.5].to_peak and not loads["l2", 0.5].to_effect


def test_pcie_without_its_stressor_and_host_cpu_without_a_number_of_cpus_are_not_checked() -> None:
    rx, tx = "pcie_rx_mib_per_s", "pcie_tx_mib_per_s"
    host = {("host_memory", 1.0): {rx: 4.0, "cpu_pct": 2.0}}
    assert not map_loads(make_counter_study(host, num_cpus=None))["host_memory", 1.0].is_checked
    assert map_leaks(map_loads(make_counter_study(host, num_cpus=4))["host_memory", 1.0]) == {"host CPU": 0.5}
    copies_too = {**host, ("pcie_copies", 1.0): {rx: 20.0, tx: 3.0}}
    loads = map_loads(make_counter_study(copies_too, num_cpus=None))
    assert map_leaks(loads["host_memory", 1.0]) == {"PCIe to the GPU": pytest.approx(0.2)}
    assert map_leaks(loads["pcie_copies", 1.0]) == {"PCIe from the GPU": pytest.approx(0.15)}


def test_a_stressor_that_hardly_loads_its_resource_is_no_measure_of_it() -> None:
    weak = {**FULL, ("memory_bandwidth", 1.0): {"dram_active_ratio": 0.05}}
    loads = map_loads(make_counter_study(weak))
    assert loads["memory_bandwidth", 1.0].is_weak
    assert map_leaks(loads["l2", 1.0]) == {"DRAM": pytest.approx(0.24)}, "of the peak"
    (_, sentence) = describe_loads(make_counter_study(weak))
    assert sentence == (
        "Stressors that raise their own counter by less than 10 % of its peak: memory_bandwidth (stressors.csv)."
    )


def test_counters_are_medians_over_blocks_and_each_gpu_counts_once() -> None:
    def block(number: int, value: float, uuid: str) -> StressorCounters:
        means = {"dram_active_ratio": value}
        return StressorCounters(device=GPU, gpu_uuid=uuid, block=number, place=("l2", 1.0), num_cpus=1, means=means)

    one_gpu = [block(number, value, "GPU-1") for number, value in ((1, 0.1), (2, 0.2), (3, 0.9))]
    (load,) = list_loads(make_counter_study({}, *one_gpu))
    assert (load.counters, load.num_blocks) == ({"dram_active_ratio": 0.2}, 3)
    (load,) = list_loads(make_counter_study({}, *one_gpu, block(4, 0.6, "GPU-2")))
    assert load.counters == {"dram_active_ratio": pytest.approx(0.4)}


def test_the_table_shows_missing_counters_as_missing_and_the_page_names_the_leak() -> None:
    content = make_content(make_counter_study())
    table = make_table(content.study)
    assert table is not None
    counters = ("SMACT", "tensor cores", "DRAM", "host CPU (CPUs)")
    assert table.columns == ("resource", "dial", "blocks", "own counter", *counters, "also loads")
    assert table.rows[0] == ("idle", 0.0, 1, None, 0.0, 0.0, 0.02, 0.1, None)
    assert table.rows[1] == ("l2", 1.0, 1, None, 1.0, 0.04, 0.26, 1.0, "DRAM (30 %)")
    assert table.rows[2] == ("memory_bandwidth", 1.0, 1, "DRAM", 1.0, 0.0, 0.82, None, "nothing")
    assert (
        "at the same dial (tensor cores and DRAM) or of the peak, where that stressor was not measured (host CPU)."
        in (table.note)
    )
    page = render(content)
    assert "Stressors alone, by hardware counters" in page
    assert "By hardware counters, l2 also loads DRAM (30 %). 100 % is the effect of the stressor" in page


def test_without_counters_there_is_no_table_and_without_a_leak_no_sentence() -> None:
    assert make_table(study(stressor_row())) is None and describe_loads(study(stressor_row())) == []
    clean = {place: means for place, means in FULL.items() if place[0] != "l2"}
    assert describe_loads(make_counter_study(clean)) == [] and make_table(make_counter_study(clean)) is not None


def test_each_device_is_compared_with_itself() -> None:
    means = {"dram_active_ratio": 0.2}
    other = StressorCounters(
        device="NVIDIA H200", gpu_uuid="GPU-2", block=2, place=("l2", 1.0), num_cpus=16, means=means
    )
    rows = (stressor_row(), stressor_row(device="NVIDIA H200", gpu_uuid="GPU-2", block=2))
    stressor_study = dataclasses.replace(make_counter_study(FULL, other), rows=rows)
    table = make_table(stressor_study)
    assert table is not None and table.columns[:2] == ("device", "resource")
    assert table.rows[-1][:3] == ("NVIDIA H200", "l2", 1.0) and table.rows[-1][-1] == "DRAM (20 %)"
    assert [sentence.partition(",")[0] for sentence in describe_loads(stressor_study)] == [
        f"By hardware counters on {GPU}",
        "By hardware counters on NVIDIA H200",
    ]
