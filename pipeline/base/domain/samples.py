"""Quantities of listeners, their samples, and series in bounded memory.

`t_ns` is CLOCK_MONOTONIC, as in all modules.
"""

from __future__ import annotations

import enum
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import KW_ONLY, dataclass
from typing import Literal, get_args

MIN_INTERVAL_MS = 200
"""Minimum interval of a listener, because sensors do not change faster and reading them takes time from the jobs."""

SAMPLED_S = 2.0
"""Length of the shortest slice that has figures from samples, because power and activity are means over up to 1 s."""

POWER = "power_w"
"""Quantity of a device from which idle power is computed."""
THROTTLED = "throttled_ratio"
"""Figure of a device: the share of the window in which power or temperature limited its clocks."""
NUM_GPU_PROCESSES = "gpu_num_processes"
"""Quantity of a job: its processes in the driver's list of processes on the GPU."""

Panel = Literal["activity", "memory"]
"""Panels of the figure over time in the report: shares between 0 and 1, and MiB."""


class Summary(enum.StrEnum):
    """The figure of a group or job that is computed from the samples of a quantity."""

    MEAN = "mean"
    """The mean of the samples within the measured windows."""
    MAX = "max"
    """The maximum of the samples within the measured windows."""
    PEAK = "peak"
    """The maximum over the complete run of the group; memory may peak while models are built or kernels are tuned."""
    RATE = "rate"
    """The mean of samples each of which is a mean since the previous sample, within the measured windows."""
    GROWTH = "growth"
    """The growth of a counter within the measured windows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """The drawing of a quantity, in the timeline and in the report's figure over time.

    Attributes:
        panel: panel of the report's figure; if missing, only the timeline shows the quantity.
        title: title of the quantity in this panel.
        unless: name of a more precise quantity; if that quantity was read, the report does not draw this one.
    """

    panel: Panel | None = None
    title: str = ""
    unless: str | None = None

    def __post_init__(self) -> None:
        if self.panel not in (None, *get_args(Panel)):
            raise ValueError(f"panel={self.panel!r} must be one of {', '.join(get_args(Panel))}")


@dataclass(frozen=True, slots=True)
class Field:
    """One quantity of a listener, and how its samples are summarised and shown.

    Attributes:
        source_id: name in the source (NVML function, column of nvidia-smi, psutil attribute, DCGM field id).
        name: name in the project, which ends in the unit (`power_w`, `memory_used_mib`).
        unit: the unit as text.
        scale: factor from the source's unit to `unit`.
        summary: summary of the samples in a row; if missing, the row has no figure of this quantity.
        figure: name of the figure in the row; default: `name` with the summary before the unit (`power_mean_w`) or, for
            a rate or growth, `name`.
        title: title of the figure in the report's tables; if missing, the tables omit the figure.
        column: column head of the figure in the final table of a study; if missing, the table omits the figure.
        chart: drawing of the quantity; if missing, it is not drawn.
        is_live: whether the live view shows the quantity for each job, such as the memory of a job.
    """

    source_id: str
    name: str
    unit: str
    _: KW_ONLY
    scale: float = 1.0
    summary: Summary | None = None
    figure: str = ""
    title: str = ""
    column: str = ""
    chart: Chart | None = None
    is_live: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldTable:
    """All quantities of one listener.

    Attributes:
        source: name of the listener.
        rank: priority: if two listeners provide the same figure or series, the higher rank is shown.
        of_machine: whether samples without a job belong to the machine, not to the device.
        interval_ms: the configured sampling interval; 0 if unknown.
    """

    source: str
    fields: tuple[Field, ...]
    rank: int = 0
    of_machine: bool = False
    interval_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One reading of a source. Quantities that could not be read are missing, never 0.

    Attributes:
        values: values by field name, in the field's unit.
        job: index of the job that the sample belongs to, or `None` for the device or the machine.
        gi_id: GPU instance that was read, or `None` for the complete device.
    """

    source: str
    t_ns: int
    values: dict[str, float]
    job: int | None = None
    gi_id: int | None = None


MOST_POINTS = 10_000
"""Maximum number of points kept. MLflow gets fewer (`tracking.series_points`); the job's files contain all points."""

Point = tuple[int, int, float]
"""Step, time in ns, value."""


class PointSeries:
    """The points of a series in order of arrival: all of them, or every k-th and the last.

    Args:
        points: the first points.
        most: maximum number of points kept. Each time it is exceeded, every second point is dropped.
    """

    __slots__ = ("_last", "_most", "_num", "_steps", "_stride", "_t_ns", "_values")

    def __init__(self, points: Iterable[Point] = (), most: int = MOST_POINTS) -> None:
        self._steps, self._t_ns, self._values = array("q"), array("q"), array("d")
        self._most, self._stride, self._num = most, 1, 0
        self._last: Point | None = None
        for point in points:
            self.append(*point)

    def append(self, step: int, t_ns: int, value: float) -> None:
        """Add a point, whose `step` and `t_ns` have at most 64 bits."""
        if self._num % self._stride:
            self._last = (step, t_ns, value)
        else:
            self._steps.append(step)
            self._t_ns.append(t_ns)
            self._values.append(value)
            self._last = None
        self._num += 1
        if len(self._values) > self._most:
            self._steps, self._t_ns, self._values = self._steps[::2], self._t_ns[::2], self._values[::2]
            self._stride *= 2
            if (self._num - 1) % self._stride:
                self._last = (step, t_ns, value)

    @property
    def num_points(self) -> int:
        """Number of points received, kept or not."""
        return self._num

    @property
    def newest(self) -> Point:
        """The point received last; `IndexError` if there is none."""
        return self._last or (self._steps[-1], self._t_ns[-1], self._values[-1])

    def __len__(self) -> int:
        return len(self._values) + (self._last is not None)

    def __iter__(self) -> Iterator[Point]:
        yield from zip(self._steps, self._t_ns, self._values, strict=True)
        if self._last is not None:
            yield self._last


def thin_points(points: Iterable[Point], most: int) -> list[Point]:
    """Return at most `most` of the points: every k-th, the first and the last among them."""
    series = list(points)
    if len(series) <= most:
        return series
    stride = -(-(len(series) - 1) // max(1, most - 1))
    return [*series[:-1:stride], series[-1]]
