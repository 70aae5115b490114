"""The GPU through NVML: device quantities, and GPU memory of each job; `pipeline.prepare.device.nvml` reads them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

from listeners.base import GPU_UTILISATION, MEMORY_IN_USE, PollingListener, scaled
from listeners.host import job_of
from pipeline.base.errors import ListenerError
from pipeline.base.protocols import Watch
from pipeline.base.samples import Chart, Field, Sample, Summary
from pipeline.prepare.device import nvml

_MIB = 2**20


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
            source_id="nvmlDeviceGetMemoryInfo_v2.used",
            name="memory_used_mib",
            unit="MiB",
            scale=1 / _MIB,
            summary=Summary.PEAK,
            figure="memory_peak_mib",
            title="peak memory of the GPU",
            column="GPU MiB",
            chart=MEMORY_IN_USE,
        ),
        Field(
            source_id="nvmlDeviceGetPowerUsage",
            name="power_w",
            unit="W",
            scale=1e-3,
            summary=Summary.MEAN,
            title="power of the GPU",
            chart=Chart(),
        ),
        Field(
            source_id="nvmlDeviceGetTotalEnergyConsumption",
            name="energy_j",
            unit="J",
            scale=1e-3,
            summary=Summary.GROWTH,
            figure="energy_j",
        ),
        Field(
            source_id="nvmlDeviceGetClockInfo(SM)",
            name="sm_clock_mhz",
            unit="MHz",
            summary=Summary.MEAN,
            title="SM clock",
        ),
        Field(source_id="nvmlDeviceGetClockInfo(MEM)", name="memory_clock_mhz", unit="MHz", summary=Summary.MEAN),
        Field(
            source_id="nvmlDeviceGetTemperature",
            name="temperature_c",
            unit="degrees Celsius",
            summary=Summary.MAX,
            title="highest temperature",
        ),
        Field(
            source_id="nvmlDeviceGetUtilizationRates.gpu",
            name="utilization_gpu_pct",
            unit="%",
            summary=Summary.MEAN,
            chart=GPU_UTILISATION,
        ),
        Field(source_id="nvmlDeviceGetUtilizationRates.memory", name="utilization_memory_pct", unit="%"),
        Field(
            source_id="nvmlDeviceGetCurrentClocksThrottleReasons",
            name="throttle_reasons_bits",
            unit="bit mask of nvml.h",
        ),
        Field(source_id="nvmlDeviceGetPerformanceState", name="pstate", unit="number of the performance state"),
        Field(
            source_id="usedGpuMemory",
            name="process_memory_mib",
            unit="MiB",
            scale=1 / _MIB,
            summary=Summary.PEAK,
            figure="memory_peak_mib",
            is_live=True,
        ),
    )

    @contextmanager
    def source(self, watch: Watch) -> Iterator[Callable[[], Iterable[Sample]]]:
        device = watch.device
        if not device.is_gpu:
            raise ListenerError(f"listener {self.name} cannot observe {device.name}: it is not a GPU")
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
