"""Profiles survive being written and read, and what cannot be used is named with file, row and key."""

from __future__ import annotations

import pytest

from pipeline.base.system.errors import ConfigError
from pipeline.base.system.paths import PROJECT_DIR
from pipeline.planner import __main__ as planner
from pipeline.planner import profile_table
from pipeline.planner.profile_table import Profile, Row

HEAD = "Mig instance,Batch size,Workload Number,Throughput,Latency"
PARVAGPU = PROJECT_DIR / "tests/data/parvagpu"
WHOLE = Row(
    workload="resnet50 bs8",
    gpu_model="h100_80gb",
    sharing_mode="mps_percent",
    share_percent=25.0,
    processes=4,
    batch=8,
    throughput_per_s=1234.5,
    throughput_low_per_s=1200.0,
    throughput_high_per_s=1300.25,
    latency_mean_ms=6.5,
    latency_p99_ms=9.75,
    memory_mib=8000.0,
    energy_per_item_j=0.3125,
    num_blocks=5,
    runs=("abc", "def"),
)
BARE = Row(
    workload="bert", gpu_model="a100_80gb", sharing_mode="mig", instance_profile="1g.10gb", throughput_per_s=1 / 3
)
GOOD = {
    "schema_version": "1",
    "workload": "bert",
    "gpu_model": "a100_80gb",
    "sharing_mode": "mig",
    "instance_profile": "1g.10gb",
    "processes": "1",
    "throughput_per_s": "10",
}


def table(*rows):
    """A table in CSV with the columns of the first row."""
    return "\n".join([",".join(rows[0]), *(",".join(row.values()) for row in rows)]) + "\n"


def test_what_is_written_is_read_again(tmp_path):
    path = tmp_path / "profile.csv"
    profile_table.write(path, Profile(rows=(WHOLE, BARE)))
    profile = profile_table.read(path)
    assert profile.rows[0] == WHOLE
    assert profile.rows[1].throughput_per_s == pytest.approx(1 / 3, rel=1e-11)
    assert profile.rows[1].latency_p99_ms is None and profile.rows[1].runs == ()
    assert profile.gpu_models == ("h100_80gb", "a100_80gb")


def test_the_digest_is_of_the_content_alone(tmp_path):
    path = tmp_path / "profile.csv"
    columns = [*[*GOOD][1:], "schema_version"]
    path.write_text(table({name: GOOD[name] for name in columns} | {"throughput_per_s": "10.00"}))
    again = tmp_path / "again.csv"
    again.write_text(table(GOOD))
    assert profile_table.read(path).digest == profile_table.read(again).digest
    again.write_text(table(GOOD | {"throughput_per_s": "10.01"}))
    assert profile_table.read(path).digest != profile_table.read(again).digest
    assert Profile(rows=(WHOLE, BARE)).digest == Profile(rows=(BARE, WHOLE)).digest


def test_simulated_figures_stay_marked_and_are_not_mixed_with_real_ones(tmp_path):
    simulated, real, old = tmp_path / "simulated.csv", tmp_path / "real.csv", tmp_path / "old.csv"
    profile_table.write(simulated, Profile(rows=(BARE,), is_simulated=True))
    profile_table.write(real, Profile(rows=(WHOLE,)))
    old.write_text(table(GOOD))  # without the column
    assert [profile_table.read(path).is_simulated for path in (simulated, real, old)] == [True, False, False]
    assert profile_table.read(simulated).digest == Profile(rows=(BARE,), is_simulated=True).digest
    assert profile_table.read(simulated).digest != Profile(rows=(BARE,)).digest
    with pytest.raises(ConfigError, match=f"{real} row 2, is_simulated: {simulated} row 2 is from a simulated GPU"):
        profile_table.read([simulated, real])
    assert len(profile_table.read([real, old]).rows) == 2


def test_a_gpu_may_be_called_as_the_driver_calls_it(tmp_path):
    path = tmp_path / "profile.csv"
    path.write_text(table(GOOD | {"gpu_model": "NVIDIA A100-SXM4-80GB"}, GOOD | {"gpu_model": "NVIDIA RTX 9999"}))
    assert [row.gpu_model for row in profile_table.read(path).rows] == ["a100_80gb", "NVIDIA RTX 9999"]


BAD = {
    "another version": ([GOOD | {"schema_version": "2"}], "row 2, schema_version: version is 2, not 1"),
    "no version": (
        [{k: v for k, v in GOOD.items() if k != "schema_version"}],
        "row 1, schema_version: the column is missing",
    ),
    "no unit": ([GOOD | {"latency_p99": "3"}], "row 1, latency_p99: the unit is missing; .* latency_p99_ms"),
    "unknown": ([GOOD | {"colour": "red"}], "row 1, colour: unknown column"),
    "a column missing": ([{k: v for k, v in GOOD.items() if k != "processes"}], "row 1, processes: the column is miss"),
    "a field empty": ([GOOD | {"throughput_per_s": ""}], "row 2, throughput_per_s: the field is empty"),
    "negative": ([GOOD, GOOD | {"workload": "b", "throughput_per_s": "-3"}], "row 3, throughput_per_s: -3 is negative"),
    "not finite": ([GOOD | {"latency_mean_ms": "inf"}], "row 2, latency_mean_ms: inf is not finite"),
    "not a number": ([GOOD | {"latency_mean_ms": "fast"}], "row 2, latency_mean_ms: 'fast' is not a number"),
    "zero": ([GOOD | {"throughput_per_s": "0"}], "row 2, throughput_per_s: must be above 0"),
    "not whole": ([GOOD | {"processes": "1.5"}], "row 2, processes: 1.5 is not a whole number"),
    "twice": (
        [GOOD, GOOD],
        "row 3, workload: bert on 1g.10gb of a100_80gb .* has two rows; remove this row or .* row 2",
    ),
    "no instance": ([GOOD | {"instance_profile": ""}], "row 2, instance_profile: does not fit sharing_mode mig; name"),
    "an instance": ([GOOD | {"sharing_mode": "mps"}], "row 2, instance_profile: does not fit sharing_mode mps; leave"),
    "interval": (
        [GOOD | {"throughput_low_per_s": "11"}],
        "row 2, throughput_low_per_s: the throughput is outside its interval .11 > 10.;",
    ),
    "no truth": ([GOOD | {"is_simulated": "perhaps"}], "row 2, is_simulated: 'perhaps' is not a boolean"),
    "a short row": ([GOOD, {"schema_version": "1"}], "row 3: the row has more or fewer fields"),
}


@pytest.mark.parametrize(("rows", "message"), BAD.values(), ids=BAD)
def test_what_cannot_be_used_is_refused(tmp_path, rows, message):
    path = tmp_path / "profile.csv"
    path.write_text(table(*rows))
    with pytest.raises(ConfigError, match=f"^{path} {message}") as refused:
        profile_table.read(path)
    assert "\n" not in str(refused.value)


def test_parvagpu_gives_the_throughput_of_a_process(tmp_path, capsys):
    out = tmp_path / "profile.csv"
    assert planner.main(["profile", "--from-parvagpu", str(PARVAGPU), "--out", str(out)]) == 0
    assert "1747 rows, 11 workloads, measured on a100_80gb" in capsys.readouterr().out
    row, *further_rows = [
        row
        for row in profile_table.read(out).rows
        if (row.workload, row.instance_profile, row.batch, row.processes) == ("bert", "1g.10gb", 2, 3)
    ]
    assert not further_rows
    assert row.throughput_per_s == pytest.approx(3 * 44.542) and row.latency_mean_ms == pytest.approx(45)
    assert row.sharing_mode == "mig_mps" and row.latency_p99_ms is None and row.memory_mib is None


def test_a_configuration_that_did_not_run_is_missing():
    rows = profile_table.read_parvagpu(PARVAGPU).rows
    assert not [row for row in rows if (row.workload, row.instance_profile, row.processes) == ("bert", "1g.10gb", 5)]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("bert.csv", "a,b\n1,2\n", "bert.csv row 1: not a ParvaGPU table"),
        ("bert.csv", "Mig instance,Batch size,Workload Number,Throughput,Latency\n5,1,1,3,4\n", "row 2, Mig instance"),
        (
            "bert.csv",
            "Mig instance,Batch size,Workload Number,Throughput,Latency\n1,1,1,-3,4\n",
            "Throughput: -3 is neg",
        ),
        ("slo_rate_per_s.csv", "1,2\n", "no tables MODEL.csv"),
    ],
)
def test_tables_that_cannot_be_used_write_nothing(tmp_path, capsys, name, text, message):
    (tmp_path / name).write_text(text)
    out = tmp_path / "out/profile.csv"
    assert planner.main(["profile", "--from-parvagpu", str(tmp_path), "--out", str(out)]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1 and not out.exists()
