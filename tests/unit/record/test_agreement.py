"""Whether workers of a study measure one plan, why results do not count, and how a Slurm task ended."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path

import pytest

from pipeline.base.domain import layout
from pipeline.base.system.errors import ConfigError, TrackingError
from pipeline.plan import config_reader, shards
from pipeline.plan import plan_builder as planning
from pipeline.prepare.env import lock
from pipeline.record.group_record import Original
from pipeline.record.shards import task_messages
from pipeline.record.spool import _encode_group
from pipeline.study import stored_results
from pipeline.study.plans import agree_on_plan
from pipeline.study.reproduce import differences
from tests.conftest import GPU, inventory_of
from tests.support.tracking_cases import record


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
