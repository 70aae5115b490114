"""The samples of a group, the quantities that its listeners read, and the figures from them.

Samples are kept in memory and in a file (`pipeline.base.domain.protocols.Sink`), next to a file of the quantities.
Figures are computed by the `Field.summary` of each quantity.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import logging
import re
import statistics
import threading
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from pipeline.base.domain import work_units
from pipeline.base.domain.samples import Field, FieldTable, Sample, Summary
from pipeline.base.system import json_decoder

Window = tuple[int, int]
"""Begin and end of a measured interval, in monotonic ns."""
Reading = tuple[int, float]
Readings = Mapping[tuple[str, str], Sequence[Reading]]
"""Instants and values of one subject, in order of time, by listener and quantity."""
Subject = tuple[int | None, int | None]
"""Index of a job, and id of a GPU instance; at most one is set. Both are `None` for the device or machine (`WHOLE`)."""
WHOLE: Subject = (None, None)
_EDGE, _GAP = 2, 3
"""A figure needs a reading within `_EDGE` intervals of each edge of the window, and no gap above `_GAP` intervals."""


def measure_seconds(window: Window) -> float:
    """Return the length of a window in seconds."""
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
    """Compute the figures of one subject over its windows, each from the best listener that reads its quantity.

    `absent` receives the reason for each missing figure whose quantity has readings. Without `has_peaks`, peaks are
    missing, because they may be peaks of more jobs.
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
    """Return the first reading of a job's GPU memory after an instant; `None` if there is none."""
    first = [
        next((t_ns for t_ns, _ in read.get((source, field.name), ()) if t_ns >= start_ns), None)
        for source, field in fields
        if field.is_live and fields.is_of_device(source, None)
    ]
    return min((t_ns for t_ns in first if t_ns is not None), default=None)


def derive_energy(
    metrics: Mapping[str, float],
    windows: Sequence[Window],
    idle_w: float | None,
    waiting_w: float | None,
    rates: Mapping[str, float],
) -> dict[str, float]:
    """Derive figures from a device's energy: energy above both idle powers, and per work unit.

    `idle_w` is the power without jobs, `waiting_w` the power while jobs wait; `rates` are per second.
    """
    if ENERGY not in metrics:
        return {}
    total_s = sum(measure_seconds(window) for window in windows)
    derived: dict[str, float] = {}
    energies = {work_units.energy_of: metrics[ENERGY]}
    if idle_w is not None:
        above_j = metrics[ENERGY] - idle_w * total_s
        derived |= {"power_idle_w": idle_w, "energy_above_idle_j": above_j}
        energies[work_units.energy_above_idle_of] = above_j
    if waiting_w is not None:
        above_j = metrics[ENERGY] - waiting_w * total_s
        derived |= {"power_waiting_w": waiting_w, "energy_above_waiting_j": above_j}
        energies[work_units.energy_above_waiting_of] = above_j
    for unit, rate in rates.items():
        if rate:
            derived |= {make_name(unit): energy_j / (total_s * rate) for make_name, energy_j in energies.items()}
    return derived


class _NotCoveredError(Exception):
    """Readings that do not cover a window."""


def _summarise(summary: Summary, read: Sequence[Reading], windows: Sequence[Window], asked_ns: int) -> float | None:
    """Summarise a quantity over the windows; return `None` without a window."""
    if summary is Summary.PEAK:
        # If all readings are 0, no sample was taken while the jobs ran, as if they ran out of memory at once.
        return max((value for _, value in read), default=0.0) or None
    inside = [[(t_ns, value) for t_ns, value in read if begin <= t_ns <= end] for begin, end in windows]
    if not windows:
        return None
    if not any(inside):
        raise _NotCoveredError("no reading in the window")
    interval_ns = _find_interval_ns(read, asked_ns)
    for window in windows:
        # The allowed distance is larger for a rate, because each reading covers the interval before it.
        _check_coverage(read, window, interval_ns, at_begin=_EDGE + (summary is Summary.RATE))
    if summary is Summary.GROWTH:
        return sum(_measure_growth(*pair) for pair in zip(inside, windows, strict=True))
    if summary is Summary.RATE:
        return average_rate(inside)
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
    """Return the growth of a counter in a window, extrapolated from the readings inside to the edges.

    Readings outside the window are not used because jobs have not begun, or are stopping, at these instants.
    """
    if len(inside) < 2:
        raise _NotCoveredError("only one reading in the window")
    if any(later < earlier for (_, earlier), (_, later) in itertools.pairwise(inside)):
        raise _NotCoveredError("the counter was reset in the window")
    (first_ns, first), (last_ns, last) = inside[0], inside[-1]
    return (last - first) / (last_ns - first_ns) * (window[1] - window[0])


def average_rate(inside: Sequence[Sequence[Reading]]) -> float | None:
    """Average the readings of each window, each of which is the mean since the previous reading.

    The first reading of a window does not count, because it covers time before the window. `None` if no other exists.
    """
    grown = seconds = 0.0
    for readings_inside in inside:
        for (before_ns, _), (t_ns, value) in itertools.pairwise(readings_inside):
            grown += value * (t_ns - before_ns) / 1e9
            seconds += (t_ns - before_ns) / 1e9
    return grown / seconds if seconds else None


def _find_interval_ns(read: Sequence[Reading], asked_ns: int) -> int:
    """Return the time between two readings: the configured time, or up to twice this time for a slower source."""
    gaps_ns = [after_ns - before_ns for (before_ns, _), (after_ns, _) in itertools.pairwise(read)]
    usual_ns = int(statistics.median(gaps_ns)) if gaps_ns else asked_ns
    return min(max(usual_ns, asked_ns), 2 * asked_ns) if asked_ns else usual_ns


log = logging.getLogger(__name__)

POWER, ENERGY = "power_mean_w", "energy_j"
"""Figures of a device from which other figures are derived, such as `power_idle_w` and `energy_per_sample_j`."""

_UNIT = re.compile(r"_([a-z]+_per_s|[a-z]+)$")


def name_figure(field: Field) -> str | None:
    """Return the name of a quantity's figure in the row: `power_mean_w` for `power_w`; `None` without a figure."""
    if field.summary is None:
        return None
    if field.summary in (Summary.RATE, Summary.GROWTH):
        return field.figure or field.name
    return field.figure or _UNIT.sub(rf"_{field.summary}_\1", field.name)


class Fields:
    """The field tables of a group's listeners, highest rank first."""

    def __init__(self, tables: Iterable[FieldTable] = ()) -> None:
        self.tables = tuple(sorted(tables, key=lambda table: (-table.rank, table.source)))
        self._of_machine = {table.source for table in self.tables if table.of_machine}

    def __iter__(self) -> Iterator[tuple[str, Field]]:
        return ((table.source, field) for table in self.tables for field in table.fields)

    def get_interval_ns(self, source: str) -> int:
        """Return the configured time between two samples of a listener; 0 if unknown."""
        return next((table.interval_ms for table in self.tables if table.source == source), 0) * 1_000_000

    def is_of_device(self, source: str, job: int | None) -> bool:
        """Return whether a listener's sample with this `job`, or `None`, is of the device or a GPU instance."""
        return job is None and source not in self._of_machine

    def read_live_memory_mib(self, samples: Iterable[Sample], job: int) -> float | None:
        """Return a job's newest memory reading from the best listener with a live quantity.

        Readings of other listeners are not used instead, because they are of other memory, such as the host's.
        """
        latest = {
            (sample.source, name): value
            for sample in samples
            if sample.job == job
            for name, value in sample.values.items()
        }
        live = [(source, field.name) for source, field in self if field.is_live]
        return next((latest[key] for key in live if key in latest and key[0] == live[0][0]), None)

    def describe_titled(self, figures: Collection[str]) -> str:
        """Return JSON with title, unit and summary of each figure with a title, by name; empty without such figures."""
        by_figure = {
            name: {"title": field.title, "unit": field.unit, "summary": field.summary}
            for _, field in reversed(list(self))
            if field.title and (name := name_figure(field)) in figures
        }
        return json.dumps(dict(reversed(by_figure.items()))) if by_figure else ""

    def as_json(self) -> str:
        return json.dumps([dataclasses.asdict(table) for table in self.tables], indent=1) + "\n"


def read_fields(path: Path) -> Fields:
    """Read the fields in a file; none if it is absent or damaged."""
    try:
        return Fields(json_decoder.decode(list[FieldTable], json.loads(path.read_text(encoding="utf-8"))))
    except FileNotFoundError:
        return Fields()
    except (OSError, ValueError) as error:
        log.warning("cannot read_fields the fields in %s: %s; figures from samples are missing", path, error)
        return Fields()


class SampleLog:
    """Samples in the order of arrival, also stored as JSON lines in a file, which survives a killed orchestrator."""

    def __init__(self, path: Path) -> None:
        self.samples: list[Sample] = []
        self._file = path.open("a", encoding="utf-8")
        self._lock = threading.Lock()

    def put(self, sample: Sample) -> None:
        line = json.dumps(dataclasses.asdict(sample)) + "\n"
        with self._lock:
            self._file.write(line)
            self._file.flush()
            self.samples.append(sample)

    def close(self) -> None:
        self._file.close()
