"""How fast a program logged that it is, or in words what it logged instead."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.base import layout, regular_files
from pipeline.launch.events import Events, last_lines
from pipeline.launch.state import JobState
from pipeline.observe.clock import ClockRecord
from pipeline.observe.logged import output, tensorboard
from pipeline.observe.logged.script_runs import read_script_runs

Points = Sequence[tuple[int, float]]
"""Monotonic instants with values, in order."""
_MAX_NAMES = 12
_ROUNDING_NS = 10_000_000  # MLflow keeps milliseconds, and a job runs just before we know
_NOTHING_CAME = (
    "no metric came, through MLflow or in TensorBoard files; what a program logs after mlflow.set_tracking_uri goes "
    "elsewhere"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Logged:
    """What came of the rate that a program was to log.

    Attributes:
        points: what came; none if nothing did.
        source: where they came from, in words.
        absence: what came instead, in words, if nothing did.
        num_misplaced: values that came with times at which the job did not run, which are left out.
    """

    points: Points = ()
    source: str = ""
    absence: str = ""
    num_misplaced: int = 0


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
        return _in_output(state, log, rate.pattern)
    if rate.metric is None:
        return None
    through_mlflow = _through_mlflow(state.folder)
    output_files = regular_files.below(state.folder / layout.OUTPUT).files
    own = [path for path in output_files if path.match(tensorboard.PATTERN)]
    in_directory = {path: index for path, index in whose.items() if path.match(tensorboard.PATTERN)}
    own += [path for path, index in in_directory.items() if index == state.job.index]
    in_files = _in_files(own)
    for source, found in (("MLflow", through_mlflow), ("TensorBoard", in_files)):
        if said := found.get(rate.metric):
            return _in_own_time(state, clock, said, source, f"workload.metric={rate.metric}")
    came = [
        f"{source}: {_names(found)}"
        for source, found in (("through MLflow", through_mlflow), ("in TensorBoard files", in_files))
        if found
    ]
    if unknown := [path for path, index in in_directory.items() if index is None]:
        came.append(f"nobody knows which job wrote {unknown[0].name}: write to {{output_dir}}")
    return Logged(absence=f"workload.metric={rate.metric} never came; {'; '.join(came) or _NOTHING_CAME}")


def _in_output(state: JobState, log: Events, pattern: str) -> Logged:
    end_ns = log.ended_ns or state.ended.at_ns or 0
    found: list[tuple[int, float]] = []
    for name, sizes in (
        (layout.STDOUT, [(t_ns, size) for t_ns, size, _ in log.written]),
        (layout.STDERR, [(t_ns, size) for t_ns, _, size in log.written]),
    ):
        found += output.points(state.folder / name, pattern, sizes, end_ns)
    if found:
        return _rates(found, "its output", f"workload.metric_pattern={pattern}")
    lines = [line.decode(errors="replace").strip() for line in last_lines(state.folder / layout.STDOUT)]
    last = next((f"the last one is: {line[:200]}" for line in reversed(lines) if line), "it wrote none")
    return Logged(absence=f"workload.metric_pattern={pattern} matched no line of its output with a number; {last}")


def _through_mlflow(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """By name, of all runs of the program."""
    found: dict[str, list[tuple[int, float]]] = {}
    for run in read_script_runs(folder / layout.SCRIPT_STORE):
        for name, points in run.metrics.items():
            found.setdefault(name, []).extend((t_ms * 1_000_000, value) for _, t_ms, value in points)
    return found


def _in_files(files: Sequence[Path]) -> dict[str, list[tuple[int, float]]]:
    found: dict[str, list[tuple[int, float]]] = {}
    for file in files:
        for name, points in tensorboard.scalars(file).items():
            found.setdefault(name, []).extend((int(seconds * 1e9), value) for seconds, value in points)
    return found


def _in_own_time(state: JobState, clock: ClockRecord, came: Points, source: str, what: str) -> Logged:
    """Place values that came in wall time, in the order in which they were logged."""
    instants_ns = clock.in_order_ns(wall_ns for wall_ns, _ in came)
    points = [(t_ns, value) for t_ns, (_, value) in zip(instants_ns, came, strict=True)]
    begin_ns = state.started.at_ns - _ROUNDING_NS if state.started is not None else 0
    end_ns = state.ended.at_ns + _ROUNDING_NS if state.ended.at_ns is not None else math.inf
    placed = [point for point in points if begin_ns <= point[0] <= end_ns]
    if not placed:
        return Logged(absence=f"{what} came in {source} with times at which the job did not run, as of another clock")
    return dataclasses.replace(_rates(placed, source, what), num_misplaced=len(points) - len(placed))


def _rates(came: Points, source: str, what: str) -> Logged:
    """What came as rates; in words what is wrong if it cannot be any."""
    points = sorted(point for point in came if math.isfinite(point[1]))
    values = [value for _, value in points]
    if not values:
        return Logged(absence=f"{what} gave no finite number, but {came[-1][1]:g}")
    if min(values) < 0 or max(values) == 0:
        return Logged(absence=f"{what} gave {min(values):g}, and a rate is above 0")
    if left_out := len(came) - len(points):
        source += f" (without {left_out} of {len(came)} values, which are not finite)"
    return Logged(points=points, source=source)


def _names(found: Mapping[str, object]) -> str:
    names = sorted(found)
    further = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return ", ".join(names[:_MAX_NAMES]) + further
