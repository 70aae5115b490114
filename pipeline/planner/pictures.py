"""Pictures in the style of the report's figures: a plan by slices, a transition over time, and methods by load."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from pipeline.base.domain.sharing_modes import MIG, MIG_MPS, MODES, SharingMode
from pipeline.base.system.errors import ConfigError
from pipeline.base.system.words import natural_key
from pipeline.planner import deployment, input_files
from pipeline.planner.deployment import Gpu, Instance, Plan, total_per_s
from pipeline.planner.transition.graph import assign_times
from pipeline.planner.transition.transition_steps import KINDS, Step, Transition
from pipeline.report.figures.bar_charts import make_legend
from pipeline.report.figures.drawing import (
    COLUMN,
    FAINT,
    INK,
    LEAST_CHARACTER,
    LEAST_FONT,
    PAPER,
    SERIES_COLOURS,
    WARNING,
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
_MOST_LINES = {False: 2, True: 3}
"""The most lines of words in an instance, in the width of the text and of a column."""
_ROW_HEIGHT = {2: 0.52, 3: 0.66}
"""The height of a row by its most lines. Unit: inches."""
_GAP = 0.16  # between rows, as a share of a row
_LOAD_HEIGHT, _MEMORY_HEIGHT = 0.17, 0.09


_DRAWN_SHARE = 0.93
"""The share of the width that labels, slices and bars have, without margins."""
_CENTRED: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": LEAST_FONT}

_Row = tuple[Gpu, list[str]]
"""A GPU, and the names of all GPUs with the same instances."""
_COLOURS = dict(zip(KINDS, (light for light, _ in SERIES_COLOURS), strict=True))
_LANE, _TALLEST = 0.15, 18.0  # inches
_LEAST_LINE = 0.12
"""The least height of a lane with words, and of a label of a GPU. Unit: inches."""
_LONGEST_LABEL = 14
_LINE_STYLES = [
    (light, dashes, marker) for dashes in ("-", "--") for (light, _), marker in zip(SERIES_COLOURS, "os^D", strict=True)
]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Box:
    """A drawn instance: start and width in memory slices; load and memory as shares, if known."""

    instance: Instance
    start: float
    width: float
    load: float | None
    memory: float | None


def sketch_gpus(plan: Plan, name: str) -> Sketch:
    """Sketch the GPUs of a plan, with equal GPUs in one row."""
    rows = _group_gpus(plan.deployment.gpus)
    return Sketch(
        name=name,
        title="Services on the slices of each GPU",
        caption="Each row shows the memory slices of a GPU, or of several GPUs with the same instances. The bar at the "
        "bottom of an instance is the load of the service (its rate divided by the planned throughput of all its "
        "instances); the thin bar is the memory in use of the instance. Unknown figures have no bar. Hatched slices "
        "belong to no instance. "
        "Services that share an undivided GPU are drawn side by side.",
        section="Plan",
        paint=partial(_paint_gpus, plan, rows),
    )


def _group_gpus(gpus: Sequence[Gpu]) -> list[_Row]:
    alike: dict[Gpu, list[str]] = {}
    for number, gpu in enumerate(gpus):
        alike.setdefault(replace(gpu, id=None), []).append(str(number) if gpu.id is None else gpu.id)
    return list(alike.items())


def _paint_gpus(plan: Plan, rows: Sequence[_Row]) -> Figure:
    number, width = 1 if len(rows) <= _ONE_PANEL else 2, find_widest()
    per_panel = -(-len(rows) // number) or 1
    is_narrow = width <= COLUMN
    columns, num_lines = 1 if is_narrow else number, _MOST_LINES[is_narrow]
    figure = new_figure(width, (0.9 + _ROW_HEIGHT[num_lines] * per_panel) * number / columns)
    panels = figure.subplots(number // columns, columns, squeeze=False).ravel()
    totals = deployment.total_per_s(plan.deployment.gpus)
    loads = {s.name: s.rate_per_s / totals[s.name] for s in plan.services if totals.get(s.name)}
    names_model = len({gpu.model for gpu, _ in rows}) > 1
    for place, axes in enumerate(panels):
        members = rows[place * per_panel : (place + 1) * per_panel]
        labels = [_label_row(row, names_model=names_model) for row in members]
        axes.set_yticks(range(len(members)), labels, fontsize=LEAST_FONT)
        longest = max((len(line) for label in labels for line in label.split("\n")), default=0)
        characters = width / columns * _DRAWN_SHARE / LEAST_CHARACTER - longest
        _draw_panel(axes, members, per_panel, loads, characters, num_lines)
    used = {_find_mode(gpu, instance) for gpu, _ in rows for instance in gpu.instances}
    if used:
        add_legend(figure, make_legend(sorted(used, key=lambda mode: mode.order)))
    if not rows:
        say_missing(panels[0], "the plan has no GPU")
    return figure


def _draw_panel(
    axes: Axes, rows: Sequence[_Row], num_rows: int, loads: dict[str, float], characters_a_width: float, num_lines: int
) -> None:
    widest = max((_count_slices(gpu) for gpu, _ in rows), default=1)
    for position, (gpu, _) in enumerate(rows):
        _draw_row(axes, gpu, position, loads, characters_a_width / widest, num_lines)
    axes.set_xlim(0, widest)
    axes.set_ylim(num_rows - 0.5, -0.5)
    axes.set_xticks(range(widest + 1))
    axes.tick_params(axis="y", length=0)
    knows_memory = any(instance.memory_mib is not None for gpu, _ in rows for instance in gpu.instances)
    words = f"memory slice (bar: load of the service{', black: memory in use' if knows_memory else ''})"
    axes.set_xlabel(wrap_lines(words, count_characters(axes)))
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)


def _draw_row(
    axes: Axes, gpu: Gpu, position: int, loads: dict[str, float], characters_a_slice: float, num_lines: int
) -> None:
    from matplotlib.patches import Rectangle

    height = 1 - _GAP
    top = position - height / 2
    # Hatched background: slices without an instance.
    ground = Rectangle(
        (0, top), _count_slices(gpu), height, facecolor="none", edgecolor=FAINT, hatch="///", linewidth=0.4
    )
    axes.add_patch(ground)
    for box in _make_boxes(gpu, loads):
        mode = _find_mode(gpu, box.instance)
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
        words = _label_box(box, room, num_lines)
        axes.text(box.start + box.width / 2, middle, words, color=INK, linespacing=1.0, **_CENTRED)
    for slice_ in range(1, _count_slices(gpu)):
        axes.plot([slice_, slice_], [top + height, top + height + 0.05], color=FAINT, linewidth=0.6)


def _make_boxes(gpu: Gpu, loads: dict[str, float]) -> list[_Box]:
    if gpu.mode != "mig":
        width = _count_slices(gpu) / max(len(gpu.instances), 1)
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


def _label_box(box: _Box, room: int, num_lines: int) -> str:
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


def _label_row(row: _Row, *, names_model: bool) -> str:
    gpu, names = row
    label = clean_text(f"GPU {names[0]}", 14) if len(names) == 1 else f"{len(names)} GPUs"
    return f"{label}\n{clean_text(gpu.model.removeprefix('simulated_'), 16)}" if names_model else label


def _count_slices(gpu: Gpu) -> int:
    try:
        return deployment.mig_gpu(gpu).memory_slices
    except ConfigError:
        return 8


def _find_mode(gpu: Gpu, instance: Instance) -> SharingMode:
    if gpu.mode == "mig":
        return MIG_MPS if instance.processes > 1 else MIG
    return MODES[gpu.mode]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bar:
    """A step on one of its GPUs; concurrent steps have different lanes."""

    step: Step
    gpu: str
    begins: float
    ends: float
    is_source: bool
    lane: int = 0


def sketch_transition(transition: Transition, name: str) -> Sketch:
    """Sketch the steps of a transition."""
    is_timed = bool(transition.durations_s)
    steps = transition.steps if is_timed else assign_times(transition.steps, dict.fromkeys(KINDS, 1.0))
    unit = "Times are computed from --duration" if is_timed else "Without --duration, all steps have equal length"
    return Sketch(
        name=name,
        title="The transition, GPU by GPU",
        caption="Each bar is a step on a GPU, at its earliest time; a migration is drawn on both GPUs, with an open "
        f"bar on the GPU that it leaves. {unit}. Below: the least ratio of throughput to required throughput over all "
        "services, which must not fall below 1.",
        section="Transition",
        paint=partial(_paint_transition, transition, steps, "s" if is_timed else "steps"),
    )


def _paint_transition(transition: Transition, steps: Sequence[Step], unit: str) -> Figure:
    bars = _make_bars(steps)
    gpus = sorted({bar.gpu for bar in bars}, key=natural_key)
    lanes = {gpu: 1 + max(bar.lane for bar in bars if bar.gpu == gpu) for gpu in gpus}
    num_lanes = sum(lanes.values()) + 0.6 * len(gpus)
    lane = min(_LANE, _TALLEST / max(num_lanes, 1))
    height = 0.3 + lane * num_lanes
    figure = new_figure(find_widest(), height + 1.9)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[height, 1.2])
    if not bars:
        say_missing(above, "nothing changes")
        say_missing(below, "nothing changes")
        return figure
    end = max(bar.ends for bar in bars)
    _draw_gpus(above, bars, gpus, lanes, end, lane_height=lane)
    _draw_least(below, transition, steps, end)
    below.set_xlabel(f"time since the first step began ({unit})")
    add_legend(figure, _make_kind_legend({bar.step.kind for bar in bars}))
    return figure


def _make_bars(steps: Sequence[Step]) -> list[_Bar]:
    bars: list[_Bar] = []
    free: dict[str, list[float]] = {}  # time at which each lane of a GPU is free
    for step in sorted(steps, key=lambda step: (step.begins_s or 0.0, step.ends_s or 0.0)):
        begins, ends = step.begins_s or 0.0, step.ends_s or 0.0
        for gpu in dict.fromkeys((step.gpu, step.source_gpu)):
            if gpu is None:
                continue
            lanes = free.setdefault(gpu, [])
            lane = next((number for number, until in enumerate(lanes) if until <= begins), len(lanes))
            lanes[lane : lane + 1] = [ends]
            bars.append(_Bar(step=step, gpu=gpu, begins=begins, ends=ends, is_source=gpu != step.gpu, lane=lane))
    return bars


def _draw_gpus(
    axes: Axes, bars: Sequence[_Bar], gpus: Sequence[str], lanes: dict[str, int], end: float, *, lane_height: float
) -> None:
    labels = [clean_text(f"GPU {gpu}", _LONGEST_LABEL) for gpu in gpus]
    characters = find_widest() * _DRAWN_SHARE / LEAST_CHARACTER - max(map(len, labels))
    tops, top = {}, 0.0
    for gpu in gpus:
        tops[gpu] = top
        top += lanes[gpu] + 0.6
    for bar in bars:
        colour = _COLOURS[bar.step.kind]
        at, length = tops[bar.gpu] + bar.lane + 0.5, bar.ends - bar.begins
        style: dict[str, Any] = {"color": colour, "edgecolor": PAPER}
        if bar.is_source:
            style = {"facecolor": PAPER, "edgecolor": colour}
        axes.barh(at, length, 0.86, left=bar.begins, linewidth=0.7, **style)
        words, room = _label_bar(bar), int(length / end * characters) if end else 0
        if lane_height >= _LEAST_LINE and room >= min(len(words), 7):
            ink = colour if bar.is_source else PAPER
            axes.text(bar.begins + length / 2, at, clean_text(words, max(room, 4)), color=ink, **_CENTRED)
    for gpu in gpus[1:]:
        axes.axhline(tops[gpu] - 0.3, color=FAINT, linewidth=0.3)
    middles = [tops[gpu] + lanes[gpu] / 2 for gpu in gpus]
    shown = _space_out(middles, _LEAST_LINE / lane_height)
    axes.set_yticks([middles[n] for n in shown], [labels[n] for n in shown], fontsize=LEAST_FONT)
    axes.set_ylim(top, -0.3)
    axes.set_xlim(0, end or 1)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)


def _space_out(places: Sequence[float], distance: float) -> list[int]:
    """Return the numbers of those ascending places that are at least this distance apart, beginning with the first."""
    numbers: list[int] = []
    for number, place in enumerate(places):
        if not numbers or place - places[numbers[-1]] >= distance:
            numbers.append(number)
    return numbers


def _label_bar(bar: _Bar) -> str:
    if bar.step.instance is not None:
        return bar.step.instance.service
    added, gone = bar.step.made, bar.step.destroyed
    return " ".join(slice_.profile.partition(".")[0] for slice_ in (added or gone))


def _draw_least(axes: Axes, transition: Transition, steps: Sequence[Step], end: float) -> None:
    times, shares = find_least_shares(transition, steps)
    if not shares:
        say_missing(axes, "no service has a required throughput")
        return
    axes.step([*times, end], [*shares, shares[-1]], where="post", color=_COLOURS["repartition"], linewidth=1.1)
    axes.axhline(1.0, color=WARNING, linewidth=0.8, linestyle="--")
    axes.set_ylim(0, max(1.2, *shares) * 1.05)
    axes.set_ylabel("least share\nof required")
    axes.grid(axis="y")


def find_least_shares(transition: Transition, steps: Sequence[Step]) -> tuple[list[float], list[float]]:
    """Return times, and the least share from each time on; empty if no service has a required throughput.

    A service counts from the end of the step that starts it to the start of the step that ends it.
    """
    required = transition.requirements
    has = {name: total for name, total in total_per_s(transition.today.gpus).items() if name in required}
    changes: list[tuple[float, str, float]] = []
    for step in steps:
        if step.instance is None or step.instance.service not in required:
            continue
        worth = step.instance.throughput_per_s or 0.0
        if step.kind == "migrate" and step.source is not None:
            worth -= step.source.throughput_per_s or 0.0
        time_s = step.begins_s if step.kind == "delete" else step.ends_s
        changes.append((time_s or 0.0, step.instance.service, -worth if step.kind == "delete" else worth))
    if not required:
        return [], []
    times, shares = [0.0], [min(has[name] / required[name] for name in required)]
    for time_s, group in itertools.groupby(sorted(changes), key=lambda change: change[0]):
        for _, service, change in group:  # changes at the same time count together
            has[service] += change
        times.append(time_s)
        shares.append(min(has[name] / required[name] for name in required))
    return times, shares


def _make_kind_legend(kinds: set[str]) -> list[Any]:
    from matplotlib.patches import Patch

    return [Patch(facecolor=_COLOURS[kind], label=kind) for kind in KINDS if kind in kinds]


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """The GPUs of a method; `num_gpus` is `None` without a plan."""

    method: str
    status: str
    num_gpus: int | None = None
    bound: float | None = None
    gap: float | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """All methods at a load, a multiple of the rates."""

    load: float
    methods: tuple[Method, ...]
    bound: float | None = None


def read_loads(content: Mapping[str, Any], origin: str) -> tuple[Load, ...]:
    """Read the output of `compare --json`, in the order of the loads; ConfigError if it is invalid."""
    loads: tuple[Load, ...] = input_files.decode(tuple[Load, ...], content.get("loads"), f"{origin}: loads")
    return tuple(sorted(loads, key=lambda load: load.load))


def sketch_loads(loads: Sequence[Load], name: str) -> Sketch:
    """Sketch GPUs by load, one line per method."""
    proved = all(row.status == "optimal" for load in loads for row in load.methods[:1])
    exact = "the grey line is the lower bound, because some plans of the exact method are not proved"
    if proved:
        exact = "the GPUs of the exact method are proved to be the fewest"
    return Sketch(
        name=name,
        title="GPUs by load",
        caption="GPUs that each method needs to serve a multiple of the given rates within the same objectives; "
        f"{exact}. A gap in a line means that the method found no plan.",
        section="Methods",
        paint=partial(_paint_loads, loads, proved),
    )


def _paint_loads(loads: Sequence[Load], is_proved: bool) -> Figure:
    from matplotlib.ticker import MaxNLocator

    width = find_widest()
    figure = new_figure(width, 0.5 * width + 0.8)
    axes = figure.subplots()
    names = list(dict.fromkeys(row.method for load in loads for row in load.methods))
    x = [load.load for load in loads]
    handles = []
    for number, name in enumerate(names):
        colour, dashes, marker = _LINE_STYLES[number % len(_LINE_STYLES)]
        counts = [{row.method: row.num_gpus for row in load.methods}.get(name) for load in loads]
        num_gpus = [float("nan") if count is None else float(count) for count in counts]
        # Markers are open and of several sizes, because lines overlap.
        style: dict[str, Any] = {"color": colour, "linestyle": dashes, "marker": marker, "linewidth": 1.2}
        style |= {"markersize": max(9 - number, 3), "markerfacecolor": "none"}
        handles += axes.plot(x, num_gpus, label=name, **style)
    if not is_proved:
        bounds = [float("nan") if load.bound is None else load.bound for load in loads]
        handles += axes.plot(x, bounds, color=FAINT, linewidth=1, label="lower bound")
    axes.set_xlabel("load (times the given rates)")
    axes.set_ylabel("GPUs")
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(axis="y")
    add_legend(figure, handles)
    return figure
