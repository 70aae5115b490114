"""Workers of one study measure one plan, or say what differs."""

from __future__ import annotations

import dataclasses
import os

import pytest

from pipeline.base.system.errors import ConfigError
from pipeline.plan import config_reader, shards
from pipeline.plan import plan_builder as planning
from pipeline.study.plans import agree_on_plan
from tests.conftest import GPU, inventory_of


@pytest.fixture
def worker(compose, tmp_path, monkeypatch):
    """What a worker plans: the whole, and what its machine has."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("import model\n")
    (tmp_path / "model.py").write_text("")

    def plan(*overrides, device=GPU):
        configs = config_reader.read(compose(["workload=script", "workload.script=train.py", "repeats=2", *overrides]))
        inventory = inventory_of(configs, device)
        return planning.build_plan(configs, inventory, is_sweep=True), inventory

    return plan


def test_workers_of_one_plan_agree_whatever_unit_they_run(worker, tmp_path):
    plan, inventory = worker()
    path = tmp_path / "shared/plan.json"
    agree_on_plan(path, shards.select_shard(plan, 2), inventory)
    agree_on_plan(path, shards.select_shard(plan, 1), inventory)
    assert [file.name for file in path.parent.iterdir()] == ["plan.json"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("gpu", "GPU model: NVIDIA H200 here, .* for the other workers"),
        ("driver", "driver: 999.1 here, .* for the other workers"),
        ("file", "the content of model.py differs here"),
        ("option", "its options differ"),
        ("packages", "packages: .*tqdm==0.1"),
    ],
)
def test_what_differs_is_said(worker, tmp_path, change, words):
    path = tmp_path / "plan.json"
    agree_on_plan(path, *worker())
    facts = dataclasses.replace(GPU.facts, driver_version="999.1")
    device = {"gpu": dataclasses.replace(GPU, name="NVIDIA H200"), "driver": dataclasses.replace(GPU, facts=facts)}
    if change == "file":
        (tmp_path / "model.py").write_text("changed = True\n")
    plan, inventory = worker(*(["degree=3"] if change == "option" else []), device=device.get(change, GPU))
    if change == "packages":
        ((spec, interpreter),) = inventory.interpreters.items()
        other = dataclasses.replace(interpreter, lock=("tqdm==0.1", *interpreter.lock[1:]))
        inventory = dataclasses.replace(inventory, interpreters={spec: other})
    with pytest.raises(ConfigError, match=rf"have another plan \(.*{words}"):
        agree_on_plan(path, plan, inventory)


def test_a_pipe_is_not_waited_for(worker, tmp_path):
    os.mkfifo(tmp_path / "plan.json")
    with pytest.raises(ConfigError, match=r"plan\.json cannot be used \(.*not a regular file.*\)"):
        agree_on_plan(tmp_path / "plan.json", *worker())


@pytest.mark.parametrize("content", ["", "[]", "{}", "null"])
def test_a_damaged_file_is_one_error(worker, tmp_path, content):
    (tmp_path / "plan.json").write_text(content)
    with pytest.raises(ConfigError, match=r"plan_file=.*plan\.json cannot be used"):
        agree_on_plan(tmp_path / "plan.json", *worker())
