"""A study as a target of Prometheus: what it answers, and what is refused before it begins."""

from __future__ import annotations

import importlib.util
import socket
import time
import urllib.error
import urllib.request
from contextlib import ExitStack, closing

import pytest

from pipeline.base.system.errors import ConfigError
from pipeline.observe.exporters import prometheus
from pipeline.observe.exporters.prometheus import PrometheusExporter
from tests.support import live_groups
from tests.support.live_groups import mig_group


@pytest.fixture
def port():
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def scrape(port, query="", **headers):
    request = urllib.request.Request(f"http://127.0.0.1:{port}/metrics{query}", headers=headers)
    with urllib.request.urlopen(request, timeout=10) as answer:
        return answer.headers, answer.read().decode()


def test_the_group_that_runs_is_shown_and_none_between_two_groups(port, tmp_path):
    pytest.importorskip("prometheus_client")
    live = live_groups.running_group(tmp_path)
    live.samples += live_groups.every_quantity()
    with PrometheusExporter(port, "127.0.0.1").serve() as showing:
        assert scrape(port)[1] == ""
        with showing(mig_group(), live):
            headers, text = scrape(port)
            assert headers["Content-Type"].startswith("text/plain")
            assert "# HELP collocation_nvml_power_w nvmlDeviceGetPowerUsage, in W\n" in text
            assert "# TYPE collocation_job_work_total counter\n" in text
            (power,) = (line for line in text.splitlines() if line.startswith("collocation_nvml_power_w{"))
            assert 'group="mig-a+b"' in power and 'gpu_instance=""' in power and power.endswith("} 1.5")
            headers, text = scrape(port, Accept="application/openmetrics-text; version=1.0.0")
            assert headers["Content-Type"].startswith("application/openmetrics-text") and text.endswith("# EOF\n")
        assert scrape(port)[1] == ""
    with pytest.raises(OSError, match="refused"):
        scrape(port)


def test_clients_that_say_or_take_nothing_keep_neither_others_nor_the_study_waiting(port, capfd, monkeypatch):
    pytest.importorskip("prometheus_client")
    monkeypatch.setattr(prometheus, "_REQUEST_LIMIT_S", 0.5)
    monkeypatch.setattr(prometheus, "_LOOK_S", 0.1)
    with ExitStack() as clients:
        silent, slow, last = (clients.enter_context(socket.socket()) for _ in range(3))
        with PrometheusExporter(port, "127.0.0.1").serve():
            for client in (silent, slow):
                client.connect(("127.0.0.1", port))
            assert scrape(port)[1] == ""
            with pytest.raises(OSError):
                while True:  # never silent for long
                    slow.sendall(b"G")
                    time.sleep(0.05)
            assert silent.recv(1) == b""
            monkeypatch.setattr(prometheus, "_REQUEST_LIMIT_S", 300.0)
            last.connect(("127.0.0.1", port))
            begin_s = time.monotonic()
        assert time.monotonic() - begin_s < 120  # the end waits for no client
    assert capfd.readouterr() == ("", "")


def test_of_too_many_clients_the_last_one_is_refused(port, monkeypatch):
    pytest.importorskip("prometheus_client")
    monkeypatch.setattr(prometheus, "_MOST_REQUESTS", 0)
    with PrometheusExporter(port, "127.0.0.1").serve(), pytest.raises(OSError):
        scrape(port)


def test_a_name_that_is_no_utf_8_and_a_query_keep_nothing_back(port, tmp_path, capfd):
    pytest.importorskip("prometheus_client")
    live = live_groups.running_group(tmp_path)
    with PrometheusExporter(port, "127.0.0.1").serve() as showing, showing(mig_group(name="a\udcff"), live):
        whole, asked = (scrape(port, query)[1] for query in ("", "?name[]=collocation_job_phase"))
    assert 'group="a?"' in whole and asked == whole
    assert capfd.readouterr() == ("", "")


def test_an_error_is_told_to_the_client_and_not_on_the_terminal(port, capfd, monkeypatch):
    pytest.importorskip("prometheus_client")
    monkeypatch.setattr(prometheus._Current, "collect", lambda _: 1 / 0)
    refused = pytest.raises(urllib.error.HTTPError, match="500")
    with PrometheusExporter(port, "127.0.0.1").serve(), refused:
        scrape(port)
    assert capfd.readouterr() == ("", "")


def test_a_port_that_is_taken_is_refused(port):
    pytest.importorskip("prometheus_client")
    refused = pytest.raises(ConfigError, match=rf"127\.0\.0\.1:{port}: Address already in use; choose another")
    with PrometheusExporter(port, "127.0.0.1").serve(), refused, PrometheusExporter(port, "127.0.0.1").serve():
        pytest.fail("two programs listen at one port")


@pytest.mark.parametrize("port", [-1, 0, 65536])
def test_a_number_that_is_no_port_is_refused(port):
    with pytest.raises(ConfigError, match=rf"exporter\.port={port} is not a port; set a number from 1 to 65535"):
        PrometheusExporter(port, "127.0.0.1")


def test_no_address_is_refused_and_not_taken_for_every_one():
    with pytest.raises(ConfigError, match=r"exporter\.address is empty; set 127\.0\.0\.1"):
        PrometheusExporter(9411, "")


def test_without_prometheus_client_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'gpu-collocation\[exporter\]'"):
        PrometheusExporter(9411, "127.0.0.1")
