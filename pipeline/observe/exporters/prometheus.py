"""An exporter for Prometheus: a thread waits for scrapes over HTTP and answers each scrape in a separate thread."""

from __future__ import annotations

import importlib.util
import io
import logging
import os
import selectors
import socket
import socketserver
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from pipeline.base.domain.protocols import ShowGroup
from pipeline.base.domain.records import Group
from pipeline.base.domain.running_group import RunningGroup
from pipeline.base.system.errors import ConfigError
from pipeline.base.system.option_fields import option
from pipeline.observe.exporters.live_series import GroupSeries

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

    def __init__(self, *where: Any) -> None:
        self.begun_s: dict[socket.socket, float] = {}
        super().__init__(*where)

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
