"""A study as a target of Prometheus: what it answers, and what is refused before it begins."""

from __future__ import annotations

import importlib.util
import socket
import urllib.request
from contextlib import closing

import pytest

from pipeline.base.errors import ConfigError
from pipeline.observe.exporters import prometheus
from pipeline.observe.exporters.prometheus import PrometheusExporter
from tests import live_groups
from tests.live_groups import mig_group


@pytest.fixture
def port():
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def scrape(port, **headers):
    request = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers=headers)
    with urllib.request.urlopen(request, timeout=10) as answer:
        return answer.headers, answer.read().decode()


def test_the_group_that_runs_is_shown_and_none_between_two_groups(port, tmp_path):
    pytest.importorskip("prometheus_client")
    live = live_groups.watched(tmp_path)
    live.samples += live_groups.every_quantity()
    with PrometheusExporter(port, "127.0.0.1").serving() as showing:
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


def test_a_client_that_says_nothing_does_not_keep_a_study_from_its_end(port, capfd, monkeypatch):
    pytest.importorskip("prometheus_client")
    monkeypatch.setattr(prometheus._Handler, "timeout", 0.1)
    with PrometheusExporter(port, "127.0.0.1").serving():
        silent = socket.create_connection(("127.0.0.1", port))
        assert scrape(port)[1] == ""
    silent.close()
    assert capfd.readouterr() == ("", "")


def test_a_port_that_is_taken_is_refused(port):
    pytest.importorskip("prometheus_client")
    refused = pytest.raises(ConfigError, match=rf"127\.0\.0\.1:{port}: Address already in use; choose another")
    with PrometheusExporter(port, "127.0.0.1").serving(), refused, PrometheusExporter(port, "127.0.0.1").serving():
        pytest.fail("two programs listen at one port")


@pytest.mark.parametrize("port", [-1, 0, 65536])
def test_a_number_that_is_no_port_is_refused(port):
    with pytest.raises(ConfigError, match=rf"exporter\.port={port}: must be from 1 to 65535"):
        PrometheusExporter(port, "127.0.0.1")


def test_without_prometheus_client_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'gpu-collocation\[exporter\]'"):
        PrometheusExporter(9411, "127.0.0.1")
