"""From MLflow back to tables."""

from __future__ import annotations

import json
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from pipeline.base.domain.layout import DATABASE
from pipeline.base.domain.records import Result
from pipeline.base.domain.tags import Tag
from pipeline.base.system.errors import TrackingError
from pipeline.record.store import local_store, results
from pipeline.record.store.local_store import open_store
from tests.support.tracking_cases import EXPERIMENT, tags_of

pytest_plugins = ["tests.support.tracking_fixtures"]


@pytest.fixture
def filled(root: Path) -> Path:
    """Two groups that ended, one that runs, one without a digest."""
    store = open_store(root)
    experiment_id = store.open_experiment(EXPERIMENT)

    def run(start_ms: int, tags: dict[str, str], status: str | None = "FINISHED", **metrics: float) -> str:
        run_id = store.client.create_run(experiment_id, start_ms, tags).info.run_id
        for name, value in metrics.items():
            store.client.log_metric(run_id, name.replace("__", "/"), value)
        if status:
            store.client.set_terminated(run_id, status)
        return run_id

    whole = {"collocation.block": "2", "collocation.gpu_uuid": "GPU-1", "collocation.boot_id": "boot"}
    whole |= {"collocation.power_limit_w": "500", "collocation.ecc_mode": ""}
    second = run(2000, tags_of("group", 2, "oom"), "FAILED", makespan_s=2.0)
    first = run(
        1000, tags_of("group", 1) | whole, makespan_s=1.0, speedup_vs_serial_ratio=1.5, system__nvml__power_w=70.0
    )
    run(3000, tags_of("group", 3), None)
    run(4000, {"collocation.role": "group"})
    for index, parent in enumerate((first, first, second)):
        store.client.log_param(
            run(1000 + index, tags_of("job") | {"mlflow.parentRunId": parent}, throughput_samples_per_s=float(index)),
            "batch_size",
            str(index),
        )
    return root


def test_finished_groups_say_what_resume_needs_and_nothing_that_is_unknown(filled: Path) -> None:
    first, second = results.find_finished(filled, EXPERIMENT)
    assert (first.digest, first.result) == ("digest1", Result.OK)
    assert first.facts == {"gpu_uuid": "GPU-1", "boot_id": "boot", "power_limit_w": "500"}
    assert first.metrics == {"makespan_s": 1.0, "speedup_vs_serial_ratio": 1.5}
    assert (second.digest, second.result, second.facts) == ("digest2", Result.OOM, {})


def test_nothing_is_finished_where_there_is_no_store_and_looking_makes_none(root: Path, tmp_path: Path) -> None:
    assert results.find_finished(tmp_path / "absent", EXPERIMENT) == []
    assert not (tmp_path / "absent").exists()
    assert results.find_finished(root, "never heard of") == []


def test_groups_are_one_row_each_and_missing_stays_missing(filled: Path) -> None:
    table = results.load_groups(filled, EXPERIMENT)
    assert table["metrics.makespan_s"].tolist()[:2] == [1.0, 2.0]
    assert table["metrics.speedup_vs_serial_ratio"].isna().tolist() == [False, True, True, True]
    assert table["tags.collocation.result"].tolist()[:2] == ["ok", "oom"]
    assert table["end_time"].isna().tolist() == [False, False, True, False]
    assert not [column for column in table if "system/" in column]


def test_jobs_have_their_group_beside_them(filled: Path) -> None:
    table = results.load(filled, EXPERIMENT)
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


def test_every_page_is_read(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_store, "PAGE", 1)
    assert len(results.find_finished(filled, EXPERIMENT)) == 2
    assert len(results.load(filled, EXPERIMENT)) == 3


@pytest.mark.slow
def test_a_thousand_groups_are_read_in_seconds(root: Path) -> None:
    """1,000 groups of 2 jobs, 40 metrics, 40 params and 15 tags each, written straight into the database."""
    experiment_id = int(open_store(root).open_experiment(EXPERIMENT))
    runs, tags, params, metrics = [], [], [], []
    for number in range(3000):
        run_id, role = f"{number:032x}", "group" if number < 1000 else "job"
        runs.append((run_id, "r", "FINISHED", "active", number, number + 1, "", experiment_id, "", "", "", "", "LOCAL"))
        every = tags_of(role, number) | {f"tag{k}": "x" * 20 for k in range(12)}
        if role == "job":
            every["mlflow.parentRunId"] = f"{number % 1000:032x}"
        tags += [(key, value, run_id) for key, value in every.items()]
        params += [(f"param{k}", str(k), run_id) for k in range(40)]
        metrics += [(f"metric{k}", float(k), 1, 0, 0, run_id) for k in range(40)]
    columns = (
        "run_uuid, name, status, lifecycle_stage, start_time, end_time, artifact_uri, experiment_id, "
        "source_name, entry_point_name, user_id, source_version, source_type"
    )
    with closing(sqlite3.connect(root / DATABASE)) as connection, connection:
        connection.executemany(f"INSERT INTO runs ({columns}) VALUES ({','.join('?' * 13)})", runs)
        connection.executemany("INSERT INTO tags (key, value, run_uuid) VALUES (?, ?, ?)", tags)
        connection.executemany("INSERT INTO params (key, value, run_uuid) VALUES (?, ?, ?)", params)
        connection.executemany(
            "INSERT INTO latest_metrics (key, value, timestamp, step, is_nan, run_uuid) VALUES (?, ?, ?, ?, ?, ?)",
            metrics,
        )
    began = time.process_time()  # not the clock: other tests may run beside this one
    assert len(results.find_finished(root, EXPERIMENT)) == 1000
    finding_s = time.process_time() - began
    table = results.load(root, EXPERIMENT)
    loading_s = time.process_time() - began - finding_s
    print(f"find_finished {finding_s:.2f} s, load {loading_s:.2f} s")
    assert len(table) == 2000
    assert table["group.tags.collocation.digest"].notna().all()
    assert finding_s < 10
    assert loading_s < 20


def test_a_group_that_ran_says_of_which_program_with_which_arguments() -> None:
    given = {"jobs": "train+train", "args": "--epochs 3", "flags.lr": "0.1", "flags.fast": "true", "degree": "2"}
    assert results._describe_programs(given) == "train --epochs 3 --lr 0.1 --fast"
    assert results._describe_programs({"jobs": "train+eval+train"}) == "train+eval"


def test_the_time_of_a_window_by_need_beyond_its_shortest_length_is_part_of_the_estimate(root: Path) -> None:
    store = open_store(root)
    experiment_id = store.open_experiment(EXPERIMENT)
    tags = tags_of("group", 1) | {Tag.KEY: "key", Tag.PLANNED: json.dumps({"settings": {"window": "", "device": ""}})}
    run_id = store.client.create_run(experiment_id, 1000, tags).info.run_id
    params = {"scenario": "serial", "degree": "2", "jobs": "a+b", "window": "steady"}
    for key, value in (params | {"window_seconds": "1", "window_most_s": "10"}).items():
        store.client.log_param(run_id, key, value)
    for name, seconds in {"time_launch_s": 3.0, "time_window_s": 16.0, "window_s": 11.5}.items():
        store.client.log_metric(run_id, name, seconds)
    assert [group.on_top_s for group in results.find_past_groups(store)] == [3.0 + 11.5 - 2 * 1.0]
