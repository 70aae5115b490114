"""What sharing modes are called and how they are drawn, one that nobody has entered anywhere among them."""

from __future__ import annotations

import dataclasses

import pytest

from pipeline.base.domain.sharing_modes import MODES, SPARE_COLOURS, mode_of, modes_of
from pipeline.report.evaluate import verdicts
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
    sentences = [verdict.sentence for verdict in verdicts.verdicts(cells)]
    assert [sentence.split(" (")[0] for sentence in sentences if "turns" in sentence] == [
        "2 x resnet26_cifar10 bs128, turns slice_ms=2: 1.40 x serial",
        "2 x resnet26_cifar10 bs128, turns slice_ms=2: 1.17 x MPS",
    ]
    drawn = {figure.name: figure.svg for figure in catalogue.draw_figures(judged, cells, None)}
    spare, _ = SPARE_COLOURS[0]
    assert all(spare in svg for svg in drawn.values()) and len(drawn) == 2
    assert ">turns<" in drawn["gain"] and ">slice_ms=2<" in drawn["workload-resnet26-cifar10-bs128"]
