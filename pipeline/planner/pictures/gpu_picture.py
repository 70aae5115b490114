"""The GPUs of a plan, slice by slice: services, load and memory."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from pipeline.base.domain.sharing_modes import MIG, MIG_MPS, MODES, SharingMode
from pipeline.base.system.errors import ConfigError
from pipeline.planner import deployment
from pipeline.planner.deployment import Gpu, Instance, Plan
from pipeline.report.figures.bars import make_legend
from pipeline.report.figures.drawing import (
    COLUMN,
    FAINT,
    INK,
    LEAST_CHARACTER,
    LEAST_FONT,
    PAPER,
    Sketch,
    add_legend,
    clean_text,
    count_characters,
    find_widest,
    make_bar_style,
    new_figure,
    say_missing,
    wrap_lines,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ONE_PANEL = 14
"""The largest number of rows in one panel; more rows are drawn in two panels."""
_LINES = {False: 2, True: 3}
"""The most lines of words in an instance, in the width of the text and of a column."""
_ROW_HEIGHT = {2: 0.52, 3: 0.66}
"""The height of a row by its most lines. Unit: inches."""
_GAP = 0.16  # between rows, as a share of a row
_LOAD_HEIGHT, _MEMORY_HEIGHT = 0.17, 0.09


_DRAWN_SHARE = 0.93
"""The share of the width that labels and slices have, without margins."""

_Row = tuple[Gpu, list[str]]
"""A GPU, and the names of all GPUs with the same instances."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Box:
    """A drawn instance: start and width in memory slices; load and memory as shares, if known."""

    instance: Instance
    start: float
    width: float
    load: float | None
    memory: float | None


def sketch(plan: Plan, name: str) -> Sketch:
    """Sketch the GPUs of a plan, with equal GPUs in one row."""
    rows = _rows(plan.deployment.gpus)
    return Sketch(
        name=name,
        title="Services on the slices of each GPU",
        caption="Each row shows the memory slices of a GPU, or of several GPUs with the same instances. The bar at the "
        "bottom of an instance is the load of the service (its rate divided by the planned throughput of all its "
        "instances); the thin bar is the memory in use of the instance. Unknown figures have no bar. Hatched slices "
        "belong to no instance. "
        "Services that share an undivided GPU are drawn side by side.",
        section="Plan",
        paint=partial(_paint, plan, rows),
    )


def _rows(gpus: Sequence[Gpu]) -> list[_Row]:
    alike: dict[Gpu, list[str]] = {}
    for number, gpu in enumerate(gpus):
        alike.setdefault(replace(gpu, id=None), []).append(str(number) if gpu.id is None else gpu.id)
    return list(alike.items())


def _paint(plan: Plan, rows: Sequence[_Row]) -> Figure:
    number, width = 1 if len(rows) <= _ONE_PANEL else 2, find_widest()
    per_panel = -(-len(rows) // number) or 1
    is_narrow = width <= COLUMN
    columns, num_lines = 1 if is_narrow else number, _LINES[is_narrow]
    figure = new_figure(width, (0.9 + _ROW_HEIGHT[num_lines] * per_panel) * number / columns)
    panels = figure.subplots(number // columns, columns, squeeze=False).ravel()
    totals = deployment.total_per_s(plan.deployment.gpus)
    loads = {s.name: s.rate_per_s / totals[s.name] for s in plan.services if totals.get(s.name)}
    names_model = len({gpu.model for gpu, _ in rows}) > 1
    for place, axes in enumerate(panels):
        members = rows[place * per_panel : (place + 1) * per_panel]
        labels = [_label(row, names_model=names_model) for row in members]
        axes.set_yticks(range(len(members)), labels, fontsize=LEAST_FONT)
        longest = max((len(line) for label in labels for line in label.split("\n")), default=0)
        characters = width / columns * _DRAWN_SHARE / LEAST_CHARACTER - longest
        _panel(axes, members, per_panel, loads, characters, num_lines)
    used = {_mode(gpu, instance) for gpu, _ in rows for instance in gpu.instances}
    if used:
        add_legend(figure, make_legend(sorted(used, key=lambda mode: mode.order)))
    if not rows:
        say_missing(panels[0], "the plan has no GPU")
    return figure


def _panel(
    axes: Axes, rows: Sequence[_Row], num_rows: int, loads: dict[str, float], characters_a_width: float, num_lines: int
) -> None:
    widest = max((_slices(gpu) for gpu, _ in rows), default=1)
    for position, (gpu, _) in enumerate(rows):
        _row(axes, gpu, position, loads, characters_a_width / widest, num_lines)
    axes.set_xlim(0, widest)
    axes.set_ylim(num_rows - 0.5, -0.5)
    axes.set_xticks(range(widest + 1))
    axes.tick_params(axis="y", length=0)
    knows_memory = any(instance.memory_mib is not None for gpu, _ in rows for instance in gpu.instances)
    words = f"memory slice (bar: load of the service{', black: memory in use' if knows_memory else ''})"
    axes.set_xlabel(wrap_lines(words, count_characters(axes)))
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)


def _row(
    axes: Axes, gpu: Gpu, position: int, loads: dict[str, float], characters_a_slice: float, num_lines: int
) -> None:
    from matplotlib.patches import Rectangle

    height = 1 - _GAP
    top = position - height / 2
    # Hatched background: slices without an instance.
    ground = Rectangle((0, top), _slices(gpu), height, facecolor="none", edgecolor=FAINT, hatch="///", linewidth=0.4)
    axes.add_patch(ground)
    for box in _boxes(gpu, loads):
        mode = _mode(gpu, box.instance)
        frame = Rectangle((box.start, top), box.width, height, facecolor=PAPER, edgecolor=FAINT, linewidth=0.8)
        axes.add_patch(frame)
        bottom = top + height
        memory_style: dict[str, Any] = {"facecolor": INK, "edgecolor": "none"}
        for share, thick, bar_style in (
            (box.load, _LOAD_HEIGHT, make_bar_style(mode)),
            (box.memory, _MEMORY_HEIGHT, memory_style),
        ):
            if share is not None:
                bottom -= thick
                width = box.width * min(share, 1.0)
                axes.add_patch(Rectangle((box.start, bottom), width, thick * 0.86, **bar_style))
        strip = Rectangle((box.start, top), box.width, 0.07, facecolor=mode.colour, edgecolor="none")
        axes.add_patch(strip)
        room = int(characters_a_slice * box.width)
        middle = (top + 0.07 + top + height - _LOAD_HEIGHT - _MEMORY_HEIGHT) / 2
        style: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": LEAST_FONT, "linespacing": 1.0}
        axes.text(box.start + box.width / 2, middle, _words(box, room, num_lines), color=INK, **style)
    for slice_ in range(1, _slices(gpu)):
        axes.plot([slice_, slice_], [top + height, top + height + 0.05], color=FAINT, linewidth=0.6)


def _boxes(gpu: Gpu, loads: dict[str, float]) -> list[_Box]:
    if gpu.mode != "mig":
        width = _slices(gpu) / max(len(gpu.instances), 1)
        return [
            _Box(instance=i, start=number * width, width=width, load=loads.get(i.service), memory=None)
            for number, i in enumerate(gpu.instances)
        ]
    boxes = []
    for instance, (profile, start) in zip(gpu.instances, deployment.list_placed(gpu), strict=True):
        memory = None
        if instance.memory_mib is not None and profile.memory_mib is not None:
            memory = instance.memory_mib / profile.memory_mib
        load = loads.get(instance.service)
        boxes.append(_Box(instance=instance, start=start, width=profile.memory_slices, load=load, memory=memory))
    return boxes


def _words(box: _Box, room: int, num_lines: int) -> str:
    """Label an instance with profile, processes, service and load, as far as the text fits; a bar shows the load."""
    instance = box.instance
    who = instance.service if instance.processes == 1 else f"{instance.processes}x {instance.service}"
    full = "" if box.load is None else f" {box.load:.0%}"
    profile = "" if instance.profile is None else f"{instance.profile} "
    for text in (f"{profile}{who}{full}", f"{who}{full}"):
        if len(text) <= room:
            return text
    times = "" if instance.processes == 1 else f"{instance.processes}x"
    second = next((text for text in (f"{times}{full}".strip(), times) if len(text) <= room), "")
    if len(instance.service) <= room:
        return "\n".join(filter(None, (instance.service, second)))
    room = max(room, 2)
    name = _shorten(instance.service, room * (num_lines - bool(times)))
    num_parts = -(-len(name) // room)
    return "\n".join(filter(None, (times, *textwrap.wrap(name, -(-len(name) // num_parts)))))


def _shorten(name: str, room: int) -> str:
    """Shorten a name in the middle, because many names differ only at the end."""
    if len(name) <= room or room < 4:
        return clean_text(name, max(room, 4))
    tail = min(3, (room - 2) // 2)
    return f"{name[: room - 2 - tail]}..{name[-tail:]}"


def _label(row: _Row, *, names_model: bool) -> str:
    gpu, names = row
    label = clean_text(f"GPU {names[0]}", 14) if len(names) == 1 else f"{len(names)} GPUs"
    return f"{label}\n{clean_text(gpu.model.removeprefix('simulated_'), 16)}" if names_model else label


def _slices(gpu: Gpu) -> int:
    try:
        return deployment.mig_gpu(gpu).memory_slices
    except ConfigError:
        return 8


def _mode(gpu: Gpu, instance: Instance) -> SharingMode:
    if gpu.mode == "mig":
        return MIG_MPS if instance.processes > 1 else MIG
    return MODES[gpu.mode]
