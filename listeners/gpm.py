"""What the GPU's units do, through NVML's GPM counters: SMs, tensor cores, pipes, DRAM, PCIe and NVLink.

Reads the whole GPU and each GPU instance that a job runs in. Needs no daemon and changes nothing.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from listeners.base import PollingListener, activity_fields, scaled
from pipeline.base.errors import ListenerError
from pipeline.base.protocols import Watch
from pipeline.base.samples import Field, Sample
from pipeline.prepare.device import nvml

_log = logging.getLogger(__name__)
# nvml.h wants the two samples that make a value more than 100 ms apart; by our clock, a little more to be sure.
_APART_S = 0.11

_OF_INSTANCES = (
    *activity_fields(
        (
            "NVML_GPM_METRIC_GRAPHICS_UTIL",
            "NVML_GPM_METRIC_SM_UTIL",
            "NVML_GPM_METRIC_SM_OCCUPANCY",
            "NVML_GPM_METRIC_ANY_TENSOR_UTIL",
            "NVML_GPM_METRIC_DRAM_BW_UTIL",
        ),
        scale=1e-2,
    ),
    Field(source_id="NVML_GPM_METRIC_FP64_UTIL", name="fp64_active_ratio", unit="ratio", scale=1e-2),
    Field(source_id="NVML_GPM_METRIC_FP32_UTIL", name="fp32_active_ratio", unit="ratio", scale=1e-2),
    Field(source_id="NVML_GPM_METRIC_FP16_UTIL", name="fp16_active_ratio", unit="ratio", scale=1e-2),
)
_OF_WHOLE_GPU = (
    Field(source_id="NVML_GPM_METRIC_PCIE_TX_PER_SEC", name="pcie_tx_mib_per_s", unit="MiB/s"),
    Field(source_id="NVML_GPM_METRIC_PCIE_RX_PER_SEC", name="pcie_rx_mib_per_s", unit="MiB/s"),
    Field(source_id="NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC", name="nvlink_tx_mib_per_s", unit="MiB/s"),
    Field(source_id="NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC", name="nvlink_rx_mib_per_s", unit="MiB/s"),
)


class GpmListener(PollingListener):
    """Samples the whole GPU and the GPU instances of the slots, each once however many jobs share it.

    A value is the mean since the sample before; the first one covers the 0.11 s before entering returns. Ratios of a
    GPU instance are relative to that instance, whatever its size. `gract_ratio` is the share of time in which any
    kernel ran, `smact_ratio` the share of SMs that held a warp, `smocc_ratio` the share of their warp slots that were
    taken: three quantities, none of which is NVML's `utilization`. PCIe and NVLink are counted for the whole GPU only.
    A simulated GPU has the counters of its model, and no values.
    """

    name = "gpm"
    rank = 3
    fields = (*_OF_INSTANCES, *_OF_WHOLE_GPU)

    @contextmanager
    def source(self, watch: Watch) -> Iterator[Callable[[], Iterable[Sample]]]:
        device = watch.device
        if not device.is_gpu:
            raise ListenerError(f"listener {self.name} cannot observe {device.name}: it is not a GPU")
        with nvml.session(), ExitStack() as stack:
            try:
                gpu = _pynvml().nvmlDeviceGetHandleByUUID(device.uuid)
            except _pynvml().NVMLError as error:
                raise ListenerError(f"listener {self.name}: NVML does not give GPU {device.uuid}: {error}") from error
            _check_support(gpu, device.name)
            counters = _open(gpu, sorted({slot.gi_id for slot in watch.slots if slot.gi_id is not None}), stack)
            time.sleep(_APART_S)
            yield lambda: self._read(counters)

    def _read(self, counters: Sequence[_Counters]) -> Iterator[Sample]:
        for each in counters:
            values = scaled(each.read(), self.fields)
            yield Sample(source=self.name, t_ns=each.t_ns, values=values, gi_id=each.gi_id)


class _Counters:
    """The counters of the whole GPU or of one GPU instance: a value is the difference of two samples.

    Attributes:
        gi_id: the GPU instance, or `None` for the whole GPU.
        t_ns: monotonic instant of the latest sample.
    """

    def __init__(self, gpu: object, gi_id: int | None, stack: ExitStack) -> None:
        nvml_c = _pynvml()
        self.gi_id = gi_id
        self._gpu = gpu
        self._names = [field.source_id for field in (_OF_INSTANCES if gi_id is not None else GpmListener.fields)]
        self._before, self._now = (stack.enter_context(_sample()) for _ in range(2))
        self._request = nvml_c.c_nvmlGpmMetricsGet_t(
            version=nvml_c.NVML_GPM_METRICS_GET_VERSION, numMetrics=len(self._names)
        )
        for metric, name in zip(self._request.metrics, self._names, strict=False):
            metric.metricId = getattr(nvml_c, name)
        self._take(self._before)

    def read(self) -> dict[str, float]:
        """Values since the sample before, by metric, in NVML's units. What NVML does not give is absent.

        Empty when the sample before, which then stays, is too recent: a late tick has the next one close behind it.

        Raises:
            ListenerError: NVML does not answer.
        """
        if time.monotonic_ns() - self.t_ns < _APART_S * 1e9:
            return {}
        nvml_c = _pynvml()
        metrics = self._request.metrics[: len(self._names)]
        for metric in metrics:
            # A slot that the driver passes over would otherwise read as a successful 0.
            metric.value = math.nan
        try:
            self._take(self._now)
            self._request.sample1, self._request.sample2 = self._before, self._now
            nvml_c.nvmlGpmMetricsGet(self._request)
        except nvml_c.NVMLError as error:
            raise ListenerError(
                f"listener gpm: NVML does not give counters of {_subject(self.gi_id)}: {error}"
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
            # By the handle of the GPU, not of the MIG device, which would count one compute instance.
            _pynvml().nvmlGpmMigSampleGet(self._gpu, self.gi_id, sample)
        self.t_ns = time.monotonic_ns()


def _pynvml() -> Any:
    import pynvml

    return pynvml


def _subject(gi_id: int | None) -> str:
    return "the whole GPU" if gi_id is None else f"GPU instance {gi_id}"


@contextmanager
def _sample() -> Iterator[object]:
    """Room for one reading of all counters."""
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
        raise ListenerError(
            "listener gpm: this NVIDIA driver has no GPM counters, which need R520 or later: install a newer one, or "
            "leave gpm out"
        ) from error
    except nvml_c.NVMLError_NotSupported:
        is_supported = False
    except nvml_c.NVMLError as error:
        raise ListenerError(f"listener gpm: NVML does not tell whether {name} has GPM counters: {error}") from error
    if not is_supported:
        raise ListenerError(
            f"listener gpm: {name} has no GPM counters. Hopper GPUs (H100, H200, GH200) and later ones have them; for "
            "earlier data-center GPUs there is listener dcgm; listeners.gpm.required=false continues without it"
        )


def _open(gpu: object, gi_ids: Sequence[int], stack: ExitStack) -> list[_Counters]:
    """Counters of the whole GPU and of the instances. What does not answer is left out with a warning."""
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
            f"listener gpm: NVML gives no counters ({'; '.join(refusals)}). If it lacks permission: run as root, or "
            "load the nvidia kernel module with NVreg_RestrictProfilingToAdminUsers=0"
        )
    for refusal in refusals:
        _log.warning("listener gpm: NVML gives no counters of %s; they are left out", refusal)
    return opened
