"""Quantities of listeners and their samples. `t_ns` is CLOCK_MONOTONIC, as everywhere."""

from __future__ import annotations

import enum
from dataclasses import KW_ONLY, dataclass
from typing import Literal, get_args

MIN_INTERVAL_MS = 200
"""Between two readings of a listener: sensors do not change faster, and reading them costs what the jobs need."""

THROTTLED = "throttled_ratio"
"""Figure of a device: the share of the window in which power or heat held its clocks down."""

Panel = Literal["activity", "memory"]
"""Panels of the report's figure over time: shares between 0 and 1, and MiB."""


class Summary(enum.StrEnum):
    """The figure that the samples of a quantity become in the row of their group or job."""

    MEAN = "mean"
    """Of the samples inside the measured windows."""
    MAX = "max"
    """Of the samples inside the measured windows."""
    PEAK = "peak"
    """The highest of the whole life of the group: memory peaks while models are built and kernels are tuned, too."""
    RATE = "rate"
    """Of a mean since the sample before: that from the first to the last sample inside the measured windows."""
    GROWTH = "growth"
    """How much a counter grew in the measured windows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """The drawing of a quantity: in the timeline, and in the report's figure over time.

    Attributes:
        panel: of the report's figure; timeline only without.
        title: in that panel.
        unless: name of the quantity that says the same more finely: where it was read, the report does not draw this.
    """

    panel: Panel | None = None
    title: str = ""
    unless: str | None = None

    def __post_init__(self) -> None:
        if self.panel not in (None, *get_args(Panel)):
            raise ValueError(f"panel={self.panel!r} must be one of {', '.join(get_args(Panel))}")


@dataclass(frozen=True, slots=True)
class Field:
    """One quantity of a listener, and what becomes of its samples wherever they are shown.

    Attributes:
        source_id: how the source names it (NVML function, column of nvidia-smi, psutil attribute, DCGM field id).
        name: our name, which ends in its unit (`power_w`, `memory_used_mib`).
        unit: the unit in words.
        scale: factor from the source's unit to ours.
        summary: what the row has of it; nothing without.
        figure: its name in the row, if not that with the summary before its unit (`power_mean_w`), or, of a rate or
            growth, that itself.
        title: of that figure in the report's tables, which leave out one without.
        column: head of that figure in the table that a study ends with, which leaves out one without.
        chart: how it is drawn; not at all without.
        is_live: whether the live view shows it of a job, as its memory.
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
    """Every quantity of one listener.

    Attributes:
        source: name of the listener.
        rank: of two listeners that give the same figure or series, the one of the higher rank is shown.
        of_machine: whether its samples without a job are of the machine, not of the device.
        interval_ms: between two samples, as it was asked for; 0 if it is not known.
    """

    source: str
    fields: tuple[Field, ...]
    rank: int = 0
    of_machine: bool = False
    interval_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One reading of a source at one instant. Quantities that could not be read are absent, never 0.

    Attributes:
        values: field name to value, in the field's unit.
        job: index of the job it belongs to, or `None` for the device or the machine.
        gi_id: GPU instance that was read, or `None` for the whole device.
    """

    source: str
    t_ns: int
    values: dict[str, float]
    job: int | None = None
    gi_id: int | None = None

    @property
    def is_of_whole(self) -> bool:
        return self.job is None and self.gi_id is None
