"""A study as a target of Prometheus: one thread answers scrapes over HTTP, and sleeps between them."""

from __future__ import annotations

import importlib.util
import logging
import os
import selectors
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from pipeline.base.errors import ConfigError
from pipeline.base.protocols import Live, Showing
from pipeline.base.records import Group
from pipeline.observe.exporters.series import GroupSeries

_STOP_LIMIT_S = 5.0
_MOST_PORT = 65535

log = logging.getLogger(__name__)


class PrometheusExporter:
    """Serves the group that runs at `http://ADDRESS:PORT/metrics`.

    Raises:
        ConfigError: the port is none, or prometheus_client is not installed.
    """

    def __init__(self, port: int, address: str) -> None:
        if not 1 <= port <= _MOST_PORT:
            raise ConfigError(f"exporter.port={port}: must be from 1 to {_MOST_PORT}")
        if importlib.util.find_spec("prometheus_client") is None:
            raise ConfigError(
                "exporter=prometheus needs prometheus_client, which is not installed: "
                "pip install 'gpu-collocation[exporter]', or leave the exporter out"
            )
        self.port, self.address = port, address

    @contextmanager
    def serving(self) -> Iterator[Showing]:
        """Listen, before anything else of the study begins (`pipeline.base.protocols.Exporter`)."""
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
        # A daemon: a client that reads nothing must not keep the orchestrator from ending.
        thread = threading.Thread(target=_serve, args=(server, stop), name="exporter", daemon=True)
        thread.start()
        try:
            yield current.showing
        finally:
            os.eventfd_write(stop, 1)
            thread.join(_STOP_LIMIT_S)
            server.server_close()
            if not thread.is_alive():
                os.close(stop)


class _Current:
    """The group that runs, as a collector of prometheus_client."""

    def __init__(self) -> None:
        self._series: GroupSeries | None = None

    @contextmanager
    def showing(self, group: Group, live: Live) -> Iterator[None]:
        self._series = GroupSeries(group, live)
        try:
            yield
        finally:
            self._series = None

    def collect(self) -> Iterator[Any]:
        """The families of metrics of this instant; none between two groups."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        series = self._series
        for metric in series.read() if series is not None else ():
            kind = CounterMetricFamily if metric.is_counter else GaugeMetricFamily
            family = kind(metric.name, metric.help, labels=metric.labels)
            for labels, value in metric.values.items():
                family.add_metric(labels, value)
            yield family


class _Server(WSGIServer):
    """One request at a time: there are few, and each takes a millisecond."""

    timeout = 0  # `_serve` has seen that somebody is there

    def server_bind(self) -> None:
        socketserver.TCPServer.server_bind(self)  # HTTPServer asks the name service here, which may take seconds
        self.server_name, self.server_port = map(str, self.server_address[:2])  # type: ignore[assignment]
        self.setup_environ()

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("a request of %s failed", client_address, exc_info=True)


class _Handler(WSGIRequestHandler):
    timeout = 2.0  # of a client that says or takes nothing

    def log_message(self, *_: object) -> None:
        """Nothing: the terminal is the study's."""


def _serve(server: _Server, stop: int) -> None:
    with selectors.DefaultSelector() as selector:
        selector.register(server, selectors.EVENT_READ)
        selector.register(stop, selectors.EVENT_READ)
        while all(key.fileobj != stop for key, _ in selector.select()):
            server.handle_request()
