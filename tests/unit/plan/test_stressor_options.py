"""Stressors in a plan: their options, and the mixes of a workload with a stressor."""

from __future__ import annotations

import dataclasses

import pytest

from pipeline.base.domain.records import DeviceFacts
from pipeline.base.domain.window import WindowKind
from pipeline.base.system import user_command
from pipeline.base.system.errors import ConfigError
from pipeline.plan import config_reader
from pipeline.plan.job_entries import refuse_unread
from tests.conftest import GPU

STRESSOR = ["workload=stressor", "degree=1", "baseline=never"]
BESIDE = ["+workload@sizes.stressor=stressor", "sizes.stressor.resource=host_cores", "mix=[workload,stressor]"]


@pytest.mark.parametrize(
    ("overrides", "why"),
    [
        (["workload.dial=1.01"], r"dial=1\.01 must be from 0 to 1"),
        (["workload.dial=-1"], "dial=-1.* must not be negative"),
        (["workload.dial=nan"], "dial=nan must be finite"),
        (
            ["workload.resource=l2"],
            "resource=l2 needs a GPU, .*; use gpu=simulated_h100_80gb dry_run=true .*rehearse=tiny",
        ),
    ],
)
def test_what_a_cpu_cannot_run_is_refused_in_one_line(make_plan, overrides, why):
    options = [*STRESSOR, "workload.resource=host_cores", *overrides]
    with pytest.raises(ConfigError, match=why) as refused:
        make_plan(options)
    assert "\n" not in str(refused.value)


def test_tensor_cores_need_a_gpu_that_has_them(make_plan):
    options = [*STRESSOR, "workload.resource=tensor_cores"]
    for_ampere = dataclasses.replace(GPU, facts=DeviceFacts(compute_capability=(8, 0)))
    assert len(make_plan(options, device=for_ampere).groups) == 1
    with pytest.raises(ConfigError, match=r"needs compute capability 8\.0, but .* has 7\.5"):
        make_plan(options, device=dataclasses.replace(GPU, facts=DeviceFacts(compute_capability=(7, 5))))


def test_a_mix_has_the_workload_and_the_stressor_and_a_baseline_of_each(make_plan):
    together, *alone = make_plan([*BESIDE, "sizes.stressor.dial=0.5"], is_sweep=True).groups
    groups = sorted((together, *alone), key=lambda group: group.degree)
    assert [group.job_names for group in groups] in (
        ["tiny", "stressor", "tiny+stressor"],
        ["stressor", "tiny", "tiny+stressor"],
    )
    stressor = groups[-1].jobs[1]
    params = dict(stressor.workload.params)
    assert (params["resource"], params["dial"], stressor.name) == ("host_cores", "0.5", "1-stressor")


def test_a_stressor_beside_a_script_is_a_co_runner_with_a_baseline_in_a_steady_window(make_plan, tmp_path):
    script = tmp_path / "train.py"
    script.write_text("print(1)\n")
    groups = make_plan(user_command.make_overrides([*BESIDE, "--", str(script)]), is_sweep=True).groups
    pair = next(group for group in groups if group.has_co_runners)
    assert [job.workload.name for job in pair.measured] == ["train"] and pair.window.kind is WindowKind.WORK
    (stressor,) = (job.workload for job in pair.jobs if job.is_co_runner)
    alone = {group.jobs[0].workload.digest: group.window.kind for group in groups if group.sequential}
    assert alone == {stressor.digest: WindowKind.STEADY, pair.measured[0].workload.digest: WindowKind.WORK}


TURNS = [
    "+workload@sizes.T=stressor_turns",
    "sizes.T.resources=[host_cores,host_memory]",
    "sizes.T.dials=[0.5,1]",
    "sizes.T.turn_s=0.5",
    "window.settle_s=0.4",
]


def test_groups_of_a_stressor_that_takes_turns_are_as_long_as_its_rounds(make_plan):
    groups = make_plan([*TURNS, "mix=[workload,T]", "window.seconds=3"], is_sweep=True).groups
    windows = {group.job_names: (group.window.seconds, group.window.settle_s) for group in groups}
    # Two rounds of four turns and two idle turns, and a turn as a reserve; the stressor is idle while jobs settle.
    assert windows == {"tiny": (3, 0.4), "T": (6.5, 0.4), "tiny+T": (6.5, 0.4)}
    longer = make_plan([*TURNS, "mix=[workload,T]", "window.seconds=9"], is_sweep=True).groups
    assert {group.window.seconds for group in longer} == {9}


@pytest.mark.parametrize(
    ("overrides", "why"),
    [
        (["sizes.T.resources=[host_cores,l2]"], "resources=l2 needs a GPU, .*rehearse=tiny"),
        (["sizes.T.resources=[l3]"], "resources=l3 must be one of issue_fp32, "),
        (["sizes.T.dials=[0.5,0]"], r"dials=0 must be from 0\.01 to 1"),
        (["sizes.T.dials=[2]"], r"dials=2 must be from 0\.01 to 1"),
        (["sizes.T.lead_s=0.1"], r"lead_s=0\.1 is below window\.settle_s=0\.4, .*; remove lead_s"),
    ],
)
def test_turns_that_cannot_be_taken_are_refused_in_one_line(make_plan, overrides, why):
    with pytest.raises(ConfigError, match=why) as refused:
        make_plan([*TURNS, "mix=[workload,T]", *overrides], is_sweep=True)
    assert "\n" not in str(refused.value)


def test_a_script_beside_turns_must_log_its_rate(make_plan, tmp_path):
    script = tmp_path / "train.py"
    script.write_text("print(1)\n")
    words = [*TURNS, "mix=[workload,T]"]
    with pytest.raises(
        ConfigError, match=r"train logs no rate, .*; set workload\.metric=NAME or .*sizes\.T=stressor "
    ) as refused:
        make_plan(user_command.make_overrides([*words, "--", str(script)]), is_sweep=True)
    assert "\n" not in str(refused.value)
    logged = user_command.make_overrides(
        [*words, "window.seconds=3", "workload.metric=train/steps_per_s", "--", str(script)]
    )
    groups = make_plan(logged, is_sweep=True).groups
    pair = next(group for group in groups if group.has_co_runners)
    alone = next(group for group in groups if group.job_names == "T")
    assert pair.window.kind is WindowKind.LOGGED and alone.window.seconds == 6.5


def test_a_chosen_workload_that_a_mix_names_is_read(compose):
    typed = ["workload=tiny", "workload.batch_size=8"]
    composed = compose([*BESIDE, *typed])
    refuse_unread(typed, config_reader.read(composed), composed)
    with pytest.raises(ConfigError, match="workload=tiny has no effect"):
        composed = compose(["mix=[S]", *typed])
        refuse_unread(typed, config_reader.read(composed), composed)
