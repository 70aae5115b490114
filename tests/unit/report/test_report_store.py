"""A study read back from a real store."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from pipeline.base.domain.records import Result
from pipeline.base.system.errors import TrackingError
from pipeline.record import group_record
from pipeline.record.group_record import Clock, GroupRecord, JobRecord
from pipeline.record.store.local_store import open_store
from pipeline.report.evaluate import contrasts, paper, verdicts
from pipeline.report.evaluate.cells import make_cells
from pipeline.report.page import study_tables as report_tables
from pipeline.report.read import rows

EXPERIMENT = "study"
DEVICE = "NVIDIA H100 80GB HBM3"
SETTINGS = {"device": DEVICE, "window": "steady, 5 s after 1 s", "seed": "0", "pinned CPUs": "false"}


def insert(root: Path, groups: list[dict], first: int = 0) -> None:
    """Write the records of groups beside the database: sending them takes a tenth of a second each."""
    open_store(root).open_experiment(EXPERIMENT)
    for number, group in enumerate(groups, first):
        record = make_record(number, group)
        for run_id in (record.run_id, *(job.run_id for job in record.jobs)):
            (root / "artifacts" / EXPERIMENT / run_id / "artifacts").mkdir(parents=True)
        folder = root / "artifacts" / EXPERIMENT / record.run_id / "artifacts"
        (folder / "record.json").write_text(group_record.encode(record))


def make_record(number: int, group: dict) -> GroupRecord:
    result, degree, rate = group.get("result", Result.OK), group["degree"], group["rate"]
    begin_ns, workload = 10_000_000_000 * number, group.get("workload", "tiny")
    filler = range(group.get("num_metrics", 0))
    times: dict = {"start_ns": begin_ns, "end_ns": begin_ns + 9_000_000_000, "result": result}
    params = {"workload": workload, "batch_size": "32", "seed": "0", "job.torch": "2.11"}
    jobs = tuple(
        JobRecord(
            name=f"{index}-tiny",
            run_id=f"{number:024x}{index + 1:08x}",
            params=params | {f"filler_{k}": "1" for k in filler},
            metrics={"throughput_samples_per_s": rate},
            index=index,
            digest=f"digest-{workload}",
            **times,
        )
        for index in range(degree)
    )
    return GroupRecord(
        name=f"{group['scenario']}-{degree}x-tiny",
        run_id=f"{number:024x}{0:08x}",
        params={"scenario": group["scenario"], "degree": str(degree), "window": "steady", "seed": "0"},
        facts={
            "boot_id": group.get("boot", "boot-1"),
            "git_commit": "0123abcd",
            "program_commit": "4567cdef",
            "program_changed": "true",
            "plan_groups": "99",
        },
        metrics={"throughput_total_samples_per_s": degree * rate} | {f"filler_{k}": 1.0 for k in filler},
        spool_id=f"{number}",
        experiment=EXPERIMENT,
        clock=Clock(wall_ns=1_700_000_000_000_000_000, monotonic_ns=0),
        jobs=jobs,
        study=group.get("study", "20261121-100000-aaaaaa"),
        scenario=group["scenario"],
        device=DEVICE,
        gpu_uuid="GPU-1",
        block=group["block"],
        digest=f"{number}",
        settings=SETTINGS,
        **times,
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


def test_what_failed_before_a_resume_is_replaced_by_what_came_after(root: Path) -> None:
    before = [group("serial", 1, 1, 100.0), group("naive", 2, 1, 0.0, result=Result.FAILED)]
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
    comparisons = contrasts.compare_modes(cells)
    best = verdicts.winners(cells, comparisons)
    assert (study.rows, cells, comparisons, best) == ((), [], [], [])
    assert report_tables.make_tables(study, cells, comparisons, best, paper.compare(cells, comparisons)) == []


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
    comparisons = contrasts.compare_modes(cells)
    verdicts.winners(cells, comparisons)
    paper.compare(cells, comparisons)
    judging_s = time.process_time() - began - reading_s
    num_runs = len(study.rows) + sum(row.degree for row in study.rows)
    print(f"{num_runs} runs: read in {reading_s:.1f} s, judged in {judging_s:.1f} s")
    assert num_runs == 4000 and len(comparisons) == 40 * 4
    assert reading_s < 20 and judging_s < 5
