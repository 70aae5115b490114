"""A study as a target of Prometheus: what it answers, and what is refused before it begins."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import re
import socket
import time
import urllib.error
import urllib.request
from contextlib import ExitStack, closing

import pytest

from pipeline.base.domain.samples import Sample
from pipeline.base.system.errors import ConfigError
from pipeline.base.system.paths import PROJECT_DIR
from pipeline.observe.exporters import prometheus
from pipeline.observe.exporters.prometheus import LABELS, GroupSeries, PrometheusExporter
from tests.conftest import GPU
from tests.support import live_groups
from tests.support.live_groups import mig_group
from tests.support.rows import FIELDS


@pytest.fixture
def port():
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def read_scrape(port, query="", **headers):
    request = urllib.request.Request(f"http://127.0.0.1:{port}/metrics{query}", headers=headers)
    with urllib.request.urlopen(request, timeout=10) as answer:
        return answer.headers, answer.read().decode()


def test_the_group_that_runs_is_shown_and_none_between_two_groups(port, tmp_path):
    pytest.importorskip("prometheus_client")
    live = live_groups.running_group(tmp_path)
    live.samples += live_groups.sample_quantities()
    with PrometheusExporter(port, "127.0.0.1").serve() as showing:
        assert read_scrape(port)[1] == ""
        with showing(mig_group(), live):
            headers, text = read_scrape(port)
            assert headers["Content-Type"].startswith("text/plain")
            assert "# HELP collocation_nvml_power_w nvmlDeviceGetPowerUsage, in W\n" in text
            assert "# TYPE collocation_job_work_total counter\n" in text
            (power,) = (line for line in text.splitlines() if line.startswith("collocation_nvml_power_w{"))
            assert 'group="mig-a+b"' in power and 'gpu_instance=""' in power and power.endswith("} 1.5")
            headers, text = read_scrape(port, Accept="application/openmetrics-text; version=1.0.0")
            assert headers["Content-Type"].startswith("application/openmetrics-text") and text.endswith("# EOF\n")
        assert read_scrape(port)[1] == ""
    with pytest.raises(OSError, match="refused"):
        read_scrape(port)


def test_clients_that_say_or_take_nothing_keep_neither_others_nor_the_study_waiting(port, capfd, monkeypatch):
    pytest.importorskip("prometheus_client")
    monkeypatch.setattr(prometheus, "_REQUEST_LIMIT_S", 0.5)
    monkeypatch.setattr(prometheus, "_LOOK_S", 0.1)
    with ExitStack() as clients:
        silent, slow, last = (clients.enter_context(socket.socket()) for _ in range(3))
        with PrometheusExporter(port, "127.0.0.1").serve():
            for client in (silent, slow):
                client.connect(("127.0.0.1", port))
            assert read_scrape(port)[1] == ""
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
        read_scrape(port)


def test_a_name_that_is_no_utf_8_and_a_query_keep_nothing_back(port, tmp_path, capfd):
    pytest.importorskip("prometheus_client")
    live = live_groups.running_group(tmp_path)
    with PrometheusExporter(port, "127.0.0.1").serve() as showing, showing(mig_group(name="a\udcff"), live):
        metrics, queried_metrics = (read_scrape(port, query)[1] for query in ("", "?name[]=collocation_job_phase"))
    assert 'group="a?"' in metrics and queried_metrics == metrics
    assert capfd.readouterr() == ("", "")


def test_an_error_is_told_to_the_client_and_not_on_the_terminal(port, capfd, monkeypatch):
    pytest.importorskip("prometheus_client")
    monkeypatch.setattr(prometheus._Current, "collect", lambda _: 1 / 0)
    refused = pytest.raises(urllib.error.HTTPError, match="500")
    with PrometheusExporter(port, "127.0.0.1").serve(), refused:
        read_scrape(port)
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


DASHBOARD = json.loads((PROJECT_DIR / "docs/grafana_dashboard.json").read_text(encoding="utf-8"))
S = 1_000_000_000


@pytest.fixture
def live(tmp_path):
    return live_groups.running_group(tmp_path)


def read(exported):
    """The value of each metric, by name and labels that are not empty."""
    return {
        (
            metric.name,
            *(f"{label}={value}" for label, value in zip(metric.labels, values, strict=True) if value),
        ): value_
        for metric in exported.read()
        for values, value_ in metric.values.items()
    }


def test_a_value_has_the_labels_of_what_it_is_of(live):
    def sample(source, name, value, **of):
        live.samples.append(Sample(source=source, t_ns=time.monotonic_ns(), values={name: value}, **of))

    sample("nvml", "power_w", 300.0)
    sample("nvml", "instance_memory_used_mib", 20.0, gi_id=5)
    sample("nvml", "process_memory_mib", 10.0, job=1)
    sample("host", "load_1min", 4.0)
    study = ("experiment=test", "scenario=mig", "group=mig-a+b")
    gpu = f"gpu={GPU.uuid}"
    values = read(GroupSeries(mig_group(), live))
    sampled = {key: value for key, value in values.items() if not re.match("collocation_(job|group)_", key[0])}
    assert sampled == {
        ("collocation_nvml_power_w", *study, gpu): 300.0,
        ("collocation_nvml_instance_memory_used_mib", *study, gpu, "gpu_instance=5"): 20.0,
        ("collocation_nvml_process_memory_mib", *study, "job_name=1-b", gpu, "gpu_instance=5"): 10.0,
        ("collocation_host_load_1min", *study): 4.0,
    }
    job = (*study, "job_name=0-a", gpu, "gpu_instance=3")
    assert values["collocation_job_phase", *job, "phase=train"] == 1
    assert values["collocation_job_work_total", *job, "unit=samples"] == 10
    assert values["collocation_job_epoch", *job] == 1
    assert not [key for key in values if key[0] == "collocation_job_work_per_s"]  # there was no step since


def test_progress_is_told_anew_each_time(live):
    exported = GroupSeries(mig_group(), live)
    exported.read()
    live_groups.step(live.folder, 1, 25)
    values = read(exported)
    rates = [key for key in values if key[0] == "collocation_job_work_per_s"]
    assert [key[4] for key in rates] == ["job_name=1-b"] and values[rates[0]] > 0


def test_the_newest_value_counts_and_one_that_stays_away_is_left_out(live):
    now_ns = time.monotonic_ns()
    exported = GroupSeries(mig_group(), live, lambda: now_ns)

    def read_nvml_values():
        return {key[0]: value for key, value in read(exported).items() if "_nvml_" in key[0]}

    both = {"power_w": 100.0, "temperature_c": 50.0}
    live.samples.append(Sample(source="nvml", t_ns=now_ns, values=both))
    assert read_nvml_values() == {"collocation_nvml_power_w": 100.0, "collocation_nvml_temperature_c": 50.0}
    for second in range(1, 6):
        live.samples.append(Sample(source="nvml", t_ns=now_ns + second * S, values={"power_w": 100.0 + second}))
    now_ns += 5 * S  # the interval is 1 s
    assert read_nvml_values() == {"collocation_nvml_power_w": 105.0}
    now_ns += 5 * S
    assert read_nvml_values() == {}


def test_what_is_simulated_says_so_and_a_cpu_is_no_gpu(live):
    def gpus(device):
        return {
            values[LABELS.index("gpu")]
            for m in GroupSeries(mig_group(device=device), live).read()
            for values in m.values
        }

    assert gpus(dataclasses.replace(GPU, kind="simulated")) == {f"simulated {GPU.uuid}"}
    assert gpus(dataclasses.replace(GPU, kind="cpu")) == {""}


def test_a_name_that_prometheus_would_refuse_is_changed():
    assert prometheus.name_metric("my-fans", "speed.left_rpm") == "collocation_my_fans_speed_left_rpm"


def test_every_expression_of_the_dashboard_is_of_metrics_that_are_exported(live):
    live.samples += live_groups.sample_quantities()
    exported = GroupSeries(mig_group(), live)
    exported.read()
    live_groups.step(live.folder, 0, 20)
    known = [metric for metric in exported.read() if metric.values]
    labels = {metric.name: set(metric.labels) for metric in known}
    of_gpus = {metric.name for metric in known if any(values[LABELS.index("gpu")] for values in metric.values)}
    assert len(labels) == 5 + len({prometheus.name_metric(source, field.name) for source, field in FIELDS})
    targets = [target for panel in DASHBOARD["panels"] for target in panel["targets"]]
    assert len(targets) >= len(DASHBOARD["panels"]) >= 15
    for target in targets:
        names = re.findall(r"collocation_\w+", target["expr"])
        assert names and set(names) <= labels.keys(), target["expr"]
        used = re.findall(r"(\w+)=~", target["expr"]) + re.findall(r"{{(\w+)}}", target["legendFormat"])
        assert set(used) <= {*labels[names[0]], "instance"}, target
        # Every GPU has a line of its own, and every machine one for all groups and jobs.
        apart = "{{gpu}}" if names[0] in of_gpus else "{{instance}}"
        assert not target["range"] or apart in target["legendFormat"], target
        assert "(instance)" in target["expr"] or " by " not in target["expr"], target
    for variable in DASHBOARD["templating"]["list"][1:]:
        name, label = re.fullmatch(r"label_values\((\w+).*, (\w+)\)", variable["definition"]).groups()
        assert label in labels[name]
