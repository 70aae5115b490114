"""Figures of a row from samples, by the `Field.summary` of each quantity."""

from __future__ import annotations

import itertools
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from pipeline.base.domain import work_units
from pipeline.base.domain.samples import Sample, Summary
from pipeline.observe.fields import ENERGY, POWER, Fields, name_figure

Window = tuple[int, int]
"""From when to when something was measured, in monotonic ns."""
Reading = tuple[int, float]
Readings = Mapping[tuple[str, str], Sequence[Reading]]
"""Instants and values of one subject, in order, by listener and quantity."""
Subject = tuple[int | None, int | None]
"""Index of a job or id of a GPU instance, and `WHOLE`, the device or machine, without either."""
WHOLE: Subject = (None, None)
_EDGE, _GAP = 2, 3
"""A figure needs a reading within the first number of intervals of each edge, and no gap above the second."""


def measure_seconds(window: Window) -> float:
    """Return the length of a window."""
    return (window[1] - window[0]) / 1e9


def group_by_subject(samples: Iterable[Sample]) -> Mapping[Subject, Readings]:
    """Group the readings by subject."""
    by_subject: dict[Subject, dict[tuple[str, str], list[Reading]]] = defaultdict(lambda: defaultdict(list))
    for sample in samples:
        for name, value in sample.values.items():
            by_subject[sample.job, sample.gi_id][sample.source, name].append((sample.t_ns, value))
    return by_subject


def compute_figures(
    read: Readings,
    fields: Fields,
    windows: Sequence[Window],
    absent: dict[str, str] | None = None,
    *,
    has_peaks: bool = True,
) -> dict[str, float]:
    """Compute the figures of one subject over its windows, each from the best listener that has it.

    `absent` receives the reason for each missing figure of which there is some reading. Without `has_peaks`, a peak is
    missing, because it may be that of more jobs.
    """
    metrics: dict[str, float] = {}
    reasons: dict[str, str] = {}
    for source, field in fields:
        name = name_figure(field)
        readings_of = read.get((source, field.name), ())
        if name is None or name in metrics or field.summary is None or not readings_of:
            continue
        if field.summary is Summary.PEAK and not has_peaks:
            reasons.setdefault(name, "the launch has more jobs")
            continue
        try:
            if (value := _summarise(field.summary, readings_of, windows, fields.get_interval_ns(source))) is not None:
                metrics[name] = value
        except _NotCoveredError as error:
            reasons.setdefault(name, f"{error} ({source})")
    if absent is not None:
        absent.update({name: reason for name, reason in reasons.items() if name not in metrics})
    return metrics


def find_first_gpu_use_ns(read: Readings, fields: Fields, start_ns: int) -> int | None:
    """Return when a job was first seen on the GPU after an instant; `None` if it never was."""
    first = [
        next((t_ns for t_ns, _ in read.get((source, field.name), ()) if t_ns >= start_ns), None)
        for source, field in fields
        if field.is_live and fields.is_of_device(source, None)
    ]
    return min((t_ns for t_ns in first if t_ns is not None), default=None)


def derive_energy(
    metrics: Mapping[str, float], windows: Sequence[Window], idle_w: float | None, rates: Mapping[str, float]
) -> dict[str, float]:
    """Derive figures from a device's energy: above its idle power, and per unit of work at a rate per second."""
    if ENERGY not in metrics:
        return {}
    total_s = sum(measure_seconds(window) for window in windows)
    derived = {}
    if idle_w is not None:
        derived["power_idle_w"] = idle_w
        derived["energy_above_idle_j"] = metrics[ENERGY] - idle_w * total_s
    for unit, rate in rates.items():
        if rate:
            derived[work_units.energy_of(unit)] = metrics[ENERGY] / (total_s * rate)
            if idle_w is not None:
                derived[work_units.energy_above_idle_of(unit)] = derived["energy_above_idle_j"] / (total_s * rate)
    return derived


def read_first_power_w(samples: Iterable[Sample], fields: Fields) -> float | None:
    """Return the device's power in the first sample of the best listener, which is before any job."""
    for source, field in fields:
        if name_figure(field) == POWER:
            first = next((s.values for s in samples if s.source == source and s.is_of_whole), {})
            if field.name in first:
                return first[field.name]
    return None


class _NotCoveredError(Exception):
    """Readings that do not cover a window."""


def _summarise(summary: Summary, read: Sequence[Reading], windows: Sequence[Window], asked_ns: int) -> float | None:
    """Summarise a quantity over the windows; `None` without any window."""
    if summary is Summary.PEAK:
        # Nothing but 0: no sample met the jobs, which may be gone at once, out of memory.
        return max((value for _, value in read), default=0.0) or None
    inside = [[(t_ns, value) for t_ns, value in read if begin <= t_ns <= end] for begin, end in windows]
    if not windows:
        return None
    if not any(inside):
        raise _NotCoveredError("no reading in the window")
    interval_ns = _find_interval_ns(read, asked_ns)
    for window in windows:
        # A mean since the reading before covers the time before its own instant, too.
        _check_coverage(read, window, interval_ns, at_begin=_EDGE + (summary is Summary.RATE))
    if summary is Summary.GROWTH:
        return sum(_measure_growth(*pair) for pair in zip(inside, windows, strict=True))
    if summary is Summary.RATE:
        return _average_rate(inside)
    values = [value for readings_inside in inside for _, value in readings_inside]
    return max(values) if summary is Summary.MAX else statistics.fmean(values)


def _check_coverage(read: Sequence[Reading], window: Window, interval_ns: int, at_begin: int) -> None:
    begin, end = window
    nearest = [min(abs(t_ns - edge) for t_ns, _ in read) for edge in window]
    for distance_ns, most, edge in zip(nearest, (at_begin, _EDGE), ("start", "end"), strict=True):
        if distance_ns > most * interval_ns:
            raise _NotCoveredError(f"no reading within {distance_ns / 1e9:.3g} s of the {edge} of the window")
    for (before_ns, _), (after_ns, _) in itertools.pairwise(read):
        if after_ns > begin and before_ns < end and after_ns - before_ns > _GAP * interval_ns:
            raise _NotCoveredError(f"no reading for {(after_ns - before_ns) / 1e9:.3g} s of the window")


def _measure_growth(inside: Sequence[Reading], window: Window) -> float:
    """Return the growth of a counter in a window: between the readings inside, and at that rate up to the edges.

    A reading beyond an edge would lower it: there, jobs have not begun, or are told to stop.
    """
    if len(inside) < 2:
        raise _NotCoveredError("only one reading in the window")
    if any(later < earlier for (_, earlier), (_, later) in itertools.pairwise(inside)):
        raise _NotCoveredError("the counter was reset in the window")
    (first_ns, first), (last_ns, last) = inside[0], inside[-1]
    return (last - first) / (last_ns - first_ns) * (window[1] - window[0])


def _average_rate(inside: Sequence[Sequence[Reading]]) -> float | None:
    """Average readings that are means since the reading before, over the times between readings inside a window."""
    grown = seconds = 0.0
    for readings_inside in inside:
        for (before_ns, _), (t_ns, value) in itertools.pairwise(readings_inside):
            grown += value * (t_ns - before_ns) / 1e9
            seconds += (t_ns - before_ns) / 1e9
    return grown / seconds if seconds else None


def _find_interval_ns(read: Sequence[Reading], asked_ns: int) -> int:
    """Return the time between two readings: as configured, or up to twice that for a slower source."""
    gaps_ns = [after_ns - before_ns for (before_ns, _), (after_ns, _) in itertools.pairwise(read)]
    usual_ns = int(statistics.median(gaps_ns)) if gaps_ns else asked_ns
    return min(max(usual_ns, asked_ns), 2 * asked_ns) if asked_ns else usual_ns
