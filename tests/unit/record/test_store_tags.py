"""Tags for programs have names that MLflow's pages do not show."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.base.domain.tags import Tag, fact_tag, stored_name
from pipeline.base.system.errors import TrackingError
from pipeline.record.group_record import GroupRecord
from pipeline.record.store import results
from pipeline.record.store.local_store import open_store
from tests.support.tracking_cases import EXPERIMENT, START, child, record, store_groups

pytest_plugins = ["tests.support.tracking_fixtures"]
pytestmark = pytest.mark.store


@pytest.mark.parametrize(
    "tag", [Tag.DIGEST, Tag.PLANNED, Tag.FIGURES, fact_tag("plan"), fact_tag("environment_0_digest")]
)
def test_mlflow_shows_no_digest_and_no_json(tag: str) -> None:
    tags = {stored_name(tag): "x", Tag.RESULT: "ok"}
    assert all(name.startswith("mlflow.") for name in tags if name != Tag.RESULT)


@pytest.mark.parametrize("tag", [Tag.RESULT, Tag.DEVICE, Tag.STUDY, fact_tag("git_commit"), Tag.PARENT_RUN])
def test_what_people_read_keeps_its_name(tag: str) -> None:
    assert stored_name(tag) == tag


def test_tags_say_what_the_record_has(root: Path) -> None:
    facts = {"plan": "p", "host": "h", "program_commit": "abc", "command_line": "/x/run.py degree=1"}
    job = child(0, size="S", is_co_runner=True, pid=7, placement={"mig_profile": "1g"}, notes={"left_out": "a"})
    options = {"profile": "auto"}
    (group,) = store_groups(root, record((job,), facts=facts, note="slow", options=options, baseline_run=2))
    tags = open_store(root).client.get_run(group.run_id).data.tags
    assert json.loads(tags["mlflow.collocation.planned"]) == {"settings": group.settings, "options": options}
    assert (tags["mlflow.collocation.plan"], tags["mlflow.source.git.commit"]) == ("p", "abc")
    assert (tags["mlflow.source.name"], tags["collocation.flag"], tags["collocation.baseline_run"]) == (
        "run.py",
        "slow",
        "2",
    )
    run = open_store(root).client.get_run(group.jobs[0].run_id)
    job_tags = {
        name: run.data.tags[f"collocation.{name}"] for name in ("size", "co_runner", "pid", "host", "left_out", "index")
    }
    assert job_tags == {"size": "S", "co_runner": "true", "pid": "7", "host": "h", "left_out": "a", "index": "0"}
    assert run.data.params["placement.mig_profile"] == "1g"
    table = results.load(root, EXPERIMENT)
    assert table[f"group.tags.{Tag.DIGEST}"].tolist() == ["digest1"] and table["tags.collocation.pid"].tolist() == ["7"]
    (read_group,) = results.read_groups(root, EXPERIMENT)
    assert read_group.facts.items() >= {"plan": "p", "host": "h"}.items()
    assert (read_group.result, read_group.digest) == ("ok", "digest1")
    assert results.recall(root, group.jobs[0].run_id).group == group


@pytest.mark.parametrize(
    ("params", "settings", "shown"),
    [
        ({"work_unit": "steps"}, {}, "serial-1x-it's; 5% (work_unit=steps)"),
        ({"flags.amp": "true"}, {}, "serial-1x-it's; 5% (--amp)"),
        ({}, {"window": "work"}, "serial-1x-it's; 5% (window=work)"),
        ({}, {"device": "Other"}, "serial-1x-it's; 5%"),
        ({}, {}, "serial-1x-it's; 5% (digest key2)"),
    ],
    ids=["an option", "a flag", "a setting", "a device with a column of its own", "other code"],
)
def test_mlflow_tells_groups_of_one_name_apart(root: Path, params, settings, shown) -> None:
    def group(number: int, second: int, params: dict[str, str], settings: dict[str, str]) -> GroupRecord:
        job = child(0, params={"workload": "script", "work_unit": "samples"} | params)
        all_settings = {"device": "GPU", "window": "steady"} | settings
        device = all_settings["device"]
        start_ns = START + second
        return record(
            (job,), number, name="serial-1x-it's; 5%", settings=all_settings, device=device, start_ns=start_ns
        )

    groups = [group(1, 0, {}, {}), group(2, 1, params, settings), group(1, 2, {}, {}), group(2, 3, params, settings)]
    stored = store_groups(root, *groups)
    client = open_store(root).client
    assert [client.get_run(one.run_id).info.run_name for one in stored] == ["serial-1x-it's; 5%", shown] * 2
    assert {one.name for one in stored} == {"serial-1x-it's; 5%"}  # the stored name stays


@pytest.mark.parametrize("marks", [{}, {"note": "slow"}, {"invalid": "the GPU was hot"}])
def test_the_description_of_a_marked_row_begins_with_a_sign(root: Path, marks: dict[str, str]) -> None:
    (group,) = store_groups(root, record((child(0),), **marks))
    described = open_store(root).client.get_run(group.run_id).data.tags[Tag.DESCRIPTION]
    assert described.startswith("\u26a0 ok* (" if marks else "ok")


def test_an_experiment_that_is_not_there_is_named_with_those_that_are(root: Path) -> None:
    store = open_store(root)
    for name in ("study-rehearsal", "other"):
        store.open_experiment(name)
    with pytest.raises(TrackingError, match=r"has no experiment 'nothing'; available: 'other', 'study-rehearsal'$"):
        results.load_groups(root, "nothing")
    with pytest.raises(TrackingError, match=r": 'study' has only a rehearsal; use study-rehearsal$"):
        results.load_groups(root, "study")
