"""The running group as labelled series, and an exporter that serves them to Prometheus.

On request, the series are read from the samples in memory and from the event files of the jobs; other exporters can use
them too. A thread waits for scrapes over HTTP and answers each scrape in a separate thread.
"""

from __future__ import annotations

import importlib.util
import io
import logging
import os
import re
import selectors
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from pipeline.base.domain.protocols import RunningGroup, ShowGroup
from pipeline.base.domain.records import Device, Group, Job
from pipeline.base.system.errors import ConfigError
from pipeline.base.system.option_fields import option
from pipeline.observe.view import LiveJobs

_STOP_LIMIT_S = 5.0
_REQUEST_LIMIT_S = 2.0
_LOOK_S = 0.5
"""Time between two checks for slow requests."""
_MOST_REQUESTS = 16
"""Limit of simultaneous requests, because each request is a thread of the orchestrator."""
_MOST_PORT = 65535

log = logging.getLogger(__name__)


@dataclass
class PrometheusExporter:
    """An exporter that serves the running group at `http://ADDRESS:PORT/metrics`.

    Raises:
        ConfigError: port or address is invalid, or prometheus_client is not installed.
    """

    port: int = option(
        "port that Prometheus scrapes; under `hydra/launcher=gpus` and `beside` the port of the first GPU; the other "
        "GPUs get the next ports",
        9411,
    )
    address: str = option(
        "IPv4 address to listen on: with `127.0.0.1` only this machine can scrape, with `0.0.0.0` other machines too",
        "127.0.0.1",
    )

    def __post_init__(self) -> None:
        port, address = self.port, self.address
        if not 1 <= port <= _MOST_PORT:
            raise ConfigError(f"exporter.port={port} is not a port; set a number from 1 to {_MOST_PORT}")
        if not address:  # an empty address would listen on all addresses
            raise ConfigError("exporter.address is empty; set 127.0.0.1, or 0.0.0.0 for scrapes from other hosts")
        if importlib.util.find_spec("prometheus_client") is None:
            raise ConfigError(
                "exporter=prometheus needs prometheus_client; run pip install 'gpu-collocation[exporter]', "
                "or set exporter=none"
            )

    @contextmanager
    def serve(self) -> Iterator[ShowGroup]:
        """Listen before the study does anything else (`pipeline.base.domain.protocols.Exporter`)."""
        from prometheus_client import CollectorRegistry, make_wsgi_app

        current, registry = _Current(), CollectorRegistry()
        registry.register(current)
        try:
            server = _Server((self.address, self.port), _Handler)
        except (OSError, OverflowError, UnicodeError) as error:
            raise ConfigError(
                f"exporter=prometheus cannot listen on {self.address}:{self.port}: "
                f"{getattr(error, 'strerror', None) or error}; choose another exporter.port or exporter.address"
            ) from error
        server.set_app(make_wsgi_app(registry, disable_compression=True))
        stop = os.eventfd(0, os.EFD_CLOEXEC)
        thread = threading.Thread(target=_serve, args=(server, stop), name="exporter", daemon=True)
        thread.start()
        try:
            yield current.showing
        finally:
            os.eventfd_write(stop, 1)
            thread.join(_STOP_LIMIT_S)
            server.server_close()
            server.cut_off(after_s=0)
            if not thread.is_alive():
                os.close(stop)


class _Current:
    """The running group as a collector of prometheus_client."""

    def __init__(self) -> None:
        self._series: GroupSeries | None = None
        self._reading = threading.Lock()

    @contextmanager
    def showing(self, group: Group, running: RunningGroup) -> Iterator[None]:
        self._series = GroupSeries(group, running)
        try:
            yield
        finally:
            self._series = None

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        series = self._series
        with self._reading:
            metrics = series.read() if series is not None else []
        for metric in metrics:
            kind = CounterMetricFamily if metric.is_counter else GaugeMetricFamily
            family = kind(metric.name, metric.help, labels=metric.labels)
            for labels, value in metric.values.items():
                # A name may contain bytes that are not UTF-8.
                family.add_metric([label.encode("utf-8", "replace").decode() for label in labels], value)
            yield family


class _Server(socketserver.ThreadingMixIn, WSGIServer):
    """A server with a thread for each request, so a slow client does not delay other clients."""

    daemon_threads, block_on_close = True, False
    timeout = 0  # `_serve` calls the server only when a client is waiting

    def __init__(self, *arguments: Any) -> None:
        self.begun_s: dict[socket.socket, float] = {}
        super().__init__(*arguments)

    def verify_request(self, request: Any, client_address: Any) -> bool:
        return len(self.begun_s) < _MOST_REQUESTS

    def process_request(self, request: Any, client_address: Any) -> None:
        self.begun_s[request] = time.monotonic()
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self.begun_s.pop(request, None)
        super().shutdown_request(request)

    def cut_off(self, after_s: float) -> None:
        """End the requests that began at least `after_s` seconds ago."""
        latest_s = time.monotonic() - after_s
        for request, begun_s in self.begun_s.copy().items():
            if begun_s <= latest_s:
                with suppress(OSError):  # the request has just ended
                    request.shutdown(socket.SHUT_RDWR)

    def server_bind(self) -> None:
        # HTTPServer.server_bind is not called, because it looks up the host's name, which may take seconds.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = map(str, self.server_address[:2])  # type: ignore[assignment]
        self.setup_environ()

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("a request of %s failed", client_address, exc_info=True)


class _Handler(WSGIRequestHandler):
    def log_message(self, *_: object) -> None:
        """Print nothing, because the study uses the terminal."""

    def get_stderr(self) -> io.StringIO:
        """Discard errors, because the study uses the terminal."""
        return io.StringIO()

    def get_environ(self) -> dict[str, Any]:
        """Remove the query, because prometheus_client cannot select series by name before they are read."""
        return super().get_environ() | {"QUERY_STRING": ""}


def _serve(server: _Server, stop: int) -> None:
    with selectors.DefaultSelector() as selector:
        selector.register(server, selectors.EVENT_READ)
        selector.register(stop, selectors.EVENT_READ)
        while True:
            ready = [key.fileobj for key, _ in selector.select(_LOOK_S if server.begun_s else None)]
            if stop in ready:
                return
            if ready:
                server.handle_request()
            server.cut_off(_REQUEST_LIMIT_S)


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
        for progress in self._jobs.read():
            labels, unit = self._make_labels(progress.job), progress.job.workload.work_unit
            phase.values[*labels, progress.phase] = 1.0
            for metric, value in ((work, progress.total), (rate, progress.per_s)):
                if value is not None:
                    metric.values[*labels, unit] = value
            if progress.epoch is not None:
                epoch.values[labels] = progress.epoch
        yield from (phase, work, rate, epoch)

    def _read_samples(self) -> Iterator[Metric]:
        metrics: dict[str, Metric] = {}
        for (source, quantity, job, gi_id), value in self._select_newest():
            name, metric_field = name_metric(source, quantity), self._fields.get((source, quantity))
            text = f"{metric_field.source_id}, in {metric_field.unit}" if metric_field else ""
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
