"""The base of all listeners: a sampling thread, which takes its first sample before the jobs start.

A listener extends `PollingListener`, which reads its source at every tick, or `ThreadedListener`, whose source sends
samples. Errors of the thread are raised in the thread of the orchestrator that observes.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import os
import select
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import ClassVar

from pipeline.base.domain.protocols import RunningGroup, Sink
from pipeline.base.domain.records import Device
from pipeline.base.domain.samples import MIN_INTERVAL_MS, Chart, Field, FieldTable, Sample, Summary
from pipeline.base.system import errors
from pipeline.base.system.errors import ConfigError, ListenerError, NoSensorError

_log = logging.getLogger(__name__)
MIB = 2**20
MEMORY_IN_USE = Chart(panel="memory", title="memory in use")
# Name, title in the report, title in the table of a study, and whether the field is plotted. Only fields with a title
# have a mean.
_ACTIVITY = (
    ("gract_ratio", "GRACT", "GRACT", True),
    ("smact_ratio", "SMACT", "SMACT", True),
    ("smocc_ratio", "SM occupancy", "", False),
    ("tensor_active_ratio", "tensor core activity", "", False),
    ("dram_active_ratio", "DRAM activity", "", True),
    ("fp64_active_ratio", "", "", False),
    ("fp32_active_ratio", "", "", False),
    ("fp16_active_ratio", "", "", False),
)
_TRAFFIC = ("pcie_tx_mib_per_s", "pcie_rx_mib_per_s", "nvlink_tx_mib_per_s", "nvlink_rx_mib_per_s")
NUM_ACTIVITIES = len(_ACTIVITY)
GPU_UTILISATION = Chart(panel="activity", title="GPU utilisation (NVML)", unless="gract_ratio")
# Longest time of a reading after the listener is stopped; after this time, the source counts as hung.
_STOP_LIMIT_S = 10.0


class StopSignal:
    """A signal that ends a sampling thread; unlike a `threading.Event`, `select` can wait for it and for a pipe."""

    def __init__(self) -> None:
        self._event = os.eventfd(0, os.EFD_CLOEXEC)
        self._is_set = False

    def set(self) -> None:
        self._is_set = True
        os.eventfd_write(self._event, 1)

    def is_set(self) -> bool:
        return self._is_set

    def wait(self, timeout_s: float) -> bool:
        """Block until the signal is set or the timeout expires; return whether the signal is set."""
        poll = select.poll()
        poll.register(self._event, select.POLLIN)
        return bool(poll.poll(timeout_s * 1e3))

    def fileno(self) -> int:
        return self._event

    def close(self) -> None:
        """Close the descriptor; after this call, no thread may wait for the signal."""
        os.close(self._event)


class ThreadedListener(ABC):
    """A listener with a separate thread, which has the listener's name.

    `FieldTable` explains `rank` and `of_machine`. The first sample may take `start_limit_s`.

    Raises:
        ConfigError: the interval is below 200 ms, or an option is unknown.
    """

    name: ClassVar[str]
    fields: ClassVar[tuple[Field, ...]]
    rank: ClassVar[int] = 0
    of_machine: ClassVar[bool] = False
    start_limit_s: ClassVar[float] = 5.0

    def __init__(self, interval_ms: int, **options: object) -> None:
        if interval_ms < MIN_INTERVAL_MS:
            raise ConfigError(
                f"listener {self.name}: interval_ms={interval_ms} is too short; set {MIN_INTERVAL_MS} or more"
            )
        if options:
            raise ConfigError(f"listener {self.name}: unknown options {', '.join(sorted(options))}; remove them")
        self.interval_ms = interval_ms

    @abstractmethod
    def batches(self, group: RunningGroup, stop: StopSignal) -> Generator[Iterable[Sample], None, None]:
        """Open the source, yield its samples as they arrive, and close the source; runs in the listener's thread.

        Ends only when `stop` is set; a source that ends earlier is an error.
        """

    @property
    def table(self) -> FieldTable:
        return FieldTable(
            source=self.name,
            fields=self.fields,
            rank=self.rank,
            of_machine=self.of_machine,
            interval_ms=self.interval_ms,
        )

    def pids(self) -> tuple[int, ...]:
        return ()

    def gpu(self, group: RunningGroup) -> Device:
        """Return the device; raise `NoSensorError` if the device is not a GPU."""
        if not group.device.is_gpu:
            raise NoSensorError(
                f"listener {self.name} cannot observe {group.device.name}, which is not a GPU; leave {self.name} out"
            )
        return group.device

    @contextmanager
    def observe(self, group: RunningGroup, sink: Sink) -> Iterator[None]:
        """Sample until the context ends (`pipeline.base.domain.protocols.Listener`).

        Samples without values are not stored. If a simulated GPU has only such samples, a warning is logged. If the
        body and the listener fail, the body's exception is raised, with the listener's failure as a note.
        """
        thread = _SamplingThread(self, group, sink)
        try:
            thread.wait_first_sample()
            yield
        except BaseException as error:
            failure = thread.stop()
            if failure is not None and failure is not error:
                error.add_note(str(failure))
            raise
        if (failure := thread.stop()) is not None:
            raise failure


class PollingListener(ThreadedListener):
    """A listener that reads its source on an absolute schedule, without drift; missed ticks are skipped."""

    @abstractmethod
    def source(self, group: RunningGroup) -> AbstractContextManager[Callable[[], Iterable[Sample]]]:
        """Open the source, yield a function that reads the source once, and close the source at the end."""

    def batches(self, group: RunningGroup, stop: StopSignal) -> Generator[Iterable[Sample], None, None]:
        with self.source(group) as read:
            for _ in ticks(stop, self.interval_ms * 1_000_000):
                yield read()


def ticks(stop: StopSignal, interval_ns: int) -> Iterator[int]:
    """Yield tick numbers, each at `start + number * interval_ns` or later, until `stop` is set.

    Ticks that are due during a reading are skipped.
    """
    start_ns = time.monotonic_ns()
    tick = 0
    while not stop.is_set():
        yield tick
        now_ns = time.monotonic_ns()
        tick = max(tick, (now_ns - start_ns) // interval_ns) + 1
        if stop.wait((start_ns + tick * interval_ns - now_ns) / 1e9):
            return


def counter_fields(source_ids: Sequence[str], *, to_ratio: float = 1.0, to_mib: float = 1.0) -> tuple[Field, ...]:
    """Return the fields of a source that counts the activity of the GPU's units and the traffic of its links.

    Order: GRACT, SMACT, SM occupancy, tensor cores, DRAM, FP64, FP32, FP16, PCIe out and in, NVLink out and in. The
    factors convert the source's units to shares between 0 and 1, and to MiB/s.
    """
    activities = (
        Field(
            source_id,
            name,
            "ratio",
            scale=to_ratio,
            # Each reading is a mean since the previous reading, so the first reading in a window covers earlier time.
            summary=Summary.RATE if title else None,
            figure=name.replace("_ratio", "_mean_ratio"),
            title=title,
            column=column,
            chart=Chart(panel="activity", title=title) if is_drawn else None,
        )
        for source_id, (name, title, column, is_drawn) in zip(source_ids, _ACTIVITY, strict=False)
    )
    links = zip(source_ids[NUM_ACTIVITIES:], _TRAFFIC, strict=True)
    return (*activities, *(Field(source_id, name, "MiB/s", scale=to_mib) for source_id, name in links))


def scale_readings(readings: Mapping[str, float], fields: Iterable[Field]) -> dict[str, float]:
    """Convert readings by source id to values by field name, in the field's unit; missing readings stay missing."""
    return {field.name: readings[field.source_id] * field.scale for field in fields if field.source_id in readings}


class _SamplingThread:
    """One use of a listener: its thread and the thread's failure."""

    def __init__(self, listener: ThreadedListener, group: RunningGroup, sink: Sink) -> None:
        self._listener, self._group, self._sink = listener, group, sink
        self._stop = StopSignal()
        self._started = threading.Event()
        self._is_under_way = False
        self._failure: ListenerError | None = None
        # A daemon thread, because the orchestrator must be able to exit while a source hangs in the driver.
        self._thread = threading.Thread(target=self._sample, name=listener.name, daemon=True)
        self._thread.start()

    def wait_first_sample(self) -> None:
        limit_s = self._listener.start_limit_s
        self._started.wait(limit_s)
        if self._failure is not None:
            raise self._failure
        if not self._is_under_way:
            raise ListenerError(
                f"listener {self._listener.name} read no sample of {self._group.device.name} within {limit_s:g} s; "
                f"leave {self._listener.name} out"
            )

    def stop(self) -> ListenerError | None:
        """Stop the thread, and return its failure, if any."""
        self._stop.set()
        self._thread.join(_STOP_LIMIT_S)
        if self._thread.is_alive():
            return ListenerError(
                f"listener {self._listener.name} did not stop reading {self._group.device.name} within "
                f"{_STOP_LIMIT_S:g} s; check the driver, or leave {self._listener.name} out"
            )
        self._stop.close()
        return self._failure

    def _sample(self) -> None:
        try:
            with contextlib.closing(self._listener.batches(self._group, self._stop)) as batches:
                for batch in batches:
                    self._store(batch)
        except ListenerError as error:  # raised in the observing thread
            self._failure = error
        except Exception as error:  # noqa: BLE001  raised in the observing thread, too
            name = self._listener.name
            place = errors.locate(error, inspect.getfile(type(self._listener)))
            self._failure = ListenerError(
                f"listener {name} failed: {type(error).__name__}: {error}{f' ({place})' if place else ''}; correct it, "
                f"or leave {name} out of listeners"
            )
            self._failure.__cause__ = error
        finally:
            self._started.set()

    def _store(self, batch: Iterable[Sample]) -> None:
        for sample in batch:
            if sample.values:
                self._sink.put(sample)
                self._is_under_way = True
            elif self._group.device.is_simulated and not self._is_under_way:
                message = "listener %s: the simulated %s has no readings for it; its figures are absent"
                _log.warning(message, self._listener.name, self._group.device.name)
                self._is_under_way = True
        if self._is_under_way:
            self._started.set()
