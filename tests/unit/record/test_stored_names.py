"""A store, a spool or a command line with the names of an earlier version reads as one of today."""

from __future__ import annotations

import dataclasses
import json

import pytest

from pipeline.base.domain import layout, stored_names
from pipeline.base.domain.tags import GROUP, JOB, PREFIX, Tag, fact_tag
from pipeline.record import group_folder
from pipeline.record.shards import group_runs
from pipeline.record.store import content, results
from pipeline.record.store.local_store import open_store

pytest_plugins = ["tests.support.tracking_fixtures"]

OLD_TAGS = {"plan_unit": "2", "plan_units": "3x2", "unit": "2", "beside": "1", "plan": "p", "digest": "d"}
TAKEN_OVER = json.dumps([{"plan": "q", "plan_unit": "1", "plan_units": "6x1"}])


@pytest.fixture
def old_store(root):
    """A store of an earlier version with one group and a co-runner."""
    store = open_store(root)
    experiment = store.client.create_experiment("e")
    common = {fact_tag(key): value for key, value in OLD_TAGS.items()}
    group = store.client.create_run(
        experiment, tags={**common, Tag.ROLE: GROUP, Tag.RESULT: "ok", Tag.TAKEN_OVER: TAKEN_OVER}, run_name="g"
    )
    job = store.client.create_run(
        experiment, tags={**common, Tag.ROLE: JOB, f"{PREFIX}neighbour": "true"}, run_name="1-tiny"
    )
    store.client.log_param(group.info.run_id, "neighbours", "1x tiny")
    store.client.log_metric(group.info.run_id, "neighbours_throughput_total_samples_per_s", 3.0)
    for key, value in (("unit", "requests"), ("place.gi_id", "3"), ("workload", "tiny")):
        store.client.log_param(job.info.run_id, key, value)
    for run in (group, job):
        store.client.set_terminated(run.info.run_id)
    return root


def test_an_old_store_is_read_with_the_names_of_today(old_store) -> None:
    (group,) = results.find_runs(old_store, "e", GROUP)
    assert group.data.params == {"co_runners": "1x tiny"}
    assert group.data.metrics == {"co_runners_throughput_total_samples_per_s": 3.0}
    assert group.data.tags[Tag.SHARD] == "2" and group.data.tags[fact_tag("shard")] == "2"
    (job,) = results.find_runs(old_store, "e", JOB)
    assert job.data.params == {"work_unit": "requests", "placement.gi_id": "3", "workload": "tiny"}
    assert job.data.tags[Tag.CO_RUNNER] == "true"


def test_a_database_with_old_names_is_read_without_mlflow(old_store) -> None:
    names = ("plan", "plan_shard", "plan_shards", "shard", "other_gpus")
    (run,) = group_runs.read_groups(old_store, "e", names)
    expected = {"plan_shard": "2", "plan_shards": "3x2", "shard": "2", "other_gpus": "1", "plan": "p"}
    assert {name: run.facts[name] for name in names} == expected


def test_a_result_that_a_later_plan_has_as_well_names_its_shard(old_store) -> None:
    (finished,) = results.find_finished(old_store, "e")
    assert finished.plans == ["p", "q"]


def test_a_run_of_today_keeps_a_param_that_has_an_old_name(root) -> None:
    store = open_store(root)
    run = store.client.create_run(store.client.create_experiment("e"), tags={Tag.ROLE: GROUP, Tag.SHARD: "1"})
    store.client.log_param(run.info.run_id, "neighbours", "5")  # an option of a user's program
    (read,) = results.find_runs(root, "e", GROUP)
    assert read.data.params == {"neighbours": "5"}


def test_a_spool_with_old_names_is_sent_with_those_of_today(tmp_path) -> None:
    clock = group_folder.Clock(wall_ns=1, monotonic_ns=1)
    run = group_folder.RunRecord(
        name="g",
        status="RUNNING",
        start_ns=1,
        params={"neighbours": "1x tiny"},
        tags={fact_tag(key): value for key, value in OLD_TAGS.items()},
        metrics={"neighbours_throughput_total_samples_per_s": 3.0},
    )
    job = group_folder.ChildRecord(
        **{**vars_of(run), "params": {"unit": "requests", "place.gi_id": "3"}}, index=1, gi_id=3, is_gpu=True
    )
    record = group_folder.Record(spool_id="s", experiment="e", clock=clock, parent=run, children=(job,))
    group_folder.write_json(tmp_path / layout.RECORD, record)
    read = group_folder.read(tmp_path)
    assert read.parent.params == {"co_runners": "1x tiny"}
    assert read.parent.metrics == {"co_runners_throughput_total_samples_per_s": 3.0}
    assert read.parent.tags[Tag.SHARD] == "2" and fact_tag("plan_unit") not in read.parent.tags
    assert read.children[0].params == {"work_unit": "requests", "placement.gi_id": "3"}


def vars_of(run: group_folder.RunRecord) -> dict[str, object]:
    return {part.name: getattr(run, part.name) for part in dataclasses.fields(run)}


def test_a_recorded_command_has_the_keys_of_today() -> None:
    old = "run.py unit=2 ++neighbours=3 sizes.S.unit=requests gpu.beside=1 degree=2 -- train.py unit=4"
    assert content.split_command(old) == [
        *("run.py", "shard=2", "++co_runners=3", "sizes.S.work_unit=requests", "gpu.other_gpus=1", "degree=2"),
        *("--", "train.py", "unit=4"),
    ]


def test_names_are_unique_in_both_directions() -> None:
    for names in (stored_names.KEYS, stored_names.FACTS, stored_names.PARAMS, stored_names.SETTINGS):
        assert len(set(names.values())) == len(names)
        new = {name: number for number, name in enumerate(names.values())}
        assert stored_names.rename(stored_names.restore_old(new, names), names) == new
