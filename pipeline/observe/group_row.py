"""Computation of a row from observations: the figures of the jobs and of the group. `endings` decides their results.

The only side effect is reading the event files of a finished group.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import statistics
from array import array
from collections import defaultdict
from collections.abc import Mapping, Sequence

from pipeline.base.domain import layout, service_figures, work_units
from pipeline.base.domain.marks import Marks, join
from pipeline.base.domain.normalisation import compared_names
from pipeline.base.domain.records import Group, Result
from pipeline.base.domain.samples import SAMPLED_S, PointSeries
from pipeline.base.domain.tags import Tag
from pipeline.base.domain.window import Window, WindowKind
from pipeline.base.system.words import format_count
from pipeline.launch import event_reader
from pipeline.launch.events import Events
from pipeline.launch.interleaving import Slice
from pipeline.launch.job_state import Ending, JobState
from pipeline.observe import changed_files, endings, latency, logged_rate, phases, row_marks, sample_figures, throughput
from pipeline.observe.group_result import GroupResult, JobResult, Observation
from pipeline.observe.logged_rate import LoggedRate
from pipeline.observe.row_marks import Batch, find_marks, mark_unused_gpu

FIRST_GPU_USE = "first_gpu_use_s"
_HAS_FIGURES = (Result.OK, Result.WRONG_RESULTS)


def judge(group: Group, observation: Observation) -> GroupResult:
    """Compute the row of a group."""
    jobs: list[JobResult] = []
    batches: list[Batch] = []
    in_turns: list[throughput.BatchTurns] = []
    read = sample_figures.group_by_subject(observation.samples)
    all_states = [state for batch in observation.batches for state in batch]
    log_of = {
        state.job.index: event_reader.read(state.folder / layout.EVENTS, state.lifetime)
        for state in observation.launched or all_states
    }
    owners = changed_files.find_owners(observation.changed, all_states, log_of, observation.clock)
    logged_of = {
        state.job.index: logged_rate.read_logged_rate(state, log_of[state.job.index], owners, observation.clock)
        for state in all_states
    }
    for states in observation.batches:
        measured = [state for state in states if not state.job.is_co_runner]
        batch = _make_batch(group, measured, log_of, logged_of, observation.slices)
        batches.append(batch)
        rate_windows = batch.windows_of_rates
        in_turns.append(throughput.compute_turn_rates(states, log_of, logged_of, batch.window))
        for state in states:
            log, logged = log_of[state.job.index], logged_of[state.job.index]
            if not state.job.is_co_runner:
                logged = _check_logged_together(group, batch, logged)
            jobs.append(_judge_job(group, state, log, logged, batch.windows, rate_windows, observation, read))
    windows = [window for batch in batches for window in batch.windows]
    ending = endings.judge_group(
        jobs, observation.reason, interrupted=observation.interrupted, expected=len(group.jobs)
    )
    measured_jobs = [job for job in jobs if not job.job.is_co_runner]
    metrics = _compute_group_metrics(group, measured_jobs, jobs, batches) if ending.result in _HAS_FIGURES else {}
    absent: dict[str, str] = {}
    of_device = _compute_sampled(group, read.get(sample_figures.WHOLE, {}), observation, windows, absent)
    # Energy is measured for the whole device, so the energy of the work is unknown if co-runners share the device.
    units = () if group.has_co_runners else work_units.find_units(metrics)
    rates = {unit: metrics[work_units.total_of(unit)] for unit in units}
    processes = _list_processes(group, all_states, jobs, observation, read, windows)
    measured_processes = [process for process in processes if not process.job.is_co_runner]
    metrics |= row_marks.compute_host_figures(measured_processes, of_device, is_in_turn=len(observation.batches) > 1)
    metrics |= of_device | sample_figures.derive_energy(
        of_device, windows, observation.idle_w, observation.waiting_w, rates
    )
    if observation.tool_cpu_s is not None and observation.tool_wall_s:
        metrics["orchestrator_cpu_pct"] = 100 * observation.tool_cpu_s / observation.tool_wall_s
    metrics |= _measure_windows(group, batches, observation.slices) if ending.result in _HAS_FIGURES else {}
    metrics |= phases.compute_group_metrics(observation.spans)
    tags = (
        dict(observation.tags)
        | _make_comparison_tags(group, measured_jobs, observation)
        | _describe_damages(all_states, log_of)
    )
    tags |= throughput.make_turn_tags(in_turns)
    changed = None if group.sequential else observation.changed
    if changed and (shared := changed_files.describe_shared(changed.folder, owners, all_states)):
        tags[Tag.SHARED_FILES] = shared
    if any(state.is_tenant for state in all_states):
        tags[Tag.ONE_PROCESS] = _describe_process(all_states)
    if group.window.kind is WindowKind.INTERLEAVED and windows:
        tags[Tag.SLICES] = f"{len(windows)} x {sample_figures.measure_seconds(windows[0]):g} s"
    if titled := observation.fields.describe_titled(metrics):
        tags[Tag.FIGURES] = titled
    if windows:
        tags[Tag.WINDOW_START_NS] = str(min(begin for begin, _ in windows))
        tags[Tag.WINDOW_END_NS] = str(max(end for _, end in windows))
    if absent:
        tags[Tag.ABSENT_FIGURES] = "; ".join(f"{name}: {reason}" for name, reason in absent.items())
    of_run = find_marks(group, observation, batches, processes, metrics, log_of)
    parts = (of_run, mark_unused_gpu(group, all_states, read), observation.device_marks)
    notes = [*(part.note for part in parts), *itertools.chain(*(batch_turns.gaps for batch_turns in in_turns))]
    if Tag.DAMAGED in tags:
        notes.append(f"left out impossible values: {tags[Tag.DAMAGED]}")
    marks = Marks(join(part.invalid for part in parts), join(notes))
    tags |= {tag: mark for tag, mark in ((Tag.INVALID, marks.invalid), (Tag.FLAG, marks.note)) if mark}
    return GroupResult(
        group=group,
        result=ending.result,
        reason=ending.reason,
        jobs=tuple(jobs),
        metrics=metrics,
        tags=tags,
        spans=(*observation.spans, *(span for job in jobs for span in job.spans)),
    )


def _make_batch(
    group: Group,
    states: Sequence[JobState],
    log_of: Mapping[int, Events],
    logged_of: Mapping[int, LoggedRate | None],
    slices: Sequence[Slice],
) -> Batch:
    """Collect the logs of measured jobs that ran together, and find their windows."""
    logs, logged = [log_of[state.job.index] for state in states], [logged_of[state.job.index] for state in states]
    if group.window.kind is WindowKind.INTERLEAVED or slices:
        windows = [(part.begin_ns, part.end_ns) for part in slices if part.num_jobs == len(group.measured)]
        return Batch(states=states, logs=logs, logged=logged, windows=windows)
    window = _find_window(group, states, logs)
    batch = Batch(states=states, logs=logs, logged=logged, windows=[] if window is None else [window])
    if group.window.kind is not WindowKind.LOGGED or len(batch.logged_spans) < len(states):
        return batch
    begin, end = max(begin for begin, _ in batch.logged_spans), min(end for _, end in batch.logged_spans)
    return dataclasses.replace(batch, windows=[(begin, end)] if begin < end else [])


def _check_logged_together(group: Group, batch: Batch, logged: LoggedRate | None) -> LoggedRate | None:
    is_unknown = group.window.kind is not WindowKind.LOGGED or len(batch.logged_spans) < len(batch.states)
    if is_unknown or batch.window is not None:
        return logged
    first = min(zip(batch.logged_spans, batch.states, strict=True), key=lambda pair: pair[0][1])[1]
    last = max(zip(batch.logged_spans, batch.states, strict=True), key=lambda pair: pair[0][0])[1]
    never = f"jobs {first.job.name} and {last.job.name} never logged at the same time; let them train longer"
    if first is last:
        never = f"job {first.job.name} logged at one instant only; let it train longer"
    return LoggedRate(absence=never)


def _measure_windows(group: Group, batches: Sequence[Batch], slices: Sequence[Slice]) -> dict[str, float]:
    """Return the length of windows without a planned length; for logged windows, also the share in the longest job."""
    if group.window.kind not in (WindowKind.LOGGED, WindowKind.INTERLEAVED) and not group.window.most_s:
        return {}
    windows = [window for batch in batches for window in batch.windows]
    metrics = {"window_s": sum(map(sample_figures.measure_seconds, windows))}
    if group.window.kind is not WindowKind.LOGGED or slices:
        return metrics
    spans = [span for batch in batches for span in batch.logged_spans]
    if not group.sequential and windows and spans:
        metrics["overlap_ratio"] = (windows[0][1] - windows[0][0]) / max(end - begin for begin, end in spans)
    return metrics


def _find_window(group: Group, states: Sequence[JobState], logs: Sequence[Events]) -> sample_figures.Window | None:
    """Return the measured interval of jobs that ran together: the steady window, else from first start to last end."""
    starts = [log.started_ns for log in logs if log.started_ns is not None]
    if len(starts) < len(logs):
        return None
    if group.window.kind is WindowKind.STEADY:
        stops = [state.ended.told_ns for state in states if state.ended.told_ns is not None]
        if not stops:
            return None
        # The window begins after the first step of every job and after the settling time.
        first = [instants[0] for log in logs if (instants := throughput.list_instants_ns(log))]
        begin = max(max(starts) + int(group.window.begin_s * 1e9), *first, 0)
        return (begin, min(stops)) if begin < min(stops) else None
    ends = [_find_end_ns(state, log) for state, log in zip(states, logs, strict=True)]
    known_ends = [end for end in ends if end is not None]
    return (min(starts), max(known_ends)) if known_ends else None


def _describe_damages(states: Sequence[JobState], log_of: Mapping[int, Events]) -> dict[str, str]:
    texts = []
    for state in states:
        log = log_of[state.job.index]
        damages = [log.damages, *([log.requests.damages] if log.requests is not None else [])]
        if words := "; ".join(damage.describe() for damage in damages if damage):
            texts.append(f"job {state.job.name}: {words}")
    return {Tag.DAMAGED: "; ".join(texts)} if texts else {}


def _find_end_ns(state: JobState, log: Events) -> int | None:
    """Return the last instant of a job's work: its last step, answer or epoch, or else its exit."""
    marks = [*throughput.list_instants_ns(log)[-1:], *(epoch.t_ns for epoch in log.epochs[-1:])]
    if marks and log.requests is not None and state.ended.told_ns is not None:
        return min(max(marks), state.ended.told_ns)  # answers after the stop are for requests before the stop
    if marks:
        return max(marks)
    if log.ended_ns is not None:
        return log.ended_ns  # not the exit of the script's runner, which still does other work
    # The process, or its wrapper, may go on after the job's work.
    return state.said.bye_ns if state.outlives_work else state.ended.at_ns


def _judge_job(
    group: Group,
    state: JobState,
    log: Events,
    logged: LoggedRate | None,
    windows: Sequence[sample_figures.Window],
    rate_windows: Sequence[sample_figures.Window],
    observation: Observation,
    read: Mapping[sample_figures.Subject, sample_figures.Readings],
) -> JobResult:
    metrics: dict[str, float] = {}
    place = observation.places[state.job.index] if observation.places else {}
    # The samples of a process that hosts several jobs are figures of the group, not of a job.
    of_job = {} if state.is_tenant else read.get((state.job.index, None), {})
    end_ns = _find_end_ns(state, log)
    is_interleaved = group.window.kind is WindowKind.INTERLEAVED
    if log.started_ns is not None and end_ns is not None and group.window.has_makespan:
        metrics["makespan_s"] = (end_ns - log.started_ns) / 1e9
    metrics |= throughput.compute_work_figures(
        group, state.job, log, logged, rate_windows, metrics.get("makespan_s"), state.holds
    )
    if state.job.workload.ends_by_itself and log.started_ns is not None:
        use_ns = sample_figures.find_first_gpu_use_ns(of_job, observation.fields, log.started_ns)
        metrics |= {} if use_ns is None else {FIRST_GPU_USE: (use_ns - log.started_ns) / 1e9}
    if log.epochs and not is_interleaved:  # the number of jobs changed during its epochs
        metrics["epoch_time_mean_s"] = statistics.fmean(epoch.whole_s for epoch in log.epochs)
    if "gi_id" in place:  # figures of the job's GPU instance, which the job may share
        metrics |= _compute_sampled(group, read.get((None, int(place["gi_id"])), {}), observation, windows)
    # The window is cut at the job's end, because a job that ended before others has no readings after its end.
    metrics |= _compute_sampled(group, of_job, observation, [_clip(span, log.started_ns, end_ns) for span in windows])
    spans = phases.list_job_phases(state, log)
    metrics |= phases.compute_job_metrics(spans)
    cpus = state.started.cpus if state.started is not None else ()
    ending = endings.judge_job(state, log, interrupted=observation.interrupted)
    if (
        ending.result is Result.OK
        and group.pack is None
        and (absence := throughput.explain_absence(group, state.job, log, metrics, logged))
    ):
        ending = Ending(Result.FAILED, absence)
    return JobResult(
        job=state.job,
        result=ending.result,
        reason=ending.reason,
        error_output=endings.read_error_output(state, ending),
        exit_status=state.ended.status,
        pid=state.pid,
        start_ns=log.started_ns,
        end_ns=end_ns,
        metrics=metrics,
        series=_make_series(log) | _make_logged_series(logged),
        spans=tuple(spans),
        place=place,
        params=log.params
        | ({"cpus": ",".join(map(str, cpus))} if cpus else {})
        | ({"throughput_from": logged.source} if logged and logged.points else {}),
    )


def _list_processes(
    group: Group,
    states: Sequence[JobState],
    jobs: Sequence[JobResult],
    observation: Observation,
    read: Mapping[sample_figures.Subject, sample_figures.Readings],
    windows: Sequence[sample_figures.Window],
) -> list[JobResult]:
    """Return a result with the figures of each process: of each job, or of the first job of several in one process."""
    processes: dict[int | None, JobResult] = {}
    for state, job in zip(states, jobs, strict=True):
        if not state.is_tenant:
            processes[-1 - job.job.index] = job  # a PID may be unknown, or reused by a later job of a serial group
            continue
        # Samples of a process are stored for one of its jobs.
        if readings := read.get((job.job.index, None)):
            figures = _compute_sampled(group, readings, observation, windows)
            processes[state.pid] = dataclasses.replace(job, metrics=figures)
    return list(processes.values())


def _describe_process(states: Sequence[JobState]) -> str:
    """Say that jobs share a process, and which of their figures are those of the process."""
    number = sum(state.is_tenant for state in states)
    jobs = format_count(number, "job")
    return (
        f"{jobs} in one process with one Python interpreter: memory of the driver and the host, CPU time and exit "
        "status are those of the process"
    )


def _clip(window: sample_figures.Window, begin_ns: int | None, end_ns: int | None) -> sample_figures.Window:
    begin, end = window
    return begin if begin_ns is None else max(begin, begin_ns), end if end_ns is None else min(end, end_ns)


def _make_logged_series(logged: LoggedRate | None) -> dict[str, list[tuple[int, int, float]]]:
    points = [point for point in logged.points if not math.isnan(point[1])] if logged is not None else []
    series = PointSeries((step, *point) for step, point in enumerate(points))
    return {f"logged_{logged.work_unit}_per_s": list(series)} if logged is not None and points else {}


def _compute_sampled(
    group: Group,
    readings: sample_figures.Readings,
    observation: Observation,
    windows: Sequence[sample_figures.Window],
    absent: dict[str, str] | None = None,
) -> dict[str, float]:
    """Return the figures from samples; short windows have none, because power and activity are means over up to 1 s."""
    has_peaks = max((part.num_jobs for part in observation.slices), default=0) in (0, len(group.jobs))
    if too_short := _describe_short_window(group.window, windows):
        windows = []
        if absent is not None and readings:
            absent["power and activity"] = too_short
    return sample_figures.compute_figures(readings, observation.fields, windows, absent, has_peaks=has_peaks)


def _describe_short_window(window: Window, measured: Sequence[sample_figures.Window]) -> str:
    """Report that slices, or windows by need, are too short for figures from samples; empty if they are not."""
    shortest_s = min(map(sample_figures.measure_seconds, measured), default=SAMPLED_S)
    if window.kind is WindowKind.INTERLEAVED and shortest_s < SAMPLED_S:
        return f"slices of {shortest_s:.3g} s are shorter than {SAMPLED_S:g} s; set window.slice_s={SAMPLED_S:g}"
    if window.most_s and shortest_s < SAMPLED_S:
        return f"the window of {shortest_s:.3g} s is shorter than {SAMPLED_S:g} s; set window.seconds={SAMPLED_S:g}"
    return ""


def _make_series(log: Events) -> dict[str, list[tuple[int, int, float]]]:
    series: dict[str, PointSeries] = defaultdict(PointSeries)
    for epoch in log.epochs:
        for name, value in {"epoch_time_s": epoch.whole_s, **epoch.metrics}.items():
            series[name].append(epoch.number, epoch.t_ns, value)
    for name, points in log.metrics.items():
        for point in points:
            series[name].append(*point)
    return {name: list(points) for name, points in series.items()} | (
        latency.make_series(log.requests) if log.requests is not None else {}
    )


def _make_comparison_tags(group: Group, jobs: Sequence[JobResult], observation: Observation) -> dict[str, str]:
    """Return tags with the figures of jobs that comparisons need, because a resumed study does not read job runs."""
    checked = [
        job
        for job in jobs
        if group.window.kind is not WindowKind.INTERLEAVED
        or observation.jobs_at_first_steps.get(job.job.index) == len(jobs)
    ]
    bits = {
        job.job.index: array("f", (value for _, _, value in sorted(job.series.get("first_loss", ())))).tobytes().hex()
        for job in checked
    }
    first: dict[str, Mapping[int, object]] = {
        tag: {
            job.job.index: [float(f"{value:.6g}") for _, _, value in sorted(job.series.get(name, ()))]
            for job in checked
        }
        for tag, name in ((Tag.FIRST_LOSSES, "first_loss"), (Tag.FIRST_OUTPUTS, "first_output_norm"))
    }
    rates = {
        job.job.index: {name: job.metrics[name] for name in compared_names(unit) if name in job.metrics}
        for unit, job in ((job.work_unit, job) for job in jobs)
    }
    figures: dict[str, Mapping[int, object]] = {**first, Tag.FIRST_LOSS_BITS: bits, Tag.RATES: rates}
    nonempty = {tag: {index: values for index, values in of_each.items() if values} for tag, of_each in figures.items()}
    return {tag: json.dumps(of_each) for tag, of_each in nonempty.items() if of_each}


def _compute_group_metrics(
    group: Group, jobs: Sequence[JobResult], all_jobs: Sequence[JobResult], batches: Sequence[Batch]
) -> dict[str, float]:
    """Return the figures of the measured jobs, and the total rates of the co-runners in `all_jobs`."""
    metrics = _compute_co_runner_totals([job.metrics for job in all_jobs if job.job.is_co_runner])
    spans = [(job.start_ns, job.end_ns) for job in jobs if job.start_ns is not None and job.end_ns is not None]
    if len(spans) == len(jobs) and group.window.has_makespan:
        lengths = [end - start for start, end in spans]
        if group.sequential:
            # The makespan of a sequential group leaves out the starts of processes between the jobs.
            metrics["makespan_s"] = sum(lengths) / 1e9
        else:
            metrics["makespan_s"] = (max(end for _, end in spans) - min(start for start, _ in spans)) / 1e9
            metrics["start_skew_ms"] = (max(s for s, _ in spans) - min(s for s, _ in spans)) / 1e6
            common = min(end for _, end in spans) - max(start for start, _ in spans)
            metrics["overlap_ratio"] = max(0, common) / max(lengths) if max(lengths) else 0.0
    metrics |= _compute_totals(group, jobs, metrics.get("makespan_s"))
    metrics |= service_figures.summarise_group([job.metrics for job in jobs]) | _pool_first_tokens(group, batches)
    uses = [job.metrics[FIRST_GPU_USE] for job in jobs if FIRST_GPU_USE in job.metrics]
    if len(uses) == len(jobs):
        metrics[FIRST_GPU_USE] = max(uses)
    epochs = [job.metrics["epoch_time_mean_s"] for job in jobs if "epoch_time_mean_s" in job.metrics]
    if len(epochs) == len(jobs):
        metrics["epoch_time_mean_s"] = statistics.fmean(epochs)
    # MLflow's page for comparing runs first shows the metric that was logged first.
    return {name: metrics[name] for name in sorted(metrics, key=lambda name: not work_units.find_units([name]))}


def _pool_first_tokens(group: Group, batches: Sequence[Batch]) -> dict[str, float]:
    """Return the times to the first token of all requests of a group whose services are copies of each other."""
    if group.window.kind is not WindowKind.STEADY or len(batches) != 1 or not batches[0].windows:
        return {}
    logs = zip(batches[0].states, batches[0].logs, strict=True)
    services = [(state.job.workload.digest, log.requests) for state, log in logs if log.requests]
    if len({digest for digest, _ in services}) != 1:
        return {}
    return latency.pool_first_tokens([requests for _, requests in services], batches[0].windows[0])


def _compute_co_runner_totals(co_runners: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {
        f"co_runners_{work_units.total_of(unit)}": sum(metrics[work_units.rate_of(unit)] for metrics in co_runners)
        for unit in work_units.find_common_units(co_runners)
    }


def _compute_totals(group: Group, jobs: Sequence[JobResult], makespan_s: float | None) -> dict[str, float]:
    """Return the total rates of the jobs, in each work unit that all jobs count."""
    totals: dict[str, float] = {}
    for unit in work_units.find_common_units([job.metrics for job in jobs]):
        if group.window.kind is WindowKind.WORK:
            numbers = [
                job.metrics[work_units.number_of(unit)] for job in jobs if work_units.number_of(unit) in job.metrics
            ]
            if len(numbers) == len(jobs) and makespan_s:
                totals[work_units.total_of(unit)] = sum(numbers) / makespan_s
        elif len(jobs) == 1 or not group.sequential:
            totals[work_units.total_of(unit)] = sum(job.metrics[work_units.rate_of(unit)] for job in jobs)
    return totals
