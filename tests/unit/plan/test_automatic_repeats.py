"""`repeats=auto`: a plan of the most blocks, its goal, and what it cannot be combined with."""

from __future__ import annotations

import json

import pytest

from pipeline.base.domain.precision_goal import PrecisionGoal
from pipeline.base.system.errors import ConfigError
from pipeline.plan import config_reader, plan_text
from pipeline.plan.plan_builder import cut_plan
from pipeline.scale import worker_command
from tests.conftest import sweep

AUTO = ["repeats=auto", "repeats_max=7"]


def test_the_plan_has_the_most_blocks_and_says_when_the_study_stops(make_plan):
    plan = make_plan([*AUTO, "precision_goal_pct=2.5"], is_sweep=False)
    assert plan.goal == PrecisionGoal(pct=2.5, max_blocks=7)
    assert {group.block for group in plan.groups} == {1, 2, 3, 4, 5, 6, 7}
    (note,) = plan_text.list_notes(plan)
    assert note == (
        "note: repeats=auto: 5 to 7 blocks, until the interval of every speed-up over serial is at most 2.5 % wide to "
        "each side"
    )
    exported = json.loads(json.dumps(plan_text.export_plan(plan, {})))
    assert exported["precision_goal"] == {"pct": 2.5, "max_blocks": 7}
    fixed = make_plan(["repeats=7"], is_sweep=False)
    assert fixed.goal is None and fixed.digest == plan.digest
    assert plan_text.export_plan(fixed, {})["precision_goal"] is None and plan_text.list_notes(fixed) == []


@pytest.mark.sampled(1)
@pytest.mark.parametrize("shard_of", ["block", "case"])
def test_the_plan_of_the_blocks_that_ran_is_that_of_as_many_repeats(make_plan, shard_of):
    asked = [[*o, f"shard_of={shard_of}"] for o in sweep(scenario=["naive", "mps"], degree=[1, 2])]
    cut = cut_plan(make_plan(*[[*o, *AUTO] for o in asked]), 5)
    assert cut == make_plan(*[[*o, "repeats=5"] for o in asked])


def test_an_interpolated_number_of_repeats_is_a_number(make_plan, monkeypatch):
    monkeypatch.setenv("REPEATS", "3")
    assert {group.block for group in make_plan(["repeats=${oc.env:REPEATS}"]).groups} == {1, 2, 3}


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["repeats=many"], "repeats=many must be a number or auto"),
        (["repeats=0"], "repeats=0 must be at least 1"),
        (["repeats=auto", "repeats_max=4"], "repeats_max=4 must be at least 5 with repeats=auto"),
        (["repeats_max=20000"], "repeats_max=20000 must be at most 10000"),
        (["repeats=auto", "precision_goal_pct=0"], "precision_goal_pct=0.0 must be greater than 0, and finite"),
        (["repeats=auto", "precision_goal_pct=101"], "precision_goal_pct=101.0 must be at most 100"),
        (["repeats=auto", "shard=2"], "shard=2 conflicts with repeats=auto, .*; remove shard, or set repeats=NUMBER"),
        *(
            (["repeats=auto", *others], "repeats=auto needs a group with a speed-up, .*; set repeats=NUMBER")
            for others in (["baseline=never"], ["scenario=serial"], ["co_runners=1"], ["degree=1"])
        ),
        pytest.param(
            ["repeats=auto", "workload=infer_tiny", "workload.arrival=poisson", "workload.rate_per_s=9"],
            "repeats=auto needs a group with a speed-up",
            marks=pytest.mark.torch,
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_it_cannot_be_combined_with_is_refused_in_one_line(make_plan, overrides, message):
    with pytest.raises(ConfigError, match=message) as caught:
        make_plan(overrides, is_sweep=False)
    assert "\n" not in str(caught.value)


def test_all_parts_of_a_study_stop_by_the_same_rule(make_plan):
    with pytest.raises(ConfigError, match="repeats=3 conflicts with repeats=auto in the same study"):
        make_plan(["degree=2", "repeats=auto"], ["degree=3", "repeats=3"])
    # Groups without a speed-up run along, and have no say.
    assert make_plan(["degree=2", "repeats=auto"], ["co_runners=1", "repeats=auto"]).goal is not None


@pytest.mark.parametrize("launcher", ["gpus", "beside", "slurm"])
def test_launchers_that_run_blocks_on_several_gpus_are_refused(compose, launcher):
    configs = config_reader.read(compose(["repeats=auto"]))
    with pytest.raises(ConfigError, match=f"repeats=auto conflicts with hydra/launcher={launcher}, because"):
        worker_command.refuse_decided_keys(configs, launcher)
