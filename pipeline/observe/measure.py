"""From what was observed to a row: the figures of jobs and group. How each ended is decided in `endings`.

Pure: it reads the event files of a group that is over, and computes. Rules of measurement are named where they apply.
"""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import compress

from pipeline.base import layout, services, units
from pipeline.base.normalise import compared_names
from pipeline.base.point_series import PointSeries
from pipeline.base.records import Group, Result, WindowKind
from pipeline.base.samples import THROTTLED
from pipeline.base.tags import Tag
from pipeline.launch import event_reader, steps
from pipeline.launch.events import Events
from pipeline.launch.state import JobState
from pipeline.observe import changed_files, endings, host, latency, phases, sampled, throughput, work
from pipeline.observe.group_result import GroupResult, JobResult
from pipeline.observe.logged import metric
from pipeline.observe.logged.metric import Logged
from pipeline.observe.observation import Observation

# Below this share of common running time, a steady row does not show collocation but its edges.
MIN_OVERLAP_RATIO = 0.95
MIN_WINDOW_SHARE = 0.5
"""A window opens with the first step of the last job. If less than this share of it is left, that job was held up."""

MOST_THROTTLED_RATIO = 0.01
FIRST_GPU_USE = "first_gpu_use_s"
_HAS_FIGURES = (Result.OK, Result.WRONG_RESULTS)


def judge(group: Group, seen: Observation) -> GroupResult:
    """The row of a group."""
    jobs: list[JobResult] = []
    windows: list[sampled.Window] = []
    stalls: list[str] = []
    late: list[str] = []
    are_whole_runs = False
    read = sampled.readings(seen.samples)
    every = [state for batch in seen.batches for state in batch]
    log_of = {state.job.index: event_reader.read(state.folder / layout.EVENTS, state.lifetime) for state in every}
    whose = changed_files.owners(seen.changed, every, log_of, seen.wall_offset_ns)
    for batch in seen.batches:
        logs = [log_of[state.job.index] for state in batch]
        said = [metric.read(state, log, whose, seen.wall_offset_ns) for state, log in zip(batch, logs, strict=True)]
        measured = [not state.job.is_neighbour for state in batch]
        own_states, own_logs = list(compress(batch, measured)), list(compress(logs, measured))
        window = None
        if group.window.kind is WindowKind.LOGGED:
            window = throughput.common_window([each.points if each else () for each in compress(said, measured)])
            are_whole_runs |= window is None
        window = window or _window(group, own_states, own_logs)
        if window is not None:
            windows.append(window)
            stalls += _stalls(group, own_states, own_logs, window)
            late += _late_generators(own_states, own_logs, window)
        late += _doubts(batch, logs, said, window if group.window.kind is WindowKind.LOGGED else None)
        jobs += [_job(group, *each, window, seen, read) for each in zip(batch, logs, said, strict=True)]
    ending = endings.of_group(jobs, seen.reason, interrupted=seen.interrupted, expected=len(group.jobs))
    own = [job for job in jobs if not job.job.is_neighbour]
    metrics = _group_metrics(group, own, jobs) if ending.result in _HAS_FIGURES else {}
    of_device = sampled.figures(read.get(sampled.WHOLE, {}), seen.fields, windows)
    # The energy is that of the whole device: with neighbours on it, none of it is that of the work that is measured.
    rates = {} if group.has_neighbours else {unit: metrics[units.total_of(unit)] for unit in units.units_in(metrics)}
    metrics |= host.figures(own, of_device)
    metrics |= of_device | sampled.energy(of_device, windows, seen.idle_w, rates)
    if seen.tool_cpu_s is not None and seen.tool_wall_s:
        metrics["orchestrator_cpu_pct"] = 100 * seen.tool_cpu_s / seen.tool_wall_s
    metrics |= phases.group_metrics(seen.spans)
    tags = dict(seen.tags) | _for_comparisons(own) | _damages(every, log_of)
    if seen.changed and not group.sequential and (shared := changed_files.shared(seen.changed.folder, whose, every)):
        tags[Tag.SHARED_FILES] = shared
    if titled := seen.fields.titled(metrics):
        tags[Tag.FIGURES] = titled
    if windows:
        tags[Tag.WINDOW_START_NS] = str(min(begin for begin, _ in windows))
        tags[Tag.WINDOW_END_NS] = str(max(end for _, end in windows))
    flags = list(stalls)
    overlap = metrics.get("overlap_ratio")
    if (
        (group.window.kind is WindowKind.STEADY or are_whole_runs)
        and overlap is not None
        and overlap < MIN_OVERLAP_RATIO
    ):
        flags.append(f"overlap {overlap:.3f} is below {MIN_OVERLAP_RATIO}")
    if metrics.get(THROTTLED, 0) > MOST_THROTTLED_RATIO:
        flags.append(f"power or heat held the clocks down for {100 * metrics[THROTTLED]:.0f} % of the window")
    flags += [*late, *_words_on_damage(tags)]
    if stalls:
        tags[Tag.STALLED] = "; ".join(stalls)
    if flags:
        tags[Tag.FLAG] = "; ".join(flags)
    return GroupResult(
        group=group,
        result=ending.result,
        reason=ending.reason,
        jobs=tuple(jobs),
        metrics=metrics,
        tags=tags,
        spans=(*seen.spans, *(span for job in jobs for span in job.spans)),
    )


def _window(group: Group, states: Sequence[JobState], logs: Sequence[Events]) -> sampled.Window | None:
    """The measured interval of jobs that ran together: steady, or else from first start to last end."""
    starts = [log.started_ns for log in logs if log.started_ns is not None]
    if len(starts) < len(logs):
        return None
    if group.window.kind is WindowKind.STEADY:
        stops = [state.ended.told_ns for state in states if state.ended.told_ns is not None]
        if not stops:
            return None
        # All jobs are past their first step and the settling time when the window opens.
        first = [instants[0] for log in logs if (instants := work.instants_ns(log))]
        begin = max(max(starts) + int(group.window.settle_s * 1e9), *first, 0)
        return (begin, min(stops)) if begin < min(stops) else None
    ends = [_end_ns(state, log) for state, log in zip(states, logs, strict=True)]
    known = [end for end in ends if end is not None]
    return (min(starts), max(known)) if known else None


def _stalls(group: Group, states: Sequence[JobState], logs: Sequence[Events], window: sampled.Window) -> Iterator[str]:
    """The jobs that stood still at an edge of a steady window, or until it was nearly over, in words."""
    if group.window.kind is WindowKind.STEADY:
        seconds = (window[1] - window[0]) / 1e9
        for state, log in zip(states, logs, strict=True):
            if seconds < MIN_WINDOW_SHARE * group.window.seconds and list(work.instants_ns(log)[:1]) == [window[0]]:
                yield f"job {state.job.name} began to work when {seconds:.3g} s of the window were left"
            if (words := throughput.stall(log, window)) is not None:
                yield f"job {state.job.name} {words}"


def _late_generators(states: Sequence[JobState], logs: Sequence[Events], window: sampled.Window) -> Iterator[str]:
    """The jobs that were not asked at the rate that the user chose, in words."""
    for state, log in zip(states, logs, strict=True):
        asked = log.requests if state.job.workload.is_rate_given else None
        if asked is not None and (words := latency.late_generator(asked, window)) is not None:
            yield f"job {state.job.name}: {words}"


def _doubts(
    states: Sequence[JobState], logs: Sequence[Events], said: Sequence[Logged | None], window: sampled.Window | None
) -> Iterator[str]:
    """Yield what stands beside the figures of the jobs, in words; `window` is that in which all of them log."""
    for state, log, logged in zip(states, logs, said, strict=True):
        if log.steps.per_entry > 1:
            yield f"job {state.job.name} reported more than {steps.MOST_STEPS} steps: their times are not known"
        if logged is not None:
            yield from (f"job {state.job.name}: {doubt}" for doubt in logged.doubts)
            if window is not None and (words := throughput.long_value(logged.points, window)) is not None:
                yield f"job {state.job.name}: {words}"


def _damages(states: Sequence[JobState], log_of: Mapping[int, Events]) -> dict[str, str]:
    """The tag that says which jobs wrote what cannot be."""
    damaged = {state.job.name: words for state in states if (words := _damaged(log_of[state.job.index]))}
    return {Tag.DAMAGED: "; ".join(f"job {name}: {words}" for name, words in damaged.items())} if damaged else {}


def _words_on_damage(tags: Mapping[str, str]) -> list[str]:
    return [f"left out what cannot be true: {tags[Tag.DAMAGED]}"] if Tag.DAMAGED in tags else []


def _damaged(log: Events) -> str:
    """What a job wrote that cannot be, in words; empty if nothing."""
    found = [log.damages, *([log.requests.damages] if log.requests is not None else [])]
    return "; ".join(damages.in_words() for damages in found if damages)


def _end_ns(state: JobState, log: Events) -> int | None:
    """The last instant of a job's work: its last step, answer or epoch, or its exit if it reports none."""
    marks = [*work.instants_ns(log)[-1:], *(epoch.t_ns for epoch in log.epochs[-1:])]
    if marks and log.requests is not None and state.ended.told_ns is not None:
        return min(max(marks), state.ended.told_ns)  # what it answers after the stop was asked before it
    if marks:
        return max(marks)
    if log.ended_ns is not None:
        return log.ended_ns  # and not after what we ourselves still do beside a script
    # What a profiler does after the job's end is not the job's work.
    return state.ended.at_ns if state.profiler is None else state.said.bye_ns


def _job(
    group: Group,
    state: JobState,
    log: Events,
    said: Logged | None,
    window: sampled.Window | None,
    seen: Observation,
    read: Mapping[sampled.Subject, sampled.Readings],
) -> JobResult:
    metrics: dict[str, float] = {}
    own, place = read.get((state.job.index, None), {}), seen.places[state.job.index] if seen.places else {}
    end_ns = _end_ns(state, log)
    if log.started_ns is not None and end_ns is not None:
        metrics["makespan_s"] = (end_ns - log.started_ns) / 1e9
    metrics |= work.figures(group, state.job, log, said, window, metrics.get("makespan_s"))
    if state.job.workload.ends_by_itself and log.started_ns is not None:
        use_ns = sampled.first_gpu_use_ns(own, seen.fields, log.started_ns)
        metrics |= {} if use_ns is None else {FIRST_GPU_USE: (use_ns - log.started_ns) / 1e9}
    if log.epochs:
        metrics["epoch_time_mean_s"] = statistics.fmean(epoch.whole_s for epoch in log.epochs)
    windows = [window] if window is not None else []
    if "gi_id" in place:  # what is known of its GPU instance, which it may share
        metrics |= sampled.figures(read.get((None, int(place["gi_id"])), {}), seen.fields, windows)
    metrics |= sampled.figures(own, seen.fields, windows)
    spans = phases.of_job(state, log)
    metrics |= phases.job_metrics(spans)
    cpus = state.started.cpus if state.started is not None else ()
    ending = endings.of_job(state, log, interrupted=seen.interrupted)
    if ending.result is Result.OK:
        ending = endings.of_measurement(work.absence(group, state.job, log, metrics, said))
    return JobResult(
        job=state.job,
        result=ending.result,
        reason=ending.reason,
        error_output=endings.error_output(state, ending),
        exit_status=state.ended.status,
        pid=state.pid,
        start_ns=log.started_ns,
        end_ns=end_ns,
        metrics=metrics,
        series=_series(log) | _logged_series(said, state.job.workload.unit),
        spans=tuple(spans),
        place=place,
        params=log.params | ({"cpus": ",".join(map(str, cpus))} if cpus else {}) | _source(said),
    )


def _logged_series(said: Logged | None, unit: str) -> dict[str, list[tuple[int, int, float]]]:
    points = said.points if said is not None else ()
    series = PointSeries((step, *point) for step, point in enumerate(points))
    return {f"logged_{unit}_per_s": list(series)} if points else {}


def _source(said: Logged | None) -> dict[str, str]:
    return {"throughput_from": said.source} if said and said.points else {}


def _series(log: Events) -> dict[str, list[tuple[int, int, float]]]:
    series: dict[str, PointSeries] = defaultdict(PointSeries)
    for epoch in log.epochs:
        for name, value in {"epoch_time_s": epoch.whole_s, **epoch.metrics}.items():
            series[name].append(epoch.number, epoch.t_ns, value)
    for name, points in log.metrics.items():
        for point in points:
            series[name].append(*point)
    return {name: list(points) for name, points in series.items()} | (
        latency.series(log.requests) if log.requests is not None else {}
    )


def _for_comparisons(jobs: Sequence[JobResult]) -> dict[str, str]:
    """What comparisons need of each job, by its index, as tags of the row: a resumed study reads no runs of jobs."""
    first: dict[str, Mapping[int, object]] = {
        tag: {
            job.job.index: [float(f"{value:.6g}") for _, _, value in sorted(job.series.get(name, ()))] for job in jobs
        }
        for tag, name in ((Tag.FIRST_LOSSES, "first_loss"), (Tag.FIRST_OUTPUTS, "first_output_norm"))
    }
    rates = {
        job.job.index: {name: job.metrics[name] for name in compared_names(unit) if name in job.metrics}
        for unit, job in ((job.job.workload.unit, job) for job in jobs)
    }
    told: dict[str, Mapping[int, object]] = {**first, Tag.RATES: rates}
    known = {tag: {index: values for index, values in of_each.items() if values} for tag, of_each in told.items()}
    return {tag: json.dumps(of_each) for tag, of_each in known.items() if of_each}


def _group_metrics(group: Group, jobs: Sequence[JobResult], every: Sequence[JobResult]) -> dict[str, float]:
    """The figures of the jobs that are measured, and the work of those among `every` that are their neighbours."""
    metrics = _of_neighbours([job.metrics for job in every if job.job.is_neighbour])
    spans = [(job.start_ns, job.end_ns) for job in jobs if job.start_ns is not None and job.end_ns is not None]
    if len(spans) == len(jobs):
        lengths = [end - start for start, end in spans]
        if group.sequential:
            # One after another: their times add up; what lies between two jobs is the start of a process.
            metrics["makespan_s"] = sum(lengths) / 1e9
        else:
            metrics["makespan_s"] = (max(end for _, end in spans) - min(start for start, _ in spans)) / 1e9
            metrics["start_skew_ms"] = (max(s for s, _ in spans) - min(s for s, _ in spans)) / 1e6
            common = min(end for _, end in spans) - max(start for start, _ in spans)
            metrics["overlap_ratio"] = max(0, common) / max(lengths) if max(lengths) else 0.0
    metrics |= _totals(group, jobs, metrics.get("makespan_s"))
    metrics |= services.of_group([job.metrics for job in jobs])
    uses = [job.metrics[FIRST_GPU_USE] for job in jobs if FIRST_GPU_USE in job.metrics]
    if len(uses) == len(jobs):
        metrics[FIRST_GPU_USE] = max(uses)
    epochs = [job.metrics["epoch_time_mean_s"] for job in jobs if "epoch_time_mean_s" in job.metrics]
    if len(epochs) == len(jobs):
        metrics["epoch_time_mean_s"] = statistics.fmean(epochs)
    # MLflow's page that compares runs opens on the metric that was logged first.
    return {name: metrics[name] for name in sorted(metrics, key=lambda name: not units.units_in([name]))}


def _of_neighbours(neighbours: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """How fast the neighbours were together while others were measured, in each unit that all of them count."""
    return {
        f"neighbours_{units.total_of(unit)}": sum(metrics[units.rate_of(unit)] for metrics in neighbours)
        for unit in units.shared(neighbours)
    }


def _totals(group: Group, jobs: Sequence[JobResult], makespan_s: float | None) -> dict[str, float]:
    """What all jobs did in a second, in each unit that every one of them counts."""
    found: dict[str, float] = {}
    for unit in units.shared([job.metrics for job in jobs]):
        if group.window.kind is WindowKind.WORK:
            numbers = [job.metrics[units.number_of(unit)] for job in jobs if units.number_of(unit) in job.metrics]
            if len(numbers) == len(jobs) and makespan_s:
                found[units.total_of(unit)] = sum(numbers) / makespan_s
        elif len(jobs) == 1 or not group.sequential:
            found[units.total_of(unit)] = sum(job.metrics[units.rate_of(unit)] for job in jobs)
    return found
