"""The GPU through NVML: device quantities, and GPU memory of each job; `pipeline.prepare.device.nvml` reads them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

from listeners.base import GPU_UTILISATION, MEMORY_IN_USE, MIB, PollingListener, scaled
from listeners.host import job_of
from pipeline.base.protocols import Watch
from pipeline.base.samples import Chart, Field, Sample, Summary
from pipeline.prepare.device import nvml

MEAN, MAX, PEAK, GROWTH = Summary.MEAN, Summary.MAX, Summary.PEAK, Summary.GROWTH


class NvmlListener(PollingListener):
    """Samples one whole GPU (`job` is `None`), and the GPU memory of each job's processes.

    Memory leaves out what the driver reserves for itself. Energy counts from the loading of the driver, so that only
    differences mean anything. Power, clocks and temperature are of the whole GPU under MIG too. `throttle_reasons_bits`
    is the bit mask of nvml.h (nvmlClocksEventReason*): 1 is idle, 4 the power cap.
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
        Field("nvmlDeviceGetCurrentClocksThrottleReasons", "throttle_reasons_bits", "bit mask of nvml.h"),
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
    )

    @contextmanager
    def source(self, watch: Watch) -> Iterator[Callable[[], Iterable[Sample]]]:
        device = self.gpu(watch)
        with nvml.session():
            reader = nvml.GpuReader(device.uuid)
            yield lambda: self._read(reader, watch.pids())

    def _read(self, reader: nvml.GpuReader, jobs: Mapping[int, int]) -> Iterator[Sample]:
        t_ns = time.monotonic_ns()
        yield Sample(source=self.name, t_ns=t_ns, values=scaled(reader.quantities(), self.fields))
        if not jobs:
            return
        t_ns = time.monotonic_ns()
        for job, used in _by_job(reader.process_memory_bytes(), jobs).items():
            yield Sample(source=self.name, t_ns=t_ns, values=scaled({"usedGpuMemory": used}, self.fields), job=job)


def _by_job(memory_bytes: Mapping[int, int], jobs: Mapping[int, int]) -> dict[int, int]:
    """Job index to the sum over its processes. A job without a process on the GPU is absent."""
    used: dict[int, int] = {}
    for pid, amount in memory_bytes.items():
        job = job_of(pid, jobs)
        if job is not None:
            used[job] = used.get(job, 0) + amount
    return used
