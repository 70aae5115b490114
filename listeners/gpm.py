"""Activity of the GPU's units, from NVML's GPM counters: SMs, tensor cores, pipes, DRAM, PCIe and NVLink.

The listener reads the whole GPU and each GPU instance used by a job. It needs no daemon and changes no setting.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from listeners.base import NUM_ACTIVITIES, PollingListener, counter_fields, scale_readings
from pipeline.base.domain.protocols import RunningGroup
from pipeline.base.domain.samples import Sample
from pipeline.base.system.errors import ListenerError
from pipeline.prepare.device import nvml

_log = logging.getLogger(__name__)
# nvml.h requires more than 100 ms between the two samples of a value; 10 ms are added as a margin.
_APART_S = 0.11

# In the order of `counter_fields`, without the prefix `NVML_GPM_METRIC_`.
_METRICS = (
    *("GRAPHICS_UTIL", "SM_UTIL", "SM_OCCUPANCY", "ANY_TENSOR_UTIL", "DRAM_BW_UTIL"),
    *("FP64_UTIL", "FP32_UTIL", "FP16_UTIL"),
    *("PCIE_TX_PER_SEC", "PCIE_RX_PER_SEC", "NVLINK_TOTAL_TX_PER_SEC", "NVLINK_TOTAL_RX_PER_SEC"),
)


class NoCountersError(ListenerError):
    """The GPU or its driver has no GPM counters."""


class GpmListener(PollingListener):
    """Samples of the whole GPU and of each GPU instance of the slots; an instance of several jobs is read once.

    A value is the mean since the previous sample; the first sample covers 0.11 s before the jobs start. Ratios of a GPU
    instance are relative to that instance. `gract_ratio` is the share of time with a running kernel, `smact_ratio` is
    the share of SMs with a warp, and `smocc_ratio` is the share of occupied warp slots of all SMs; none of the three
    is NVML's `utilization`. PCIe and NVLink are counted only for the whole GPU. A simulated GPU has the counters of its
    model, but no values.
    """

    name = "gpm"
    rank = 3
    fields = counter_fields([f"NVML_GPM_METRIC_{metric}" for metric in _METRICS], to_ratio=1e-2)

    @contextmanager
    def source(self, group: RunningGroup) -> Iterator[Callable[[], Iterable[Sample]]]:
        device = self.gpu(group)
        with nvml.session(), ExitStack() as stack:
            try:
                gpu = _pynvml().nvmlDeviceGetHandleByUUID(device.gpu_uuid)
            except _pynvml().NVMLError as error:
                raise ListenerError(f"listener gpm: NVML cannot read GPU {device.gpu_uuid}: {error}") from error
            _check_support(gpu, device.name)
            counters = _open(gpu, sorted({slot.gi_id for slot in group.slots if slot.gi_id is not None}), stack)
            time.sleep(_APART_S)
            yield lambda: self._read(counters)

    def _read(self, counters: Sequence[_Counters]) -> Iterator[Sample]:
        for counter in counters:
            values = scale_readings(counter.read(), self.fields)
            yield Sample(source=self.name, t_ns=counter.t_ns, values=values, gi_id=counter.gi_id)


class _Counters:
    """The counters of one GPU instance, or of the whole GPU; NVML computes a value from two samples."""

    def __init__(self, gpu: object, gi_id: int | None, stack: ExitStack) -> None:
        nvml_c = _pynvml()
        self.gi_id = gi_id
        self._gpu = gpu
        # Link traffic is counted only for the whole GPU.
        fields = GpmListener.fields if gi_id is None else GpmListener.fields[:NUM_ACTIVITIES]
        self._names = [field.source_id for field in fields]
        self._before, self._now = (stack.enter_context(_sample()) for _ in range(2))
        self._request = nvml_c.c_nvmlGpmMetricsGet_t(
            version=nvml_c.NVML_GPM_METRICS_GET_VERSION, numMetrics=len(self._names)
        )
        for metric, name in zip(self._request.metrics, self._names, strict=False):
            metric.metricId = getattr(nvml_c, name)
        self._take(self._before)

    def read(self) -> dict[str, float]:
        """Return the available values since the previous sample by metric, in NVML's units.

        The result is empty if the previous sample is too recent, because the next tick soon follows a late tick; the
        previous sample then stays.
        """
        if time.monotonic_ns() - self.t_ns < _APART_S * 1e9:
            return {}
        nvml_c = _pynvml()
        metrics = self._request.metrics[: len(self._names)]
        for metric in metrics:
            # Without NaN, a metric that the driver skips would look like a successful 0.
            metric.value = math.nan
        try:
            self._take(self._now)
            self._request.sample1, self._request.sample2 = self._before, self._now
            nvml_c.nvmlGpmMetricsGet(self._request)
        except nvml_c.NVMLError as error:
            raise ListenerError(
                f"listener gpm: NVML cannot read counters of {_subject(self.gi_id)}: {error}"
            ) from error
        self._before, self._now = self._now, self._before
        return {
            name: metric.value
            for name, metric in zip(self._names, metrics, strict=True)
            if metric.nvmlReturn == nvml_c.NVML_SUCCESS and math.isfinite(metric.value)
        }

    def _take(self, sample: object) -> None:
        if self.gi_id is None:
            _pynvml().nvmlGpmSampleGet(self._gpu, sample)
        else:
            # The handle is the GPU's, because the handle of a MIG device would count one compute instance.
            _pynvml().nvmlGpmMigSampleGet(self._gpu, self.gi_id, sample)
        self.t_ns = time.monotonic_ns()


def _pynvml() -> Any:
    import pynvml

    return pynvml


def _subject(gi_id: int | None) -> str:
    return "the whole GPU" if gi_id is None else f"GPU instance {gi_id}"


@contextmanager
def _sample() -> Iterator[object]:
    sample = _pynvml().nvmlGpmSampleAlloc()
    try:
        yield sample
    finally:
        _pynvml().nvmlGpmSampleFree(sample)


def _check_support(gpu: object, name: str) -> None:
    nvml_c = _pynvml()
    try:
        is_supported = nvml_c.nvmlGpmQueryDeviceSupport(gpu).isSupportedDevice
    except nvml_c.NVMLError_FunctionNotFound as error:
        raise NoCountersError(
            "listener gpm: this NVIDIA driver has no GPM counters, which need R520 or later; install a newer driver, "
            "or leave gpm out"
        ) from error
    except nvml_c.NVMLError_NotSupported:
        is_supported = False
    except nvml_c.NVMLError as error:
        raise ListenerError(
            f"listener gpm: NVML does not report whether {name} has GPM counters: {error}; leave gpm out"
        ) from error
    if not is_supported:
        raise NoCountersError(
            f"listener gpm: {name} has no GPM counters, which came with Hopper GPUs (H100, H200, GH200); use listener "
            "dcgm on earlier data-center GPUs, or listeners.gpm.required=false to continue without gpm"
        )


def _open(gpu: object, gi_ids: Sequence[int], stack: ExitStack) -> list[_Counters]:
    """Return counters of the whole GPU and of the instances; log a warning for counters that cannot be read."""
    nvml_c = _pynvml()
    opened: list[_Counters] = []
    refusals: list[str] = []
    for gi_id in (None, *gi_ids):
        try:
            opened.append(_Counters(gpu, gi_id, stack))
        except nvml_c.NVMLError as error:
            refusals.append(f"{_subject(gi_id)}: {error}")
    if not opened:
        raise ListenerError(
            f"listener gpm: NVML cannot read counters ({'; '.join(refusals)}); if the permission is missing, run as "
            "root, or load the nvidia kernel module with NVreg_RestrictProfilingToAdminUsers=0"
        )
    for refusal in refusals:
        _log.warning("listener gpm: NVML cannot read counters of %s; they are left out", refusal)
    return opened
