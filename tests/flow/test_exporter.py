"""A study as Prometheus sees it, with the real program; and what is refused before anything begins."""

from __future__ import annotations

import importlib.util
import json
import socket
import time
import urllib.request

import pytest

from pipeline.base.system.paths import PROJECT_DIR
from pipeline.observe.exporters.prometheus import PrometheusExporter
from tests.support import live_groups, prometheus_server
from tests.support.run_cases import SHORT, TOY
from tests.support.servers import refuse_or_skip
from tests.support.waiting import wait_until

pytestmark = pytest.mark.covers("pipeline/observe/exporters")
DASHBOARD = json.loads((PROJECT_DIR / "docs/grafana_dashboard.json").read_text(encoding="utf-8"))
STUDY = [*TOY, *SHORT[1:], "window.seconds=2", "degree=2", "baseline=always", "listeners=[host]"]

needs_client = pytest.mark.skipif(
    importlib.util.find_spec("prometheus_client") is None, reason="prometheus_client is not installed"
)
needs_server = refuse_or_skip(prometheus_server.missing())


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory):
    """A server that scrapes two ports."""
    with prometheus_server.running(tmp_path_factory.mktemp("prometheus"), 2) as server:
        yield server


@pytest.mark.slow
@needs_client
def test_a_port_that_is_taken_is_refused_before_anything_is_touched(start, run, tmp_path):
    before = sorted(tmp_path.rglob("*"))
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        status, out, err = run(*STUDY, "exporter=prometheus", f"exporter.port={port}")
    assert (status, out, sorted(tmp_path.rglob("*"))) == (2, "", before)
    assert err == (
        f"error: exporter=prometheus cannot listen on 127.0.0.1:{port}: Address already in use; "
        "choose another exporter.port or exporter.address\n"
    )


@needs_server
@pytest.mark.slow
@needs_client
def test_every_series_of_a_study_arrives_and_is_gone_two_scrapes_after_its_group(start, prometheus):
    port = prometheus.targets[0]
    process = start(*STUDY, "exporter=prometheus", f"exporter.port={port}")
    groups, arrived, due = [], set(), set()
    exported: dict[frozenset, int] = {}  # series, and how often Prometheus had scraped when they were seen first
    while process.poll() is None:
        num_answered = prometheus.num_answered(port)
        shown = prometheus.series_of(port)
        if names := {dict(labels)["group"] for labels in shown}:
            assert len(names) == 1  # no series of a group is there when the next one has begun
            groups += names - set(groups)
            arrived |= drop_phase(shown)
            for series in drop_phase(read_scrape(port)):
                # The first scrape after that may have been under way already, and the last one not be shown yet.
                due |= {series} if num_answered >= exported.setdefault(series, num_answered) + 3 else set()
        time.sleep(0.1)
    ended = prometheus.num_scrapes(port)
    _, err = process.communicate()
    assert process.returncode == 0, err
    wait_until(lambda: prometheus.num_scrapes(port) >= ended + 2)
    assert prometheus.series_of(port) == set()
    assert sorted(groups) == ["naive-2x-toy", "serial-1x-toy"]
    assert {dict(labels)["__name__"] for labels in exported} >= {
        *("collocation_group_info", "collocation_job_work_total", "collocation_job_work_per_s"),
        *("collocation_host_cpu_pct", "collocation_host_cpu_machine_pct"),
    }
    assert due and due <= arrived


def drop_phase(series):
    """A job may be in its last phase for less than a scrape takes."""
    return {frozenset((label, value) for label, value in labels if label != "phase") for labels in series}


def read_scrape(port):
    """The labels of every series that is exported now; none once the study is over."""
    from prometheus_client.parser import text_string_to_metric_families

    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
            text = answer.read().decode()
    except OSError:
        return set()
    return {
        frozenset({"__name__": sample.name, **{k: v for k, v in sample.labels.items() if v}}.items())
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@needs_server
@pytest.mark.slow
@needs_client
def test_every_panel_has_data_of_a_group_and_none_two_scrapes_after_it(prometheus, tmp_path):
    """The group is made by hand: only GPUs of several generations give all that the listeners know."""
    port = prometheus.targets[1]
    targets = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
    queries = {query.replace("$experiment", ".*").replace("$group", ".*") for query in targets}
    live, total = live_groups.running_group(tmp_path), 10

    def have_data():
        nonlocal total
        total += 1
        live.samples.extend(live_groups.sample_quantities())
        live_groups.step(tmp_path, 0, total)
        empty.difference_update({query for query in empty if prometheus.query(query)})
        return not empty

    with PrometheusExporter(port, "127.0.0.1").serve() as showing:
        empty = set(queries)
        with showing(live_groups.mig_group(), live):
            wait_until(have_data)
            assert len(prometheus.series_of(port)) > 60
        ended = prometheus.num_scrapes(port)
        wait_until(lambda: prometheus.num_scrapes(port) >= ended + 2)
        assert prometheus.series_of(port) == set()
        assert [query for query in queries if prometheus.query(query)] == []
