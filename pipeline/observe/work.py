"""The work of a job, from its steps, its requests, its logged rate, or its whole run.

Only this module distinguishes all ways in which a job can report work.
"""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.base.domain import work_units
from pipeline.base.domain.records import Group, Job
from pipeline.base.domain.window import WindowKind
from pipeline.launch.events import Events
from pipeline.observe import latency, throughput
from pipeline.observe.program_rates.logged_rate import LoggedRate
from pipeline.observe.sample_figures import Window


def compute_figures(
    group: Group,
    job: Job,
    log: Events,
    logged: LoggedRate | None,
    windows: Sequence[Window],
    makespan_s: float | None,
    holds: Sequence[Window] = (),
) -> dict[str, float]:
    """Return the rate of a job in each of its work units, and other figures of its work."""
    unit, kind = job.workload.work_unit, WindowKind.STEADY if job.is_co_runner else group.window.kind
    metrics: dict[str, float] = {}
    if windows:
        metrics |= throughput.compute_figures(kind, unit, log, windows, holds)
        metrics |= _compute_request_figures(kind, job, log, windows[0])
    samples = job.workload.rate.samples
    if samples is not None and makespan_s:
        metrics |= {work_units.rate_of(unit): samples / makespan_s, work_units.number_of(unit): float(samples)}
    elif logged is not None and logged.points:
        metrics[work_units.rate_of(unit)] = throughput.average_logged_rate(
            logged.points, windows[0] if windows and kind is WindowKind.LOGGED else None
        )
    for other, number in work_units.list_second_units(unit, log.params):
        for name in (work_units.rate_of, work_units.number_of):
            if name(unit) in metrics:
                metrics[name(other)] = number * metrics[name(unit)]
    return metrics


def list_instants_ns(log: Events) -> Sequence[int]:
    """Return the instants of a job's steps, or of its first and last answer; empty if it reports neither."""
    return log.steps.t_ns if log.requests is None else log.requests.first_and_last_ns


def _compute_request_figures(kind: WindowKind, job: Job, log: Events, window: Window) -> dict[str, float]:
    """Return the figures of the requests in a steady window, else from the start to the last answer; not in slices."""
    if log.requests is None or log.started_ns is None or kind is WindowKind.INTERLEAVED:
        return {}
    if kind is not WindowKind.STEADY and (instants := log.requests.first_and_last_ns):
        window = log.started_ns, instants[-1] + 1
    workload = job.workload
    return latency.compute_figures(
        log.requests, window, is_rate_given=workload.is_rate_given, objective=workload.objective
    )


def explain_absence(group: Group, job: Job, log: Events, metrics: dict[str, float], logged: LoggedRate | None) -> str:
    """Explain why a successful job has no measured work; empty if it has some."""
    if logged is not None and not logged.points:
        return logged.absence
    is_lacking = work_units.rate_of(job.workload.work_unit) not in metrics
    if group.window.kind is WindowKind.INTERLEAVED and is_lacking:
        if log.requests is not None:
            return "requests are not measured in slices; set window=steady"
        return "the job completed no step in one of its slices; raise window.slice_s"
    if group.window.kind is WindowKind.STEADY and not job.is_co_runner and is_lacking:
        what = (
            "request was sent and answered" if job.workload.work_unit == work_units.REQUESTS else "step was completed"
        )
        lower = " or lower the request rate" if job.workload.is_rate_given else ""
        return f"no {what} inside the window; raise {group.window.longest_key}{lower}"
    if not job.workload.ends_by_itself and not list_instants_ns(log):
        return "lost result: the job succeeded, but its files contain neither a step nor an answered request"
    return ""
