"""The tables of a report: metrics, instances, shares, frameworks, jobs in one process, and energy."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest

from listeners.nvml import NvmlListener
from pipeline.base.domain.records import Result
from pipeline.base.domain.samples import Field, FieldTable, Summary
from pipeline.base.domain.sharing_modes import STREAMS
from pipeline.base.domain.window import WindowKind
from pipeline.observe.sample_figures import Fields
from pipeline.planner.results.advice import advise
from pipeline.report.evaluate.cells import Cell, label_cases, make_cells
from pipeline.report.evaluate.contrasts import Contrast, Decision, Quantity, compare_modes
from pipeline.report.evaluate.metrics import BEST_SOLO, ENERGY_VS_ALONE
from pipeline.report.evaluate.statistics import Estimate
from pipeline.report.evaluate.study_board import from_json, summarize_devices, to_json
from pipeline.report.evaluate.verdicts import winners
from pipeline.report.page import study_tables as report_tables
from pipeline.report.page.frameworks import format_frameworks, framework_table
from pipeline.report.page.grid import BEST, OPEN, grids
from pipeline.report.page.study_tables import make_tables
from pipeline.report.page.table_format import format_estimate
from pipeline.report.read import labels
from pipeline.report.read.study_records import JobRow, Row
from tests.support.report_rows import copies, job, params, row, study, table_of


def cell(cells: list[Cell], mode: str, degree: int, label: str = "") -> Cell:
    (one,) = [c for c in cells if c.mode == mode and c.degree == degree and c.case.label.startswith(label)]
    return one


def test_copies_are_compared_with_the_solo_run_of_their_own_block() -> None:
    rows = [copies("serial", 1, 1000.0 * block, block) for block in (1, 2, 3)]
    rows += [copies("naive", 3, 500.0 * block, block) for block in (1, 2, 3)]
    naive = cell(make_cells(study(*rows)), "naive", 3)
    assert naive.values["speedup_vs_serial_ratio"] == {1: 1.5, 2: 1.5, 3: 1.5}
    assert naive.values["slowdown_worst_ratio"] == {1: 2.0, 2: 2.0, 3: 2.0}
    assert naive.values["throughput_total_samples_per_s"] == {1: 1500.0, 2: 3000.0, 3: 4500.0}
    assert naive.estimates["throughput_total_samples_per_s"].median == 3000.0
    assert naive.values["epoch_time_derived_s"][1] == pytest.approx(49920 / 500)
    assert naive.values["epoch_time_vs_solo_ratio"][1] == pytest.approx(2.0)
    assert "epoch_time_s" not in naive.values


def test_serial_copies_are_as_many_times_the_solo_run() -> None:
    def make_solo_row(block: int):
        one = job(0, params(), 100.0, metrics={"makespan_s": 10.0, "epoch_time_mean_s": 5.0})
        return row("serial", (one,), block, window=WindowKind.WORK, metrics={"makespan_s": 10.0})

    together = tuple(job(i, params(), None, metrics={"makespan_s": 16.0, "epoch_time_mean_s": 8.0}) for i in range(2))
    pair = row("naive", together, window=WindowKind.WORK, metrics={"makespan_s": 16.0})
    cells = make_cells(study(make_solo_row(1), pair))
    serial = cell(cells, "serial", 2)
    assert serial.is_derived and not cell(cells, "serial", 1).is_derived
    assert serial.values["makespan_s"] == {1: 20.0}
    assert cell(cells, "naive", 2).values["speedup_vs_serial_ratio"] == {1: 20 / 16}
    assert cell(cells, "naive", 2).values["epoch_time_s"] == {1: 8.0}


def test_a_mix_is_compared_with_the_same_jobs_really_executed_in_sequence() -> None:
    def jobs(*seconds: float):
        sizes = {"M": params("resnet50_imagenet64"), "S": params()}
        return tuple(
            job(i, sizes[size], None, size=size, metrics={"makespan_s": s})
            for i, (size, s) in enumerate(zip("MS", seconds, strict=True))
        )

    serial = row("serial", jobs(20.0, 10.0), window=WindowKind.WORK, metrics={"makespan_s": 30.5})
    naive = row("naive", jobs(24.0, 15.0), window=WindowKind.WORK, metrics={"makespan_s": 24.0})
    cells = make_cells(study(serial, naive))
    assert [c.case.label for c in cells] == ["M+S", "M+S"]
    assert cell(cells, "naive", 2).values["speedup_vs_serial_ratio"] == {1: 30.5 / 24}
    assert cell(cells, "naive", 2).values["slowdown_worst_ratio"] == {1: 1.5}
    assert "epoch_time_s" not in cell(cells, "naive", 2).values


def test_the_best_step_mode_alone_is_a_baseline_where_several_were_measured() -> None:
    graph = params(step_mode="cuda_graph")
    rows = [
        copies("serial", 1, 1000.0),
        copies("serial", 1, 4000.0, job_params=graph),
        copies("naive", 7, 600.0),
        copies("serial", 1, 50.0, job_params=params("other")),
        copies("naive", 7, 40.0, job_params=params("other")),
    ]
    cells = make_cells(study(*rows))
    naive = cell(cells, "naive", 7, "resnet26")
    assert naive.values["speedup_vs_serial_ratio"] == {1: pytest.approx(4.2)}
    assert naive.values["speedup_vs_best_solo_ratio"] == {1: pytest.approx(1.05)}
    assert "speedup_vs_best_solo_ratio" not in cell(cells, "naive", 7, "other").values


@pytest.mark.parametrize("key", ["precision", "source", "autotune", "recipe"])
def test_programs_that_differ_otherwise_are_cases_of_their_own_with_best_step_modes_of_their_own(key: str) -> None:
    rows = []
    for block in range(1, 6):
        for value, alone, graph, naive in (("one", 1000.0, 4000.0, 300.0), ("two", 500.0, 600.0, 200.0)):
            eager_params, replayed = params(**{key: value}), params(**{key: value}, step_mode="cuda_graph")
            rows += [copies("serial", 1, alone, block, eager_params), copies("serial", 1, graph, block, replayed)]
            rows += [
                copies("naive", 7, naive + block, block, eager_params),
                copies("mps", 7, 2 * naive, block, eager_params),
            ]
    cells = make_cells(study(*rows))
    naives = {c.case.params[0][key]: c for c in cells if (c.mode, c.degree) == ("naive", 7)}
    assert len({c.case for c in naives.values()}) == 2
    assert naives["one"].values[BEST_SOLO][5] == pytest.approx(7 * 305 / 4000)
    assert naives["two"].values[BEST_SOLO][5] == pytest.approx(7 * 205 / 600)
    judged = [v for v in compare_modes(cells) if (v.mode, v.degree) == ("MPS", 7)]
    assert {(v.case.params[0][key], v.against) for v in judged} == {
        (value, against) for value in ("one", "two") for against in ("serial", "naive", "CUDA graph alone")
    }
    over_serial = {v.case.params[0][key]: v.ratio.median for v in judged if v.against == "serial"}
    assert over_serial == pytest.approx({"one": 4.2, "two": 5.6})


def test_a_script_has_no_step_modes() -> None:
    """In two environments it is two programs that nothing else tells apart."""
    script_params = {"workload": "script", "seed": "0"}
    old, new = ((job(0, script_params, rate, salt=salt),) for rate, salt in ((1000.0, "old"), (4000.0, "new")))
    together = tuple(job(index, script_params, 600.0, salt="old") for index in range(7))
    cells = make_cells(study(row("serial", old), row("serial", new), row("naive", together)))
    assert len(cells) == 4 and not any(BEST_SOLO in c.values for c in cells)


def test_energy_is_given_raw_and_above_idle() -> None:
    energy = {"energy_j": 200.0, "energy_above_idle_j": 150.0, "energy_per_sample_j": 0.4}
    energy |= {"energy_above_waiting_per_sample_j": 0.2}
    naive_cell = cell(make_cells(study(copies("naive", 2, 900.0, metrics=energy))), "naive", 2)
    assert naive_cell.values["energy_per_sample_j"] == {1: 0.4}
    assert naive_cell.values["energy_above_idle_per_sample_j"] == {1: pytest.approx(0.3)}
    assert naive_cell.values["energy_above_waiting_per_sample_j"] == {1: 0.2}


def test_wrong_results_are_kept_apart_and_not_ranked() -> None:
    rows = [copies("serial", 1, 1000.0, block) for block in (1, 2)]
    rows += [copies("mps_percent", 2, 900.0, 1), copies("mps_percent", 2, 950.0, 2, result=Result.WRONG_RESULTS)]
    limited_cell = cell(make_cells(study(*rows)), "MPS equal shares", 2)
    assert limited_cell.results == {Result.OK: 1, Result.WRONG_RESULTS: 1}
    assert limited_cell.values["speedup_vs_serial_ratio"] == {1: 1.8}
    assert limited_cell.wrong_values["speedup_vs_serial_ratio"] == {2: 1.9}
    assert not limited_cell.is_ranked
    assert limited_cell.finding is Result.WRONG_RESULTS
    assert limited_cell.reason == "why it is wrong_results"


def test_a_cell_without_any_figure_keeps_its_reason_and_nothing_is_zero() -> None:
    naive_cell = cell(make_cells(study(copies("naive", 7, 1.0, result=Result.OOM))), "naive", 7)
    assert (naive_cell.values, naive_cell.estimates, naive_cell.reason) == ({}, {}, "why it is oom")
    assert naive_cell.finding is Result.OOM and not naive_cell.is_ranked


def test_without_a_baseline_there_is_no_speed_up() -> None:
    naive_cell = cell(make_cells(study(copies("naive", 2, 900.0, 1), copies("serial", 1, 1000.0, 2))), "naive", 2)
    assert "speedup_vs_serial_ratio" not in naive_cell.values
    assert naive_cell.values["throughput_total_samples_per_s"] == {1: 1800.0}


def test_mixes_of_other_jobs_with_the_same_sizes_are_told_apart() -> None:
    def mix(batch_size: int):
        size_params = {"M": params("resnet50_imagenet64"), "S": params(batch_size=batch_size)}
        return row("naive", tuple(job(i, size_params[size], 5.0, size=size) for i, size in enumerate("MS")))

    case_labels = [c.case.label for c in make_cells(study(mix(32), mix(128)))]
    assert len(set(case_labels)) == 2
    assert all(label.startswith("M+S: resnet26_cifar10 bs") for label in case_labels)


def list_cell_throughputs(*rows: Row) -> dict[tuple[str, str], list[float]]:
    """The throughputs that each cell has, by case and mode."""
    name = "throughput_total_samples_per_s"
    return {(c.case.label, c.mode): list(c.values[name].values()) for c in make_cells(study(*rows))}


def test_groups_that_differ_in_options_that_no_label_says_never_share_a_cell() -> None:
    def make_limited_row(rate: float, block: int, **options: str) -> Row:
        place = {"mps_active_thread_percentage": "50"}
        jobs = tuple(job(index, params(), rate, place=place) for index in range(2))
        return row("mps_percent", jobs, block, options=options, start_ms=int(1000 * block + rate))

    both = [
        make_limited_row(rate, b, **of) for b in (1, 2) for rate, of in ((5.0, {}), (7.0, {"active_thread_pct": "50"}))
    ]
    mig = [copies("mig", 3, rate, options={"profile": of}) for rate, of in ((1.0, "auto"), (2.0, "2g"))]
    wide = [copies("mig", 2, 3.0, options={"profile": "auto"})]
    blocks_by_mode = {mode: values for (_, mode), values in list_cell_throughputs(*both, *mig, *wide).items()}
    assert blocks_by_mode == {
        "MPS 50 %": [10.0, 10.0],
        "MPS 50 % active_thread_pct=50": [14.0, 14.0],
        "MIG 2g.20gb profile=auto": [3.0],
        "MIG 2g.20gb profile=2g": [6.0],
        "MIG 3g.40gb": [6.0],  # nothing else is called so
    }


def test_groups_that_differ_in_nothing_that_is_said_never_share_a_cell() -> None:
    """As programs of two numbers of epochs, which a window is expected to say."""
    programs = [[job(i, params(epochs=rate), rate, salt=str(rate)) for i in range(2)] for rate in (1, 2)]
    blocks_by_label = list_cell_throughputs(*(row("mps", tuple(jobs)) for jobs in programs))
    assert sorted(blocks_by_label.values()) == [[2.0], [4.0]]
    assert all(re.fullmatch(r"MPS \([0-9a-f]{6}\)", mode) for _, mode in blocks_by_label)


@pytest.mark.parametrize("sizes", ["AB", "SM"])
def test_orders_of_the_same_jobs_never_share_a_cell_and_are_compared_within_an_order(sizes: str) -> None:
    size_params = {size: params(f"work{size.lower()}") for size in sizes}

    def mix(scenario: str, order: str, rate: float) -> Row:
        return row(scenario, tuple(job(i, size_params[size], rate, size=size) for i, size in enumerate(order)))

    first, second = sizes, sizes[::-1]
    one = [mix("naive", first, 1.0), mix("mps", first, 3.0)]
    jobs = [labels.JobLabel(name, size) for name, size in zip("ab", sizes, strict=True)]
    label = labels.label_jobs(jobs)
    assert label == "+".join(first) and labels.label_jobs(jobs[::-1]) == "+".join(second)
    assert labels.label_mix(jobs) == labels.label_mix(jobs[::-1]) == {"AB": "A+B", "SM": "M+S"}[sizes]
    assert list_cell_throughputs(*one) == {(label, "naive"): [2.0], (label, "MPS"): [6.0]}
    called = "+".join(second)  # as the first of the groups by name, and no order is told from another
    assert list_cell_throughputs(one[0], mix("mps", second, 3.0)) == {(called, "naive"): [2.0], (called, "MPS"): [6.0]}
    assert list_cell_throughputs(*one, mix("naive", second, 2.0)) == {
        (f"{label} [order {'+'.join(first)}]", "naive"): [2.0],
        (f"{label} [order {'+'.join(first)}]", "MPS"): [6.0],
        (f"{'+'.join(second)} [order {'+'.join(second)}]", "naive"): [4.0],
    }


@pytest.mark.parametrize(("sizes", "label"), [((None, None), "work1 bs128 + work0 bs128"), (("S", "L"), "L+S")])
def test_a_mix_is_called_in_the_order_of_the_first_of_its_groups(sizes: tuple[str | None, ...], label: str) -> None:
    def mix(scenario: str, *order: int) -> Row:
        jobs = [job(index, params(f"work{place}"), 5.0, size=sizes[place]) for index, place in enumerate(order)]
        return row(scenario, tuple(jobs))

    mixed_study = study(mix("serial", 0, 1), mix("naive", 0, 1), mix("mps", 1, 0))
    assert {case.label for case in label_cases(mixed_study).values()} == {label}
    assert min(own_row.name for own_row in mixed_study.rows) == f"mps-{label.replace(' bs128', '').replace(' ', '')}"


def test_each_order_of_a_mix_has_its_own_baseline_where_it_ran() -> None:
    size_params = {size: params(f"work{size}") for size in "SM"}

    def mix(scenario: str, order: str, seconds: float) -> Row:
        jobs = tuple(job(i, size_params[s], None, size=s, metrics={"makespan_s": seconds}) for i, s in enumerate(order))
        return row(scenario, jobs, window=WindowKind.WORK, metrics={"makespan_s": seconds})

    def speedups(*rows: Row) -> dict[tuple[str, str], float]:
        return {(c.case.label, c.mode): c.values["speedup_vs_serial_ratio"][1] for c in make_cells(study(*rows))}

    orders = [("SM", 10.0), ("MS", 20.0)]
    speedups_by_mode = speedups(
        *(mix(mode, order, s / n) for order, s in orders for mode, n in (("serial", 1), ("naive", 2)))
    )
    assert speedups_by_mode == {
        (f"{order} [order {order}]", mode): speedup
        for order in ("S+M", "M+S")
        for mode, speedup in (("serial", 1.0), ("naive", 2.0))
    }
    assert speedups(mix("serial", "SM", 10.0), mix("naive", "MS", 5.0))["M+S", "naive"] == 2.0


def test_a_job_that_never_ran_alone_is_compared_with_its_turns_in_mixes() -> None:
    def mix(scenario: str, order: str, *seconds: float) -> Row:
        mix_jobs = tuple(
            job(i, params(f"work{size}"), None, size=size, metrics={"makespan_s": s})
            for i, (size, s) in enumerate(zip(order, seconds, strict=True))
        )
        return row(scenario, mix_jobs, window=WindowKind.WORK, metrics={"makespan_s": sum(seconds)})

    def slowdown(*rows: Row) -> float:
        (naive_cell,) = [c for c in make_cells(study(*rows)) if c.mode == "naive"]
        return naive_cell.values["slowdown_worst_ratio"][1]

    together = mix("naive", "MS", 30.0, 40.0)
    serial_mixes = [mix("serial", "MML", 10.0, 14.0, 20.0), mix("serial", "SL", 20.0, 20.0)]
    assert slowdown(together, *serial_mixes) == 30 / 12
    assert slowdown(together, *serial_mixes, mix("serial", "MS", 15.0, 16.0)) == 40 / 16


def test_baselines_of_other_jobs_do_not_take_each_others_place() -> None:
    def serial(block: int, seconds: float, *jobs: tuple[str, str]):
        mix_jobs = tuple(job(i, params(name), None, size=size) for i, (size, name) in enumerate(jobs))
        return row("serial", mix_jobs, block, window=WindowKind.WORK, metrics={"makespan_s": seconds})

    pairs = [
        serial(block, seconds, ("M", "large"), ("S", small))
        for block in (1, 2)
        for small, seconds in (("one", 10.0), ("other", 40.0))
    ]
    copied = [serial(block, 10.0 * n, *[("S", "one")] * n) for block, n in ((1, 2), (1, 3), (2, 3), (2, 2))]
    drift = table_of("drift", study(*pairs, *copied)).rows
    assert [(line[0], *line[5:7]) for line in drift] == [
        ("2 one bs128", 0.0, 0.0),
        ("3 one bs128", 0.0, 0.0),
        ("M+S: large bs128, one bs128", 0.0, 0.0),
        ("M+S: large bs128, other bs128", 0.0, 0.0),
    ]
    assert [line[0] for line in table_of("mixes", study(*pairs)).rows] == [drift[2][0], drift[3][0]]


def test_an_interval_is_rounded_to_three_digits() -> None:
    assert format_estimate(Estimate(median=99.97, low=98.04, high=101.6, n=3)) == "100 (98.0 to 102)"


def test_cells_come_by_case_degree_and_mode() -> None:
    rows = [copies(scenario, degree, 10.0) for scenario in ("mig", "mps", "naive") for degree in (3, 2)]
    assert [(c.degree, c.mode) for c in make_cells(study(*rows))] == [
        *((2, mode) for mode in ("naive", "MPS", "MIG 3g.40gb")),
        *((3, mode) for mode in ("naive", "MPS", "MIG 2g.20gb")),
    ]


def test_a_figure_of_a_new_listener_has_its_columns_without_being_known_here() -> None:
    fans = FieldTable(
        source="fans",
        fields=(
            Field(source_id="speed", name="fan_rpm", unit="1/min", summary=Summary.MAX, title="fan speed"),
            Field(source_id="idle", name="fan_idle_ratio", unit="ratio", summary=Summary.MEAN, title="fan at rest"),
            Field(source_id="noise", name="fan_noise_db", unit="dB", summary=Summary.MEAN),
        ),
    )
    metrics = {"fan_max_rpm": 900.0, "fan_idle_mean_ratio": 0.25, "fan_noise_mean_db": 30.0, "power_mean_w": 70.0}
    facts = {"figures": Fields([fans, NvmlListener(1000).table]).describe_titled(metrics)}
    rows = [row("serial", (job(0, params(), 100.0),), block, metrics=metrics, facts=facts) for block in (1, 2)]
    rows.append(row("naive", tuple(job(i, params(), 60.0) for i in range(2))))
    cells = make_cells(study(*rows))
    assert cell(cells, "serial", 1).estimates["fan_max_rpm"].median == 900.0
    assert cell(cells, "serial", 2).estimates["fan_idle_mean_ratio"].median == 0.25
    columns_by_table = {
        table.name: table.columns for table in report_tables.make_tables(study(*rows), cells, [], [], [])
    }
    assert columns_by_table["energy"][4:] == ("power of the GPU (W)", "fan speed (1/min)")
    assert columns_by_table["utilisation"][4:] == ("fan at rest",)
    assert {"fan speed (1/min)", "fan at rest: low"} <= set(columns_by_table["results"])
    assert not [head for head in columns_by_table["results"] if "noise" in head]


def test_the_energy_of_an_epoch_is_that_of_its_samples() -> None:
    (naive_cell,) = make_cells(study(copies("naive", 2, 1000.0, metrics={"energy_per_sample_j": 0.05})))
    assert naive_cell.values["energy_per_epoch_j"] == {1: pytest.approx(0.05 * 49920)}


def _job(index: int, gi_id: int, profile: str, gract: float, memory: float):
    figures = {"throughput_samples_per_s": 1.0, "gract_mean_ratio": gract, "instance_memory_peak_mib": memory}
    place = {"gi_id": str(gi_id), "mig_profile": profile}
    return job(index, params(), 1.0, metrics=figures, place=place)


def test_instances_are_told_by_profile_and_a_shared_one_counts_once() -> None:
    shares = (0.5, 0.6, 0.7)
    rows = [
        row(
            "mig_mps",
            (
                *(_job(index, 1, "3g.40gb", share, 900.0) for index in (0, 1)),
                _job(2, 2, "3g.40gb", share - 0.2, 700.0),
                _job(3, 5, "1g.10gb", 0.1, 50.0),
            ),
            block,
        )
        for block, share in enumerate(shares, 1)
    ]
    table = table_of("instances", study(*rows))
    assert table.columns[3:] == ("profile", "GRACT", "peak memory of an instance (MiB)")
    small, large = (dict(zip(table.columns, values, strict=True)) for values in table.rows)
    assert (small["profile"], small["GRACT"], small["jobs"]) == ("1g.10gb", "0.1", 4)
    assert large["GRACT"].startswith("0.500 (") and large["peak memory of an instance (MiB)"] == "900"


def test_compute_instances_of_one_gpu_instance_are_one_row_of_its_profile() -> None:
    jobs = (_job(0, 1, "1c.3g.40gb", 0.5, 900.0), _job(1, 1, "2c.3g.40gb", 0.5, 900.0))
    table = table_of("instances", study(row("mig", jobs)))
    (only,) = (dict(zip(table.columns, values, strict=True)) for values in table.rows)
    assert (only["profile"], only["GRACT"], only["jobs"]) == ("3g.40gb", "0.5", 2)


def test_without_instances_there_is_no_row() -> None:
    assert not table_of("instances", study(row("naive", (job(0, params(), 1.0),)))).rows


SM, MEMORY = "process_sm_utilization_mean_pct", "process_memory_utilization_mean_pct"
ALONE = {"energy_j": 3000.0, "power_idle_w": 100.0, "utilization_gpu_mean_pct": 80.0}
TOGETHER = {"energy_j": 5000.0, "power_idle_w": 100.0}  # 500 W for 10 s, 400 W above idle


def _make_job_with_shares(index: int, name: str, rate: float, **figures: float) -> JobRow:
    plain_job = job(index, params(name, work_unit="samples"), rate)
    return dataclasses.replace(plain_job, metrics={**plain_job.metrics, **figures})


def _rows(*together: JobRow, scenario: str = "mps", busy: float | None = None) -> list[Row]:
    measured = {} if busy is None else {SM: busy}
    return [
        row(
            "serial", (_make_job_with_shares(0, "a", 100.0, **measured),), metrics={**ALONE, "energy_per_sample_j": 3.0}
        ),
        row(
            "serial", (_make_job_with_shares(0, "b", 50.0, **measured),), metrics={**ALONE, "energy_per_sample_j": 6.0}
        ),
        row(scenario, together, metrics=TOGETHER),
    ]


def _list_shares(rows: list[Row]) -> list[tuple[object, ...]]:
    return [line[2:] for line in table_of("shares", study(*rows)).rows]


def test_a_measured_share_divides_the_energy_above_idle() -> None:
    jobs = (
        _make_job_with_shares(0, "a", 50.0, **{SM: 60.0, MEMORY: 12.0}),
        _make_job_with_shares(1, "b", 10.0, **{SM: 20.0, MEMORY: 3.0}),
    )
    assert _list_shares(_rows(*jobs, scenario="naive")) == [
        ("naive", "a bs128", "60", "measured", "12", "sample", "3 J", "7 J"),  # (50 + 300) W, 50 samples/s
        ("naive", "b bs128", "20", "measured", "3", "sample", "6 J", "15 J"),  # (50 + 100) W, 10 samples/s
    ]


@pytest.mark.parametrize(("busy", "shares"), [(None, ("60", "20")), (40.0, ("30", "10"))])
def test_a_share_that_was_not_measured_is_a_model(busy: float | None, shares: tuple[str, str]) -> None:
    """The busy time per step alone is that of the process if it was measured, else that of the GPU."""
    rows = _rows(_make_job_with_shares(0, "a", 75.0), _make_job_with_shares(1, "b", 12.5), busy=busy)
    assert _list_shares(rows) == [
        ("MPS", "a bs128", shares[0], "model", None, "sample", "3 J", "4.667 J"),
        ("MPS", "b bs128", shares[1], "model", None, "sample", "6 J", "12 J"),
    ]


def test_a_missing_input_leaves_share_or_energy_missing() -> None:
    jobs = (_make_job_with_shares(0, "a", 75.0), _make_job_with_shares(1, "b", 12.5))
    both = _rows(*jobs)
    assert [line[2] for line in _list_shares(both[1:])] == ["20"]  # the other job did not run alone
    assert [line[-1] for line in _list_shares(both[1:])] == [None]
    without_idle = dataclasses.replace(both[2], metrics={"energy_j": 5000.0})
    assert [line[-1] for line in _list_shares([*both[:2], without_idle])] == [None, None]


def test_one_job_has_no_row_and_the_table_is_written() -> None:
    assert _list_shares(_rows(_make_job_with_shares(0, "a", 75.0))) == []
    of = study(*_rows(_make_job_with_shares(0, "a", 75.0), _make_job_with_shares(1, "b", 12.5)))
    assert "shares" in [table.name for table in make_tables(of, make_cells(of), [], [], [])]


def probe(index: int, framework: str, place: dict[str, str], **facts: Any) -> JobRow:
    program_params = params(
        f"framework_{framework}", framework=framework, script="workloads/framework.py", work_unit="products"
    )
    answers = {f"job.{key}": value for key, value in facts.items()}
    return job(index, program_params | answers, None, place=place)


ONE = {"framework_version": "2.11.0", "seen": "NVIDIA H100 MIG 1g.10gb, 9728 MiB", "works": "yes"}
INSTANCE = {"device": "MIG-1", "mig_profile": "1g.10gb"}
WHOLE = {"device": "GPU-1"}
BOTH = {"device": "MIG-1,MIG-2", "mig_profile": "2g.20gb+1g.10gb"}
FEWER = {"works": "in part", "why": "it sees 1 of 2 given devices"}


def test_each_answer_is_said_once_with_the_number_of_its_jobs():
    rows = [
        row("mig", (probe(0, "torch", BOTH, **(ONE | FEWER)),), profiles=("2g.20gb+1g.10gb",)),
        row("mig", tuple(probe(i, "torch", INSTANCE, **ONE) for i in range(2)), profiles=("1g.10gb", "1g.10gb")),
        row("naive", (probe(0, "torch", WHOLE, **(ONE | {"seen": "NVIDIA H100"})),)),
        row("naive", (probe(0, "jax", {}),), result=Result.SKIPPED),
        row("mig", tuple(probe(i, "jax", {}) for i in range(2)), result=Result.SKIPPED),
        row("naive", (probe(0, "paddle", WHOLE),), result=Result.FAILED),  # it crashed before it could answer
    ]
    table = framework_table(study(*rows))
    assert [line[0:1] + line[2:] for line in table.rows] == [
        ("PyTorch", "the whole device", 1, 1, "NVIDIA H100", "yes", None),
        ("PyTorch", "MIG 1g.10gb", 2, 1, ONE["seen"], "yes", None),
        ("PyTorch", "MIG 2g.20gb + 1g.10gb at once", 1, 2, ONE["seen"], "in part", FEWER["why"]),
        ("JAX", None, 3, None, None, "not installed", "why it is skipped"),
        ("PaddlePaddle", "the whole device", 1, 1, None, "no", "why it is failed"),
    ]
    assert "Driver here: 580.159.04." in table.note
    lines = format_frameworks(study(*rows))
    assert len(lines) == 1 + 5 + 2
    assert lines[0].split() == ["framework", "version", "where", "given", "sees", "works"]
    assert lines[-2:] == [
        f"PyTorch, MIG 2g.20gb + 1g.10gb at once: {FEWER['why']}",
        "PaddlePaddle, the whole device: why it is failed",
    ]
    assert "frameworks" in [report_table.name for report_table in make_tables(study(*rows), [], [], [], [])]


def test_answers_of_groups_that_a_resumed_study_found_measured_are_not_no():
    lines = format_frameworks(
        study(row("naive", (probe(0, "torch", WHOLE),)), row("mps", (probe(0, "jax", WHOLE, **ONE),)))
    )
    assert [line.split()[0] for line in lines] == ["framework", "JAX"]


def test_a_study_of_other_programs_has_no_such_table():
    rows = study(copies("naive", 2, 100.0))
    assert format_frameworks(rows) == []
    assert framework_table(rows).rows == ()


def rows(**speeds: float) -> list[Row]:
    """Return five blocks of two jobs in each mode, at a speed over serial, with the figures of their processes."""
    by_mode = [("serial", 1, 100.0), *((mode, 2, 50.0 * speed) for mode, speed in speeds.items())]
    return [
        copies(
            mode,
            degree,
            rate * (1 + 0.001 * block),
            block,
            metrics={
                "memory_peak_mib": 1000.0 if mode in ("serial", "streams") else 2000.0,
                "host_memory_total_mib": 900.0 * (1 if mode == "streams" else degree),
                "host_cpu_total_pct": 25.0 * degree,
            },
        )
        for block in range(1, 6)
        for mode, degree, rate in by_mode
    ]


def test_memory_and_cpu_are_beside_speed_in_a_table_that_says_what_is_given_up() -> None:
    table = table_of("one_process", make_cells(study(*rows(streams=1.8, mps=1.6))))
    assert table.note.startswith(f"streams gives up {STREAMS.gives_up}.")
    heads = list(table.columns)
    assert heads[4] == "speed-up over serial"
    of_mode = {line[2]: dict(zip(heads, line, strict=True)) for line in table.rows}
    assert of_mode["streams"]["host memory of all jobs (MiB)"].startswith("900")
    assert of_mode["MPS"]["host memory of all jobs (MiB)"].startswith("1800")
    assert of_mode["MPS"]["peak memory of the GPU (MiB)"].startswith("2000")


def test_a_study_without_such_a_mode_has_no_such_table() -> None:
    assert table_of("one_process", make_cells(study(*rows(naive=1.2, mps=1.6)))).rows == ()


@pytest.mark.parametrize(("streams", "best"), [(1.8, "streams"), (1.4, "MPS")])
def test_the_fastest_mode_says_what_it_gives_up(streams: float, best: str) -> None:
    cells = make_cells(study(*rows(streams=streams, mps=1.6, naive=1.1)))
    compared = compare_modes(cells)
    (winner,) = [winner for winner in winners(cells, compared) if winner.degree == 2]
    (advice,) = advise(cells)
    assert winner.mode == advice.mode == best
    says = f"It gives up {STREAMS.gives_up}." in winner.sentence
    changes = [change for change in advice.changes if "isolation" in change]
    assert says is (best == "streams")
    assert changes == (["MPS, if the jobs need isolation of memory and faults"] if says else [])


def test_of_equal_modes_the_one_with_isolation_is_advised() -> None:
    cells = make_cells(study(*rows(streams=1.603, mps=1.6, naive=1.1)))
    (advice,) = advise(cells)
    assert advice.mode == "MPS"


GRAPH = params(step_mode="cuda_graph")
FACTORS = (1.0, 1.01, 0.99, 1.005, 0.995)


def make_measured_row(scenario: str, degree: int, rate: float, energy_j: float, block: int, **changes: Any) -> Row:
    """Equal jobs with an energy per sample in a window of 10 s."""
    noisy = rate * FACTORS[block - 1]
    energy = {"energy_per_sample_j": energy_j, "energy_j": energy_j * 10 * degree * noisy}
    return copies(scenario, degree, noisy, block, metrics=energy, **changes)


def make_five_blocks(mps_j: float = 0.06, naive_j: float = 0.12) -> list[Row]:
    """Serial jobs at 0.1 J per sample, two jobs under MPS and naive, and a CUDA graph alone at 0.05 J."""
    rows = []
    for block, scatter in enumerate((1.0, 1.004, 0.996, 1.002, 0.998), start=1):
        rows.append(make_measured_row("serial", 1, 1000.0, 0.1, block))
        rows.append(make_measured_row("serial", 1, 2500.0, 0.05, block, job_params=GRAPH))
        rows.append(make_measured_row("naive", 2, 600.0, naive_j * scatter, block))
        rows.append(make_measured_row("mps", 2, 800.0, mps_j / scatter, block))
    return rows


def energies(rows: list[Row]) -> dict[tuple[str, str], Contrast]:
    comparisons = compare_modes(make_cells(study(*rows)))
    return {(v.mode, v.against): v for v in comparisons if v.quantity is Quantity.ENERGY}


def test_each_mode_is_compared_by_energy_with_both_baselines_and_earlier_modes() -> None:
    comparisons = energies(make_five_blocks())
    assert {pair: (round(verdict.ratio.median, 2), verdict.decision) for pair, verdict in comparisons.items()} == {
        ("naive", "serial"): (1.2, Decision.WORSE),
        ("naive", "CUDA graph alone"): (2.4, Decision.WORSE),
        ("MPS", "serial"): (0.6, Decision.BETTER),
        ("MPS", "CUDA graph alone"): (1.2, Decision.WORSE),
        ("MPS", "naive"): (0.5, Decision.BETTER),
    }
    assert comparisons["MPS", "serial"].sentence == (
        "2 x resnet26_cifar10 bs128, MPS: 0.60 x the energy of serial on this host (0.60 to 0.60; 5 blocks)."
    )


def test_speed_and_energy_are_corrected_together() -> None:
    comparisons = compare_modes(make_cells(study(*make_five_blocks(mps_j=0.1, naive_j=0.1))))
    assert (
        [v.quantity for v in comparisons].count(Quantity.ENERGY)
        == [v.quantity for v in comparisons].count(Quantity.SPEED)
        == 5
    )
    equal = next(v for v in comparisons if (v.mode, v.against, v.quantity) == ("MPS", "serial", Quantity.ENERGY))
    assert equal.decision is Decision.EQUAL
    assert equal.p is not None and equal.p_adjusted == pytest.approx(equal.p * len(comparisons), rel=1)
    assert equal.p_adjusted > 4.9 * equal.p


def test_no_energy_and_no_block_in_common_give_no_comparison() -> None:
    rows = [copies("serial", 1, 1000.0), copies("naive", 2, 600.0)]
    assert energies(rows) == {}


def test_energy_does_not_rank_modes() -> None:
    cells = make_cells(study(*make_five_blocks(mps_j=0.3)))
    (winner,) = winners(cells, compare_modes(cells))
    assert winner.mode == "MPS"
    assert re.fullmatch(
        r"2 x resnet26_cifar10 bs128: MPS is fastest, 1\.60 x serial.*\. MPS: 0\.64 x CUDA graph alone.*; "
        r"energy 3\.00 x serial on this host \(2\.99 to 3\.01\), 6\.00 x CUDA graph alone \(5\.98 to 6\.02\)\.",
        winner.sentence,
    )


def test_a_steady_mix_is_compared_by_the_energy_of_the_work_that_it_did() -> None:
    """Energy per sample would compare different shares of the two jobs."""
    rows = []
    for block in range(1, 6):
        for name, rate, power_w in (("a", 1000.0, 100.0), ("b", 100.0, 200.0)):
            alone = {"energy_j": 10 * power_w, "energy_per_sample_j": power_w / rate}
            rows.append(row("serial", (job(0, params(name), rate),), block, metrics=alone))
        for scenario, rate_a, rate_b in (("naive", 900.0, 10.0), ("mps", 100.0, 90.0)):
            power_w = (150.0 + 0.1 * block) * (1.2 if scenario == "mps" else 1.0)
            jobs = (job(0, params("a"), rate_a, size="A"), job(1, params("b"), rate_b, size="B"))
            per_sample = {"energy_j": 10 * power_w, "energy_per_sample_j": power_w / (rate_a + rate_b)}
            rows.append(row(scenario, jobs, block, metrics=per_sample))
    comparisons = energies(rows)
    assert comparisons["naive", "serial"].metric == comparisons["MPS", "naive"].metric == ENERGY_VS_ALONE
    assert comparisons["naive", "serial"].ratio.median == pytest.approx(150.3 / (0.9 * 100 + 0.1 * 200))
    assert comparisons["MPS", "naive"].ratio.median == pytest.approx(1.2 * 110 / (0.1 * 100 + 0.9 * 200))
    assert comparisons["MPS", "naive"].decision is Decision.BETTER


def test_tables_the_page_and_the_file_of_cases_have_energy_and_the_best_step_mode() -> None:
    of = study(*make_five_blocks())
    cells = make_cells(of)
    comparisons = compare_modes(cells)
    best = winners(cells, comparisons)
    table = table_of("verdicts", cells)
    place = table.columns.index("quantity")
    assert [line[place] for line in table.rows].count("energy") == 5
    speed, further = grids(of, cells, comparisons, best)
    assert (speed.title, [line.degree for line in speed.lines]) == ("Speed-up over serial", [2])
    states = {line.measure: [entry.state for (entry,) in line.entries] for line in further.lines}
    assert states == {
        "speed-up over CUDA graph alone": ["", ""],
        "energy over serial": ["", BEST],
        "energy over CUDA graph alone": ["", ""],
    }
    (measured_here,) = from_json(to_json(summarize_devices(of, cells, comparisons, best)))
    (outcome,) = measured_here.outcomes
    energy = outcome.find_comparison("energy", is_best_solo=False)
    assert energy is not None and (energy.against, energy.verdict) == ("serial", "better")
    over_best = outcome.find_comparison("speed", is_best_solo=True)
    assert over_best is not None and over_best.ratio.median == pytest.approx(0.64)


def test_too_few_blocks_leave_energy_open() -> None:
    of = study(*[group_row for group_row in make_five_blocks() if group_row.block < 4])
    cells = make_cells(of)
    comparisons = compare_modes(cells)
    assert {verdict.decision for verdict in comparisons} == {Decision.NO_VERDICT}
    (_, further) = grids(of, cells, comparisons, winners(cells, comparisons))
    assert {entry.state for line in further.lines for entries in line.entries for entry in entries} == {OPEN}
