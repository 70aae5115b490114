"""The GPU, read through NVML: quantities of the device, of each job and of each GPU instance.

`pipeline.prepare.device.nvml` calls NVML.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager

from listeners.base import GPU_UTILISATION, MEMORY_IN_USE, MIB, PollingListener, scale_readings
from listeners.host import find_job
from pipeline.base.domain.protocols import RunningGroup
from pipeline.base.domain.samples import NUM_GPU_PROCESSES, THROTTLED, Chart, Field, Sample, Summary
from pipeline.prepare.device import nvml
from pipeline.prepare.device.gpu_reader import GpuReader, ProcessUtilization

# Source: nvml.h, nvmlClocksEventReason*: software power cap, hardware slowdown (any), thermal slowdown by software and
# by hardware, external power brake.
_POWER_OR_HEAT = 0x4 | 0x8 | 0x20 | 0x40 | 0x80
_THROTTLE_REASONS = "nvmlDeviceGetCurrentClocksThrottleReasons"
_MEMORY = "nvmlDeviceGetMemoryInfo_v2.used"
_LEAST_CONTEXT = 100 * MIB  # below the memory of one CUDA context
MEAN, MAX, PEAK, GROWTH, RATE = Summary.MEAN, Summary.MAX, Summary.PEAK, Summary.GROWTH, Summary.RATE


class NvmlListener(PollingListener):
    """Samples of one whole GPU (`job` is `None`), of each job, and of the memory of each used GPU instance.

    Memory excludes the memory that the driver reserves for itself. Energy is counted since the driver was loaded, so
    only differences are meaningful. Power, clocks and temperature are of the whole GPU, also under MIG.
    `throttle_reasons_bits` is the bit mask of nvml.h (nvmlClocksEventReason*): 1 is idle, 4 is the power cap.
    Utilisation of a job is missing where the driver does not report it: under MIG, and of clients of an MPS server.
    `throttled_ratio` of a sample is 1 if power or heat limited the clocks, else 0; in the row, it is the mean.
    """

    name = "nvml"
    rank = 2
    fields = (
        Field(
            _MEMORY,
            "memory_used_mib",
            "MiB",
            scale=1 / MIB,
            summary=PEAK,
            figure="memory_peak_mib",
            title="peak memory of the GPU",
            column="GPU MiB",
            chart=MEMORY_IN_USE,
        ),
        Field(
            "nvmlDeviceGetPowerUsage", "power_w", "W", scale=1e-3, summary=MEAN, title="power of the GPU", chart=Chart()
        ),
        Field("nvmlDeviceGetTotalEnergyConsumption", "energy_j", "J", scale=1e-3, summary=GROWTH),
        Field("nvmlDeviceGetClockInfo(SM)", "sm_clock_mhz", "MHz", summary=MEAN, title="SM clock"),
        Field("nvmlDeviceGetClockInfo(MEM)", "memory_clock_mhz", "MHz", summary=MEAN),
        Field("nvmlDeviceGetTemperature", "temperature_c", "degrees Celsius", summary=MAX, title="highest temperature"),
        Field("nvmlDeviceGetUtilizationRates.gpu", "utilization_gpu_pct", "%", summary=MEAN, chart=GPU_UTILISATION),
        Field("nvmlDeviceGetUtilizationRates.memory", "utilization_memory_pct", "%"),
        Field(_THROTTLE_REASONS, "throttle_reasons_bits", "bit mask of nvml.h"),
        Field(
            f"{_THROTTLE_REASONS} & {_POWER_OR_HEAT:#x}",
            THROTTLED,
            "ratio",
            summary=MEAN,
            figure=THROTTLED,
            title="time throttled by power or heat",
        ),
        Field("nvmlDeviceGetPerformanceState", "pstate", "number of the performance state"),
        Field(
            "usedGpuMemory",
            "process_memory_mib",
            "MiB",
            scale=1 / MIB,
            summary=PEAK,
            figure="memory_peak_mib",
            is_live=True,
        ),
        # Each sample is a mean since the previous one.
        Field(
            "smUtil",
            "process_sm_utilization_pct",
            "%",
            summary=RATE,
            figure="process_sm_utilization_mean_pct",
        ),
        Field(
            "memUtil",
            "process_memory_utilization_pct",
            "%",
            summary=RATE,
            figure="process_memory_utilization_mean_pct",
        ),
        Field("number of usedGpuMemory", NUM_GPU_PROCESSES, "processes"),
        Field(
            "used of a MIG device",
            "instance_memory_used_mib",
            "MiB",
            scale=1 / MIB,
            summary=PEAK,
            figure="instance_memory_peak_mib",
            title="peak memory of the GPU instance",
            chart=MEMORY_IN_USE,
        ),
    )

    @contextmanager
    def source(self, group: RunningGroup) -> Iterator[Callable[[], Iterable[Sample]]]:
        device = self.gpu(group)
        with nvml.session():
            reader = GpuReader(device.gpu_uuid)
            used = {slot.gi_id for slot in group.slots if slot.gi_id is not None}
            before = reader.process_memory_bytes() or {}
            idle_bytes = reader.quantities().get(_MEMORY, 0)
            yield lambda: self._read(reader, used, group.pids(), before, idle_bytes)

    def _read(
        self,
        reader: GpuReader,
        instances: Collection[int],
        jobs: Mapping[int, int],
        before: Collection[int],
        idle_bytes: float,
    ) -> Iterator[Sample]:
        t_ns = time.monotonic_ns()
        read = reader.quantities()
        if _THROTTLE_REASONS in read:
            read[f"{_THROTTLE_REASONS} & {_POWER_OR_HEAT:#x}"] = bool(int(read[_THROTTLE_REASONS]) & _POWER_OR_HEAT)
        yield Sample(source=self.name, t_ns=t_ns, values=scale_readings(read, self.fields))
        if instances:
            t_ns = time.monotonic_ns()
            for gi_id, memory in reader.instance_memory_bytes().items():
                if gi_id in instances:
                    values = scale_readings({"used of a MIG device": memory}, self.fields)
                    yield Sample(source=self.name, t_ns=t_ns, values=values, gi_id=gi_id)
        if not jobs:
            return
        t_ns = time.monotonic_ns()
        listed = reader.process_memory_bytes()
        memory_bytes = {pid: used for pid, used in (listed or {}).items() if used is not None}
        utilization = reader.process_utilization()
        if utilization:
            # The driver leaves out a process that did not use the GPU, but also each client of an MPS server.
            idle = memory_bytes.keys() - utilization.keys()
            idle -= reader.mps_clients() if idle else set()
            utilization |= dict.fromkeys(idle, ProcessUtilization(0, 0))
        readings: dict[str, Mapping[int, float]] = {
            "usedGpuMemory": memory_bytes,
            "smUtil": {pid: used.sm for pid, used in utilization.items()},
            "memUtil": {pid: used.memory for pid, used in utilization.items()},
            "number of usedGpuMemory": dict.fromkeys(listed or {}, 1),
        }
        by_job = _sum_by_job(readings, jobs)
        # Some containers list no process, though the memory in use shows that there are some.
        hides_some = not listed and read.get(_MEMORY, 0) - idle_bytes > _LEAST_CONTEXT
        are_known = all(pid in before or find_job(pid, jobs) is not None for pid in listed or ())
        if listed is not None and are_known and not hides_some:
            by_job = {job: {"number of usedGpuMemory": 0.0} for job in jobs} | by_job
        for job, sums in by_job.items():
            yield Sample(source=self.name, t_ns=t_ns, values=scale_readings(sums, self.fields), job=job)


def _sum_by_job(readings: Mapping[str, Mapping[int, float]], jobs: Mapping[int, int]) -> dict[int, dict[str, float]]:
    """Return the readings of each job, summed over its processes; jobs without a process on the GPU are missing."""
    pids = set().union(*readings.values())
    owners = {pid: job for pid in pids if (job := find_job(pid, jobs)) is not None}
    sums: dict[int, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for name, by_pid in readings.items():
        for pid, reading in by_pid.items():
            if pid in owners:
                sums[owners[pid]][name] += reading
    return sums
