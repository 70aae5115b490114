"""A profile from measured runs: what a report would rank, each share of a GPU as it was measured, and nothing else."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from pipeline.base.domain.records import CO_RUNNERS, Result
from pipeline.base.system.errors import ConfigError
from pipeline.planner import profile_table
from pipeline.planner.results.profile_measurement import measure_profile
from pipeline.report.read.rows import study_of
from pipeline.report.read.study_records import JobRow, Row
from tests.support.report_rows import copies, job, params, row, study
from tests.unit.report.test_report_services import make_service_row

OWN = params("train")


def map_profile_rows(*rows: Row) -> dict[tuple[Any, ...], profile_table.Row]:
    profile_rows = measure_profile(study(*rows), "x").rows
    return {
        (profile_row.sharing_mode, profile_row.instance_profile, profile_row.processes): profile_row
        for profile_row in profile_rows
    }


def make_instance_job(instance: str, kind: str, index: int, rate: float, memory_mib: float) -> JobRow:
    metrics = {"throughput_samples_per_s": rate, "instance_memory_peak_mib": memory_mib}
    return job(index, OWN, rate, metrics=metrics, place={"gi_id": instance, "mig_profile": kind})


def test_processes_of_a_whole_gpu_are_one_row_with_the_interval_of_its_blocks() -> None:
    figures = {"memory_peak_mib": 900.0, "energy_per_sample_j": 0.5}
    rows = [
        copies("mps", 3, 100.0 + block, block, OWN, metrics=figures | {"memory_peak_mib": 900.0 + block})
        for block in range(1, 6)
    ]
    rows += [copies("serial", 1, 150.0, block, OWN) for block in range(1, 6)]
    rows_by_place = map_profile_rows(*rows)
    assert set(rows_by_place) == {("mps", None, 3), ("serial", None, 1)}
    mps = rows_by_place["mps", None, 3]
    assert (mps.workload, mps.gpu_model, mps.batch, mps.num_blocks) == ("train", "h100_80gb", 128, 5)
    assert mps.throughput_per_s == pytest.approx(309)
    assert mps.throughput_low_per_s is not None and mps.throughput_high_per_s is not None
    assert 303 < mps.throughput_low_per_s < 309 < mps.throughput_high_per_s < 315
    assert (mps.memory_mib, mps.energy_per_item_j, mps.latency_p99_ms) == (905.0, 0.5, None)
    assert sorted(mps.runs) == sorted(group_row.run_id for group_row in rows if group_row.scenario == "mps")


def test_each_instance_is_a_share_and_those_alike_are_averaged() -> None:
    rows = []
    for block in (1, 2, 3):
        rows.append(
            row(
                "mig",
                (
                    make_instance_job("1", "2g.20gb", 0, 60, 500),
                    make_instance_job("2", "2g.20gb", 1, 80, 700),
                    make_instance_job("3", "1g.10gb", 2, 30, 400),
                ),
                block,
            )
        )
        two = (
            make_instance_job("1", "3g.40gb", 0, 50, 900),
            make_instance_job("2", "3g.40gb", 1, 54, 900),
            make_instance_job("1", "3g.40gb", 2, 50, 900),
            make_instance_job("2", "3g.40gb", 3, 54, 900),
        )
        rows.append(row("mig_mps", two, block))
    rows_by_place = map_profile_rows(*rows)
    assert {key: profile_row.throughput_per_s for key, profile_row in rows_by_place.items()} == {
        ("mig", "2g.20gb", 1): 70.0,
        ("mig", "1g.10gb", 1): 30.0,
        ("mig_mps", "3g.40gb", 2): 104.0,
    }
    assert (
        rows_by_place["mig", "2g.20gb", 1].memory_mib == 700 and rows_by_place["mig_mps", "3g.40gb", 2].num_blocks == 3
    )


def test_jobs_beside_co_runners_are_no_row() -> None:
    plain_settings = copies("mps", 1, 150.0, 1, OWN).settings
    rows = [
        copies("mps", 1, rate, block, OWN, settings=(*plain_settings, (CO_RUNNERS, co_runners)))
        for block in range(1, 6)
        for rate, co_runners in ((150.0, ""), (50.0, "6x train"))
    ]
    assert map_profile_rows(*rows)["mps", None, 1].throughput_per_s == 150.0


def test_of_one_profile_at_several_degrees_the_fullest_gpu_counts() -> None:
    alone = row("mig", (make_instance_job("1", "1g.10gb", 0, 40, 400),))
    full = row("mig", tuple(make_instance_job(str(i), "1g.10gb", i, 30, 400) for i in range(7)))
    assert map_profile_rows(alone, full)["mig", "1g.10gb", 1].throughput_per_s == 30


def test_what_a_report_would_not_rank_is_no_row() -> None:
    good = [copies("naive", 2, 90.0, block, OWN) for block in (1, 2, 3)]
    wrong = [
        copies("mps", 2, 90.0, block, OWN, result=Result.WRONG_RESULTS if block == 2 else Result.OK)
        for block in (1, 2, 3)
    ]
    oom = [copies("naive", 7, 90.0, block, OWN, result=Result.OOM) for block in (1, 2, 3)]
    mix = row("naive", (job(0, OWN, 10.0, size="A"), job(1, params("other"), 10.0, size="B")))
    shares = tuple(job(i, OWN, 10.0, place={"mps_active_thread_percentage": str(10 * (i + 1))}) for i in range(2))
    cpu = copies("naive", 3, 90.0, 1, OWN, gpu_uuid="CPU-here")
    assert set(map_profile_rows(*good, *wrong, *oom, mix, row("mps_percent", shares), cpu)) == {("naive", None, 2)}
    with pytest.raises(ConfigError, match="no valid group of copies"):
        map_profile_rows(*oom)


def test_a_static_partition_is_a_share_of_the_multiprocessors() -> None:
    def make_static_row(*parts: int) -> Row:
        jobs = tuple(job(i, OWN, 50.0, place={"mps_multiprocessors": str(count)}) for i, count in enumerate(parts))
        return dataclasses.replace(row("mps_static", jobs), facts={"multiprocessors": "132"})

    ((key, profile_row),) = map_profile_rows(make_static_row(66, 66)).items()
    assert (key, profile_row.share_percent) == (("mps_static", None, 2), 50.0)
    with pytest.raises(ConfigError, match="no valid group of copies"):
        map_profile_rows(make_static_row(80, 52))


def test_workloads_of_one_name_are_told_apart_by_their_options() -> None:
    rows = [
        copies("naive", 2, 90.0, 1, params("train", precision=precision, batch_size=size))
        for precision in ("bf16", "fp32")
        for size in (32, 64)
    ]
    profile_rows = measure_profile(study(*rows), "x").rows
    assert {(profile_row.workload, profile_row.batch) for profile_row in profile_rows} == {
        (f"train precision={precision}", size) for precision in ("bf16", "fp32") for size in (32, 64)
    }


def test_of_services_at_several_rates_the_highest_that_met_its_objective_counts() -> None:
    rows = [make_service_row("mps", 2, rate, latency) for rate, latency in ((50, 6.0), (100, 9.0), (200, 40.0))]
    (profile_row,) = map_profile_rows(*rows).values()
    assert (
        profile_row.workload,
        profile_row.throughput_per_s,
        profile_row.latency_p99_ms,
        profile_row.latency_mean_ms,
    ) == (
        "infer",
        200,
        27,
        9,
    )


def test_two_measurements_of_one_row_and_simulated_beside_real_are_refused() -> None:
    one = copies("mps", 2, 90.0, 1, OWN)
    other = copies("mps", 2, 80.0, 1, OWN, options={"priority": 1})
    with pytest.raises(ConfigError, match="belong to the same row of the profile"):
        map_profile_rows(one, other)
    assert not measure_profile(study(one), "x").is_simulated
    assert measure_profile(study(copies("naive", 2, 80.0, 1, OWN, is_simulated=True)), "x").is_simulated
    with pytest.raises(ConfigError, match="has runs of simulated and of real GPUs"):
        map_profile_rows(one, copies("naive", 2, 80.0, 1, OWN, is_simulated=True))


def test_blocks_of_a_second_store_count_and_the_table_can_be_read_back(tmp_path) -> None:
    stores = [
        [
            copies("mps", 2, 90.0 + block, block, OWN, boot_id=boot, start_ms=1000 * number + block)
            for block in (1, 2, 3)
        ]
        for number, boot in enumerate("ab")
    ]
    profile = measure_profile(study_of("synthetic", *stores), "x")
    assert [profile_row.num_blocks for profile_row in profile.rows] == [6]
    profile_table.write(tmp_path / "p.csv", profile)
    assert profile_table.read(tmp_path / "p.csv").digest == profile.digest
