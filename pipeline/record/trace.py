"""The timeline of one or more groups, as a trace for https://ui.perfetto.dev.

Source of the format: "Trace Event Format", JSON object format: complete events (`ph: X`), counters (`C`) and metadata
(`M`); instants and durations are in microseconds. Tracks begin at number 1 because Perfetto interprets process and
thread 0 as the kernel's idle task.
"""

from __future__ import annotations

import json
import platform
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pipeline.base.domain import layout
from pipeline.base.domain.samples import Sample
from pipeline.base.domain.tags import Tag
from pipeline.observe.group_result import GroupResult, JobResult, Span
from pipeline.observe.phases import WINDOW
from pipeline.observe.sample_figures import Fields
from pipeline.record import group_folder
from pipeline.record.group_record import GroupRecord
from pipeline.record.sample_series import Series

if TYPE_CHECKING:
    from pipeline.record.spool import SpoolRun

_COUNTER_POINTS = 2000
_GROUPS_TRACK, _FIRST_JOB_TRACK = 1, 2
_TRACKS = 1000

Event = dict[str, Any]


def write(run: SpoolRun, row: GroupResult, samples: Iterable[Sample], fields: Fields) -> None:
    """Write the timeline of a finished group as an artifact of its open record."""
    if any(span.job is None for span in row.spans):
        group_folder.write_json(
            run.folder / layout.ARTIFACTS / layout.TIMELINE, make_trace(run.record, row, samples, fields)
        )


def make_trace(record: GroupRecord, row: GroupResult, samples: Iterable[Sample], fields: Fields) -> dict[str, Any]:
    """Return the trace of a group that has at least one phase; instants are relative to the group's beginning."""
    phases = [span for span in row.spans if span.job is None]
    begin_ns, end_ns = phases[0].start_ns, phases[-1].end_ns
    group, device = row.group, row.group.device
    tracks = _Tracks(f"{'SIMULATED ' if device.is_simulated else ''}{device.name} ({device.uuid})", begin_ns)
    tracks.add_name(_GROUPS_TRACK, "groups")
    facts = {"result": row.result.value, "reason": row.reason, "digest": group.digest, "block": group.block}
    tracks.add_slice(_GROUPS_TRACK, group.name, begin_ns, end_ns, {key: value for key, value in facts.items() if value})
    for phase in phases:
        tracks.add_slice(_GROUPS_TRACK, phase.name, phase.start_ns, phase.end_ns)
    window = _find_window(row, phases)
    if window is not None:
        tracks.add_slice(_GROUPS_TRACK, "measured", *window)
    for job in row.jobs:
        spans = [span for span in row.spans if span.job == job.job.index]
        if spans:
            track = _FIRST_JOB_TRACK + job.job.index
            tracks.add_name(track, f"job {job.job.index}")
            _add_job(tracks, track, job, spans)
    for name, t_ns, value in _select_counters(samples, fields):
        if begin_ns <= t_ns <= end_ns:
            tracks.add_counter(name, t_ns, value)
    return {
        "displayTimeUnit": "ms",
        "otherData": {
            "group": group.name,
            "experiment": group.experiment,
            "study": record.study,
            "host": platform.node(),
            "simulated": device.is_simulated,
            "begin_ns": begin_ns,
            "begin_wall_ns": record.clock.to_wall_ns(begin_ns),
        },
        "traceEvents": tracks.events,
    }


def merge(traces: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Merge groups into one trace, with a process for each start of the study on each device.

    Groups of the same start are aligned by the monotonic clock, which cannot be set back.
    """
    ordered = sorted(traces, key=lambda trace: int(trace["otherData"]["begin_wall_ns"]))
    processes: dict[tuple[str, ...], int] = {}
    origins: dict[str, tuple[int, int]] = {}
    events: list[Event] = []
    named: set[str] = set()
    for trace in ordered:
        facts = trace["otherData"]
        start = f"{facts['host']} {facts['study']}"
        wall_ns, monotonic_ns = origins.setdefault(start, (facts["begin_wall_ns"], facts["begin_ns"]))
        first_ns = next(iter(origins.values()))[0]
        shift_us = (wall_ns - first_ns + facts["begin_ns"] - monotonic_ns) / 1e3
        device = next(e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "process_name")
        pid = processes.setdefault((start, device), len(processes) + 1)
        for event in trace["traceEvents"]:
            moved = event | {"pid": pid}
            if "tid" in event:
                moved["tid"] = pid * _TRACKS + event["tid"] % _TRACKS
            if event["ph"] == "M":
                if event["name"] == "process_name":
                    moved["args"] = {"name": f"{device}, start {start}"}
                key = json.dumps(moved, sort_keys=True)
                if key in named:
                    continue
                named.add(key)
            else:
                moved["ts"] = round(event["ts"] + shift_us, 3)
            events.append(moved)
    return {"displayTimeUnit": "ms", "otherData": {"groups": len(ordered)}, "traceEvents": events}


class _Tracks:
    """The events of one process; track 1 shows the groups, and later tracks show the jobs."""

    def __init__(self, process: str, begin_ns: int) -> None:
        self._begin_ns = begin_ns
        self.events: list[Event] = [{"ph": "M", "name": "process_name", "pid": 1, "args": {"name": process}}]

    def add_name(self, track: int, name: str) -> None:
        place = {"ph": "M", "pid": 1, "tid": _TRACKS + track}
        self.events.append({**place, "name": "thread_name", "args": {"name": name}})
        self.events.append({**place, "name": "thread_sort_index", "args": {"sort_index": track}})

    def add_slice(self, track: int, name: str, begin_ns: int, end_ns: int, facts: dict[str, Any] | None = None) -> None:
        event = {"ph": "X", "name": name, "cat": "study", "pid": 1, "tid": _TRACKS + track}
        event |= {"ts": self._to_us(begin_ns), "dur": (end_ns - begin_ns) / 1e3}
        self.events.append(event | ({"args": facts} if facts else {}))

    def add_counter(self, name: str, t_ns: int, value: float) -> None:
        self.events.append({"ph": "C", "name": name, "pid": 1, "ts": self._to_us(t_ns), "args": {"value": value}})

    def _to_us(self, t_ns: int) -> float:
        return (t_ns - self._begin_ns) / 1e3


def _find_window(row: GroupResult, phases: Sequence[Span]) -> tuple[int, int] | None:
    """Return the measured window if the jobs ran together once and the window overlaps that time."""
    runs = [phase for phase in phases if phase.name == WINDOW]
    if len(runs) != 1 or Tag.WINDOW_START_NS not in row.tags:
        return None
    begin, end = (int(row.tags[edge]) for edge in (Tag.WINDOW_START_NS, Tag.WINDOW_END_NS))
    begin, end = max(begin, runs[0].start_ns), min(end, runs[0].end_ns)
    return (begin, end) if begin < end else None


def _add_job(tracks: _Tracks, track: int, job: JobResult, spans: Sequence[Span]) -> None:
    begin_ns, end_ns = spans[0].start_ns, max(span.end_ns for span in spans)
    facts = {"result": job.result.value, "reason": job.reason, "pid": job.pid}
    tracks.add_slice(track, job.job.name, begin_ns, end_ns, {key: value for key, value in facts.items() if value})
    marks = [(span.name, span.start_ns) for span in spans]
    if job.start_ns is not None and job.end_ns is not None:
        marks += [("work", job.start_ns), ("finish", job.end_ns)]
    inside = sorted(((name, min(max(t_ns, begin_ns), end_ns)) for name, t_ns in marks), key=lambda mark: mark[1])
    for (name, since_ns), (_, until_ns) in zip(inside, [*inside[1:], ("", end_ns)], strict=True):
        if until_ns > since_ns:
            tracks.add_slice(track, name, since_ns, until_ns)


def _select_counters(samples: Iterable[Sample], fields: Fields) -> Iterator[tuple[str, int, float]]:
    """Yield the charted readings of the whole device and machine, thinned to about the width of a screen."""
    drawn = {(source, field.name) for source, field in fields if field.chart is not None}
    by_name: dict[tuple[str, str], Series] = defaultdict(Series)
    for sample in samples:
        if sample.job is None and sample.gi_id is None:
            for name, value in sample.values.items():
                if (sample.source, name) in drawn:
                    by_name[sample.source, name].append(sample.t_ns, value)
    for (source, name), series in by_name.items():
        for _, t_ns, value in series.thin(_COUNTER_POINTS):
            yield f"{source}/{name}", t_ns, value
