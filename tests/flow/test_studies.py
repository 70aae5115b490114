"""A study in the process of a test has the rows that `run.py` leaves, and asks its sender as the real one."""

from __future__ import annotations

import inspect

import pytest

from pipeline.base.domain.tags import PREFIX, restore_names
from pipeline.record.tracking_sender import Sender
from tests.support.run_cases import SHORT, TOY, groups
from tests.support.studies import KeptRows

pytest_plugins = ["tests.support.tracking_fixtures", "tests.support.run_fixtures"]
pytestmark = pytest.mark.covers(
    "tests/support/studies.py", "pipeline/record/tracking_sender.py", "pipeline/record/spool.py"
)
# Of a run, what no two starts share, and the flag, which says how evenly this machine let the jobs run.
PASSING = ("study", "spool_id", "command_line", "rates", "pid", "flag", "index")
# Whether rows can be compared depends on that as well.
FIGURES = ("throughput", "makespan", "num_samples", "loss")


def facts(run):
    tags = dict(run.data.tags)
    restore_names(tags)  # MLflow's page hides some
    tags = {key.removeprefix(PREFIX): value for key, value in tags.items() if key.startswith(PREFIX)}
    values = {key: value for key, value in tags.items() if key not in PASSING and not key.endswith("_ns")}
    metrics = {name for name in run.data.metrics if name.startswith(FIGURES)}
    return run.info.run_name, run.info.status, values, run.data.params, metrics


def rows(groups):
    return sorted((*facts(group), sorted(map(facts, jobs), key=str)) for group, jobs in groups)


@pytest.mark.slow
def test_rows_are_those_of_the_store(run, client, study_of):
    study = [*TOY, *SHORT, "workload.args=['--epochs=2']", "window=work", "listeners=[host]"]
    status, out, err = run(*study)
    assert status == 0, err
    done = study_of(*study)
    assert done.status == 0, done.err
    assert rows(done.groups) == rows(groups(client))
    assert [line.split()[0] for line in done.out.splitlines()] == [line.split()[0] for line in out.splitlines()]


def test_what_stands_in_for_the_sender_is_asked_as_the_sender_is():
    methods = {name: value for name, value in vars(KeptRows).items() if inspect.isfunction(value)}
    for name in methods.keys() - {"__init__", "__exit__", "__enter__"}:
        substitute, real = (list(inspect.signature(getattr(kind, name)).parameters) for kind in (KeptRows, Sender))
        assert substitute == real, name
