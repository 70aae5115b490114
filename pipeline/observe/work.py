"""What work a job did, however it tells: by its steps, its requests, by what it logged, or in its whole run.

This is the one place that asks. A job that tells in another way is asked here, in each of the functions.
"""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.base.domain import units
from pipeline.base.domain.records import Group, Job, WindowKind
from pipeline.launch.events import Events
from pipeline.observe import latency, throughput
from pipeline.observe.logged.metric import Logged
from pipeline.observe.sampled import Window


def figures(
    group: Group, job: Job, log: Events, said: Logged | None, window: Window | None, makespan_s: float | None
) -> dict[str, float]:
    """How fast a job was, in its unit and in those that follow from it, and what else its work tells; else nothing."""
    unit, kind = job.workload.unit, _kind(group, job)
    found: dict[str, float] = {}
    if window is not None:
        found |= throughput.figures(kind, unit, log, window)
        found |= _of_requests(kind, job, log, window)
    samples = job.workload.rate.samples
    if samples is not None and makespan_s:
        found |= {units.rate_of(unit): samples / makespan_s, units.number_of(unit): float(samples)}
    elif said is not None and said.points:
        found[units.rate_of(unit)] = throughput.logged_rate(said.points, window if kind is WindowKind.LOGGED else None)
    for other, number in units.list_second_units(unit, log.params):
        for name in (units.rate_of, units.number_of):
            if name(unit) in found:
                found[name(other)] = number * found[name(unit)]
    return found


def _kind(group: Group, job: Job) -> WindowKind:
    """A neighbour goes on until it is told to stop, and is measured while the others are."""
    return WindowKind.STEADY if job.is_neighbour else group.window.kind


def instants_ns(log: Events) -> Sequence[int]:
    """When a job had completed a part of its work, in order; empty if it does not tell."""
    return log.steps.t_ns if log.requests is None else log.requests.first_and_last_ns


def _of_requests(kind: WindowKind, job: Job, log: Events, window: Window) -> dict[str, float]:
    """In a steady window, the requests of it; else all of a job, from its own start to its last answer."""
    if log.requests is None or log.started_ns is None:
        return {}
    if kind is not WindowKind.STEADY and (instants := log.requests.first_and_last_ns):
        window = log.started_ns, instants[-1] + 1
    workload = job.workload
    return latency.figures(log.requests, window, is_rate_given=workload.is_rate_given, objective=workload.objective)


def absence(group: Group, job: Job, log: Events, found: dict[str, float], said: Logged | None) -> str:
    """In words, why a job that ended well shows no work to measure; empty if it does."""
    if said is not None and not said.points:
        return said.absence
    is_lacking = units.rate_of(job.workload.unit) not in found
    if group.window.kind is WindowKind.STEADY and not job.is_neighbour and is_lacking:
        what = "request was sent and answered" if job.workload.unit == latency.REQUESTS else "step was completed"
        lower = ", or the rate of the requests lower" if job.workload.is_rate_given else ""
        return f"no {what} inside the window; make window.seconds longer{lower}"
    if not job.workload.ends_by_itself and not instants_ns(log):
        return "lost result: the job ended well, but its files hold no step and no answered request"
    return ""
