"""What sharing modes are called and how they are drawn, one that nobody has entered anywhere among them."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

from pipeline.base.domain.machine_state import MachineState, merge_same
from pipeline.base.domain.sharing_modes import MODES, SPARE_COLOURS, mode_of, modes_of
from pipeline.report.evaluate import contrasts
from pipeline.report.evaluate.cells import make_cells
from pipeline.report.figures import catalogue
from pipeline.report.figures.drawing import THEME
from tests.conftest import GPU
from tests.support.report_rows import copies, study


def test_modes_have_colours_and_markers_of_their_own() -> None:
    modes = modes_of(["turns", "mps", "another"])
    assert list(modes)[: len(MODES)] == list(MODES)
    assert (
        len({mode.colour for mode in modes.values()}) == len({mode.label for mode in modes.values()}) == len(MODES) + 2
    )
    assert {mode.colour for mode in modes.values()} <= THEME.keys()
    assert (
        len({mode.marker for mode in modes.values() if mode.name != "serial"}) == len(MODES) + 1
    )  # that one has no line


def test_options_tell_groups_apart_unless_they_say_where_a_program_lies_or_what_the_label_says() -> None:
    options = [
        ("profile", "2g"),
        ("size_profile", ()),
        ("program", "/bin/x"),
        ("mps_program", "/bin/y"),
        ("slice_ms", 2),
    ]
    assert [key for key, _ in mode_of("mig").naming(options)] == ["profile", "slice_ms"]
    assert [key for key, _ in mode_of("turns").naming(options)] == ["profile", "size_profile", "slice_ms"]


def test_a_mode_that_is_in_no_table_is_planned_by_its_name_and_options(make_plan) -> None:
    mode = ["scenario=mps", "scenario.name=turns", "scenario.priority=1"]
    assert [group.name for group in make_plan(mode, device=GPU).groups] == ["turns-2x-tiny-priority=1"]


@pytest.mark.slow
def test_a_mode_that_is_in_no_table_is_judged_and_drawn_like_the_others() -> None:
    def turns(rate: float, block: int):
        added = copies("naive", 2, rate, block, options={"slice_ms": "2"})
        mode = mode_of("turns")
        return dataclasses.replace(added, scenario=mode.name, sharing=mode, key="turns")

    rows = [copies("serial", 1, 1000.0 + block, block) for block in range(1, 6)]
    rows += [copies("mps", 2, 600.0 + block, block) for block in range(1, 6)]
    rows += [turns(700.0 + block, block) for block in range(1, 6)]
    judged = study(*rows)
    cells = make_cells(judged)
    assert [cell.mode for cell in cells] == ["serial", "serial", "MPS", "turns slice_ms=2"]
    sentences = [verdict.sentence for verdict in contrasts.compare_modes(cells)]
    assert [sentence.split(" (")[0] for sentence in sentences if "turns" in sentence] == [
        "2 x resnet26_cifar10 bs128, turns slice_ms=2: 1.40 x serial",
        "2 x resnet26_cifar10 bs128, turns slice_ms=2: 1.17 x MPS",
    ]
    drawn = {figure.name: figure.svg for figure in catalogue.draw_figures(judged, cells, None)}
    spare, _ = SPARE_COLOURS[0]
    assert all(spare in svg for svg in drawn.values()) and len(drawn) == 2
    assert ">turns<" in drawn["gain"] and ">slice_ms=2<" in drawn["workload-resnet26-cifar10-bs128"]


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
