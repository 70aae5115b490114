"""Marks of a row, from observations: why its figures are invalid, and notes on its figures.

A row is invalid if something other than collocation decided its figures. An effect of collocation, such as a clock that
the power limit lowered, is a note. The checks include the host's load, and that each job used its GPU: it must once
have a process in the driver's list. The nvml listener counts the listed processes of a job, and omits the count where a
process of unknown origin is listed, which may be a job's, or the list is empty although memory is in use: PIDs differ
in a container, or are hidden there, and a container's daemon starts a job's processes.
"""

from __future__ import annotations

import math
import statistics
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from pipeline.base.domain.marks import NO_MARKS, Marks, join
from pipeline.base.domain.records import Group
from pipeline.base.domain.samples import NUM_GPU_PROCESSES, THROTTLED
from pipeline.base.domain.sharing_modes import MIG, NAIVE, SERIAL, TIMESLICE
from pipeline.base.domain.window import WindowKind
from pipeline.base.system.words import format_count, list_first
from pipeline.launch import job_steps
from pipeline.launch.events import Events
from pipeline.launch.job_state import JobState
from pipeline.observe import latency, throughput
from pipeline.observe.group_result import JobResult, Observation
from pipeline.observe.logged_rate import LoggedRate
from pipeline.observe.sample_figures import Readings, Subject, Window, measure_seconds

MIN_OVERLAP_RATIO = 0.95
"""Smallest `overlap_ratio` of a valid row; below it, some jobs ran alone for too much of the time."""
MIN_WINDOW_SHARE = 0.5
"""A window begins with the first step of the last job. If the window is shorter than this share of its planned
length, that job was delayed. A job without a step in the trial of a window by need makes this length the longest."""
MOST_THROTTLED_RATIO = 0.01
MIN_STEPS, MIN_VALUES, MIN_LOGGED_S = 20, 5, 5.0
"""A rate from fewer steps, or from fewer logged values or seconds, gets a note."""
MOST_PAUSED_RATIO = 0.02


_ONLY_TOTALS = "the trials of a pack run at different times, so only its total time is compared"


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Measured jobs that ran at the same time, with the one window or the several slices of their measurement."""

    states: Sequence[JobState]
    logs: Sequence[Events]
    logged: Sequence[LoggedRate | None]
    windows: Sequence[Window]

    @property
    def window(self) -> Window | None:
        """The time from the first window's begin to the last window's end; `None` if nothing was measured."""
        return (self.windows[0][0], self.windows[-1][1]) if self.windows else None

    @property
    def windows_of_rates(self) -> Sequence[Window]:
        """The windows, without the times in which the logged value of a job is unknown."""
        points = [logged.points for logged in self.logged if logged is not None]
        return [part for window in self.windows for part in throughput.cut_gaps(window, points)]

    @property
    def logged_spans(self) -> list[Window]:
        """The time span of the logged values of each job that logged any."""
        return [
            throughput.find_logged_span(
                logged.points, logged.points[0][0] if log.started_ns is None else log.started_ns
            )
            for log, logged in zip(self.logs, self.logged, strict=True)
            if logged is not None and logged.points
        ]


def find_marks(
    group: Group,
    observation: Observation,
    batches: Sequence[Batch],
    jobs: Sequence[JobResult],
    metrics: Mapping[str, float],
    log_of: Mapping[int, Events],
) -> Marks:
    """Find the marks of a group; `jobs` includes co-runners, and `log_of` all jobs of the launch, by index."""
    if group.pack is not None:
        return Marks(note=_ONLY_TOTALS)
    notes, invalid = list[str](), list(_find_work_while_held(observation, log_of))
    for batch in batches:
        notes += _find_doubts(group, batch)
        if batch.window is not None:
            invalid += [*_find_stalls(group, batch, batch.window), *_find_pauses(group, batch)]
            invalid += _find_clock_faults(group, observation, batch, batch.window)
            notes += [*_find_late_generators(batch, batch.window), *_find_short_windows(group, batch, batch.window)]
            notes += _find_short_tails(batch, batch.window)
    if overlap := _describe_low_overlap(group, batches, metrics):
        invalid.append(overlap)
    if load := describe_foreign_load(jobs, metrics, metrics.get("orchestrator_cpu_pct", 0.0)):
        (notes if group.is_load_noted else invalid).append(load)
    if metrics.get(THROTTLED, 0) > MOST_THROTTLED_RATIO:
        notes.append(f"power or heat limited the clocks for {100 * metrics[THROTTLED]:.0f} % of the window")
    return Marks(join(invalid), join(notes))


def _find_stalls(group: Group, batch: Batch, window: Window) -> Iterator[str]:
    """Yield a mark for each job without steps at an edge of a steady window, or until most of the window was over."""
    if group.window.kind is not WindowKind.STEADY:
        return
    seconds = measure_seconds(window)
    for state, log in zip(batch.states, batch.logs, strict=True):
        if seconds < MIN_WINDOW_SHARE * group.window.longest_s and list(throughput.list_instants_ns(log)[:1]) == [
            window[0]
        ]:
            yield f"job {state.job.name} began its work only {seconds:.3g} s before the end of the window"
        if (stall := throughput.describe_stall(log, window)) is not None:
            yield f"job {state.job.name} {stall}"


def _find_pauses(group: Group, batch: Batch) -> Iterator[str]:
    """Yield a mark for each job that pauses between its steps, because slices give such a job a wrong rate."""
    if group.window.kind is not WindowKind.INTERLEAVED:
        return
    settle_ns = int(group.window.settle_s * 1e9)
    for state, log in zip(batch.states, batch.logs, strict=True):
        if (pauses := throughput.describe_pauses(log.steps, batch.windows, settle_ns, state.holds)) is not None:
            yield f"job {state.job.name} {pauses}"


def _find_work_while_held(observation: Observation, log_of: Mapping[int, Events]) -> Iterator[str]:
    """Yield a mark for each job of a launch that made steps in slices in which it was held; all rows are then wrong."""
    launched = observation.launched or [state for batch in observation.batches for state in batch]
    for position, state in enumerate(launched if observation.slices else ()):
        t_ns = log_of[state.job.index].steps.t_ns
        spans = [(part.begin_ns, part.end_ns) for part in observation.slices if part.num_jobs <= position]
        if num_steps := sum(bisect_right(t_ns, end) - bisect_right(t_ns, begin) for begin, end in spans):
            steps = format_count(num_steps, "step")
            yield f"job {state.job.name} made {steps} while held; make every step in the loop over job.until_stop()"


def _find_clock_faults(group: Group, observation: Observation, batch: Batch, window: Window) -> Iterator[str]:
    paused_s = observation.clock.sum_pauses_s(window)
    if paused_s > MOST_PAUSED_RATIO * measure_seconds(window):
        yield f"all processes were suspended for {paused_s:.3g} s of the window, as by docker pause"
    if group.window.kind is not WindowKind.LOGGED:
        return
    # A program may compute its logged values with the wall clock, even if their times are monotonic.
    if step_s := observation.clock.find_step_s(window):
        yield f"the wall clock was set by {step_s:+.3g} s while the jobs logged their rates"
    for state, logged in zip(batch.states, batch.logged, strict=True):
        if logged is not None and logged.num_misplaced:
            values = format_count(logged.num_misplaced, "value")
            yield f"job {state.job.name} logged {values} with times outside its run"


def _find_late_generators(batch: Batch, window: Window) -> Iterator[str]:
    for state, log in zip(batch.states, batch.logs, strict=True):
        requests = log.requests if state.job.workload.is_rate_given else None
        if requests is not None and (late := latency.describe_lateness(requests, window)) is not None:
            yield f"job {state.job.name}: {late}"


def _find_short_tails(batch: Batch, window: Window) -> Iterator[str]:
    """Yield a mark for the first service whose upper percentile rests on too few independent excursions above it."""
    for state, log in zip(batch.states, batch.logs, strict=True):
        objective = state.job.workload.objective
        percentile = max(99.0, (objective.percentile if objective is not None else None) or 99.0)
        if log.requests is not None and (short := latency.describe_short_window(log.requests, window, percentile)):
            yield f"job {state.job.name}: {short}"
            return


def _find_short_windows(group: Group, batch: Batch, window: Window) -> Iterator[str]:
    few_steps = list[int]()
    for state, log, logged in zip(batch.states, batch.logs, batch.logged, strict=True):
        if group.window.kind is WindowKind.LOGGED and logged is not None:
            num_values = throughput.count_values(logged.points, window)
            if num_values < MIN_VALUES or measure_seconds(window) < MIN_LOGGED_S:
                values = format_count(num_values, "value")
                remedy = "raise window.logged_s" if group.window.stops_scripts else "train longer"
                yield f"job {state.job.name} logged only {values} in {measure_seconds(window):.3g} s; {remedy}"
        elif group.window.kind.is_steady and len(log.steps.t_ns):
            t_ns = log.steps.t_ns
            num_steps = sum(bisect_right(t_ns, end) - bisect_right(t_ns, begin) for begin, end in batch.windows)
            if num_steps < MIN_STEPS:
                few_steps.append(num_steps)
    if few_steps:  # without names of jobs, so that the notes of several groups are one
        yield f"a job made {format_count(min(few_steps), 'step')} in the window; raise {group.window.longest_key}"


def _find_doubts(group: Group, batch: Batch) -> Iterator[str]:
    for state, log, logged in zip(batch.states, batch.logs, batch.logged, strict=True):
        if log.steps.per_entry > 1:
            yield f"job {state.job.name} reported more than {job_steps.MOST_STEPS} steps; step times are unknown"
        if logged is not None:
            yield from (f"job {state.job.name}: {doubt}" for doubt in logged.doubts)
            window = batch.window if group.window.kind is WindowKind.LOGGED else None
            if window is not None and (long := throughput.describe_long_value(logged.points, window)) is not None:
                yield f"job {state.job.name}: {long}"


def _describe_low_overlap(group: Group, batches: Sequence[Batch], metrics: Mapping[str, float]) -> str:
    """Report that jobs hardly ran at the same time; empty if they did, or if the window allows different lengths."""
    is_whole_run = any(logged is not None and len(logged.points) == 1 for batch in batches for logged in batch.logged)
    overlap = metrics.get("overlap_ratio")
    if overlap is None or overlap >= MIN_OVERLAP_RATIO:
        return ""
    if group.window.kind is WindowKind.STEADY or (group.window.kind is WindowKind.LOGGED and is_whole_run):
        return f"overlap {overlap:.3f} is below {MIN_OVERLAP_RATIO}"
    return ""


_LISTED_MODES = frozenset(mode.name for mode in (SERIAL, NAIVE, TIMESLICE, MIG))
"""Modes in which the driver lists each job; the clients of an MPS server are not in every list."""
_MIN_READINGS, _MOST_NAMES = 3, 3


def mark_unused_gpu(group: Group, states: Sequence[JobState], read: Mapping[Subject, Readings]) -> Marks:
    """Mark a group with jobs that were never on the GPU; a note if they may have been, as in jobs of few readings."""
    counts: dict[int | None, list[float]] = {}  # by PID, because jobs that share a process are counted as one
    for state in states:
        of_job = read.get((state.job.index, None), {})
        numbers = [num for (_, name), readings in of_job.items() if name == NUM_GPU_PROCESSES for _, num in readings]
        counts.setdefault(state.pid, []).extend(numbers)
    unseen = {state.job.name: num for state in states if (num := counts[state.pid]) and not any(num)}
    if not unseen or not group.device.is_gpu or group.device.is_simulated:
        return NO_MARKS
    text = f"no process of {list_first(list(unseen), _MOST_NAMES)} was on the GPU; check that the program finds CUDA"
    is_sure = group.scenario in _LISTED_MODES and min(map(len, unseen.values())) >= _MIN_READINGS
    return Marks(invalid=text) if is_sure else Marks(note=text)


BUSY_PROCESS_PCT = 90.0
IDLE_GRACT_RATIO = 0.9
"""A job is host-bound if one of its processes used at least `BUSY_PROCESS_PCT` of a core while GRACT was below
`IDLE_GRACT_RATIO`."""

FOREIGN_LOAD = "other programs used"
MOST_WAIT_PCT = 20.0
_MOST_FOREIGN_SHARE, _MOST_IDLE_SHARE = 0.1, 0.2
"""Other programs slowed a job if three conditions hold: the job waited for CPUs for more than `MOST_WAIT_PCT` of the
time, other programs used more than `_MOST_FOREIGN_SHARE` of its CPUs, and less than `_MOST_IDLE_SHARE` was idle."""

_BUSIEST = "process_cpu_mean_pct"
_WAIT, _CPU = "run_queue_delay_pct", "host_cpu_mean_pct"
_FIGURES = {
    **dict.fromkeys((_BUSIEST, _WAIT, "involuntary_switches_per_s", "cpu_clock_mean_mhz"), ""),
    _CPU: "host_cpu_total_pct",
    "host_memory_peak_mib": "host_memory_total_mib",
}
"""Name of the group's total of each figure of a process; empty if the group has their mean, under the same name."""


def compute_host_figures(
    processes: Sequence[JobResult], of_device: Mapping[str, float], *, is_in_turn: bool
) -> dict[str, float]:
    """Return the host figures of a group: means over the processes of its jobs, and totals unless they ran in turn.

    A figure is missing if a process or the device lacks it. `host_bound_ratio` is the share of host-bound processes.
    """
    metrics = {}
    for name, total in _FIGURES.items():
        values = [process.metrics[name] for process in processes if name in process.metrics]
        if not values or len(values) < len(processes):
            continue
        if not total:
            metrics[name] = statistics.fmean(values)
        elif not is_in_turn:
            metrics[total] = math.fsum(values)
    gract = of_device.get("gract_mean_ratio")
    if gract is not None and _BUSIEST in metrics:
        bound = [process.metrics[_BUSIEST] >= BUSY_PROCESS_PCT and gract < IDLE_GRACT_RATIO for process in processes]
        metrics["host_bound_ratio"] = statistics.fmean(bound)
    return metrics


class HasMetrics(Protocol):
    """A result or record of a job."""

    @property
    def metrics(self) -> Mapping[str, float]:
        """Its figures by name."""


def describe_foreign_load(jobs: Sequence[HasMetrics], of_device: Mapping[str, float], own_pct: float) -> str:
    """Report that a job or co-runner waited for CPUs that other programs used; empty if none did or if unknown.

    Of jobs that share a process, `jobs` has one, with the figures of the process.

    `own_pct` is the CPU usage of the orchestrator and its samplers, in per cent of a core.
    """
    busy, idle = of_device.get("busy_mean_cpus"), of_device.get("idle_mean_cpus")
    if busy is None or idle is None or any(_CPU not in job.metrics for job in jobs):
        return ""
    num_cpus, foreign = busy + idle, busy - (sum(job.metrics[_CPU] for job in jobs) + own_pct) / 100
    if foreign < _MOST_FOREIGN_SHARE * num_cpus or idle > _MOST_IDLE_SHARE * num_cpus:
        return ""
    longest_pct = max(map(_compute_wait_pct, jobs), default=0.0)
    if longest_pct <= MOST_WAIT_PCT:
        return ""
    return (
        f"a job waited for a CPU for {longest_pct:.0f} % of the time while {FOREIGN_LOAD} {foreign:.1f} of "
        f"{num_cpus:.0f} CPUs"
    )


def _compute_wait_pct(job: HasMetrics) -> float:
    """Return how long a job waited for a CPU: the smaller one of its shares of runnable time and of all time."""
    wait, cpu = job.metrics.get(_WAIT, 0.0), job.metrics[_CPU]
    return min(wait, 100 * wait / (wait + cpu)) if wait > 0 else 0.0
