"""Configurations back from what a run holds, and what differs between then and now."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from omegaconf import OmegaConf, open_dict

from pipeline.base.domain import layout
from pipeline.base.domain.package_locks import compare_locks
from pipeline.base.system import interrupts
from pipeline.base.system.errors import ConfigError
from pipeline.base.system.paths import PROJECT_DIR
from pipeline.plan import config_reader
from pipeline.plan import plan_builder as planning
from pipeline.record.group_record import Original
from pipeline.study.reproduce import reproduction
from pipeline.study.reproduce.differences import find
from pipeline.study.reproduce.reproduction import read_config
from tests.conftest import GPU, inventory_of
from tests.support.tracking_cases import record


def make_original(text: str) -> Original:
    return Original(group=record((), run_id="r"), experiment="e", files={layout.CONFIG: text})


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "scenario", ["serial", "naive", "timeslice", "mps", "mps_percent", "mps_static", "mig", "mig_mps"]
)
@pytest.mark.parametrize(
    "choice",
    [
        ["workload=resnet26_cifar10", "workload.step_mode=cuda_graph"],
        ["mix=[M,S,S]"],
        ["workload=script", "workload.script=run.py", "+workload.environ.A=b"],
    ],
)
def test_a_recorded_configuration_leads_to_the_same_plan(compose, scenario, choice):
    configs = config_reader.read(
        compose([f"scenario={scenario}", "data.source=synthetic_device", "seed=3", "repeats=2", *choice])
    )
    inventory = inventory_of(configs, GPU)
    groups = planning.build_plan(configs, inventory, is_sweep=True).groups
    text = groups[0].config_text()
    again, unrecorded = read_config(make_original(text))
    assert unrecorded == []
    groups_again = planning.build_plan(config_reader.read([again]), inventory, is_sweep=True).groups
    assert groups_again == groups
    assert groups_again[0].config_text() == text


@pytest.mark.slow
def test_a_configuration_of_a_bundle_has_the_folders_of_this_machine(compose):
    (config,) = config_reader.read(compose(["workload=script", "workload.script=run.py"]))
    values = OmegaConf.to_container(OmegaConf.structured(config), enum_to_str=True)
    values["workload"]["script"] = "$PROJECT/run.py"
    again, _ = read_config(make_original(OmegaConf.to_yaml(values)))
    assert again.workload.script == str(PROJECT_DIR / "run.py")


@pytest.mark.slow
def test_settings_that_came_later_have_their_defaults_and_unknown_ones_are_refused(compose):
    values = OmegaConf.to_container(OmegaConf.structured(config_reader.read(compose([]))[0]), enum_to_str=True)
    del values["workload"]["canary"], values["pin_cpus"]
    again, unrecorded = read_config(make_original(OmegaConf.to_yaml(values)))
    assert unrecorded == ["workload.canary", "pin_cpus"]
    assert again.workload.canary is True
    with pytest.raises(ConfigError, match="workload: this version of the project has no schema"):
        read_config(make_original(OmegaConf.to_yaml(values | {"workload": {"no_such_key": 1}})))
    with pytest.raises(ConfigError, match="no_such_key"):
        read_config(make_original(OmegaConf.to_yaml(values | {"no_such_key": 1})))
    with pytest.raises(
        ConfigError, match="run r cannot be reproduced by this version of the project: its configuration lacks env"
    ):
        read_config(make_original(OmegaConf.to_yaml({key: value for key, value in values.items() if key != "env"})))
    values["workload"]["step_mode"] = "no_such_mode"
    with pytest.raises(ConfigError, match="this version of the project: step_mode: Invalid value 'no_such_mode'"):
        read_config(make_original(OmegaConf.to_yaml(values)))


@pytest.mark.slow
def test_a_setting_of_earlier_versions_counts_only_where_it_asked_for_something(compose):
    values = OmegaConf.to_container(OmegaConf.structured(config_reader.read(compose([]))[0]), enum_to_str=True)
    values["gpu"]["replay"] = None
    assert read_config(make_original(OmegaConf.to_yaml(values)))[1] == []
    values["gpu"]["replay"] = "samples.parquet"
    with pytest.raises(ConfigError, match=r"gpu\.replay=samples\.parquet is a key of an earlier version"):
        read_config(make_original(OmegaConf.to_yaml(values)))


@pytest.mark.parametrize("text", ["degree: [", "[]", "\x00", "a: &a [*a]", "degree: !!python/object:os.system {}"])
def test_a_damaged_configuration_is_refused_in_words(text):
    with pytest.raises(ConfigError, match=r"its artifact config\.yaml is damaged"):
        read_config(make_original(text))


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("target", "absent"),
    [("somewhere.else.Env", []), ("venv.VenvEnv", ["env.python"])],
)
def test_keys_are_filled_in_only_for_the_kind_of_environment_that_has_them(compose, target, absent):
    values = OmegaConf.to_container(OmegaConf.structured(config_reader.read(compose([]))[0]), enum_to_str=True)
    env = {"_target_": target if not absent else f"pipeline.prepare.env.{target}", "file": "f", "cache_root": "c"}
    again, unrecorded = read_config(make_original(OmegaConf.to_yaml(values | {"env": env})))
    assert unrecorded == absent
    assert set(again.env) == {*env, *(key.removeprefix("env.") for key in absent)}


def test_what_the_command_line_leaves_out_is_left_out_of_a_reproduction(compose):
    (original,) = compose(["listeners=[host,nvml,smi]"])
    (changed_config,) = compose(["listeners=[host,nvml,smi]", "~listeners.smi", "listeners.nvml.interval_ms=7"])
    with open_dict(original):
        for key in ("listeners.smi", "listeners.nvml.interval_ms"):
            reproduction._take_over(original, changed_config, key)
    (config,) = config_reader.read([original])
    assert sorted(config.listeners) == ["host", "nvml"] and config.listeners["nvml"].interval_ms == 7


def test_who_looks_on_at_a_reproduction_is_who_is_given_for_it(compose):
    (original,) = compose([])
    (changed_config,) = compose(["exporter=prometheus", "exporter.port=9412"])
    with open_dict(original):
        for key in ("exporter", "exporter.port"):
            reproduction._take_over(original, changed_config, key)
    (config,) = config_reader.read([original])
    assert (config.exporter.name, config.exporter.port) == ("prometheus", 9412)


def test_jobs_of_a_mix_and_copies_of_the_workload_beside_it_are_built_from_their_locks(compose):
    (composed_config,) = compose(["mix=['python a.py']", "co_runners=1", "env=venv"])
    jobs = [{"index": 0, "entry": 0, "size": None}, {"index": 1, "entry": 1, "size": None}]
    original = dataclasses.replace(
        make_original(""), files={layout.GROUP: json.dumps({"jobs": jobs})}, job_locks={"0": "mine", "1": "theirs"}
    )
    with interrupts.UndoStack() as stack, open_dict(composed_config):
        reproduction._build_from_locks(composed_config, original, stack)
        assert Path(composed_config.mix[0].env_file).read_text() == "mine"
        assert Path(composed_config.workload.env_file).read_text() == "theirs"


def test_a_lock_that_was_recorded_without_its_secrets_is_not_built(compose):
    (composed_config,) = compose(["env=conda"])
    original = dataclasses.replace(make_original(""), job_locks={"0": '# variables {"API_KEY": "<hidden>"}\n'})
    with interrupts.UndoStack() as stack, pytest.raises(ConfigError, match="job 0 was recorded without its secrets"):
        reproduction._build_from_locks(composed_config, original, stack)


def test_the_digest_of_an_environment_that_is_still_to_be_built_is_no_difference(compose):
    configs = config_reader.read(compose(["baseline=never"]))
    built = inventory_of(configs, GPU)
    to_build = dataclasses.replace(
        built,
        interpreters={
            env: dataclasses.replace(
                interpreter, lock=(), lock_digest="unbuilt-key", to_build="the environment is not built"
            )
            for env, interpreter in built.interpreters.items()
        },
    )
    (group,) = planning.build_plan(configs, built, is_sweep=False).groups
    stored = record((), device=GPU.name, gpu_uuid=GPU.uuid, digest=group.digest, run_id="r")
    original = dataclasses.replace(make_original(""), group=stored, files={})
    (later,) = planning.build_plan(configs, to_build, is_sweep=False).groups
    assert later.digest != group.digest
    assert find(original, group, built, {}) == find(original, later, to_build, {}) == []
    assert "digest of the plan" in find(original, later, built, {})[0]


def test_a_difference_of_locks_is_short():
    assert compare_locks(["a==1", "b==2"], ["b==2", "a==1"]) == ""
    assert compare_locks(["a==1", "b==2"], ["a==2", "c @ file:///c"]) == (
        "packages: a==1 now a==2; without b==2; with c @ folder"
    )
    many = [f"p{n}==1" for n in range(20)]
    assert compare_locks(many, []).endswith("without p15==1; and 12 more")
    assert compare_locks(["# pip a==1"], ["# pip a==2"]) == "packages: a==1 now a==2"
    assert compare_locks(["# pip -i https://host"], ["# platform: linux", "# pip --pre"]) == ""
    assert compare_locks(["# python: 3.11.2"], ["# python: 3.12.1"]) == "packages: Python 3.11.2 now Python 3.12.1"
    conda = ["@EXPLICIT", "https://host/linux-64/zlib-1.2-h1_0.conda#aa"]
    assert compare_locks(conda, ["https://host/linux-64/zlib-1.3-h1_0.conda#bb"]) == (
        "packages: zlib-1.2-h1_0.conda now zlib-1.3-h1_0.conda"
    )
