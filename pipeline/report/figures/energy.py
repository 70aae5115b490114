"""Energy per sample, request, ... of each workload and of the mixes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from pipeline.base.domain import units
from pipeline.base.domain.modes import SERIAL, Mode
from pipeline.report.evaluate.cells import Cell, cases_in, modes_in
from pipeline.report.evaluate.joules import JOULE, prefix_of, scaled
from pipeline.report.figures.bars import (
    BARS_CAPTION,
    Bar,
    Groups,
    bar_of,
    by_case,
    by_degree,
    grouped_bars,
    legend_of,
    num_bars,
)
from pipeline.report.figures.drawing import Sketch, add_legend, panels_of, set_title
from pipeline.report.read.samples import GroupSeries

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def sketches(cells: Sequence[Cell], _: GroupSeries | None) -> Iterator[Sketch]:
    """One of the workloads and one of the mixes, where energy was measured; serial copies cost what one costs."""
    for unit in dict.fromkeys(cell.unit for cell in cells if cell.unit):
        yield from _of_unit(unit, [cell for cell in cells if cell.unit == unit])


def _of_unit(unit: str, cells: Sequence[Cell]) -> Iterator[Sketch]:
    known = {cell.case for cell in cells if units.energy_of(unit) in cell.estimates and cell.sharing != SERIAL}
    ran = [cell for cell in cells if cell.case in known and not cell.is_derived]
    copies = {case: [cell for cell in ran if cell.case == case] for case in cases_in(ran) if not case.is_mix}
    mixes = [cell for cell in ran if cell.case.is_mix]
    work, per_one = units.format_unit(unit), f"energy per {units.one_in_words(unit)}"
    caption = f"Energy of the whole GPU over the {work} of all jobs, idle power included. {BARS_CAPTION}"
    if copies:
        panels = [(case.label, by_degree(mine, _bar)) for case, mine in copies.items()]
        paint = partial(_paint, panels, modes_in([cell for mine in copies.values() for cell in mine]), unit)
        yield Sketch(name=per_one, title=per_one.capitalize(), caption=caption, section="Energy", paint=paint)
    if mixes:
        paint = partial(_paint, [("", by_case(mixes, _bar))], modes_in(mixes), unit)
        name, title = f"{per_one} mixes", f"{per_one.capitalize()} of the mixes"
        yield Sketch(name=name, title=title, caption=caption, section="Energy", paint=paint)


def _bar(cell: Cell) -> Bar:
    return bar_of(cell, cell.estimates.get(units.energy_of(cell.unit)))


def _paint(contents: Sequence[tuple[str, Groups]], modes: Sequence[Mode], unit: str) -> Figure:
    contents, prefix = _in_one_unit(contents)
    figure, panels = panels_of(len(contents), 2.9, most_bars=max(num_bars(groups) for _, groups in contents))
    for axes, (title, groups) in zip(panels, contents, strict=True):
        grouped_bars(axes, groups)
        set_title(axes, title)
        axes.set_ylabel(f"{prefix}{JOULE} per {units.one_in_words(unit)}")
    add_legend(figure, legend_of(modes))
    return figure


def _in_one_unit(contents: Sequence[tuple[str, Groups]]) -> tuple[list[tuple[str, Groups]], str]:
    """Return the panels with energies in one unit, and its prefix."""
    bars = [bar for _, groups in contents for _, members in groups for bar in members]
    scale, prefix = prefix_of(estimate.median for bar in bars for estimate in bar.estimates if estimate is not None)

    def in_unit(bar: Bar) -> Bar:
        return dataclasses.replace(bar, estimates=tuple(each and scaled(each, scale) for each in bar.estimates))

    scaled_groups = [
        (title, [(label, [in_unit(bar) for bar in members]) for label, members in groups]) for title, groups in contents
    ]
    return list(scaled_groups), prefix
