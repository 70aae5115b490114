"""The running group as named and labelled series, for any exporter.

On request, the series are read from the samples in memory and from the event files of the jobs.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from pipeline.base.domain.records import Device, Group, Job
from pipeline.base.domain.running_group import RunningGroup
from pipeline.observe.live_progress import LiveJobs

PREFIX = "collocation"
LABELS = ("experiment", "scenario", "group", "job_name", "gpu", "gpu_instance")
"""Labels of every series; the value is empty if unknown. Prometheus itself sets the labels `job` and `instance`."""
INFO, PHASE = f"{PREFIX}_group_info", f"{PREFIX}_job_phase"
WORK, RATE, EPOCH = f"{PREFIX}_job_work_total", f"{PREFIX}_job_work_per_s", f"{PREFIX}_job_epoch"

_MISSED = 2  # number of missing readings after which a series is left out
_LATE_NS = 2_000_000_000  # delay of samples from a program that prints several lines at once
_NOT_IN_A_NAME = re.compile(r"\W", re.ASCII)


@dataclass(frozen=True, slots=True)
class Metric:
    """One quantity, with its values by the values of its labels. A counter only grows while its group runs."""

    name: str
    help: str
    labels: tuple[str, ...] = LABELS
    is_counter: bool = False
    values: dict[tuple[str, ...], float] = field(default_factory=dict)


class _Series(NamedTuple):
    source: str
    quantity: str
    job: int | None
    gi_id: int | None


def name_metric(source: str, quantity: str) -> str:
    """Return the name of the metric for a listener's quantity, such as `collocation_nvml_power_w`."""
    return _NOT_IN_A_NAME.sub("_", f"{PREFIX}_{source}_{quantity}")


class GroupSeries:
    """The series of one group; only one thread at a time may read them."""

    def __init__(self, group: Group, running: RunningGroup, now_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._group, self._running, self._now_ns = group, running, now_ns
        self._jobs = LiveJobs(group, running, now_ns)
        self._of_machine = {table.source for table in running.tables if table.of_machine}
        self._fields = {
            (table.source, quantity.name): quantity for table in running.tables for quantity in table.fields
        }
        self._intervals_ns = {table.source: table.interval_ms * 1_000_000 for table in running.tables}
        self._latest: dict[_Series, tuple[int, float]] = {}
        self._num_seen = 0

    def read(self) -> list[Metric]:
        """Return the current values, without series that have no recent sample."""
        return [self._read_info(), *self._read_progress(), *self._read_samples()]

    def _read_info(self) -> Metric:
        group = self._group
        labels = (*LABELS, "device", "window", "block", "degree")
        of_group = (group.settings["device"], group.window.text, str(group.block), str(group.degree))
        values = {(*self._make_labels(None, is_of_device=True), *of_group): 1.0}
        return Metric(INFO, "The running group and its device.", labels, values=values)

    def _read_progress(self) -> Iterator[Metric]:
        phase = Metric(PHASE, "Phase of the job: 1 for the current phase.", (*LABELS, "phase"))
        work = Metric(WORK, "Work since the start of the job, in its work unit.", (*LABELS, "unit"), is_counter=True)
        rate = Metric(RATE, "Work per second, over the last seconds.", (*LABELS, "unit"))
        epoch = Metric(EPOCH, "Current epoch of the job.")
        for now in self._jobs.read():
            labels, unit = self._make_labels(now.job), now.job.workload.work_unit
            phase.values[*labels, now.phase] = 1.0
            for metric, value in ((work, now.total), (rate, now.per_s)):
                if value is not None:
                    metric.values[*labels, unit] = value
            if now.epoch is not None:
                epoch.values[labels] = now.epoch
        yield from (phase, work, rate, epoch)

    def _read_samples(self) -> Iterator[Metric]:
        metrics: dict[str, Metric] = {}
        for (source, quantity, job, gi_id), value in self._select_newest():
            name, known = name_metric(source, quantity), self._fields.get((source, quantity))
            text = f"{known.source_id}, in {known.unit}" if known else ""
            metric = metrics.setdefault(name, Metric(name, text))
            of_job = None if job is None else self._group.jobs[job]
            metric.values[self._make_labels(of_job, gi_id, is_of_device=source not in self._of_machine)] = value
        yield from metrics.values()

    def _select_newest(self) -> Iterator[tuple[_Series, float]]:
        """Yield the last value of each series with a recent sample."""
        samples = self._running.samples
        end = len(samples)  # fixed here, because listeners continue to append samples
        for sample in samples[self._num_seen : end]:
            for quantity, value in sample.values.items():
                self._latest[_Series(sample.source, quantity, sample.job, sample.gi_id)] = sample.t_ns, value
        self._num_seen = end
        now_ns, longest_ns = self._now_ns(), max(self._intervals_ns.values(), default=0)
        for series, (t_ns, value) in self._latest.items():
            interval_ns = self._intervals_ns.get(series.source, longest_ns)
            if now_ns - t_ns <= _MISSED * interval_ns + _LATE_NS:
                yield series, value

    def _make_labels(self, job: Job | None, gi_id: int | None = None, *, is_of_device: bool = True) -> tuple[str, ...]:
        group = self._group
        if job is not None:
            gi_id, is_of_device = self._running.slots[job.index].gi_id, True
        gpu, instance = _name_gpu(group.device) if is_of_device else "", "" if gi_id is None else str(gi_id)
        return group.experiment, group.scenario, group.name, "" if job is None else job.name, gpu, instance


def _name_gpu(device: Device) -> str:
    if not device.is_gpu:
        return ""
    return f"simulated {device.gpu_uuid}" if device.is_simulated else device.gpu_uuid
