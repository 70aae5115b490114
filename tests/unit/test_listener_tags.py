"""Before and after a study: tags of missing listeners, figures that they cannot read, and the command of on_end."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from pipeline.base.domain.records import Device, DeviceFacts, ListenerSpec, Plan, Required
from pipeline.base.domain.samples import FieldTable
from pipeline.base.system.errors import ConfigError, ListenerError, NoSensorError
from pipeline.base.system.factory import Spec
from pipeline.base.system.interrupts import UndoStack
from pipeline.base.system.paths import PROJECT_DIR
from pipeline.plan import plan_text
from pipeline.study import execution, group_execution
from pipeline.study.published_figures import list_missing_sources
from tests.conftest import GPU
from tests.support.listener_contract import CPU

SPEC = ListenerSpec(name="activity", build=Spec(target="none"), interval_ms=1000, required=Required.NO)


class Source:
    """A listener that has chosen its source, or that raises an error."""

    def __init__(self, source: str, error: ListenerError | None = None) -> None:
        self.table = FieldTable(source=source, fields=())
        self.error = error

    @contextmanager
    def observe(self, *_: object) -> Iterator[None]:
        if self.error is not None:
            raise self.error
        yield


def observe_tags(listener: Source, spec: ListenerSpec = SPEC) -> tuple[dict[str, str], list[str]]:
    """Return the tags and the warnings."""
    execution: Any = object.__new__(group_execution.GroupExecution)
    execution.tags, execution.helpers, warnings = {}, [], []
    execution.record = SimpleNamespace(sink=None)
    execution.resources = SimpleNamespace(warn_once=warnings.append)
    with UndoStack() as stack:
        execution._observe(spec, listener, None, stack)
    return execution.tags, warnings


def test_a_chosen_source_is_in_the_tags() -> None:
    assert observe_tags(Source("dcgm")) == ({"collocation.listener.activity": "source: dcgm"}, [])
    assert observe_tags(Source("activity")) == ({}, [])


def test_a_missing_source_is_in_the_tags_and_a_warning() -> None:
    tags, warnings = observe_tags(Source("gpm", ListenerError("no counters; install them")))
    assert tags == {"collocation.listener.activity": "absent: no counters; install them"}
    assert warnings == ["left out: no counters; install them"]


def test_a_device_that_cannot_have_the_sensor_is_no_warning() -> None:
    tags, warnings = observe_tags(Source("gpm", NoSensorError("no GPU; leave it out")))
    assert tags == {"collocation.listener.activity": "absent: no GPU; leave it out"} and warnings == []


def test_a_required_listener_is_an_error_on_any_device() -> None:
    with pytest.raises(NoSensorError):
        observe_tags(Source("gpm", NoSensorError("no GPU")), dataclasses.replace(SPEC, required=Required.YES))


A100 = dataclasses.replace(GPU, facts=DeviceFacts(compute_capability=(8, 0)))
ROBROEK = ["workload=robroek_small", "data.source=synthetic_files", "scenario=serial"]
WITHOUT_FIGURES = {"interleaving", "migperf_frameworks", "other_gpus"}
MakePlan = Callable[..., Plan]


def warnings(make_plan: MakePlan, options: Sequence[str], device: Device = GPU) -> list[str]:
    return list(list_missing_sources(make_plan([*options], device=device)))


def make_listeners(file: str, key: str) -> list[list[str]]:
    defaults = yaml.safe_load((PROJECT_DIR / "conf" / file).read_text(encoding="utf-8"))["defaults"]
    return [entry[key] for entry in defaults if key in entry]


@pytest.mark.parametrize("name", sorted(path.stem for path in (PROJECT_DIR / "conf" / "experiment").glob("*.yaml")))
def test_each_experiment_with_published_figures_reads_the_activity_of_the_gpu(name: str) -> None:
    by_default = make_listeners("config.yaml", "listeners")
    listeners = [*make_listeners(f"experiment/{name}.yaml", "override /listeners"), *by_default][0]
    assert ("activity" in listeners) is (name not in WITHOUT_FIGURES)


def test_the_default_listeners_read_every_published_figure(make_plan: MakePlan) -> None:
    assert warnings(make_plan, ROBROEK) == []


def test_each_figure_without_a_listener_has_a_warning_with_its_publication(make_plan: MakePlan) -> None:
    (gract,) = warnings(make_plan, [*ROBROEK, "listeners=[host,nvml]"])
    assert gract.startswith("GRACT of 1 published finding will be missing (Robroek, ")
    assert gract.endswith("): no listener reads GRACT; add activity to listeners")
    many = ["workload=robroek_small", "data.source=synthetic_files", "scenario=naive", "degree=2", "listeners=[host]"]
    gract, memory = warnings(make_plan, many)
    assert gract.startswith("GRACT of 1 published finding")
    assert memory.startswith("memory of 1 published finding") and memory.endswith("add nvml to listeners")


def test_activity_memory_and_energy_of_a_service_on_an_instance_need_listeners(make_plan: MakePlan) -> None:
    service = ["workload=infer_bert_base", "scenario=mig", "scenario.profile=1g", "degree=1", "listeners=[host]"]
    lines = warnings(make_plan, service, dataclasses.replace(GPU, kind="simulated"))
    ending = "of 2 published findings will be missing (Zhang, "
    assert [line.partition(ending)[0] for line in lines] == ["GRACT ", "memory ", "energy "]


@pytest.mark.parametrize("listeners", ["[host,gpm]", "[host,dcgm]"])
def test_gpm_and_dcgm_read_what_activity_reads(make_plan: MakePlan, listeners: str) -> None:
    assert warnings(make_plan, [*ROBROEK, f"listeners={listeners}"]) == []


def test_a_gpu_before_hopper_without_dcgmi_is_known_before_the_study(
    make_plan: MakePlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    (warning,) = warnings(make_plan, ROBROEK, A100)
    assert warning.endswith("has no GPM counters, and dcgmi is not on PATH; install NVIDIA DCGM")


def test_other_workloads_and_machines_without_a_gpu_have_no_published_figure(make_plan: MakePlan) -> None:
    assert warnings(make_plan, ["workload=tiny", "listeners=[host]"]) == []
    assert warnings(make_plan, [*ROBROEK, "listeners=[host]"], CPU) == []


def test_warnings_are_the_first_lines_of_a_plan(make_plan: MakePlan) -> None:
    plan = dataclasses.replace(make_plan(["workload=tiny"], device=GPU), warnings=("first", "second"))
    lines = plan_text.format_plan(plan).splitlines()
    assert lines[:2] == ["warning: first", "warning: second"] and lines[2].startswith("1 group on ")


SUMMARY = "robroek: 3 groups, 3 ok; $(touch injected)"


@pytest.fixture
def messages(monkeypatch) -> list[str]:
    lines: list[str] = []
    monkeypatch.setattr(execution.words, "say", lines.append)
    return lines


def test_the_summary_is_one_word_and_a_variable(tmp_path, messages):
    code = (
        "import os, sys; open(sys.argv[1], 'w').write('\\n'.join([*sys.argv[2:], os.environ['COLLOCATION_SUMMARY']]))"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "told"), execution.SUMMARY_VARIABLE, "SUMMARY", "$HOME"]
    execution.run_end_command(command, SUMMARY)
    assert (tmp_path / "told").read_text().splitlines() == [execution.SUMMARY_VARIABLE, SUMMARY, "$HOME", SUMMARY]
    assert messages == []


@pytest.mark.parametrize(
    ("command", "note"),
    [
        (["false"], "`false` ended with status 1: no message"),
        (["sh", "-c", "echo no such >&2; echo user >&2; exit 3"], "`sh` ended with status 3: no such user"),
        (["sleep", "30"], "`sleep` did not complete: killed after its time limit of 0.1 s."),
        (["/"], "Permission denied"),
    ],
)
def test_a_failure_is_only_noted(command, note, messages, monkeypatch):
    monkeypatch.setattr(execution, "_LIMIT_S", 0.1)
    execution.run_end_command(command, SUMMARY)
    (line,) = messages
    assert line.startswith("note: on_end: ") and note in line and "\n" not in line


def test_a_program_that_leaves_a_process_behind_has_not_failed(messages, monkeypatch):
    monkeypatch.setattr(execution, "_LIMIT_S", 5.0)
    execution.run_end_command(["sh", "-c", "sleep 6 & exit 0"], SUMMARY)
    assert messages == []


@pytest.mark.parametrize(("command", "name"), [(["no-such-program"], "'no-such-program'"), ([], "none")])
def test_an_unknown_program_is_refused(command, name):
    with pytest.raises(ConfigError, match=f"^on_end: program {name} was not found; write, for example, on_end="):
        execution.refuse_unknown_program(command)


def test_a_known_program_is_accepted():
    execution.refuse_unknown_program(["true", execution.SUMMARY])
