"""How fast a program logged that it is, or in words what it logged instead."""

from __future__ import annotations

import dataclasses
import math
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.base.domain import layout
from pipeline.base.domain.workload import RateSource
from pipeline.base.mlflow_internals.file_store import read_script_runs
from pipeline.base.system import regular_files
from pipeline.base.system.words import counted
from pipeline.launch.events import Events, last_shown
from pipeline.launch.state import JobState
from pipeline.observe.clock import ClockRecord
from pipeline.observe.logged import rate_text, tensorboard
from pipeline.observe.logged.numbers import UnreadableError
from pipeline.observe.logged.output import OutputReader, Rates

Points = Sequence[tuple[int, float]]
"""Monotonic instants with values, in order."""
_MAX_NAMES = 12
_ROUNDING_NS = 10_000_000  # MLflow keeps milliseconds, and a job runs just before we know
_TAIL_BYTES, _SHOWN = 1 << 14, 100
_OUTPUTS = ((layout.STDOUT, "stdout"), (layout.STDERR, "stderr"))
_MOST_VALUES = 1 << 20
"""Of a metric; of more, every second stands for the one before as well."""

_NOTHING_CAME = (
    "no metric came, through MLflow or in TensorBoard files; what a program logs after mlflow.set_tracking_uri goes "
    "elsewhere"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Logged:
    """What came of the rate that a program was to log.

    Attributes:
        points: what came; none if nothing did.
        source: where they came from, and how many, in words.
        absence: what came instead, in words, if nothing did.
        num_misplaced: values that came with times at which the job did not run, which are left out.
        doubts: what stands beside its rate, in words.
    """

    points: Points = ()
    source: str = ""
    absence: str = ""
    num_misplaced: int = 0
    doubts: tuple[str, ...] = ()


def read(state: JobState, log: Events, whose: Mapping[Path, int | None], clock: ClockRecord) -> Logged | None:
    """What a job logged; `None` if it was not told that it does.

    Args:
        state: of the job, which has ended.
        log: what it reported itself.
        whose: files that changed in the working directory, each with the job that wrote it, if that is known.
        clock: of the machine meanwhile.
    """
    rate = state.job.workload.rate
    if rate.pattern is not None:
        return _in_output(state, log, rate)
    if rate.metric is None:
        return None
    through_mlflow = _through_mlflow(state.folder)
    output_files = regular_files.list_files(state.folder / layout.OUTPUT).files
    own = [path for path in output_files if path.match(tensorboard.PATTERN)]
    in_directory = {path: index for path, index in whose.items() if path.match(tensorboard.PATTERN)}
    own += [path for path, index in in_directory.items() if index == state.job.index]
    in_files = _in_files(own)
    for source, found in (("MLflow", through_mlflow), ("TensorBoard", in_files)):
        if said := found.get(rate.metric):
            return _in_own_time(state, clock, said, source)
    came = [
        f"{source}: {_names(found)}"
        for source, found in (("through MLflow", through_mlflow), ("in TensorBoard files", in_files))
        if found
    ]
    if unknown := [path for path, index in in_directory.items() if index is None]:
        came.append(f"nobody knows which job wrote {unknown[0].name}: write to {{output_dir}}")
    return Logged(absence=f"workload.metric={rate.metric} never came; {'; '.join(came) or _NOTHING_CAME}")


def _in_output(state: JobState, log: Events, source: RateSource) -> Logged:
    end_ns = log.ended_ns or state.ended.at_ns or 0
    reader = OutputReader(source, state.job.workload.unit)
    for (name, _), sizes in zip(_OUTPUTS, (log.written.stdout, log.written.stderr), strict=True):
        reader.read(state.folder / name, log.written.t_ns, sizes, end_ns)
    found, what = reader.rates, f"workload.metric_pattern={source.pattern}"
    if found.unreadable:
        return Logged(absence=f"workload.metric_pattern cannot read the number of {found.unreadable}")
    if not found.num_values:
        return Logged(absence=_nothing_matched(state.folder, what, found))
    if found.least < 0 or found.most == 0:
        return Logged(absence=f"{what} gave {found.least:g}, and a rate is above 0")
    source_words = f"its output, {counted(found.num_values, 'value')}"
    if found.num_not_finite:
        source_words += f" (without {found.num_not_finite}, which are not finite)"
    return Logged(points=found.points, source=source_words, doubts=tuple(_doubts(found)))


def _nothing_matched(folder: Path, what: str, found: Rates) -> str:
    """Say why there is no rate, with the last line of each output in which there is a number, or else the last one."""
    if found.num_not_finite:
        return f"{what} gave no finite number in {counted(found.num_not_finite, 'line')}"
    if found.without_number:
        return f"{what} matched no line of its output with a number, but `{found.without_number}`"
    seen = {where: last_shown(folder / name, _TAIL_BYTES) for name, where in _OUTPUTS}
    numbers = {where: [line for line in lines if re.search(r"\d", line)] for where, lines in seen.items()}
    last = {where: lines for where, lines in (numbers if any(numbers.values()) else seen).items() if lines}
    how = "has numbers, as in" if any(numbers.values()) else "ends with"
    shown = [f"{where} {how} `{lines[-1].strip()[:_SHOWN]}`" for where, lines in last.items()]
    return f"{what} matched no line of its output with a number; {' and '.join(shown) or 'it wrote none'}"


def _doubts(found: Rates) -> Iterator[str]:
    """Yield what the user should know of how an output was read."""
    if 0 < found.num_times < found.num_values:
        values = f"{found.num_times} of {counted(found.num_values, 'value')} of its output"
        yield f"{values} are the time of one, such as s/it, and were read as 1/time"
    for noun in found.nouns & found.passed_over.keys():
        lines = counted(found.passed_over[noun], "line")
        yield f"workload.metric_pattern passes over {lines} of its output with s/{noun} instead of {noun}/s"


def _through_mlflow(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """By name, of all runs of the program."""
    found: dict[str, list[tuple[int, float]]] = {}
    for run in read_script_runs(folder / layout.SCRIPT_STORE, _MOST_VALUES):
        for name, points in run.metrics.items():
            found.setdefault(name, []).extend((t_ms * 1_000_000, value) for _, t_ms, value in points)
    return found


def _in_files(files: Sequence[Path]) -> dict[str, list[tuple[int, float]]]:
    found: dict[str, list[tuple[int, float]]] = {}
    for file in files:
        for name, points in tensorboard.scalars(file).items():
            found.setdefault(name, []).extend((int(seconds * 1e9), value) for seconds, value in points)
    return found


def _in_own_time(state: JobState, clock: ClockRecord, came: Points, source: str) -> Logged:
    """Place values that came in wall time, in the order in which they were logged."""
    rate = state.job.workload.rate
    instants_ns = clock.in_order_ns(wall_ns for wall_ns, _ in came)
    points = [(t_ns, value) for t_ns, (_, value) in zip(instants_ns, came, strict=True)]
    begin_ns = state.started.at_ns - _ROUNDING_NS if state.started is not None else 0
    end_ns = state.ended.at_ns + _ROUNDING_NS if state.ended.at_ns is not None else math.inf
    placed = sorted(point for point in points if begin_ns <= point[0] <= end_ns)
    if not placed:
        what = f"workload.metric={rate.metric}"
        return Logged(absence=f"{what} came in {source} with times at which the job did not run, as of another clock")
    logged = _rates(placed, source, rate, state.job.workload.unit)
    return dataclasses.replace(logged, num_misplaced=len(points) - len(placed))


def _rates(came: Points, source: str, rate: RateSource, unit: str) -> Logged:
    """What came as rates; in words what is wrong if it cannot be any."""
    what = f"workload.metric={rate.metric}"
    try:
        label = rate_text.of_label(str(rate.metric).removesuffix("/min"), unit)  # which is the least, not a minute
        metric_unit = rate_text.to_unit(label, rate.metric_unit)
    except UnreadableError as error:
        return Logged(absence=f"{what}: {error}")
    every = [(t_ns, metric_unit.rate(value)) for t_ns, value in came]
    points = [point for point in every if math.isfinite(point[1])]
    if not points:
        return Logged(absence=f"{what} gave no finite number, but {came[-1][1]:g}")
    values = [value for _, value in points]
    if min(values) < 0 or max(values) == 0:
        return Logged(absence=f"{what} gave {min(values):g}, and a rate is above 0")
    if left_out := len(came) - len(points):
        source += f" (without {left_out} of {len(came)} values, which are not finite)"
    by_instant: dict[int, list[float]] = {}
    for t_ns, value in points:
        by_instant.setdefault(t_ns, []).append(value)
    means = [(t_ns, statistics.fmean(at_once)) for t_ns, at_once in sorted(by_instant.items())]
    return Logged(points=means, source=f"{source}, {counted(len(points), 'value')}")


def _names(found: Mapping[str, object]) -> str:
    names = sorted(found)
    further = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return ", ".join(names[:_MAX_NAMES]) + further
