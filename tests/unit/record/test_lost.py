"""Groups whose host is gone are closed; others are left alone."""

from __future__ import annotations

import dataclasses

import pytest

from pipeline.base.domain.tags import Tag
from pipeline.base.system import host_info
from pipeline.base.system.errors import CommandError
from pipeline.record import group_folder, group_record, owner
from pipeline.record.shards import shard_states
from pipeline.record.store import upload
from pipeline.record.store.local_store import open_store
from tests.support.tracking_cases import SECOND, as_running, child, make_spool, record, store_groups

pytest_plugins = ["tests.support.tracking_fixtures"]
pytestmark = pytest.mark.store


@pytest.fixture
def store(root):
    """A store with three groups of two units, each with a job; the last one has ended."""
    groups = []
    for number, (unit, name) in enumerate([(1, "first"), (2, "second"), (1, "ended")]):
        facts = {"plan": "p", "slurm_task": f"c1/9_{unit}", "user": host_info.user_name()}
        job = child(0, name=f"job of {name}", metrics={})
        group = record((job,), experiment="e", name=name, shard=unit, program_digest=f"of {name}", facts=facts)
        group = dataclasses.replace(group, start_ns=group.start_ns + number * SECOND)
        running = dataclasses.replace(job, result=None, end_ns=None)
        groups.append(group if name == "ended" else dataclasses.replace(as_running(group), jobs=(running,)))
    store_groups(root, *groups)
    return open_store(root)


def read_endings(store):
    """Status and result of every run, by name."""
    (experiment,) = [experiment for experiment in store.client.search_experiments() if experiment.name == "e"]
    runs = store.client.search_runs([experiment.experiment_id])
    return {run.info.run_name: (run.info.status, run.data.tags.get(Tag.RESULT)) for run in runs}


def read_descriptions(store):
    """What each run says of its end, by name."""
    (experiment,) = [experiment for experiment in store.client.search_experiments() if experiment.name == "e"]
    runs = store.client.search_runs([experiment.experiment_id])
    return {run.info.run_name: run.data.tags.get(Tag.DESCRIPTION) for run in runs}


def test_the_next_attempt_closes_what_earlier_ones_of_its_unit_left(store):
    assert shard_states.close_shard(store, "e", "p", 1, ["of first"]) == ["first"]
    assert read_endings(store) == {
        **dict.fromkeys(["first", "job of first"], ("KILLED", "interrupted")),
        **dict.fromkeys(["second", "job of second"], ("RUNNING", None)),
        **dict.fromkeys(["ended", "job of ended"], ("FINISHED", "ok")),
    }
    assert shard_states.close_shard(store, "e", "p", 1, ["of first"]) == []


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("queue", "closed"),
    [({}, ["second"]), ({"9_1": "RUNNING"}, ["second"]), ({"9_2": "RUNNING"}, []), (None, [])],
)
def test_a_group_of_another_plan_is_closed_only_if_its_task_has_left_the_queue(store, monkeypatch, queue, closed):
    def read_states(cluster, arrays):
        assert (cluster, arrays) == ("c1", {"9"})
        if queue is None:
            raise CommandError(["squeue"], 1, "Socket timed out")
        return queue

    monkeypatch.setattr(shard_states.squeue, "read_cluster_states", read_states)
    assert shard_states.close_shard(store, "e", "of more repeats", 2, ["of second", "of another group"]) == closed
    killed = {name for name, (status, _) in read_endings(store).items() if status == "KILLED"}
    assert killed == {run for name in closed for run in (f"job of {name}", name)}


def test_a_group_that_lived_on_after_all_does_not_say_that_it_was_lost(root, store):
    ended = record((), experiment="e", spool_id="alive", metrics={})
    folder = make_spool(root, as_running(ended))
    begun = upload.begin(lambda _: store, folder)
    name = ended.name
    assert name in shard_states.close_silent(store, "e", 3600)
    assert "host was lost" in read_descriptions(store)[name]
    group_folder.write(folder, ended)
    upload.send(lambda _: store, folder, series_points=10, begun_runs=begun)
    assert (read_endings(store)[name][0], read_descriptions(store)[name]) == ("FINISHED", "ok")


def test_what_is_silent_is_closed_when_asked(store):
    assert shard_states.close_silent(store, "e", silent_s=1e12) == []
    assert shard_states.close_silent(store, "e", silent_s=3600) == ["first", "second"]
    assert shard_states.close_silent(store, "no such experiment", silent_s=0) == []


def test_a_group_of_another_host_is_not_closed_by_its_lock(tmp_path, monkeypatch):
    folder = make_spool(tmp_path, as_running(record((), host="another", boot_id="", machine_id="")))
    assert group_folder.survey(folder.parents[1]).elsewhere == {folder: "another"}
    assert not group_record.read(folder).is_closed
    monkeypatch.setattr(owner.platform, "node", lambda: "another")
    assert group_folder.survey(folder.parents[1]).ready == (folder,)
    assert group_record.read(folder).is_closed


@pytest.mark.sampled(1)
@pytest.mark.parametrize("reply", ["BAD_REQUEST: (sqlite3.IntegrityError) UNIQUE constraint failed: tags.key", "no"])
def test_a_tag_that_another_attempt_sets_at_the_same_moment_is_set_again(store, monkeypatch, reply):
    from mlflow.exceptions import MlflowException

    set_tag, replies = store.client.set_tag, [reply]

    def refuse_once(run_id, key, value):
        if replies:
            raise MlflowException(replies.pop())
        set_tag(run_id, key, value)

    monkeypatch.setattr(store.client, "set_tag", refuse_once)
    if reply == "no":
        with pytest.raises(MlflowException, match="no"):
            shard_states.close_shard(store, "e", "p", 1, [])
    else:
        assert shard_states.close_shard(store, "e", "p", 1, []) == ["first"]
        assert read_endings(store)["first"] == ("KILLED", "interrupted")
