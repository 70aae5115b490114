"""Programs of the user's own: command lines after `--`, flags, and mixes of them."""

from __future__ import annotations

import re

import pytest

from pipeline.base.domain.window import WindowKind
from pipeline.base.system import user_command
from pipeline.base.system.errors import ConfigError
from pipeline.base.system.paths import PROJECT_DIR
from pipeline.plan import config_reader
from pipeline.plan import plan_builder as planning
from pipeline.plan.job_entries import refuse_unread
from pipeline.study.reproduce.reproduction import read_config
from tests.conftest import GPU, inventory_of, sweep
from tests.support.programs import write_script
from tests.unit.plan.test_plan import make_original

RUNNER = str(PROJECT_DIR / "workloads/script.py")
TINY = ["workload@sizes.S=tiny"]


@pytest.fixture(autouse=True)
def scripts(tmp_path, monkeypatch):
    """A folder with scripts, from which the user calls."""
    for name in ("train.py", "eval.py"):
        (tmp_path / name).write_text(f"print({name!r})\n")
    write_script(tmp_path / "program")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def get_argv(make_plan, *arguments: str) -> tuple[str, ...]:
    """The arguments of the interpreter after the runner, of the jobs that a command line leads to."""
    (group,) = make_plan(user_command.make_overrides(arguments)).groups
    assert group.jobs[0].workload.argv[0] == RUNNER
    return group.jobs[0].workload.argv[1:]


@pytest.mark.parametrize(
    ("command", "argv", "name"),
    [
        (["train.py", "--lr", "1e-3"], ["{}/train.py", "--lr", "1e-3"], "train"),
        (["python", "train.py", "true", ""], ["{}/train.py", "true", ""], "train"),
        (["python3.11", "train.py"], ["{}/train.py"], "train"),
        (["python", "-u", "train.py", "-v"], ["python", "-u", "train.py", "-v"], "train"),
        (["python", "-m", "package.module", "a,b"], ["python", "-m", "package.module", "a,b"], "module"),
        (["-m", "package.module", "a"], ["python", "-m", "package.module", "a"], "module"),
        (["-u", "train.py"], ["python", "-u", "train.py"], "train"),
        (["python3", "-um", "package.module"], ["python", "-um", "package.module"], "module"),
        (["-W", "ignore", "-mpackage.module"], ["python", "-W", "ignore", "-mpackage.module"], "module"),
        (["-c", "print(1)"], ["python", "-c", "print(1)"], "python"),
        (["train.py", "-m", "x"], ["{}/train.py", "-m", "x"], "train"),
        (["./program", "it's", 'a "b" \\'], ["{}/program", "it's", 'a "b" \\'], "program"),
        (["sh", "train.py", "${HOME} \\${x}", "[x]"], ["sh", "train.py", "${HOME} \\${x}", "[x]"], "train"),
    ],
)
def test_what_stands_after_the_dashes_is_the_users_own_command_line(make_plan, scripts, command, argv, name):
    assert get_argv(make_plan, "degree=3", "--", *command) == tuple(word.replace("{}", str(scripts)) for word in argv)
    (group,) = make_plan(user_command.make_overrides(["degree=3", "--", *command])).groups
    assert group.name == f"naive-3x-{name}"


def test_a_key_of_the_study_after_the_dashes_is_noted(make_plan, scripts):
    plan = make_plan(user_command.make_overrides(["--", "train.py", "lr=1", "dry_run=true", "--degree=2"]))
    assert [note for note in plan.notes if "before --" in note] == [
        "dry_run=true is passed to train; put settings of the study before --"
    ]


def test_a_second_script_after_the_dashes_is_noted(make_plan, scripts):
    plan = make_plan(user_command.make_overrides(["--", "train.py", "--", "eval.py", "--", "word"]))
    assert [note for note in plan.notes if "mix" in note] == [
        "-- eval.py is passed to train; use mix=[...] for two scripts"
    ]


def test_a_command_line_of_the_users_own_becomes_overrides():
    overrides = ["workload=script", "workload.script='train.py'", "workload.args=['--lr','1']"]
    command = ["--", "train.py", "--lr", "1"]
    assert user_command.make_overrides(["-m", "degree=1,2", *command]) == [*overrides, "-m", "degree=1,2"]
    assert user_command.make_overrides(["--cfg", "job", *command]) == [*overrides, "--cfg", "job"]
    assert user_command.make_overrides(["degree=1"]) == ["degree=1"]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--"], "the command line after -- is empty"),
        (["--", " "], "is empty"),
        (["--", "python"], "names no script"),
        (["--", "-m"], r"python -m, names no module; write python -m package\.train"),
        (["--", "python3", "-u", "-m"], r"names no module; write python3 -m package\.train"),
        (["--", "-c"], "names no code; write python -c"),
        (["--", "python", "-u"], "names no script"),
        (["--", "python", "-"], "names no script"),
        (["--", "-X", "dev"], "names no script"),
        (["--", "--epochs", "3"], r"--epochs 3, names no program; write train\.py --epochs"),
        (["--", "degree=2", "train.py"], "begins with degree=2; write degree=2 before --"),
        (["--", "LR=1", "python", "train.py"], "begins with the variable LR; write workload.environ.LR=1 before --"),
        (["--", "/opt/x/bin/python3", "train.py"], "env=existing env.prefix=/opt/x/bin/python3"),
        (["workload=tiny", "--", "train.py"], "workload=tiny and .* both name a program"),
        (["mix=[S]", "--", "train.py"], "both name a program"),
        (["workload.flags.lr=1", "workload.flags.lr=2"], "workload.flags.lr is given twice"),
        (["--", "a\udcffb.py"], r"'a\\udcffb.py' is not UTF-8; if it names a file, rename"),
    ],
)
def test_a_command_line_that_cannot_be_meant_is_refused(arguments, why):
    with pytest.raises(ConfigError, match=why):
        user_command.make_overrides(arguments)


@pytest.mark.parametrize(
    ("module", "why"),
    [("own.nosuch", "own.nosuch is not a module in"), ("own", "own is a package without __main__.py")],
)
def test_a_module_that_its_own_package_lacks_is_refused(make_plan, scripts, module, why):
    (scripts / "own").mkdir()
    (scripts / "own/__init__.py").touch()
    with pytest.raises(ConfigError, match=rf"python -m {module}: {why}.*; check the name"):
        make_plan(user_command.make_overrides(["degree=1", "--", "-m", module]))


def test_a_folder_is_refused_as_script(make_plan, scripts):
    (scripts / "training").mkdir()
    with pytest.raises(ConfigError, match="training is a folder; name the file to run"):
        make_plan(user_command.make_overrides(["degree=1", "--", "training"]))


@pytest.mark.parametrize(
    ("name", "remedy"),
    [("run.sh", "name a .py file, or run chmod +x {path}"), ("notes.txt", "name a .py file or a program")],
)
def test_a_file_of_another_kind_that_nobody_may_execute_is_refused(make_plan, scripts, name, remedy):
    (scripts / name).write_text("echo\n")
    refusal = f"{name} is neither executable nor a Python script; {remedy.format(path=scripts / name)}"
    with pytest.raises(ConfigError, match=re.escape(refusal)):
        make_plan(user_command.make_overrides(["degree=1", "--", f"./{name}"]))
    (scripts / name).write_text("#!/usr/bin/env python3\nprint(1)\n")
    make_plan(user_command.make_overrides(["degree=1", "--", f"./{name}"]))


SCRIPT = ["workload=script", "workload.script=train.py"]


def test_flags_become_words_params_and_part_of_the_name(make_plan):
    flags = {
        "batch-size": "16", "lr": "1e-3", "amp": "true", "compile": "false", "seed": "null", "optimizer.eps": "2",
        "gpus": "[0,1]", "none": "[]",
    }  # fmt: skip
    (group,) = make_plan([*SCRIPT, "workload.args=data", *(f"workload.flags.{k}={v}" for k, v in flags.items())]).groups
    assert group.jobs[0].workload.argv[2:] == (
        *("data", "--batch-size", "16", "--lr", "0.001", "--amp", "--optimizer.eps", "2", "--gpus", "0", "1"),
    )
    params = dict(group.jobs[0].workload.params)
    assert (params["script"], params["args"], params["flags.batch-size"]) == ("train.py", "data", "16")
    assert (params["flags.compile"], "flags.seed" in params) == ("false", False)
    assert group.name.startswith("naive-2x-train-batch-size=16-lr=0.001-amp-compile=false")


def test_a_flag_is_an_axis_of_a_sweep(make_plan):
    grid = [[*SCRIPT, *settings] for settings in sweep(**{"workload.flags.batch-size": [16, 32], "degree": [2, 3]})]
    assert sorted(group.name for group in make_plan(*grid).groups) == [
        *(f"naive-{n}x-train-batch-size={size}" for n in (2, 3) for size in (16, 32)),
        *(f"serial-1x-train-batch-size={size}" for size in (16, 32)),
    ]


def test_a_flag_is_the_same_program_however_it_is_given(make_plan):
    ways = (
        ["workload.flags.lr=2"],
        ["workload.args=--lr 2"],
        ["workload.args=[--lr,2]"],
        ["workload.args='\"--lr\" 2'"],
    )
    assert len({make_plan([*SCRIPT, *way]).groups[0].digest for way in ways}) == 1


def test_a_program_that_may_not_be_executed_is_refused_unless_it_is_python(make_plan, tmp_path):
    (program := tmp_path / "other").write_text("#!/bin/sh\necho 1\n")
    with pytest.raises(ConfigError, match="is neither executable nor a Python script"):
        make_plan(["workload=script", f"workload.script={program}"])
    program.write_text("#!/usr/bin/env python3\nprint(1)\n")
    make_plan(["workload=script", f"workload.script={program}"])


def test_a_mix_has_sizes_and_command_lines_side_by_side(make_plan, scripts):
    entries = "mix=['train.py --epochs 3',{command:'python eval.py --split test',flags:{n:2},environ:{A:b}},S]"
    plan = make_plan([entries, *TINY], is_sweep=False)
    assert sorted(group.name for group in plan.groups) == ["naive-train+eval[n=2]+S", "serial-train+eval[n=2]+S"]
    train, evaluate, small = (job.workload for job in plan.groups[0].jobs)
    assert train.argv[1:] == (str(scripts / "train.py"), "--epochs", "3")
    assert evaluate.argv[1:] == (str(scripts / "eval.py"), "--split", "test", "--n", "2")
    assert evaluate.environ == (("A", "b"),) and dict(evaluate.params)["environ.A"] == "b"
    assert small.name == "tiny" and small.argv[small.argv.index("--epochs") + 1] == "5"


def test_a_window_says_only_what_applies(make_plan):
    script = make_plan([*SCRIPT, "window=steady", "window.epochs=9"]).groups[0].window
    assert (script.kind, script.text) == (WindowKind.WORK, "work, until the jobs end")
    assert (script.seconds, script.settle_s, script.epochs) == (0, 0, 0)
    assert make_plan(["window=work", "window.epochs=9"]).groups[0].window.text == "work, 9 epochs"


def test_the_digest_covers_what_a_launcher_starts(make_plan, scripts):
    launched = ["workload=script", "workload.script=sh", "workload.args=train.py"]
    before = make_plan(launched).groups[0]
    assert before.jobs[0].workload.script == str(scripts / "train.py")
    (scripts / "train.py").write_text("print('changed')\n")
    assert make_plan(launched).groups[0].digest != before.digest


@pytest.mark.slow
def test_a_recorded_command_line_is_planned_again_as_it_was(make_plan):
    command = ["train.py", "--text", "${HOME}", "--list", "[1,2]", "true"]
    for overrides in (
        user_command.make_overrides(["workload.flags.lr=1", "--", *command]),
        ["mix=['train.py --lr 1',{command:eval.py,flags:{n:2}}]"],
    ):
        (group,) = make_plan(overrides).groups
        again, unrecorded = read_config(make_original(group.config_text()))
        assert unrecorded == []
        (config,) = config_reader.read([again])
        plan = planning.build_plan([config], inventory_of([config]), is_sweep=False)
        assert [planned_group.digest for planned_group in plan.groups] == [group.digest]


def test_co_runners_go_on_until_they_are_told_to_stop_and_tell_their_group_from_others(make_plan):
    overrides = ("degree=1", "window=work", "window.epochs=3", "baseline=never")
    (alone,) = make_plan([*overrides]).groups
    (group,) = make_plan([*overrides, "co_runners=2"]).groups
    epochs = [job.workload.argv[job.workload.argv.index("--epochs") + 1] for job in group.jobs]
    assert epochs == ["3", "0", "0"]
    assert [job.is_co_runner for job in group.jobs] == [False, True, True]
    assert group.measured[0].workload.digest == alone.jobs[0].workload.digest
    assert (group.settings["co-runners"], alone.settings["co-runners"]) == ("2x tiny", "")
    assert group.key != alone.key
    assert (group.name, alone.name) == ("naive-1x-tiny-co-runners=2x_tiny", "naive-1x-tiny")
    (other,) = make_plan([*overrides, "co_runners=[S]", "data.source=synthetic_device"]).groups
    assert other.settings["co-runners"].startswith("1x resnet26_cifar10 ")  # and digits: no measured job is such


def test_co_runners_belong_to_no_baseline(make_plan):
    groups = make_plan(["degree=1", "co_runners=2", "baseline=always"]).groups
    together, alone = sorted(groups, key=lambda group: -len(group.jobs))
    assert (together.degree, len(together.jobs)) == (1, 3)
    assert (len(alone.jobs), alone.settings["co-runners"]) == (1, "")


def test_a_group_with_co_runners_that_is_named_keeps_its_baseline(make_plan):
    overrides = ["degree=2", "co_runners=1", "baseline=always"]
    digests = {group.name: group.digest for group in make_plan(overrides).groups}
    name = next(name for name in digests if "co-runners" in name)
    groups = make_plan([*overrides, f"only=['{name}']"]).groups
    assert {group.name: group.digest for group in groups} == digests


def test_a_note_about_the_window_names_no_co_runner(make_plan):
    overrides = ["workload=script", "workload.script=tests/toys/toy.py", "co_runners=[S]", "workload@sizes.S=tiny"]
    notes = make_plan(overrides, device=GPU).notes
    (window_note,) = (note for note in notes if "the whole run is measured" in note)
    assert "tiny" not in window_note, window_note


def test_a_note_about_the_window_names_programs_in_the_order_of_the_mix(make_plan):
    plan = make_plan(['mix=["tests/toys/waiting.py","tests/toys/plain_torch.py"]'])
    (name,) = {group.name for group in plan.groups}
    assert name.endswith("waiting+plain_torch")
    assert any(note.startswith("waiting, plain_torch: the whole run") for note in plan.notes)


@pytest.mark.parametrize(
    ("typed", "instead"),
    [
        (["mix=[S,M]", "workload.batch_size=8"], "set sizes.S.batch_size=8 instead"),
        (["mix=[train.py,M]", "workload=micro"], "set workload@sizes.M=micro instead"),
        (["mix=[train.py]", "workload=micro"], "remove one of these keys"),
        (["mix=[train.py]", "workload=script"], "'mix=[{command: "),
        (["sizes.S.batch_size=8"], "'mix=[S]'"),
        (["mix=[S]", "co_runners=[M]", "+workload@sizes.X=micro"], "'mix=[X]'"),
    ],
)
def test_a_setting_of_a_workload_that_is_not_run_is_refused(compose, typed, instead):
    composed = compose(typed)
    with pytest.raises(ConfigError, match=f"^{re.escape(typed[-1])}[: ]") as refused:
        refuse_unread(typed, config_reader.read(composed), composed)
    assert instead in str(refused.value)


@pytest.mark.parametrize(
    "typed",
    [
        ["workload.batch_size=8"],
        ["workload=micro", "mix=[S]", "co_runners=1"],
        ["mix=[M]", "co_runners=[S]", "sizes.S.batch_size=8", "workload@sizes.M=micro"],
        ["mix=[S]", "sizes.S.batch_size=${workload.batch_size}", "workload.batch_size=8"],
        ["mix=[]", "workload=micro"],
        ["~sizes.L"],
    ],
)
def test_a_setting_of_a_workload_that_is_run_or_referred_to_is_taken(compose, typed):
    composed = compose(typed)
    refuse_unread(typed, config_reader.read(composed), composed)


def test_a_sweep_takes_a_setting_that_one_combination_needs(compose):
    composed = compose(["mix=[S]"], ["workload=micro"])
    refuse_unread(["mix=[S],null", "workload=micro"], config_reader.read(composed), composed)
    with pytest.raises(ConfigError, match=r"no job has the size M"):
        refuse_unread(["sizes.M.batch_size=8"], config_reader.read(composed), composed)
