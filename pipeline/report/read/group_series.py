"""The sampled series of the one group that a report shows over time, read from its artifact."""

from __future__ import annotations

import dataclasses
import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.base.domain import layout, mig_table
from pipeline.base.domain.records import Result
from pipeline.base.domain.samples import Field, Panel
from pipeline.base.domain.sharing_modes import MIG, MPS, NAIVE, PROFILE, SharingMode
from pipeline.base.system.errors import ConfigError, TrackingError
from pipeline.base.system.words import group_by
from pipeline.clean import temporary_folder
from pipeline.observe import sample_figures
from pipeline.observe.sample_figures import Fields
from pipeline.record.sample_series import Series, SeriesKey, read_table
from pipeline.record.store.store_access import fetch
from pipeline.report.read.labels import label_mix
from pipeline.report.read.study_records import Row, Study

logger = logging.getLogger(__name__)

POINTS = 1500
"""Number of points that a figure shows of each series."""

_MIX, _S = "M+2S", 1e9
_PREFERRED = (MPS, NAIVE, MIG)


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One series of a quantity.

    Attributes:
        label: title of the quantity.
        instance: the GPU instance, `2g.20gb (5)`; empty for the whole GPU.
        t_s: times of the values. Unit: seconds since the first job began.
    """

    label: str
    instance: str = ""
    t_s: tuple[float, ...]
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpan:
    """The time in which a job worked. Unit: seconds since the first job began."""

    label: str
    start_s: float
    end_s: float
    result: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSeries:
    """The series of a group that a report shows over time.

    Attributes:
        activity: activity of the GPU or of each GPU instance, as shares between 0 and 1.
        memory_mib: memory of the GPU or of each GPU instance.
        thinned_to: number of points to which long series were thinned; 0 if none was.
        mode: label of the sharing mode.
        other_modes: the same jobs in other sharing modes, as far as they ran together.
    """

    name: str
    sharing: SharingMode
    mode: str = ""
    block: int
    activity: tuple[Line, ...]
    memory_mib: tuple[Line, ...]
    spans: tuple[JobSpan, ...]
    thinned_to: int
    other_modes: tuple[GroupSeries, ...] = ()


def choose_group(study: Study, name_or_id: str | None = None) -> Row | None:
    """Choose the group to show over time: the named group, else the mix M+2S, else the group with the most jobs.

    If the group ran in several blocks, the first block in which it ended `ok` is chosen.

    Raises:
        ConfigError: the study has no such group.
    """
    executed_rows = [row for row in study.rows if row.result is not Result.SKIPPED]
    rows = [row for row in executed_rows if row.result is Result.OK] or executed_rows
    if name_or_id is not None:
        matches = [row for row in study.rows if name_or_id in (row.run_id, row.name)]
        if not matches:
            names = ", ".join(dict.fromkeys(row.name for row in study.rows)) or "none"
            raise ConfigError(f"--group {name_or_id}: no such name or run id; choose one of: {names}")
        return next((row for row in matches if row in rows), matches[0])
    mixes = [row for row in rows if row.is_mix and label_mix(row.called) == _MIX]
    collocated_rows = [row for row in rows if not row.is_sequential]
    return min(mixes or collocated_rows or rows, key=_preference, default=None)


def _preference(row: Row) -> tuple[Any, ...]:
    place = _PREFERRED.index(row.sharing) if row.sharing in _PREFERRED else len(_PREFERRED)
    return (row.is_sequential, -row.degree, place, row.block, row.name, row.run_id)


def read_case(study: Study, row: Row) -> GroupSeries | None:
    """Read the series of a group, and of the same jobs in other sharing modes; `None` if the group has no samples.

    Raises:
        TrackingError: the artifact of the group is not readable; unreadable groups of other modes are left out.
    """
    group = read_group(row)
    if group is None or row.is_sequential:
        return group
    other_modes = []
    for other in choose_other_modes(study, row):
        try:
            other_modes.append(read_group(other))
        except TrackingError as error:
            logger.warning("%s; the figure of all sharing modes over time has no %s", error, other.mode)
    return dataclasses.replace(group, other_modes=tuple(filter(None, other_modes)))


def choose_other_modes(study: Study, row: Row) -> list[Row]:
    """Choose the groups with the same jobs in other sharing modes: one of each mode, of the same block if possible."""

    def identify(row: Row) -> tuple[object, ...]:
        return (Counter(row.called), row.window, row.setting, row.device)

    alike = [
        other
        for other in study.rows
        if other.result is Result.OK
        and not other.is_sequential
        and other.sharing != row.sharing
        and identify(other) == identify(row)
    ]
    by_mode = group_by(alike, lambda other: other.sharing)
    selected_rows = [min(rows, key=lambda other: (other.block != row.block, other.block)) for rows in by_mode.values()]
    return sorted(selected_rows, key=lambda other: other.sharing.order)


def read_group(row: Row) -> GroupSeries | None:
    """Read the series of a group; `None` if it has no samples.

    Raises:
        TrackingError: the artifact of the group is not readable.
    """
    samples, fields = _fetch(row)
    if not samples:
        return None
    starts = [job.start_ns for job in row.jobs if job.start_ns is not None]
    begin = min(starts or [series.t_ns[0] for series in samples.values()])
    profiles = {
        job.place.get("gi_id"): mig_table.split_name(job.place.get(PROFILE, "GPU instance"))[0] for job in row.jobs
    }
    activity, cut_activity = _lines(samples, fields, "activity", begin, profiles)
    memory, cut_memory = _lines(samples, fields, "memory", begin, profiles)
    spans = []
    for job in row.jobs:
        if job.start_ns is not None and job.end_ns is not None:
            label, result = f"{job.index} {job.size or job.label}", job.result.value if job.result is not None else ""
            start_s, end_s = (job.start_ns - begin) / _S, (job.end_ns - begin) / _S
            spans.append(JobSpan(label=label, start_s=start_s, end_s=end_s, result=result))
    return GroupSeries(
        name=row.name,
        sharing=row.sharing,
        mode=row.mode,
        block=row.block,
        activity=activity,
        memory_mib=memory,
        spans=tuple(spans),
        thinned_to=POINTS if cut_activity or cut_memory else 0,
    )


def _fetch(row: Row) -> tuple[dict[SeriesKey, Series], Fields]:
    samples, fields = fetch_samples(
        row, lambda fields: {field.name for _, field in fields if field.chart is not None and field.chart.panel}
    )
    device_samples = {
        origin: series for origin, series in samples.items() if fields.is_of_device(origin.source, origin.job)
    }
    return device_samples, fields


def fetch_samples(
    row: Row, choose_names: Callable[[Fields], Collection[str]]
) -> tuple[dict[SeriesKey, Series], Fields]:
    """Read the series of the chosen quantities of a group, and its table of quantities; both empty without samples.

    Raises:
        TrackingError: the artifact of the group is not readable.
    """
    names = (layout.SAMPLE_TABLE, layout.FIELDS)
    try:
        with temporary_folder.hold_scratch() as folder:
            path, path_of_fields = (fetch(row.store, row.run_id, name, folder) for name in names)
            if path is None or path_of_fields is None:
                return {}, Fields()
            fields = sample_figures.read_fields(path_of_fields)
            return read_table(path, choose_names(fields)), fields
    except Exception as error:  # a damaged file may raise any exception
        raise TrackingError(f"cannot read the samples of run {row.run_id} in {row.store}: {error}") from error


def _lines(
    samples: Mapping[SeriesKey, Series], fields: Fields, panel: Panel, begin: int, profiles: Mapping[str | None, str]
) -> tuple[tuple[Line, ...], bool]:
    """Return a line for each quantity and instance, from the best source; and whether any line was thinned."""
    by_label: dict[str, dict[int | None, tuple[Field, Series]]] = defaultdict(dict)
    names = {origin.field for origin in samples}
    for source, field in fields:
        if field.chart is not None and field.chart.panel == panel and field.chart.unless not in names:
            for origin, series in samples.items():
                if (origin.source, origin.field) == (source, field.name):
                    by_label[field.name].setdefault(origin.gi_id, (field, series))
    lines, was_cut = [], False
    for by_instance in by_label.values():
        for gi_id, (field, series) in sorted(by_instance.items(), key=lambda item: (item[0] is not None, item[0] or 0)):
            assert field.chart is not None
            title, scale = field.chart.title, 0.01 if field.unit == "%" else 1.0
            was_cut |= len(series.t_ns) > POINTS
            points = list(series.thin(POINTS))
            t_s = tuple((t_ns - begin) / _S for _, t_ns, _ in points)
            values = tuple(value * scale for *_, value in points)
            instance = "" if gi_id is None else f"{profiles.get(str(gi_id), 'GPU instance')} ({gi_id})"
            lines.append(Line(label=title, instance=instance, t_s=t_s, values=values))
    return tuple(lines), was_cut
