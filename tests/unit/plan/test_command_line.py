"""Command lines: order of arguments, and errors of Hydra."""

from __future__ import annotations

import os

import pytest
from hydra._internal.utils import get_args_parser
from hydra.core.override_parser.overrides_parser import OverridesParser

from pipeline.base.system.errors import ConfigError
from pipeline.plan import command_line
from pipeline.plan.overrides import list_combinations


@pytest.mark.parametrize(
    ("arguments", "arranged"),
    [
        (["gpu=cpu", "--config-dir", "DIR", "+experiment=x"], ["--config-dir=DIR", "gpu=cpu", "+experiment=x"]),
        (["a=1", "-m", "b=2", "-cd", "DIR", "c=3"], ["--multirun", "--config-dir=DIR", "a=1", "b=2", "c=3"]),
        (["a=1", "--config-dir=DIR=1", "b=2"], ["--config-dir=DIR=1", "a=1", "b=2"]),
        (["a=1", "--cfg", "job", "--resolve", "-p", "gpu"], ["--cfg=job", "--resolve", "--package=gpu", "a=1"]),
        (["-i"], ["--info=all"]),
        (["--info", "a=1"], ["--info=all", "a=1"]),
        (["--info", "defaults", "a=1"], ["--info=defaults", "a=1"]),
        (["a=1", "--info", "--config-dir", "DIR"], ["--config-dir=DIR", "--info=all", "a=1"]),
        (["-sc", "install=bash"], ["--shell-completion", "install=bash"]),
        (["~gpu.admin", "+a.b=-1", "c='-d e'"], ["~gpu.admin", "+a.b=-1", "c='-d e'"]),
        ([], []),
    ],
)
def test_options_come_first_each_with_its_value(arguments, arranged):
    assert command_line.arrange(arguments) == arranged
    get_args_parser().parse_args(arranged)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a=1", "--foo"], "unrecognized arguments: --foo; see python run.py --help"),
        (["--degree", "2"], "unrecognized arguments: --degree; write degree=2, or see python run.py --help"),
        (["a=1", "--degree=2"], "unrecognized arguments: --degree=2; write degree=2, or see python run.py --help"),
        (["--cfg", "foo"], "argument --cfg/-c: invalid choice: 'foo'"),
        (["--info", "foo"], "argument --info/-i: invalid choice: 'foo'"),
        (["a=1", "--config-dir"], "argument --config-dir/-cd: expected one argument"),
        (["-m", "--cfg", "job"], "--cfg and --multirun exclude each other; remove one"),
        (["--resolve"], "--resolve has an effect only with --cfg"),
    ],
)
def test_what_hydra_takes_no_option_for_is_refused_in_one_line(arguments, message):
    with pytest.raises(ConfigError) as refused:
        command_line.arrange(arguments)
    assert str(refused.value).startswith(message) and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("overrides", "deferred"),
    [
        (["scenario.profile=1g", "scenario=mig,mig_mps"], ["scenario=mig,mig_mps", "scenario.profile=choice(1g)"]),
        (["scenario=choice(mig,mps)", "+scenario.x=1"], ["scenario=choice(mig,mps)", "+scenario.x=choice(1)"]),
        (["workload@sizes.S=a,b", "sizes.S.x=1", "sizes.M.x=1"], None),
        (["scenario=mig,mps", "scenario.profile=1g,2g"], ["scenario=mig,mps", "scenario.profile=1g,2g"]),
        (["scenario=mig", "scenario.profile=1g"], ["scenario=mig", "scenario.profile=1g"]),
        (["scenario=[a,b]", "scenario.profile=1g"], ["scenario=[a,b]", "scenario.profile=1g"]),
        (["scenarios=a,b", "scenario.profile=1g"], ["scenarios=a,b", "scenario.profile=1g"]),
        (["scenario=a,b", "scenario.x=[1,", "(,"], ["scenario=a,b", "(,", "scenario.x=[1,"]),
    ],
)
def test_settings_of_choices_that_are_swept_are_left_to_the_jobs(overrides, deferred):
    if deferred is None:
        deferred = ["workload@sizes.S=a,b", "sizes.M.x=1", "sizes.S.x=choice(1)"]
    assert command_line.defer_settings(overrides) == deferred


@pytest.mark.parametrize(
    "setting",
    ["=1", "=", "='a, b'", "=[1g,2g]", "={a: 1,b: [2]}", "=null", "=a b", "=${x.y}", "=\\,", "=1e-3", "=int(3)"],
)
@pytest.mark.parametrize("sign", ["", "+", "++"])
def test_a_setting_that_is_left_to_the_jobs_keeps_its_value(sign, setting):
    parser = OverridesParser.create()
    swept, deferred = command_line.defer_settings(["scenario=a,b", f"{sign}scenario.x{setting}"])
    assert parser.parse_override(deferred).is_sweep_override()
    first, _ = list_combinations(parser.parse_overrides([swept, deferred]))
    expected, deferred_override = parser.parse_overrides([f"{sign}scenario.x{setting}", first[1]])
    assert deferred_override.value() == expected.value()
    assert (deferred_override.type, deferred_override.get_key_element()) == (expected.type, expected.get_key_element())


def test_a_deletion_that_is_left_to_the_jobs_stays_one():
    parser = OverridesParser.create()
    for word, value in (("~scenario.x", None), ("~scenario.x=3", 3)):
        overrides = parser.parse_overrides(command_line.defer_settings(["scenario=a,b", word]))
        assert all(override.is_sweep_override() for override in overrides)
        (deletion,) = parser.parse_overrides(list_combinations(overrides)[0][1:])
        assert deletion.is_delete() and deletion.value() == value


@pytest.mark.parametrize("setting", [None, "", "0", "1"])
def test_children_get_what_the_user_gave(monkeypatch, setting):
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
    if setting is not None:
        monkeypatch.setenv("HYDRA_FULL_ERROR", setting)
    with pytest.raises(KeyError), command_line.raise_errors():
        assert os.environ["HYDRA_FULL_ERROR"] == "1"
        assert command_line.is_traceback_wanted() == (setting == "1")
        with command_line.restore_environment():
            assert os.environ.get("HYDRA_FULL_ERROR") == setting
        assert os.environ["HYDRA_FULL_ERROR"] == "1"
        raise KeyError
    assert os.environ.get("HYDRA_FULL_ERROR") == setting
    assert command_line.is_traceback_wanted() == (setting == "1")
    with command_line.restore_environment():  # as in a worker, which composes nothing
        assert os.environ.get("HYDRA_FULL_ERROR") == setting
