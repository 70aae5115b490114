"""Figures of the energy per work unit (sample, request, ...) of each workload and of the mixes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from pipeline.base.domain import work_units
from pipeline.base.domain.sharing_modes import SERIAL
from pipeline.report.evaluate.cells import Case, Cell, list_cases, list_modes
from pipeline.report.evaluate.effects import SoloMode, list_other_modes
from pipeline.report.evaluate.metrics import JOULE, choose_prefix, scale_estimate
from pipeline.report.figures.bars import (
    BARS_CAPTION,
    Bar,
    group_by_case,
    group_by_degree,
    grouped_bars,
    make_bar,
    make_legend,
    num_bars,
)
from pipeline.report.figures.drawing import Sketch, add_legend, collect_handles, draw_level, make_panels, set_title
from pipeline.report.read.group_series import GroupSeries

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def sketches(cells: Sequence[Cell], _: GroupSeries | None) -> Iterator[Sketch]:
    """Yield, for each work unit, a sketch of the workloads and one of the mixes, if energy was measured."""
    for unit in dict.fromkeys(cell.unit for cell in cells if cell.unit):
        yield from _sketch_unit(unit, [cell for cell in cells if cell.unit == unit])


def _sketch_unit(unit: str, cells: Sequence[Cell]) -> Iterator[Sketch]:
    energy = work_units.energy_of(unit)
    known = {cell.case for cell in cells if energy in cell.estimates and cell.sharing != SERIAL}
    ran = [cell for cell in cells if cell.case in known and not cell.is_derived]
    copies, mixes = ([cell for cell in ran if cell.case.is_mix is is_mix] for is_mix in (False, True))
    work, per_one = work_units.format_unit(unit), f"energy per {work_units.format_singular(unit)}"
    caption = f"Energy of the whole GPU, including idle power, divided by the {work} of all jobs. {BARS_CAPTION}"
    solo_modes = {case: _list_levels(case, cells, energy) for case in list_cases(copies)}
    dotted = " Dotted: one job alone in another step mode; band: its interval." if any(solo_modes.values()) else ""
    for members, name, title in ((copies, per_one, per_one), (mixes, f"{per_one} mixes", f"{per_one} of the mixes")):
        if members:
            yield Sketch(
                name=name,
                title=title.capitalize(),
                caption=caption + (dotted if members is copies else ""),
                section="Energy",
                paint=partial(_paint, members, unit, solo_modes),
            )


def _list_levels(case: Case, cells: Sequence[Cell], energy: str) -> list[SoloMode]:
    return [other for other in list_other_modes(case, cells) if other.cell.is_ranked and energy in other.cell.estimates]


def _paint(cells: Sequence[Cell], unit: str, solo_modes: Mapping[Case, Sequence[SoloMode]]) -> Figure:
    energy = work_units.energy_of(unit)
    known = [cell.estimates[energy] for cell in cells if cell.is_ranked and energy in cell.estimates]
    scale, prefix = choose_prefix(estimate.median for estimate in known)

    def bar(cell: Cell) -> Bar:
        return make_bar(cell, scale_estimate(cell.estimates[energy], scale) if energy in cell.estimates else None)

    if cells[0].case.is_mix:
        contents = [("", group_by_case(cells, bar))]
    else:
        copies = {case: [cell for cell in cells if cell.case == case] for case in list_cases(cells)}
        contents = [(case.label, group_by_degree(members, bar)) for case, members in copies.items()]
    figure, panels = make_panels(len(contents), 2.5, most_bars=max(num_bars(groups) for _, groups in contents))
    for axes, (title, groups) in zip(panels, contents, strict=True):
        grouped_bars(axes, groups)
        set_title(axes, title)
        axes.set_ylabel(f"{prefix}{JOULE} per {work_units.format_singular(unit)}")
    for axes, case in zip(panels, list_cases(cells), strict=False):
        for solo in solo_modes.get(case, []):
            level = scale_estimate(solo.cell.estimates[energy], scale)
            draw_level(axes, f"alone, {solo.step_mode}", level)
            axes.set_ylim(top=max(axes.get_ylim()[1], 1.05 * level.median))
    add_legend(figure, [*make_legend(list_modes(cells)), *collect_handles(panels).values()])
    return figure
