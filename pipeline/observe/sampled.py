"""The figures of a row that come from samples: what `Field.summary` makes of each quantity."""

from __future__ import annotations

import itertools
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from pipeline.base import units
from pipeline.base.samples import Sample, Summary
from pipeline.observe.fields import ENERGY, POWER, Fields, figure_of

Window = tuple[int, int]
"""From when to when something was measured, in monotonic ns."""
Reading = tuple[int, float]
Readings = Mapping[tuple[str, str], Sequence[Reading]]
"""Instants and values of one subject, in order, by listener and quantity."""
Subject = tuple[int | None, int | None]
"""Index of a job or id of a GPU instance, and `WHOLE`, the device or machine, without either."""
WHOLE: Subject = (None, None)


def readings(samples: Iterable[Sample]) -> Mapping[Subject, Readings]:
    """What was read of each subject."""
    found: dict[Subject, dict[tuple[str, str], list[Reading]]] = defaultdict(lambda: defaultdict(list))
    for sample in samples:
        for name, value in sample.values.items():
            found[sample.job, sample.gi_id][sample.source, name].append((sample.t_ns, value))
    return found


def figures(read: Readings, fields: Fields, windows: Sequence[Window]) -> dict[str, float]:
    """The figures of one subject over its windows, each from the best listener that has it; the others are absent."""
    found: dict[str, float] = {}
    for source, field in fields:
        name = figure_of(field)
        if name is not None and name not in found and field.summary is not None:
            value = _summary(field.summary, read.get((source, field.name), ()), windows)
            if value is not None:
                found[name] = value
    return found


def first_gpu_use_ns(read: Readings, fields: Fields, start_ns: int) -> int | None:
    """When a job was first seen on the GPU after an instant, to the interval of sampling; `None` if it never was."""
    first = [
        next((t_ns for t_ns, _ in read.get((source, field.name), ()) if t_ns >= start_ns), None)
        for source, field in fields
        if field.is_live and fields.is_of_device(source, None)
    ]
    return min((t_ns for t_ns in first if t_ns is not None), default=None)


def energy(
    found: Mapping[str, float], windows: Sequence[Window], idle_w: float | None, rates: Mapping[str, float]
) -> dict[str, float]:
    """What follows from the energy of a device: above its idle power, and of one of each unit at a rate per second."""
    if ENERGY not in found:
        return {}
    total_s = sum(_seconds(window) for window in windows)
    derived = {}
    if idle_w is not None:
        derived["power_idle_w"] = idle_w
        derived["energy_above_idle_j"] = found[ENERGY] - idle_w * total_s
    for unit, rate in rates.items():
        if rate:
            derived[units.energy_of(unit)] = found[ENERGY] / (total_s * rate)
            if idle_w is not None:
                derived[units.energy_above_idle_of(unit)] = derived["energy_above_idle_j"] / (total_s * rate)
    return derived


def first_power_w(samples: Iterable[Sample], fields: Fields) -> float | None:
    """The power of the device in the first sample of the best listener that reads it, which is before any job."""
    for source, field in fields:
        if figure_of(field) == POWER:
            first = next((s.values for s in samples if s.source == source and s.is_of_whole), {})
            if field.name in first:
                return first[field.name]
    return None


def _summary(summary: Summary, read: Sequence[Reading], windows: Sequence[Window]) -> float | None:
    if summary is Summary.PEAK:
        # Nothing but 0: no sample met the jobs, which may be gone at once, out of memory.
        return max((value for _, value in read), default=0.0) or None
    if summary is Summary.GROWTH:
        return _growth(read, windows)
    if summary is Summary.RATE:
        return _rate(read, windows)
    inside = [value for window in windows for t_ns, value in read if window[0] <= t_ns <= window[1]]
    if not inside:
        return None
    return max(inside) if summary is Summary.MAX else statistics.fmean(inside)


def _growth(read: Sequence[Reading], windows: Sequence[Window]) -> float | None:
    """Of a counter over the windows, each by its rate between the first and the last reading inside.

    Jobs one after another have a window each; as with their times, what lies between two of them does not count.
    """
    total = 0.0
    for window in windows:
        inside = [(t_ns, value) for t_ns, value in read if window[0] <= t_ns <= window[1]]
        if len(inside) < 2:
            return None
        (first_ns, first), (last_ns, last) = inside[0], inside[-1]
        total += (last - first) / ((last_ns - first_ns) / 1e9) * _seconds(window)
    return total if windows else None


def _rate(read: Sequence[Reading], windows: Sequence[Window]) -> float | None:
    """Mean of what was read as a mean since the reading before, over the times between readings inside a window."""
    grown = seconds = 0.0
    for window in windows:
        inside = [(t_ns, value) for t_ns, value in read if window[0] <= t_ns <= window[1]]
        for (before_ns, _), (t_ns, value) in itertools.pairwise(inside):
            grown += value * (t_ns - before_ns) / 1e9
            seconds += (t_ns - before_ns) / 1e9
    return grown / seconds if seconds else None


def _seconds(window: Window) -> float:
    return (window[1] - window[0]) / 1e9
