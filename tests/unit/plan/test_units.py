"""A plan in units, each of which one worker runs."""

from __future__ import annotations

import pytest

from pipeline.base.errors import ConfigError
from pipeline.plan import units


def test_the_units_are_the_blocks_and_make_up_the_plan(make_plan) -> None:
    plan = make_plan(["repeats=3", "degree=2", "baseline=always"])
    found = units.of(plan.groups)
    assert list(found) == [1, 2, 3]
    assert [group for number in found for group in units.only(plan, number).groups] == list(plan.groups)
    third = units.only(plan, 3)
    assert (third.digest, third.num_planned) == (plan.digest, 6)
    assert {group.block for group in third.groups} == {3}
    assert units.only(plan, None) is plan


@pytest.mark.parametrize("number", [0, 4, -1])
def test_a_unit_outside_the_plan_is_refused(make_plan, number) -> None:
    with pytest.raises(ConfigError, match=f"unit={number}: the plan has 3 units, numbered from 1"):
        units.only(make_plan(["repeats=3"]), number)
