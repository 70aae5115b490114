"""The framework probe: what is not installed is a row of a study, and the refusal of a run that asks nothing else."""

from __future__ import annotations

import dataclasses

import pytest

from pipeline.base.domain.records import Interpreter
from pipeline.base.system.errors import ConfigError
from pipeline.plan import config_reader, inventory
from pipeline.plan.inventory import Inventory
from tests.conftest import inventory_of
from tests.support.experiments import configs_of
from workloads.framework import FRAMEWORKS
from workloads.frameworks.options import Framework

PROBE = ("workload=framework", "degree=1")


@pytest.fixture(autouse=True)
def _install_torch_and_tensorflow(monkeypatch):
    """Only torch and a build of TensorFlow are installed, wherever the tests run."""
    has = Interpreter(python="/env/bin/python", lock=("numpy==2.4", "tensorflow_cpu==2.21.0", "torch==2.11.0"))
    real = inventory.take_inventory

    def take(*arguments, **named) -> Inventory:
        real_inventory = real(*arguments, **named)
        return dataclasses.replace(real_inventory, interpreters=dict.fromkeys(real_inventory.interpreters, has))

    monkeypatch.setattr("tests.conftest.take_inventory", take)


def test_the_name_follows_and_every_framework_of_the_program_is_known(make_plan):
    names = {Framework(framework=name).packages() and name for name in FRAMEWORKS}
    assert names == set(FRAMEWORKS)
    (group,) = make_plan([*PROBE, "workload.framework=tensorflow"]).groups
    assert group.name == "naive-1x-framework_tensorflow"
    assert group.skip_reason is None
    assert group.jobs[0].workload.argv[1:3] == ("--framework", "tensorflow")


@pytest.mark.parametrize("name", ["jax", "ray_serve"])
def test_a_probe_without_its_environment_is_refused(make_plan, name):
    with pytest.raises(ConfigError, match=r"is not installed in the environment of /env/bin/python; .*env=venv"):
        make_plan([*PROBE, f"workload.framework={name}"])


def test_in_a_study_it_is_a_group_that_is_skipped_with_its_baseline(make_plan):
    plan = make_plan(*([*PROBE, "degree=2", f"workload.framework={name}"] for name in ("torch", "jax")))
    skipped = {group.name: group.skip_reason for group in plan.groups}
    assert [name for name, reason in skipped.items() if reason is None] == [
        group_name for group_name in skipped if group_name.endswith("torch")
    ]
    assert {reason.partition(";")[0] for reason in skipped.values() if reason} == {
        "workload framework_jax: jax is not installed in the environment of /env/bin/python"
    }
    assert len(skipped) == 4


class CannotBeBuilt:
    def preview(self) -> Interpreter:
        return Interpreter(python="/env/bin/python", to_build="it is not built")

    def resolve(self) -> Interpreter:
        raise ConfigError("uv found no build of it")


@pytest.mark.slow
def test_an_environment_that_cannot_be_built_is_an_answer_of_probes_only(compose, monkeypatch):
    monkeypatch.setattr("pipeline.base.system.factory.build_object", lambda spec: CannotBeBuilt())
    monkeypatch.setattr("tests.conftest.take_inventory", inventory.take_inventory)
    configs = configs_of(["+experiment=migperf_frameworks", "workload.framework=jax"])
    built = inventory_of(configs).with_environments()
    assert [interpreter.why_not_built for interpreter in built.interpreters.values()] == ["uv found no build of it"]
    plain_configs = config_reader.read(compose(["workload=tiny"]))
    with pytest.raises(ConfigError, match="uv found no build of it"):
        inventory_of(plain_configs).with_environments()


@pytest.mark.slow
def test_the_experiment_gives_each_an_environment_of_its_own():
    configs = configs_of(["+experiment=migperf_frameworks"])
    files = {config.workload.framework: config.workload.env_file for config in configs}
    assert files == {name: f"workloads/frameworks/environments/{name}.txt" for name in FRAMEWORKS}
    rehearsed = configs_of(["+experiment=migperf_frameworks", "+rehearse=tiny"])
    assert {config.workload.framework for config in rehearsed} == set(FRAMEWORKS)
    assert {config.workload.env_file for config in rehearsed} == {None}
