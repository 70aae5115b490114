"""The table of GPU instances says of each profile how busy and how full it was."""

from __future__ import annotations

from tests.support.report_rows import job, params, row, study, table_of


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
