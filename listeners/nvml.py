"""The GPU, read through NVML: quantities of the device, and GPU memory of each job and GPU instance.

`pipeline.prepare.device.nvml` calls NVML.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager

from listeners.base import GPU_UTILISATION, MEMORY_IN_USE, MIB, PollingListener, scale_readings
from listeners.host import find_job
from pipeline.base.domain.protocols import Watch
from pipeline.base.domain.samples import THROTTLED, Chart, Field, Sample, Summary
from pipeline.prepare.device import nvml
from pipeline.prepare.device.gpu_reader import GpuReader

# Source: nvml.h, nvmlClocksEventReason*: software power cap, hardware slowdown (any), thermal slowdown by software and
# by hardware, external power brake.
_POWER_OR_HEAT = 0x4 | 0x8 | 0x20 | 0x40 | 0x80
_THROTTLE_REASONS = "nvmlDeviceGetCurrentClocksThrottleReasons"
MEAN, MAX, PEAK, GROWTH = Summary.MEAN, Summary.MAX, Summary.PEAK, Summary.GROWTH


class NvmlListener(PollingListener):
    """Samples of one whole GPU (`job` is `None`), and of the GPU memory of each job and each used GPU instance.

    Memory excludes the memory that the driver reserves for itself. Energy is counted since the driver was loaded, so
    only differences are meaningful. Power, clocks and temperature are of the whole GPU, also under MIG.
    `throttle_reasons_bits` is the bit mask of nvml.h (nvmlClocksEventReason*): 1 is idle, 4 is the power cap.
    `throttled_ratio` of a sample is 1 if power or heat limited the clocks, else 0; in the row, it is the mean.
    """

    name = "nvml"
    rank = 2
    fields = (
        Field(
            "nvmlDeviceGetMemoryInfo_v2.used",
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
    def source(self, watch: Watch) -> Iterator[Callable[[], Iterable[Sample]]]:
        device = self.gpu(watch)
        with nvml.session():
            reader = GpuReader(device.gpu_uuid)
            used = {slot.gi_id for slot in watch.slots if slot.gi_id is not None}
            yield lambda: self._read(reader, used, watch.pids())

    def _read(self, reader: GpuReader, instances: Collection[int], jobs: Mapping[int, int]) -> Iterator[Sample]:
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
        for job, used in _sum_by_job(reader.process_memory_bytes(), jobs).items():
            yield Sample(
                source=self.name, t_ns=t_ns, values=scale_readings({"usedGpuMemory": used}, self.fields), job=job
            )


def _sum_by_job(memory_bytes: Mapping[int, int], jobs: Mapping[int, int]) -> dict[int, int]:
    """Return the GPU memory of each job, summed over its processes; jobs without a process on the GPU are missing."""
    used: dict[int, int] = {}
    for pid, amount in memory_bytes.items():
        job = find_job(pid, jobs)
        if job is not None:
            used[job] = used.get(job, 0) + amount
    return used
