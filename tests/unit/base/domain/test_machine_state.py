"""Which states of a machine are the same one."""

from __future__ import annotations

import itertools

from pipeline.base.domain.machine_state import MachineState, merge_same


def state(**facts: str) -> MachineState:
    return MachineState.from_facts({"gpu_uuid": "GPU-1", "boot_id": "b", **facts})


def test_facts_that_decide_nothing_and_empty_ones_are_no_part_of_a_state():
    assert state(compute_mode="default", power_limit_w="") == state()
    assert dict(state(ecc_mode="enabled").facts) == {"gpu_uuid": "GPU-1", "boot_id": "b", "ecc_mode": "enabled"}


def test_states_are_merged_alike_in_whatever_order_they_are_met():
    little, cool, hot = state(), state(power_limit_w="500"), state(power_limit_w="700", ecc_mode="enabled")
    more = state(ecc_mode="enabled", driver_version="580")
    results = [merge_same(order) for order in itertools.permutations((little, cool, hot, more))]
    assert all(states == results[0] for states in results)
    merged = results[0]
    assert merged[cool] != merged[hot] and merged[little] in merged.values()
    assert merged[more] == merged[hot] and dict(merged[hot].facts)["driver_version"] == "580"


def test_a_change_is_told_with_its_unit():
    old, new = state(power_limit_w="700", driver_version="580"), state(power_limit_w="500", driver_version="590")
    assert new.changes(old) == "driver 590, was 580; power limit 500 W, was 700 W"
    assert new.difference(old) == "driver and power limit"
    assert MachineState.from_facts({"boot_id": "c"}).changes(old) == "the machine was restarted"
    assert state().changes(old) == ""
