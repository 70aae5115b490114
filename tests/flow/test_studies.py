"""Rows of studies in the process of a test: as in the store, and with the rates that programs have."""

from __future__ import annotations

import inspect

import pytest

from pipeline.base.domain.tags import PREFIX, Tag
from pipeline.base.system.paths import PROJECT_DIR
from pipeline.record.tracking_sender import Sender
from tests.support.run_cases import SHORT, TOY, groups
from tests.support.studies import KeptRows
from tests.toys.stalling import done_by

pytestmark = pytest.mark.covers(
    "tests/support/studies.py",
    "pipeline/record/tracking_sender.py",
    "pipeline/record/spool.py",
    "pipeline/observe",
    "pipeline/study/executor.py",
)

# Of a run, what no two starts share, and the flag, which says how evenly this machine let the jobs run.
PASSING = ("study", "spool_id", "command_line", "rates", "pid", "flag", "index")
# Whether rows can be compared depends on that as well.
FIGURES = ("throughput", "makespan", "num_samples", "loss")


def read_facts(run):
    tags = {key.removeprefix("mlflow."): value for key, value in run.data.tags.items()}  # MLflow's page hides some
    tags = {key.removeprefix(PREFIX): value for key, value in tags.items() if key.startswith(PREFIX)}
    values = {key: value for key, value in tags.items() if key not in PASSING and not key.endswith("_ns")}
    metrics = {name for name in run.data.metrics if name.startswith(FIGURES)}
    return run.info.run_name, run.info.status, values, run.data.params, metrics


def read_rows(groups):
    return sorted((*read_facts(group), sorted(map(read_facts, jobs), key=str)) for group, jobs in groups)


@pytest.mark.slow
def test_rows_are_those_of_the_store(run, client, study_of):
    study = [*TOY, *SHORT, "workload.args=['--epochs=2']", "window=work", "listeners=[host]"]
    status, out, err = run(*study)
    assert status == 0, err
    done = study_of(*study)
    assert done.status == 0, done.err
    assert read_rows(done.groups) == read_rows(groups(client))
    assert [line.split()[0] for line in done.out.splitlines()] == [line.split()[0] for line in out.splitlines()]


def test_what_stands_in_for_the_sender_is_asked_as_the_sender_is():
    methods = {name: value for name, value in vars(KeptRows).items() if inspect.isfunction(value)}
    for name in methods.keys() - {"__init__", "__exit__", "__enter__"}:
        substitute, real = (list(inspect.signature(getattr(kind, name)).parameters) for kind in (KeptRows, Sender))
        assert substitute == real, name


WINDOW = ["window.settle_s=0.3", "window.seconds=1.2", "limits.ready_s=60", "limits.stop_s=60"]  # from 0.3 s to 1.5 s
HELD_UP_S = 0.05 * 1.2 - 0.005  # less than what counts as a stall in this window, by a step
PROGRAM = f"workload.script={PROJECT_DIR / 'tests/toys/stalling.py'}"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("begin_s", "length_s", "is_flagged"),
    [
        pytest.param(0, 0, False, id="steady"),
        pytest.param(0, 0.6, False, id="starts late"),  # the window opens with its first step
        pytest.param(0, 1.0, True, id="starts when the window is nearly over"),
        pytest.param(0.1, 0.7, True, id="into the window"),
        pytest.param(0.1, 0.1, False, id="before the window"),
        pytest.param(0.6, 0.5, False, id="in its middle"),  # slow, and truly so
        pytest.param(1.2, 1.5, True, id="to its end and beyond"),
    ],
)
def test_a_stall_is_slow_or_flagged_and_never_fast(study_of, begin_s, length_s, is_flagged):
    stall = f"workload.args=['--from={begin_s}','--for={length_s}','--only=0']"
    done = study_of(*TOY, "-m", PROGRAM, stall, *WINDOW, "degree=1,2", "baseline=never")
    assert done.status == 0, done.err
    groups = done.groups
    assert sorted(len(jobs) for _, jobs in groups) == [1, 2]
    for group, jobs in groups:
        stalled = group.data.tags.get(Tag.INVALID, "")
        # Of a job that a busy machine kept from running for long, it is rightly said that it stood still.
        if is_flagged or max(job.data.metrics["held_up_s"] for job in jobs) < HELD_UP_S:
            assert bool(stalled) == is_flagged, stalled
        edges = [int(group.data.tags[tag]) for tag in (Tag.WINDOW_START_NS, Tag.WINDOW_END_NS)]
        for job in jobs:
            since = [(edge - int(job.data.tags[Tag.START_NS])) / 1e9 for edge in edges]
            stall_of_job = (begin_s, length_s) if job.data.tags[Tag.INDEX] == "0" else (0, 0)
            before, after = (done_by(seconds, *stall_of_job) for seconds in since)
            truth = (after - before) / (since[1] - since[0])
            assert job.data.metrics["throughput_samples_per_s"] == pytest.approx(truth, rel=0.01)


@pytest.mark.slow
def test_a_job_that_ends_early_has_failed_and_the_group_has_no_total(study_of):
    leave = "workload.args=['--leave=0.9','--only=0']"
    done = study_of(*TOY, "-m", PROGRAM, leave, *WINDOW, "degree=1,2", "baseline=never")
    assert done.status == 1, done.err
    groups = done.groups
    assert sorted(len(jobs) for _, jobs in groups) == [1, 2]
    for group, _ in groups:
        assert group.data.tags[Tag.RESULT] == "failed"
        assert "throughput_total_samples_per_s" not in group.data.metrics
