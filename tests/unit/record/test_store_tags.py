"""What only programs read is stored under names that MLflow's pages do not show, and read back by its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.base.domain.tags import GROUP, Tag, fact_tag, restore_names, stored_name
from pipeline.base.system.errors import TrackingError
from pipeline.record.shards import group_runs
from pipeline.record.store import results
from pipeline.record.store.local_store import open_store

pytest_plugins = ["tests.support.tracking_fixtures"]
DIGEST = "0123456789abcdef" * 4


@pytest.mark.parametrize(
    "tag", [Tag.DIGEST, Tag.PLANNED, Tag.FIGURES, fact_tag("plan"), fact_tag("environment_0_digest")]
)
def test_mlflow_shows_no_digest_and_no_json(tag: str) -> None:
    tags = {stored_name(tag): "x", Tag.RESULT: "ok"}
    assert all(name.startswith("mlflow.") for name in tags if name != Tag.RESULT)
    restore_names(tags)
    assert tags == {tag: "x", Tag.RESULT: "ok"}


@pytest.mark.parametrize("tag", [Tag.RESULT, Tag.DEVICE, Tag.STUDY, fact_tag("git_commit"), Tag.PARENT_RUN])
def test_what_people_read_keeps_its_name(tag: str) -> None:
    assert stored_name(tag) == tag


@pytest.mark.parametrize("name_of", [stored_name, str], ids=["stored now", "stored by an earlier version"])
def test_groups_are_read_whatever_version_stored_them(root: Path, name_of) -> None:
    store = open_store(root)
    (root / "artifacts" / "e").mkdir(parents=True)
    facts = {Tag.DIGEST: DIGEST, fact_tag("plan"): "p", Tag.PLANNED: json.dumps({"settings": {}, "options": {}})}
    tags = {name_of(tag): value for tag, value in facts.items()} | {Tag.ROLE: GROUP, Tag.RESULT: "ok"}
    run = store.client.create_run(store.open_experiment("e"), tags=tags)
    store.client.set_terminated(run.info.run_id)
    (finished,) = results.find_finished(root, "e")
    assert (finished.digest, finished.plans) == (DIGEST, ["p"])
    (group,) = group_runs.read_groups(root, "e", ["plan", "result"])
    assert dict(group.facts) == {"plan": "p", "result": "ok"}
    assert results.recall(root, run.info.run_id).get_fact("digest") == DIGEST
    assert results.load_groups(root, "e")[f"tags.{Tag.DIGEST}"].tolist() == [DIGEST]


def test_an_experiment_that_is_not_there_is_named_with_those_that_are(root: Path) -> None:
    store = open_store(root)
    for name in ("study-rehearsal", "other"):
        store.open_experiment(name)
    with pytest.raises(TrackingError, match=r"has no experiment 'nothing'; available: 'other', 'study-rehearsal'$"):
        results.load_groups(root, "nothing")
    with pytest.raises(TrackingError, match=r": 'study' has only a rehearsal; use study-rehearsal$"):
        results.load_groups(root, "study")
