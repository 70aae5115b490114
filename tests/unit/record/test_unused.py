"""Why results of the store do not count, in words; what cannot be read costs those words and not the study."""

from __future__ import annotations

import dataclasses
import json

import pytest

from pipeline.base.domain import layout
from pipeline.base.system.errors import TrackingError
from pipeline.plan import config_reader
from pipeline.plan import plan_builder as planning
from pipeline.prepare.env import lock
from pipeline.record.group_record import Original
from pipeline.record.spool import _encode_group
from pipeline.study import stored_results
from pipeline.study.reproduce import differences
from tests.conftest import GPU, inventory_of
from tests.support.tracking_cases import record

STUDY = ["workload=script", "workload.script=train.py", "degree=1"]


@pytest.fixture
def plan_study(compose, tmp_path, monkeypatch):
    """The plan of a study of one group, with its inventory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("import model\n")
    (tmp_path / "model.py").write_text("")

    def plan(*overrides):
        configs = config_reader.read(compose([*STUDY, *overrides]))
        inventory = inventory_of(configs, GPU)
        return planning.build_plan(configs, inventory, is_sweep=False), inventory

    return plan


def store_group(group):
    """A group as the store has it: in a list, and as it is recalled."""
    finished = record(
        (),
        name=group.name,
        run_id="run",
        digest=group.digest,
        program_digest=group.program_digest,
        settings_digest=group.settings_digest,
        block=group.block,
        facts={"boot_id": "boot"},
        gpu_uuid=GPU.uuid,
        settings=group.settings,
        options=json.loads(json.dumps(group.options)),
    )
    return finished, Original(group=finished, experiment="e", files={layout.GROUP: _encode_group(group)})


def explain_unused(plan_study, finished, recall, *overrides):
    plan, inventory = plan_study(*overrides)
    return stored_results.explain_unused_results(plan, plan.groups, [finished], inventory, recall)


def test_settings_options_and_files_that_changed_are_named(plan_study, tmp_path):
    finished, original = store_group(plan_study("+workload.environ.A=1")[0].groups[0])
    (tmp_path / "model.py").write_text("WIDTH = 2\n")
    (tmp_path / "more.py").write_text("")
    (tmp_path / "train.py").write_text("import model, more\n")
    lines = explain_unused(plan_study, finished, lambda run: original, "seed=3", "+workload.environ.A=2")
    assert lines[0].startswith("resume: 1 result of another plan in experiment 'collocation' not used; ")
    name = original.group.name
    assert {line.removeprefix(f"    changed since {name}: ") for line in lines[1:]} == {
        "seed: 0, now 3",
        "environ.A of train: 1, now 2",
        "the content of model.py has changed",
        "more.py now belongs to train",
        "the content of train.py has changed",
    }


@pytest.mark.parametrize(
    ("now", "words"),
    [
        (("numpy", "torch==2.1", "boto3==1.44.8"), ["packages: with boto3==1.44.8"]),
        (("numpy>=2", "./wheels/a.whl"), ["packages: with ./wheels/a.whl; numpy now numpy>=2; without torch==2.1"]),
        (("Numpy", "torch==2.1"), ["packages: numpy now Numpy"]),
        (("numpy", "torch==2.1"), ["packages: not known yet, because the environment of r.txt is not built"]),
    ],
)
def test_what_an_environment_that_is_not_built_asks_for_is_compared(plan_study, now, words):
    plan, inventory = plan_study()
    _, original = store_group(plan.groups[0])
    before = lock.add_request(lock.make_header("venv", "3.11.7"), ("numpy", "torch==2.1"))
    original = dataclasses.replace(original, job_locks={"0": "\n".join(before)})
    (spec,) = inventory.interpreters
    interpreter = dataclasses.replace(
        inventory.interpreters[spec], lock=(), to_build="the environment of r.txt is not built", requested=now
    )
    inventory = dataclasses.replace(inventory, interpreters={spec: interpreter})
    assert differences.find_result_changes(original, plan.groups[0], inventory) == words


def test_an_artifact_that_is_damaged_or_cannot_be_had_costs_the_explanation_only(plan_study):
    finished, original = store_group(plan_study()[0].groups[0])

    def fail_to_recall(run):
        raise TrackingError("no answer")

    for recall, words in (
        (fail_to_recall, "no answer"),
        (lambda run: dataclasses.replace(original, files={layout.GROUP: "{"}), "damaged"),
        (lambda run: dataclasses.replace(original, files={layout.GROUP: '{"jobs": [1]}'}), "damaged"),
    ):
        lines = explain_unused(plan_study, finished, recall, "seed=3")
        assert len(lines) == 2 and lines[1].startswith("    changes unknown: ") and words in lines[1]


def test_where_all_that_is_stored_belongs_to_the_plan_nothing_is_said(plan_study):
    finished, original = store_group(plan_study()[0].groups[0])
    assert explain_unused(plan_study, finished, lambda run: original) == []
