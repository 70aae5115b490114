"""Configurations of runs, whether workers of a study measure one plan, and why results do not count."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path

import pytest
from omegaconf import OmegaConf, open_dict

from pipeline.base.domain import layout
from pipeline.base.domain.package_locks import compare_locks
from pipeline.base.system import interrupts
from pipeline.base.system.errors import ConfigError, TrackingError
from pipeline.base.system.paths import PROJECT_DIR
from pipeline.plan import config_reader, shards
from pipeline.plan import plan_builder as planning
from pipeline.prepare.env import lock
from pipeline.record.group_record import Original
from pipeline.record.shards import task_messages
from pipeline.record.spool import _encode_group
from pipeline.study import stored_results
from pipeline.study.plans import agree_on_plan
from pipeline.study.reproduce import differences, reproduction
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


@pytest.fixture
def worker(compose, tmp_path, monkeypatch):
    """Plan of a worker and inventory of its machine."""
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


HELD = "error: CPU (CPU-n0) is in use by another study of bob (pid 7, started in /home/bob)"
WAITS = "waiting for CPU (CPU-n0), which is held by bob (pid 7); at most 40 s, Ctrl-C ends it"
TRACEBACK = """Traceback (most recent call last):
  File "run.py", line 6, in <module>
    import torch
ModuleNotFoundError: No module named 'torch\'"""


def write_log(folder: Path, *lines: str) -> Path:
    path = task_messages.locate(folder, "8_3")
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


@pytest.mark.parametrize(
    ("lines", "error"),
    [
        ([HELD, "2 groups: 2 not finished"], HELD),
        ([TRACEBACK], "ModuleNotFoundError: No module named 'torch'"),
        ([HELD, f"{task_messages.START}2 of shard 3 on n1", TRACEBACK], "ModuleNotFoundError: No module named 'torch'"),
        (["[1/2] a", "KeyboardInterrupt"], "KeyboardInterrupt"),
        (
            ["slurmstepd: error: *** JOB 5 ON n0 CANCELLED AT 2026-01-01T00:00:00 DUE TO TIME LIMIT ***", "bye"],
            "slurmstepd: error: *** JOB 5 ON n0 CANCELLED AT 2026-01-01T00:00:00 DUE TO TIME LIMIT ***",
        ),
        (["slurmstepd: error: *** JOB 5 ***", "interrupted by SIGTERM"], "interrupted by SIGTERM"),
        (["/var/spool/job5/slurm_script: line 9: module: not found"], "batch script: line 9: module: not found"),
        (["time_limit_s=40 is over", "2 groups: 1 not finished"], "time_limit_s=40 is over"),
        (["Fatal Python error: Segmentation fault", "", "  File x"], "Fatal Python error: Segmentation fault"),
        (["", "[1/2] naive\x1b[0m", ""], "no error in its output, which ends with: [1/2] naive [0m"),
        (["error: no server at http://bob:secret@h:1"], "error: no server at http://<hidden>@h:1"),
        ([f"error: {'x' * 1000}"], f"error: {'x' * 293}..."),
    ],
)
def test_the_last_error_of_the_last_start_says_how_a_task_ended(lines, error, tmp_path) -> None:
    assert task_messages.read_last_error(write_log(tmp_path, *lines)) == error


def test_of_much_output_the_end_is_read_and_what_cannot_be_read_says_nothing(tmp_path) -> None:
    path = write_log(tmp_path, "error: long ago", *(["x" * 100] * 1000), HELD)
    assert task_messages.read_last_error(path) == HELD
    path.write_bytes(b"\xff\rerror: a bar: 50%\rerror: \xfe\r")
    assert task_messages.read_last_error(path) == "error: �"
    assert task_messages.read_last_error(tmp_path / "absent.log") == task_messages.read_last_error(tmp_path) == ""


def test_a_task_waits_while_that_is_the_last_that_it_wrote(tmp_path) -> None:
    assert task_messages.read_awaited(write_log(tmp_path, "x", WAITS)) == "CPU (CPU-n0), which is held by bob (pid 7)"
    assert task_messages.read_awaited(write_log(tmp_path, WAITS, "[1/2] a")) == ""
    assert task_messages.read_awaited(tmp_path / "absent.log") == ""
