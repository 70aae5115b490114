"""A study read back from a real store."""

from __future__ import annotations

import json
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from pipeline.base.domain.layout import DATABASE
from pipeline.base.domain.records import Result
from pipeline.base.system.errors import TrackingError
from pipeline.record.store.local_store import open_store
from pipeline.report.evaluate import contrasts, paper, verdicts
from pipeline.report.evaluate.cells import make_cells
from pipeline.report.page import study_tables as report_tables
from pipeline.report.read import rows

pytest_plugins = ["tests.support.tracking_fixtures"]
EXPERIMENT = "study"
DEVICE = "NVIDIA H100 80GB HBM3"
SETTINGS = {"device": DEVICE, "window": "steady, 5 s after 1 s", "seed": "0", "pinned CPUs": "false"}


def insert(root: Path, groups: list[dict]) -> None:
    """Write groups and their jobs straight into the database: the client takes milliseconds a value."""
    experiment_id = int(open_store(root).open_experiment(EXPERIMENT))
    runs, tags, params, metrics = [], [], [], []

    def add(run_id: str, name: str, start_ms: int, status: str, **content: dict) -> None:
        end_ms = None if status == "RUNNING" else start_ms + 9000
        runs.append((run_id, name, status, "active", start_ms, end_ms, "", experiment_id, "", "", "", "", "LOCAL"))
        tags.extend((key, value, run_id) for key, value in content["tags"].items())
        params.extend((key, value, run_id) for key, value in content["params"].items())
        metrics.extend((key, value, 1, 0, 0, run_id) for key, value in content["metrics"].items())

    for number, group in enumerate(groups):
        run_id = f"{number:024x}{0:08x}"
        common = {
            "collocation.study": group.get("study", "20261121-100000-aaaaaa"),
            "collocation.block": str(group["block"]),
            "collocation.gpu_uuid": "GPU-1",
            "collocation.boot_id": group.get("boot", "boot-1"),
            "collocation.device": DEVICE,
            "collocation.planned": group.get("planned", json.dumps({"settings": SETTINGS, "options": {}})),
            "collocation.git_commit": "0123abcd",
            "mlflow.source.git.commit": "4567cdef",
            "collocation.program_changed": "true",
            "collocation.plan_groups": "99",
        }
        result = group.get("result", "ok")
        ending = {"collocation.result": result} if result else {}
        degree, rate = group["degree"], group["rate"]
        add(
            run_id,
            f"{group['scenario']}-{degree}x-tiny",
            1_700_000_000_000 + 10_000 * number,
            {"ok": "FINISHED", None: "RUNNING"}.get(result, "FAILED"),
            tags=common | ending | {"collocation.role": "group", "collocation.digest": f"{number}"},
            params={
                "scenario": group["scenario"],
                "degree": str(degree),
                "window": "steady",
                "window_seconds": "5",
                "window_settle_s": "1",
                "seed": "0",
                "pin_cpus": "false",
            },
            metrics={"throughput_total_samples_per_s": degree * rate, "system/nvml/power_w": 99.0}
            | {f"filler_{k}": 1.0 for k in range(group.get("num_metrics", 0))},
        )
        for index in range(degree):
            job = {"collocation.role": "job", "collocation.workload_digest": f"digest-{group.get('workload', 'tiny')}"}
            add(
                f"{number:024x}{index + 1:08x}",
                f"{index}-tiny",
                1_700_000_000_000 + 10_000 * number,
                "FINISHED",
                tags=common | ending | job | {"mlflow.parentRunId": run_id, "collocation.index": str(index)},
                params={"workload": group.get("workload", "tiny"), "batch_size": "32", "seed": "0", "job.torch": "2.11"}
                | {f"filler_{k}": "1" for k in range(group.get("num_metrics", 0))},
                metrics={"throughput_samples_per_s": rate},
            )
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


def group(scenario: str, degree: int, block: int, rate: float, **changes) -> dict:
    return {"scenario": scenario, "degree": degree, "block": block, "rate": rate, **changes}


def test_a_half_run_study_is_read_as_far_as_it_went(root: Path) -> None:
    groups = [group(s, d, b, r) for b in (1, 2) for s, d, r in (("serial", 1, 100.0), ("naive", 2, 70.0))]
    insert(root, [*groups, group("serial", 1, 3, 100.0), group("naive", 2, 3, 0.0, result=None)])
    study = rows.read([root], EXPERIMENT)
    assert len(study.rows) == 5 and study.num_planned == 99
    assert (len(study.blocks), study.num_complete_blocks) == (3, 2)
    assert study.left_out == {"no result: still running, or never closed": 1}
    assert study.facts["git_commit"] == ("0123abcd",) and study.facts["program_commit"] == ("4567cdef, changed",)
    assert study.facts["job_torch"] == ("2.11",)
    assert study.devices == (DEVICE,) and not study.is_simulated
    naive = next(c for c in make_cells(study) if c.mode == "naive")
    assert naive.values["speedup_vs_serial_ratio"] == {1: 1.4, 2: 1.4}
    assert not [name for row in study.rows for name in row.metrics if name.startswith("system/")]


@pytest.mark.parametrize("planned", ["", "{}", "[]", "{"])
def test_a_run_that_does_not_say_its_settings_is_one_error(root: Path, planned: str) -> None:
    insert(root, [group("serial", 1, 1, 100.0), group("naive", 2, 1, 70.0, planned=planned)])
    with pytest.raises(
        TrackingError, match=r"run 0{23}10{8} in .* has no settings and options, because an earlier version"
    ):
        rows.read([root], EXPERIMENT)


def test_what_failed_before_a_resume_is_replaced_by_what_came_after(root: Path) -> None:
    before = [group("serial", 1, 1, 100.0), group("naive", 2, 1, 0.0, result="failed")]
    insert(root, [*before, group("naive", 2, 1, 80.0, study="20261121-120000-bbbbbb")])
    study = rows.read([root], EXPERIMENT)
    assert [(row.mode, row.result) for row in study.rows] == [("serial", Result.OK), ("naive", Result.OK)]
    assert study.left_out == {"run again: the newest result counts": 1}


@pytest.mark.slow
def test_an_experiment_that_is_not_there_is_an_error_and_an_empty_one_an_empty_study(root: Path) -> None:
    with pytest.raises(TrackingError, match="no experiment 'nothing'"):
        rows.read([root], "nothing")
    open_store(root).open_experiment("empty")
    study = rows.read([root], "empty")
    cells = make_cells(study)
    found = contrasts.compare_modes(cells)
    best = verdicts.winners(cells, found)
    assert (study.rows, cells, found, best) == ((), [], [], [])
    assert report_tables.make_tables(study, cells, found, best, paper.compare(cells, found)) == []


@pytest.mark.slow
def test_three_thousand_runs_are_read_and_judged_in_seconds(root: Path) -> None:
    """About 750 groups with three jobs each, 40 further metrics and params a run."""
    modes = [("serial", 1), ("naive", 2), ("mps", 3), ("naive", 4), ("mps", 5)]
    insert(
        root,
        [
            group(s, d, b, 100.0 + b / 10 + d, workload=f"w{w}", num_metrics=40)
            for b in range(1, 6)
            for w in range(40)
            for s, d in modes
        ],
    )
    began = time.process_time()  # not the clock: other tests run beside this one
    study = rows.read([root], EXPERIMENT)
    reading_s = time.process_time() - began
    cells = make_cells(study)
    found = contrasts.compare_modes(cells)
    verdicts.winners(cells, found)
    paper.compare(cells, found)
    judging_s = time.process_time() - began - reading_s
    num_runs = len(study.rows) + sum(row.degree for row in study.rows)
    print(f"{num_runs} runs: read in {reading_s:.1f} s, judged in {judging_s:.1f} s")
    assert num_runs == 4000 and len(found) == 40 * 4
    assert reading_s < 20 and judging_s < 5
