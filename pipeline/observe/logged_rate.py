"""The rate that a program logged through MLflow, in TensorBoard files or in its output, or why it is missing.

TensorBoard's event files are TFRecords of protocol buffers (`Event`, `Summary`). TensorBoard's own reader needs a
package that may be installed only for jobs. Checksums are not checked, because the incomplete record at the end of a
killed job's file is recognised by its length. Records with large data, such as images, are skipped.
"""

from __future__ import annotations

import dataclasses
import math
import os
import re
import statistics
import struct
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.base.domain import layout, rate_units
from pipeline.base.domain.rate_units import UnreadableError
from pipeline.base.domain.script_runs import read_script_runs
from pipeline.base.domain.workload import RateSource
from pipeline.base.system import regular_files
from pipeline.base.system.words import format_count, list_first
from pipeline.launch.events import Events, read_shown_lines
from pipeline.launch.job_state import JobState
from pipeline.observe.clock import ClockRecord
from pipeline.observe.output_rates import OutputReader, Rates

Points = Sequence[tuple[int, float]]
"""Monotonic instants with values, in order of time."""
_MAX_NAMES = 12
_ROUNDING_NS = 10_000_000  # MLflow stores milliseconds, and a job runs shortly before its start is recorded
_TAIL_BYTES, _SHOWN = 1 << 14, 100
_OUTPUTS = ((layout.STDOUT, "stdout"), (layout.STDERR, "stderr"))
_MOST_VALUES = 1 << 20
"""Limit for the values of a metric; above the limit, only every second value is read_logged_rate."""

_NOTHING_CAME = (
    "no metric was logged through MLflow or in TensorBoard files; remove mlflow.set_tracking_uri from the program"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedRate:
    """The rate that a program logged.

    Attributes:
        points: monotonic instants with rates, each of the time since the one before; NaN if the rate is unknown.
        work_unit: work unit of the rates.
        source: origin and number of the points, as a text.
        absence: why there are no points.
        num_misplaced: number of omitted values, whose times are outside the job's run.
        doubts: notes on the rate.
    """

    points: Points = ()
    work_unit: str = ""
    source: str = ""
    absence: str = ""
    num_misplaced: int = 0
    doubts: tuple[str, ...] = ()


def read_logged_rate(
    state: JobState, log: Events, owners: Mapping[Path, int | None], clock: ClockRecord
) -> LoggedRate | None:
    """Return the rate that an ended job logged; `None` if the workload has no setting for a logged rate.

    `owners` maps the files that changed in the working directory to the job that wrote them, or to `None` if unknown.
    """
    rate = state.job.workload.rate
    if rate.pattern is not None:
        return _read_output(state, log, rate)
    if rate.metric is None:
        return None
    through_mlflow = _read_mlflow(state.folder)
    output_files = regular_files.list_files(state.folder / layout.OUTPUT).files
    event_files = [path for path in output_files if path.match(EVENT_FILES)]
    in_directory = {path: index for path, index in owners.items() if path.match(EVENT_FILES)}
    event_files += [path for path, index in in_directory.items() if index == state.job.index]
    in_files = _read_event_files(event_files)
    for source, metrics in (("MLflow", through_mlflow), ("TensorBoard", in_files)):
        if points := metrics.get(rate.metric):
            return _place_points(state, clock, points, source)
    came = [
        f"logged {source}: {list_first(sorted(metrics), _MAX_NAMES)}"
        for source, metrics in (("through MLflow", through_mlflow), ("in TensorBoard files", in_files))
        if metrics
    ]
    if unknown := [path for path, index in in_directory.items() if index is None]:
        came.append(f"{unknown[0].name} may belong to any job; write it to {{output_dir}}")
    return LoggedRate(absence=f"workload.metric={rate.metric} was not logged; {'; '.join(came) or _NOTHING_CAME}")


def _read_output(state: JobState, log: Events, source: RateSource) -> LoggedRate:
    end_ns = log.ended_ns or state.ended.at_ns or 0
    reader = OutputReader(source, state.job.workload.work_unit)
    for (name, _), sizes in zip(_OUTPUTS, (log.written.stdout, log.written.stderr), strict=True):
        reader.read(state.folder / name, log.written.t_ns, sizes, end_ns)
    rates, setting = reader.rates, f"workload.metric_pattern={source.pattern}"
    if rates.unreadable:
        return LoggedRate(absence=f"workload.metric_pattern matches an unclear number in {rates.unreadable}")
    if not rates.num_values:
        return LoggedRate(absence=_explain_no_match(state.folder, setting, rates))
    if rates.least < 0 or rates.most == 0:
        return LoggedRate(absence=f"{setting} gave {rates.least:g}; a rate must be above 0")
    points = rates.points
    if all(math.isnan(value) for _, value in points):
        return LoggedRate(absence=f"{setting} read a counter that rose between no two lines")
    source_words = f"its output, {format_count(rates.num_values, 'value')}"
    if rates.num_not_finite:
        source_words += f" (without {rates.num_not_finite} not finite)"
    doubts = tuple(_describe_doubts(rates))
    return LoggedRate(points=points, work_unit=rates.work_unit, source=source_words, doubts=doubts)


def _explain_no_match(folder: Path, setting: str, rates: Rates) -> str:
    """Explain why there is no rate, and quote the last line with a number, or else the last line, of each output."""
    if rates.num_not_finite:
        return f"{setting} gave no finite number in {format_count(rates.num_not_finite, 'line')}"
    if rates.without_number:
        return f"{setting} matched `{rates.without_number}`, which contains no number"
    seen = {stream: read_shown_lines(folder / name, _TAIL_BYTES) for name, stream in _OUTPUTS}
    numbers = {stream: [line for line in lines if re.search(r"\d", line)] for stream, lines in seen.items()}
    last = {stream: lines for stream, lines in (numbers if any(numbers.values()) else seen).items() if lines}
    predicate = "has numbers, such as" if any(numbers.values()) else "ends with"
    shown = [f"{stream} {predicate} `{lines[-1].strip()[:_SHOWN]}`" for stream, lines in last.items()]
    return (
        f"{setting} matched no line with a number in the job's output; {' and '.join(shown) or 'the output is empty'}"
    )


def _describe_doubts(rates: Rates) -> Iterator[str]:
    if 0 < rates.num_times < rates.num_values:
        values = f"{rates.num_times} of {format_count(rates.num_values, 'value')}"
        yield f"{values} are times, such as s/it, and were read_logged_rate as 1/time"
    for words, number in rates.passed_over.items():
        unit = rate_units.read_unit("", words, rates.work_unit, is_unit_given=True).unit
        if words not in rates.units and unit is not None and unit.work and unit.counts(rates.work_unit):
            change = f"{words} instead of {next(iter(rates.units), rates.work_unit)}"
            yield f"workload.metric_pattern misses {format_count(number, 'line')} with {change}"


def _read_mlflow(folder: Path) -> dict[str, list[tuple[int, float]]]:
    metrics: dict[str, list[tuple[int, float]]] = {}
    for run in read_script_runs(folder / layout.SCRIPT_STORE, _MOST_VALUES):
        for name, points in run.metrics.items():
            metrics.setdefault(name, []).extend((t_ms * 1_000_000, value) for _, t_ms, value in points)
    return metrics


def _read_event_files(files: Sequence[Path]) -> dict[str, list[tuple[int, float]]]:
    metrics: dict[str, list[tuple[int, float]]] = {}
    for file in files:
        for name, points in read_scalars(file).items():
            metrics.setdefault(name, []).extend((int(seconds * 1e9), value) for seconds, value in points)
    return metrics


def _place_points(state: JobState, clock: ClockRecord, came: Points, source: str) -> LoggedRate:
    """Convert points from wall time, in the order in which they were logged."""
    rate = state.job.workload.rate
    instants_ns = clock.convert_in_order_ns(wall_ns for wall_ns, _ in came)
    points = [(t_ns, value) for t_ns, (_, value) in zip(instants_ns, came, strict=True)]
    begin_ns = state.started.at_ns - _ROUNDING_NS if state.started is not None else 0
    end_ns = state.ended.at_ns + _ROUNDING_NS if state.ended.at_ns is not None else math.inf
    placed = sorted(point for point in points if begin_ns <= point[0] <= end_ns)
    if not placed:
        setting = f"workload.metric={rate.metric}"
        return LoggedRate(
            absence=f"{setting} was logged in {source}, but with times outside the job's run; "
            "log it with the current time"
        )
    logged = _convert_to_rates(placed, source, rate, state.job.workload.work_unit)
    return dataclasses.replace(logged, num_misplaced=len(points) - len(placed))


def _convert_to_rates(came: Points, source: str, rate: RateSource, unit: str) -> LoggedRate:
    """Convert points to rates, or explain why they cannot be rates."""
    setting = f"workload.metric={rate.metric}"
    try:
        metric_unit = rate_units.read_metric_name(str(rate.metric), rate.metric_unit, unit)
    except UnreadableError as error:
        return LoggedRate(absence=f"{setting}: {error}")
    rates = [(t_ns, metric_unit.rate(value)) for t_ns, value in came]
    points = [point for point in rates if math.isfinite(point[1])]
    if not points:
        return LoggedRate(absence=f"{setting} gave no finite number (the last is {came[-1][1]:g})")
    values = [value for _, value in points]
    if min(values) < 0 or max(values) == 0:
        return LoggedRate(absence=f"{setting} gave {min(values):g}; a rate must be above 0")
    if left_out := len(came) - len(points):
        source += f" (without {left_out} of {len(came)} values not finite)"
    by_instant: dict[int, list[float]] = {}
    for t_ns, value in points:
        by_instant.setdefault(t_ns, []).append(value)
    means = [(t_ns, statistics.fmean(at_once)) for t_ns, at_once in sorted(by_instant.items())]
    source += f", {format_count(len(points), 'value')}"
    return LoggedRate(points=means, work_unit=metric_unit.work, source=source)


EVENT_FILES = "events.out.tfevents.*"
_MAX_RECORD_BYTES = 1 << 16
_FLOAT, _DOUBLE = 1, 2
"""Types of a tensor. Source: tensorflow/core/framework/types.proto; the field numbers below are from its folder."""

Message = dict[int, list[int | bytes]]
"""Fields of a protocol buffer: the values by field number. Numbers of fixed length are stored as bytes."""


def read_scalars(path: Path) -> dict[str, list[tuple[float, float]]]:
    """Read every readable scalar of a file: tag to `(seconds since the epoch, value)`."""
    by_tag: dict[str, list[tuple[float, float]]] = defaultdict(list)
    try:
        for record in _read_records(path):
            event = _parse_message(record)
            for summary in _select_all(event, 5):
                for value in map(_parse_message, _select_all(_parse_message(summary), 1)):
                    number = _parse_scalar(value)
                    if number is not None:
                        tag = _select_first(value, 1).decode(errors="replace")
                        by_tag[tag].append((struct.unpack("<d", _select_first(event, 1))[0], number))
    except (OSError, ValueError, struct.error):
        pass
    return dict(by_tag)


def _read_records(path: Path) -> Iterator[bytes]:
    with os.fdopen(regular_files.open_regular_file(path), "rb") as file:
        while len(head := file.read(12)) == 12:
            (length,) = struct.unpack("<Q", head[:8])
            if length > _MAX_RECORD_BYTES:
                file.seek(length + 4, 1)
            elif len(record := file.read(length + 4)) == length + 4:
                yield record[:-4]
            else:
                return


def _parse_scalar(value: Message) -> float | None:
    """Return the number in a `Summary.Value`: a plain number, or a tensor with one element."""
    if plain := _select_all(value, 2):
        return float(struct.unpack("<f", plain[0])[0])
    for tensor in map(_parse_message, _select_all(value, 8)):
        kind = tensor.get(1, [0])[0]
        form, field = {_FLOAT: ("<f", 5), _DOUBLE: ("<d", 6)}.get(kind if isinstance(kind, int) else 0, ("", 0))
        content = _select_all(tensor, 4) or _select_all(tensor, field)
        if form and content and len(content[0]) == struct.calcsize(form):
            return float(struct.unpack(form, content[0])[0])
    return None


def _parse_message(data: bytes) -> Message:
    """Parse the fields of a message; raise ValueError if the data are not a message."""
    fields: Message = defaultdict(list)
    at = 0
    while at < len(data):
        key, at = _parse_varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = _parse_varint(data, at)
            fields[key >> 3].append(value)
            continue
        if kind == 2:
            length, at = _parse_varint(data, at)
        else:
            length = {1: 8, 5: 4}.get(kind, -1)
        if length < 0 or at + length > len(data):
            raise ValueError("no protocol buffer")
        fields[key >> 3].append(data[at : at + length])
        at += length
    return fields


def _parse_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at == len(data):
            raise ValueError("no protocol buffer")
        value |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 0x80:
            return value, at


def _select_all(message: Message, number: int) -> list[bytes]:
    return [value for value in message.get(number, ()) if isinstance(value, bytes)]


def _select_first(message: Message, number: int) -> bytes:
    return next(iter(_select_all(message, number)), b"")
