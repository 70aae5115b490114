"""From MLflow back to tables."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.base.domain.records import Result
from pipeline.base.domain.window import Window, WindowKind
from pipeline.base.system.errors import TrackingError
from pipeline.record import group_record
from pipeline.record.store import results
from pipeline.record.store.local_store import open_store
from tests.support.tracking_cases import EXPERIMENT, SECOND, START, as_running, child, record, store_groups

pytest_plugins = ["tests.support.tracking_fixtures"]
pytestmark = pytest.mark.store


@pytest.fixture
def filled_root(root: Path) -> Path:
    """Two groups that ended, the later one sent first, and one that runs."""
    facts = {"boot_id": "boot", "power_limit_w": "500", "ecc_mode": ""}
    metrics = {"makespan_s": 1.0, "speedup_vs_serial_ratio": 1.5}
    jobs = [
        child(index, params={"batch_size": str(index)}, metrics={"throughput_samples_per_s": float(index)})
        for index in (0, 1, 2)
    ]
    store_groups(
        root,
        record(
            (replace(jobs[2], result=Result.OOM),),
            2,
            start_ns=START + SECOND,
            result=Result.OOM,
            metrics={"makespan_s": 2.0},
        ),
        record((jobs[0], jobs[1]), 1, facts=facts, gpu_uuid="GPU-1", metrics=metrics),
        as_running(record((), 3, start_ns=START + 2 * SECOND)),
    )
    return root


def test_finished_groups_say_what_resume_needs_and_nothing_that_is_unknown(filled_root: Path) -> None:
    first, second = results.find_finished(filled_root, EXPERIMENT)
    assert (first.digest, first.result) == ("digest1", Result.OK)
    assert dict(first.machine_state.facts) == {"gpu_uuid": "GPU-1", "boot_id": "boot", "power_limit_w": "500"}
    assert first.metrics == {"makespan_s": 1.0, "speedup_vs_serial_ratio": 1.5}
    assert (second.digest, second.result, second.machine_state.facts) == ("digest2", Result.OOM, ())


def test_a_group_whose_run_was_deleted_is_not_read(filled_root: Path) -> None:
    first, _ = results.find_finished(filled_root, EXPERIMENT)
    open_store(filled_root).client.delete_run(first.run_id)
    assert [group.digest for group in results.find_finished(filled_root, EXPERIMENT)] == ["digest2"]
    open_store(filled_root).client.restore_run(first.run_id)
    assert len(results.find_finished(filled_root, EXPERIMENT)) == 2


def test_a_store_of_an_earlier_version_is_refused_in_a_line_that_names_the_script(filled_root: Path) -> None:
    for file in filled_root.glob("artifacts/*/*/artifacts/record.json"):
        (file.parent / "group.json").write_text("{}")
        file.unlink()
    for read in (results.find_finished, results.load_groups, results.read_groups):
        with pytest.raises(
            TrackingError, match=rf"^{filled_root} was .*: python benchmarks/convert_bundle.py {filled_root} "
        ) as e:
            read(filled_root, EXPERIMENT)
        assert "\n" not in str(e.value)


def test_nothing_is_finished_where_there_is_no_store_and_looking_makes_none(root: Path, tmp_path: Path) -> None:
    assert results.find_finished(tmp_path / "absent", EXPERIMENT) == []
    assert not (tmp_path / "absent").exists()
    assert results.find_finished(root, "never heard of") == []


def test_groups_are_one_row_each_and_missing_stays_missing(filled_root: Path) -> None:
    table = results.load_groups(filled_root, EXPERIMENT)
    assert table["metrics.makespan_s"].tolist()[:2] == [1.0, 2.0]
    assert table["metrics.speedup_vs_serial_ratio"].isna().tolist() == [False, True, True]
    assert table["tags.collocation.result"].tolist()[:2] == ["ok", "oom"]
    assert table["end_time"].isna().tolist() == [False, False, True]


def test_jobs_have_their_group_beside_them(filled_root: Path) -> None:
    table = results.load(filled_root, EXPERIMENT)
    assert table["metrics.throughput_samples_per_s"].tolist() == [0.0, 1.0, 2.0]
    assert table["params.batch_size"].tolist() == ["0", "1", "2"]
    assert table["group.tags.collocation.result"].tolist() == ["ok", "ok", "oom"]
    assert table["group.metrics.makespan_s"].tolist() == [1.0, 1.0, 2.0]


def test_tables_of_nothing(root: Path, tmp_path: Path) -> None:
    for where, experiment in ((tmp_path / "absent", EXPERIMENT), (root, "never heard of")):
        with pytest.raises(TrackingError, match=r"no (store|experiment)"):
            results.load(where, experiment)
    open_store(root).open_experiment("empty")
    assert len(results.load(root, "empty")) == len(results.load_groups(root, "empty")) == 0


@pytest.mark.slow
def test_a_thousand_groups_are_read_in_seconds(root: Path) -> None:
    """1,000 groups of 2 jobs, with 40 metrics and 40 params each."""
    values = {
        "params": {f"param{k}": str(k) for k in range(40)},
        "metrics": {f"metric{k}": float(k) for k in range(40)},
    }
    (stored,) = store_groups(root, record((child(0, **values), child(1, **values)), **values))
    (folder,) = root.glob("artifacts/*")
    for number in range(1, 1000):
        copy = replace(stored, run_id=f"{number:032x}", start_ns=stored.start_ns + number)
        (folder / copy.run_id / "artifacts").mkdir(parents=True)
        (folder / copy.run_id / "artifacts" / "record.json").write_text(group_record.encode(copy))
    began = time.process_time()  # not the clock: other tests may run beside this one
    assert len(results.find_finished(root, EXPERIMENT)) == 1000
    assert len(results.load(root, EXPERIMENT)) == 2000
    assert time.process_time() - began < 20


def test_a_group_that_ran_says_of_which_program_with_which_arguments() -> None:
    facts = {"jobs": "train+train", "args": "--epochs 3", "flags.lr": "0.1", "flags.fast": "true", "degree": "2"}
    assert results._describe_programs(facts) == "train --epochs 3 --lr 0.1 --fast"
    assert results._describe_programs({"jobs": "train+eval+train"}) == "train+eval"


def test_the_time_of_a_window_by_need_beyond_its_shortest_length_is_part_of_the_estimate(root: Path) -> None:
    window = Window(kind=WindowKind.STEADY, seconds=1, most_s=10)
    metrics = {"time_launch_s": 3.0, "time_window_s": 16.0, "window_s": 11.5}
    params = {"scenario": "serial", "degree": "2", "jobs": "a+b"}
    store_groups(root, record((), window=window, scenario="serial", params=params, metrics=metrics))
    assert [group.on_top_s for group in results.find_past_groups(root)] == [3.0 + 11.5 - 2 * 1.0]
