"""Jobs of one launch that take turns: interleaved windows, and stressors."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.base.domain import layout
from pipeline.base.domain.records import Limits, Result
from pipeline.base.domain.tags import Tag, stored_name
from pipeline.base.domain.window import Window, WindowKind, parse_turns
from pipeline.base.system.paths import PROJECT_DIR
from pipeline.launch.interleaving import FIRST_STEPS, Interleaving
from pipeline.launch.job_group import JobGroup
from pipeline.observe import group_row
from pipeline.observe.group_result import GroupResult, Observation
from pipeline.report.__main__ import main
from pipeline.report.evaluate.cells import make_cells
from pipeline.report.evaluate.stressors import list_effects
from pipeline.report.read import rows
from pipeline.report.read.stressor_counters import choose_rows, read_counters
from tests.support import forks
from tests.support.rows import group
from tests.support.run_cases import groups
from tests.support.toy_groups import PATIENT, make_jobs, prepare_launch

pytestmark = pytest.mark.covers("pipeline/launch", "pipeline/observe")

WINDOW = Window(kind=WindowKind.INTERLEAVED, seconds=0.4, settle_s=0.05, slice_s=0.1)
Measure = Callable[..., tuple[JobGroup, Interleaving]]


@pytest.fixture
def measure(tmp_path: Path) -> Measure:
    def measure_toys(*manners: str, limits: Limits = PATIENT, window: Window = WINDOW) -> tuple[JobGroup, Interleaving]:
        turns = {3: 1, 1: 2, 2: 1} if len(manners) == 3 else {1: 1}
        with prepare_launch(tmp_path / "group", make_jobs(*manners), limits=limits) as running, running:
            interleaving = Interleaving(running, window, turns, "seed")
            assert running.wait_ready()
            interleaving.measure()
        return running, interleaving

    return measure_toys


def judge(running: JobGroup, interleaving: Interleaving, num_jobs: int) -> GroupResult:
    toys = group(*("toy" for _ in range(num_jobs)), jobs=make_jobs(*("can_be_held",) * num_jobs), window=WINDOW)
    seen = Observation(
        batches=[running.states[:num_jobs]],
        samples=(),
        slices=interleaving.slices,
        jobs_at_first_steps=interleaving.jobs_at_first_steps,
    )
    return group_row.judge(toys, seen)


def read_steps_ns(running: JobGroup, index: int) -> list[int]:
    lines = (running.states[index].folder / layout.EVENTS).read_text().splitlines()
    return [event["t_ns"] for event in map(json.loads, lines) if event["event"] == "step"]


@pytest.mark.smoke
def test_jobs_take_turns_and_each_number_of_jobs_has_a_row(measure: Measure) -> None:
    running, interleaving = measure("can_be_held", "can_be_held", "can_be_held")
    assert Counter(part.num_jobs for part in interleaving.slices) == {0: 1, 1: 8, 2: 4, 3: 4}
    assert interleaving.jobs_at_first_steps == {0: 1, 1: 2, 2: 3}
    for index in range(3):
        steps_ns = read_steps_ns(running, index)
        for part in interleaving.slices:
            num_steps = sum(part.begin_ns < t_ns <= part.end_ns for t_ns in steps_ns)
            assert (num_steps > 0) is (index < part.num_jobs), (index, part)
    rows = {number: judge(running, interleaving, number) for number in (1, 2, 3)}
    for number, row in rows.items():
        assert row.result is Result.OK, row.reason
        assert [job.job.index for job in row.jobs] == list(range(number))
        # A toy makes a step of 4 samples in 5 ms at most: the held time is in no rate.
        assert 0.5 * number * 800 < row.metrics["throughput_total_samples_per_s"] <= number * 800
        assert row.tags[Tag.SLICES] == f"{8 if number == 1 else 4} x 0.1 s"
        assert not {"makespan_s", "overlap_ratio", "epoch_time_mean_s"} & row.metrics.keys()


def test_no_job_makes_its_first_steps_beside_more_jobs_than_it_is_checked_for(measure: Measure) -> None:
    running, interleaving = measure("can_be_held", "can_be_held", "can_be_held")
    begins_ns = [read_steps_ns(running, index)[0] for index in range(3)]
    firsts_end_ns = [read_steps_ns(running, index)[FIRST_STEPS - 1] for index in range(3)]
    assert firsts_end_ns[0] < begins_ns[1] and firsts_end_ns[1] < begins_ns[2]
    assert max(firsts_end_ns) < interleaving.slices[0].begin_ns


def test_a_job_that_cannot_be_held_runs_into_its_deadline(measure: Measure) -> None:
    running, interleaving = measure(
        "can_be_held", "well", "can_be_held", limits=Limits(ready_s=60, group_s=9, stop_s=1)
    )
    assert running.went_wrong
    row = judge(running, interleaving, 3)
    assert (row.result, row.reason) == (Result.TIMEOUT, "job 1-toy: was not held within limits.stop_s=1 s")


def test_a_job_that_works_while_it_is_held_is_noticed_in_a_launch_of_its_own(measure: Measure) -> None:
    row = judge(*measure("works_while_held"), 1)
    assert row.result is Result.OK
    assert "while held; make every step in the loop over job.until_stop()" in row.marks.invalid


def test_a_job_that_ends_early_ends_the_launch(measure: Measure) -> None:
    running, _ = measure("can_be_held", "ends_early", "can_be_held")
    assert running.went_wrong


def test_the_speed_of_the_jobs_decides_the_length_of_slices_that_is_open(measure: Measure) -> None:
    window = Window(kind=WindowKind.INTERLEAVED, seconds=1.0, settle_s=0.05)
    _, interleaving = measure("can_be_held", window=window)  # a step takes 5 ms or more
    assert interleaving.window.slice_s in (0.5, 1.0)
    lengths_s = [(part.end_ns - part.begin_ns) / 1e9 for part in interleaving.slices if part.num_jobs]
    assert lengths_s == [pytest.approx(interleaving.window.slice_s)] * interleaving.window.num_slices


@pytest.mark.slow
def test_all_blocks_have_the_slices_of_the_first_one_after_a_resume_too(tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(
        "import itertools, time\nfrom workloads import client\nwith client.attach() as job:\n    job.ready()\n"
        "    for _ in job.until_stop(itertools.count()):\n        time.sleep(0.03 if job.block == 1 else 0.002)\n"
        "        job.step(1)\n"
    )
    arguments = [
        "--config-dir",
        "tests/conf",
        "-m",
        "workload=toy_held",
        f"workload.script={script}",
        "scenario=serial",
    ]
    arguments += ["window=interleaved", "window.seconds=2", "degree=1", "foreign_load=note", "listeners=[]", "gpu=cpu"]
    arguments += [f"gpu.lock_dir={tmp_path}", f"tracking.root={tmp_path}/mlruns", "workload.args=[]", "resume=true"]
    for repeats in (1, 2):
        done = forks.run(PROJECT_DIR / "run.py", *arguments, f"repeats={repeats}", cwd=PROJECT_DIR)
        assert done.returncode == 0, done.stderr
    from mlflow import MlflowClient

    runs = groups(MlflowClient(f"sqlite:///{tmp_path}/mlruns/mlflow.db"), "collocation")
    assert [run.data.tags[Tag.SLICES] for run, _ in runs] == ["2 x 2 s"] * 2


@pytest.mark.slow
def test_the_largest_number_that_fits_is_launched_and_measures_the_smaller_ones(tmp_path: Path) -> None:
    arguments = ["-m", "scenario=naive", "degree=1,2,3,4", "window=interleaved", "window.seconds=1", "listeners=[]"]
    arguments += ["workload=tiny", "workload.source=synthetic_device", "foreign_load=note", "gpu=simulated_a100_40gb"]
    arguments += ["gpu.job_memory_mib=13000", f"gpu.machine={tmp_path}/machine.json", f"gpu.lock_dir={tmp_path}"]
    done = forks.run(PROJECT_DIR / "run.py", *arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    from mlflow import MlflowClient

    runs = groups(MlflowClient(f"sqlite:///{tmp_path}/mlruns/mlflow.db"), "collocation-rehearsal")
    tags = {run.info.run_name: run.data.tags for run, _ in runs}
    results = {name: of_group[Tag.RESULT] for name, of_group in tags.items()}
    assert results == {
        "naive-4x-tiny": "oom",
        "naive-3x-tiny": "ok",
        "naive-2x-tiny": "ok",
        "serial-1x-tiny": "ok",  # one job without MPS is launched by itself
    }
    assert {name for name, of_group in tags.items() if Tag.LAUNCH in of_group} == {"naive-2x-tiny"}
    losses = {name: of_group.get(stored_name(Tag.FIRST_LOSSES), "{}") for name, of_group in tags.items()}
    checked = {name: list(json.loads(of_jobs)) for name, of_jobs in losses.items()}
    assert checked == {
        "naive-4x-tiny": [],
        "naive-3x-tiny": ["2"],
        "naive-2x-tiny": ["0", "1"],
        "serial-1x-tiny": ["0"],
    }


TURNS = ["+workload@sizes.T=stressor_turns", "sizes.T.resources=[host_cores]", "sizes.T.dials=[1.0]"]
TURNS += ["sizes.T.threads=1", "sizes.T.turn_settle_s=0.1", "sizes.T.rounds=2", "mix=[workload,T]", "scenario=naive"]
SHORT = ["window.seconds=1", "window.settle_s=0.3", "listeners=[]"]
SCRIPT = """
import time
for _ in range(100):
    time.sleep(0.05)
    print("throughput 20 samples/s", flush=True)
"""


def check_effect(store: Path, workload: str) -> None:
    study = rows.read([store], "collocation")
    (effect,) = list_effects(study, make_cells(study))
    assert (effect.workload.partition(" ")[0], effect.resource, effect.dial) == (workload, "host_cores", 1.0)
    assert effect.sensitivity is not None and effect.pressure is not None
    assert effect.sensitivity.median > 0.1 and effect.pressure.median > 0.1


@pytest.mark.slow
def test_a_workload_is_launched_once_for_all_turns(run, client, tmp_path):
    tiny = ["workload=tiny", "workload.source=synthetic_device", "workload.threads=1"]
    sampled = ["listeners=[host]", "listeners.host.interval_ms=200"]
    status, out, err = run("-m", *tiny, *TURNS, "sizes.T.turn_s=0.6", *SHORT[:-1], *sampled)
    assert status == 0, err + out
    assert "its worst stressor (host_cores, dial 1, naive" in out or "no stressor was seen to slow down tiny" in out
    turns = {
        row.info.run_name: parse_turns(row.data.tags[stored_name(Tag.TURNS)])
        for row, _ in groups(client)
        if stored_name(Tag.TURNS) in row.data.tags
    }
    jobs = {name: [(t.resource, t.num_turns, sorted(t.rates)) for t in of_group] for name, of_group in turns.items()}
    assert jobs == {
        "serial-1x-T": [("host_cores", 2, [0]), ("idle", 2, [])],
        "naive-tiny+T": [("host_cores", 2, [0, 1]), ("idle", 2, [0])],
    }
    check_effect(tmp_path / "mlruns", "tiny")
    (alone,) = choose_rows(rows.read([tmp_path / "mlruns"], "collocation"))
    by_place = {counters.place: counters.means["cpu_pct"] for counters in read_counters(alone)}
    assert 0.3 < by_place["host_cores", 1.0] < 1.1 and by_place["idle", 0.0] < 0.2, "one thread of one CPU, or none"
    for name in ("read", "unreadable"):
        place = ["--root", str(tmp_path / "mlruns"), "--out", str(tmp_path / name)]
        assert main(["--experiment", "collocation", "--no-log", *place]) == 0
        assert (tmp_path / name / "tables/stressors.csv").exists() == (name == "read")
        for path in (tmp_path / "mlruns").rglob("samples.parquet"):
            path.write_bytes(b"not parquet")
    page = (tmp_path / "unreadable/index.html").read_text()
    assert f"Not shown: counters of stressors in run {alone.run_id}, whose artifacts cannot be read." in page


@pytest.mark.slow
def test_a_script_that_logs_its_rate_runs_once_for_all_turns(run, tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    pattern = "workload.metric_pattern='throughput ([0-9.]+)'"
    status, out, err = run(
        "-m", pattern, "workload.work_unit=samples", *TURNS, "sizes.T.turn_s=0.6", *SHORT, "--", "train.py"
    )
    assert status == 0, err + out
    check_effect(tmp_path / "mlruns", "train")
    status, out, err = run("-m", *TURNS, *SHORT, "--", "train.py")
    assert status == 2 and "train logs no rate" in err and len(err.strip().splitlines()) == 1
