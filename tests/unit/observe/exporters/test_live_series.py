"""What is exported of a group: who a value belongs to, and that what is missing is left out."""

from __future__ import annotations

import dataclasses
import json
import re
import time

import pytest

from pipeline.base.domain.samples import Sample
from pipeline.base.system.paths import PROJECT_DIR
from pipeline.observe.exporters import prometheus
from pipeline.observe.exporters.prometheus import LABELS, GroupSeries
from tests.conftest import GPU
from tests.support import live_groups
from tests.support.live_groups import mig_group
from tests.support.rows import FIELDS

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
    found = read(GroupSeries(mig_group(), live))
    sampled = {key: value for key, value in found.items() if not re.match("collocation_(job|group)_", key[0])}
    assert sampled == {
        ("collocation_nvml_power_w", *study, gpu): 300.0,
        ("collocation_nvml_instance_memory_used_mib", *study, gpu, "gpu_instance=5"): 20.0,
        ("collocation_nvml_process_memory_mib", *study, "job_name=1-b", gpu, "gpu_instance=5"): 10.0,
        ("collocation_host_load_1min", *study): 4.0,
    }
    job = (*study, "job_name=0-a", gpu, "gpu_instance=3")
    assert found["collocation_job_phase", *job, "phase=train"] == 1
    assert found["collocation_job_work_total", *job, "unit=samples"] == 10
    assert found["collocation_job_epoch", *job] == 1
    assert not [key for key in found if key[0] == "collocation_job_work_per_s"]  # there was no step since


def test_progress_is_told_anew_each_time(live):
    exported = GroupSeries(mig_group(), live)
    exported.read()
    live_groups.step(live.folder, 1, 25)
    found = read(exported)
    rates = [key for key in found if key[0] == "collocation_job_work_per_s"]
    assert [key[4] for key in rates] == ["job_name=1-b"] and found[rates[0]] > 0


def test_the_newest_value_counts_and_one_that_stays_away_is_left_out(live):
    now_ns = time.monotonic_ns()
    exported = GroupSeries(mig_group(), live, lambda: now_ns)

    def shown():
        return {key[0]: value for key, value in read(exported).items() if "_nvml_" in key[0]}

    both = {"power_w": 100.0, "temperature_c": 50.0}
    live.samples.append(Sample(source="nvml", t_ns=now_ns, values=both))
    assert shown() == {"collocation_nvml_power_w": 100.0, "collocation_nvml_temperature_c": 50.0}
    for second in range(1, 6):
        live.samples.append(Sample(source="nvml", t_ns=now_ns + second * S, values={"power_w": 100.0 + second}))
    now_ns += 5 * S  # the interval is 1 s
    assert shown() == {"collocation_nvml_power_w": 105.0}
    now_ns += 5 * S
    assert shown() == {}


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
    live.samples += live_groups.every_quantity()
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
