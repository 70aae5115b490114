"""What a plan names is built once, early; what a mode cannot hold is refused, or skipped in a study."""

from __future__ import annotations

import pytest

from pipeline import rehearsal as rehearsal_of
from pipeline.base.system.errors import ConfigError
from pipeline.plan import config_reader
from tests.conftest import GPU, sweep
from tests.support.experiments import composed


def test_a_mode_that_cannot_hold_a_single_group_refuses_it(make_plan):
    with pytest.raises(ConfigError, match="needs an NVIDIA GPU"):
        make_plan(["scenario=mps"])


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("scenario", "rehearsal"),
    [
        ("mps", ""),
        ("mps_percent", ""),
        ("mps_static", " gpu.driver=590"),
        ("timeslice", ""),
        ("mig", ""),
        ("mig_mps", ""),
    ],
)
def test_each_mode_without_a_gpu_is_refused_with_what_rehearses_it(make_plan, scenario, rehearsal):
    remedy = f"gpu=simulated_h100_80gb{rehearsal}"
    with pytest.raises(ConfigError, match=rf"not .*; rehearse it with {remedy}, or choose scenario=naive$"):
        make_plan([f"scenario={scenario}"])
    configs = config_reader.read([composed([f"scenario={scenario}", *remedy.split()])])
    with rehearsal_of.prepare_machine(configs) as machine:
        assert make_plan([f"scenario={scenario}"], device=machine.find_device(configs[0].gpu)).groups


def test_in_a_study_a_group_that_cannot_be_held_is_skipped_with_the_reason(make_plan):
    plan = make_plan(["scenario=mps"], ["scenario=naive"])
    skipped = {group.name: group.skip_reason for group in plan.groups if group.skip_reason}
    assert list(skipped) == ["mps-2x-tiny"]
    assert "needs an NVIDIA GPU" in skipped["mps-2x-tiny"]


def test_a_study_of_which_nothing_but_baselines_could_run_is_refused(make_plan):
    with pytest.raises(ConfigError, match="needs an NVIDIA GPU"):
        make_plan(*sweep(scenario=["serial", "mps"], degree=[1, 2]))


def test_a_list_of_percentages_must_fit_the_jobs(make_plan):
    with pytest.raises(ConfigError, match="2 values for 3 jobs"):
        make_plan(["scenario=mps_percent", "degree=3", "scenario.active_thread_pct=[50,50]"], device=GPU)
