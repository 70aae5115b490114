"""Hardware counters of stressors that ran alone, from the samples of their groups."""

from __future__ import annotations

import dataclasses
import logging
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pipeline.base.domain import layout
from pipeline.base.domain.window import DIAL, RESOURCE, STRESSOR, TURN_S, Place
from pipeline.base.system.errors import TrackingError
from pipeline.clean import temporary_folder
from pipeline.launch import event_reader
from pipeline.observe.sample_figures import Fields, Window, average_rate
from pipeline.observe.throughput import select_turns
from pipeline.record.sample_series import Series, SeriesKey
from pipeline.record.store.store_access import fetch
from pipeline.report.read.group_series import fetch_samples
from pipeline.report.read.study_records import Row, StressorCounters, Study

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Counter:
    """A hardware counter that shows the load of a resource.

    Attributes:
        field: name of the quantity of a listener, each sample of which is a mean since the previous sample.
        title: name of the counter in the report.
        resource: the resource whose stressor is meant to raise the counter, or a counter of the same size; else empty.
        unit: unit in the report, empty for a share between 0 and 1.
        scale: factor from the quantity's unit to `unit`.
        is_of_job: whether the samples belong to the job, not to the device.
    """

    field: str
    title: str
    resource: str = ""
    unit: str = ""
    scale: float = 1.0
    is_of_job: bool = False


_GB = 2**20 / 1e9
COUNTERS = (
    Counter("smact_ratio", "SMACT"),
    Counter("tensor_active_ratio", "tensor cores", "tensor_cores"),
    Counter("fp32_active_ratio", "fp32 pipe", "issue_fp32"),
    Counter("dram_active_ratio", "DRAM", "memory_bandwidth"),
    Counter("pcie_rx_mib_per_s", "PCIe to the GPU", "pcie_copies", "GB/s", _GB),
    Counter("pcie_tx_mib_per_s", "PCIe from the GPU", "pcie_copies", "GB/s", _GB),
    Counter("cpu_pct", "host CPU", "host_cores", "CPUs", 0.01, is_of_job=True),
)
"""The first counter of a resource is its own. The resources `shared_memory`, `l2`, `launches` and `host_memory` have
none, and SMACT has no resource, because any kernel raises it."""


def add_counters(study: Study) -> Study:
    """Return the study with the counters of its stressors, and a sentence on each run that cannot be read."""
    counters: list[StressorCounters] = []
    sentences = []
    for row in choose_rows(study):
        try:
            counters += read_counters(row)
        except TrackingError as error:
            logger.warning("%s", error)
            sentences.append(f"Not shown: counters of stressors in run {row.run_id}, whose artifacts cannot be read.")
    return dataclasses.replace(study, counters=tuple(counters), not_drawn=(*study.not_drawn, *sentences))


def choose_rows(study: Study) -> list[Row]:
    """Return the rows of stressors that ran alone."""
    return [
        row
        for row in study.rows
        if row.is_valid and row.is_sequential and row.degree == 1 and row.jobs[0].params.get("workload") == STRESSOR
    ]


def read_counters(row: Row) -> list[StressorCounters]:
    """Read the counters of a stressor that ran alone, for each resource and dial; empty without samples in its turns.

    Raises:
        TrackingError: the artifacts of its runs are not readable.
    """
    samples, fields = fetch_samples(row, lambda _: [counter.field for counter in COUNTERS])
    cpus = row.facts.get("cpus", "")
    by_place = {
        place: average_counters(samples, fields, row.jobs[0].index, windows)
        for place, windows in (_read_turns(row) if samples else {}).items()
    }
    return [
        StressorCounters(
            device=row.device_label,
            gpu_uuid=row.gpu_uuid,
            block=row.block,
            place=place,
            num_cpus=int(cpus) if cpus.isdecimal() else None,
            means=means,
        )
        for place, means in by_place.items()
        if means
    ]


def average_counters(
    samples: Mapping[SeriesKey, Series], fields: Fields, job: int, windows: Sequence[Window]
) -> dict[str, float]:
    """Return the mean of each counter over the samples that cover no time outside a window, by name of the quantity."""
    means = {}
    for counter in COUNTERS:
        keys = [SeriesKey(source, job if counter.is_of_job else None, None, counter.field) for source, _ in fields]
        series = next((samples[key] for key in keys if key in samples), Series())
        mean = average_rate([_select_readings(series, window) for window in windows])
        if mean is not None:
            means[counter.field] = mean * counter.scale
    return means


def _select_readings(series: Series, window: Window) -> list[tuple[int, float]]:
    inside = slice(bisect_left(series.t_ns, window[0]), bisect_right(series.t_ns, window[1]))
    return list(zip(series.t_ns[inside], series.values[inside], strict=True))


def _read_turns(row: Row) -> Mapping[Place, Sequence[Window]]:
    """Return the turns of a stressor; the window is the only turn of one that loads a single resource."""
    begin, end, (job,) = row.facts.get("window_start_ns", ""), row.facts.get("window_end_ns", ""), row.jobs
    if not (begin.isdecimal() and end.isdecimal()):
        return {}
    window = int(begin), int(end)
    if TURN_S not in job.params:
        return {(job.params[RESOURCE], float(job.params[DIAL])): [window]}
    try:
        with temporary_folder.hold_scratch() as folder:
            path = fetch(row.store, job.run_id, layout.EVENTS, folder)
            return {} if path is None else select_turns(event_reader.read(path), job.params, window)
    except TrackingError as error:
        raise TrackingError(f"cannot read the turns of run {job.run_id} in {row.store}: {error}") from error
