"""`scenario=streams` and `scenario=green`: which groups one process can host, and what its program is told."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from pathlib import Path

import pytest

from pipeline.base.domain.records import CpuPinning, Device, DeviceFacts, Group, HostProgram, Job, ProfilerSpec
from pipeline.base.system import study_cache
from pipeline.base.system.errors import ConfigError
from pipeline.base.system.factory import Spec
from pipeline.prepare.sharing import green
from pipeline.prepare.sharing.green import Green
from pipeline.prepare.sharing.streams import MOST_TENANTS, Streams
from tests.conftest import GPU
from tests.support.rows import gpu_settings, group

CPU = Device(kind="cpu", uuid="CPU-here", name="the CPUs")
CURRENT, OTHER = (Spec(target=f"pipeline.prepare.env.{name}.Env") for name in ("current", "venv"))


def make_tenants(*changes: dict[str, object], **settings: object) -> Group:
    base = group(*("tiny" for _ in changes), scenario="streams", device=CPU, **settings)
    jobs = (
        Job(index=index, workload=dataclasses.replace(base.jobs[0].workload, **change))
        for index, change in enumerate(changes)
    )
    return dataclasses.replace(base, jobs=tuple(jobs))


def test_all_jobs_have_a_slot_of_the_same_program(tmp_path: Path) -> None:
    jobs = make_tenants({}, {}, {})
    with Streams().prepare(jobs, tmp_path) as slots:
        (host,) = {slot.host for slot in slots.slots}
    assert len(slots.slots) == 3 and Path(host.script).is_file()


def test_the_program_of_green_contexts_is_told_how_many_multiprocessors_were_asked_for(tmp_path: Path) -> None:
    jobs = make_tenants({}, {})
    for mode, multiprocessors in ((Green(40), 40), (Green(), None)):
        with mode.prepare(jobs, tmp_path) as slots:
            assert {dict(slot.host.options)["multiprocessors"] for slot in slots.slots} == {multiprocessors}
            assert Path(slots.slots[0].host.script).is_file()


def test_answers_of_a_trial_reach_the_next_group_of_the_study(tmp_path: Path) -> None:
    study_cache.clear()
    jobs = make_tenants({}, {})
    for number, written in enumerate(('{"3 x 40": "it hangs"}', '{"3 x 40', "{}")):
        (folder := tmp_path / str(number)).mkdir()
        with Green(40).prepare(jobs, folder) as slots:
            answers = Path(dict(slots.slots[0].host.options)["answers"])
            assert json.loads(answers.read_text()) == ({} if number == 0 else {"3 x 40": "it hangs"})
            answers.write_text(written)  # the second one is cut off, as by a program that was killed
    assert green.get_answers() == {"3 x 40": "it hangs"}
    study_cache.clear()  # as the next study does
    assert green.get_answers() == {}


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (
            ["workload=resnet26_cifar10", "workload.precision=tf32"],
            {"convolutions": True, "batch_norm": True, "precision": "tf32", "channels_last": True},
        ),
        (
            ["workload=tiny"],
            {"convolutions": True, "batch_norm": True, "precision": "default", "channels_last": False},
        ),
        (
            ["workload=infer_resnet50", "workload.precision=bf16"],
            {"convolutions": True, "batch_norm": False, "precision": "bf16", "channels_last": True},
        ),
        (["workload=infer_bert_base"], {"convolutions": False, "batch_norm": False}),
        (["workload=micro", "workload.operation=copy"], {"convolutions": True, "batch_norm": True}),
    ],
)
def test_a_trial_has_the_operations_that_the_jobs_need(make_plan, overrides, expected) -> None:
    (planned,) = make_plan(
        ["scenario=green", "degree=2", "data.source=synthetic_device", *overrides], device=GPU
    ).groups
    trials = dict(Green().choose_host(planned, Path("/tmp")).options)["trials"]
    assert [dict(trial) | expected for trial in trials] == [dict(trial) for trial in trials]
    assert len(trials) == 1


def test_no_multiprocessor_is_refused() -> None:
    with pytest.raises(ConfigError, match="multiprocessors=0 must be at least 1"):
        Green(0)


HOPPER = DeviceFacts(compute_capability=(9, 0), multiprocessors=132)


@pytest.mark.parametrize(
    ("num_jobs", "multiprocessors", "facts", "reason"),
    [
        (3, 40, HOPPER, ""),
        (2, None, HOPPER, ""),
        (
            3,
            44,
            HOPPER,
            r": 3 x 48 multiprocessors .* exceed the 132 of .*; use scenario\.multiprocessors=40 or less$",
        ),
        (1, 200, HOPPER, r"; use scenario\.multiprocessors=128 or less$"),
        (3, None, DeviceFacts(compute_capability=(10, 0), multiprocessors=20), "; use 2 jobs or fewer$"),
        (3, 44, DeviceFacts(compute_capability=(8, 0), multiprocessors=108), ""),  # their step is another
        (3, 44, DeviceFacts(), ""),
    ],
)
def test_parts_that_cannot_fit_are_refused_in_a_plan(num_jobs, multiprocessors, facts, reason) -> None:
    jobs = dataclasses.replace(make_tenants(*[{}] * num_jobs), device=dataclasses.replace(GPU, facts=facts))
    refused = pytest.raises(ConfigError, match=reason) if reason else contextlib.nullcontext()
    with refused:
        Green(multiprocessors).check(jobs)


STEPS = (("step_mode", "eager"),)


@pytest.mark.parametrize(
    ("changes", "settings", "reason"),
    [
        (
            [{"own_process": "it serves HTTP"}, {}],
            {},
            "workload tiny cannot share a process, because it serves HTTP; use scenario=mps or naive",
        ),
        (
            [{"own_process": "it is slow; use another"}, {}],
            {},
            "because it is slow; use another, or scenario=mps or naive",
        ),
        ([{}] * (MOST_TENANTS + 1), {}, f"hosts at most {MOST_TENANTS} jobs, not {MOST_TENANTS + 1}"),
        ([{}, {}], {"pin_cpus": CpuPinning.JOBS}, "remove pin_cpus=true"),
        ([{}, {}], {"profiler": ProfilerSpec(name="nsys")}, "remove profiler=nsys"),
        (
            [{}, {}],
            {"gpu": dataclasses.replace(gpu_settings(), exclusive_process=True)},
            "remove gpu.exclusive_process",
        ),
        ([{"env": CURRENT}, {"env": OTHER}], {}, "environment applies to a whole process"),
        ([{"environ": (("A", "1"),)}, {}], {}, "workload.environ applies to a whole process"),
        (
            [{"params": (*STEPS, ("precision", p))} for p in ("fp32", "tf32")],
            {},
            "workload.precision applies to a whole",
        ),
    ],
)
def test_what_one_process_cannot_host_is_refused_in_one_line(changes, settings, reason) -> None:
    with pytest.raises(ConfigError, match=reason) as refused:
        Streams().check(make_tenants(*changes, **settings))
    assert "\n" not in str(refused.value)


def test_graphs_may_differ_in_their_arithmetic() -> None:
    captured = [{"params": (("step_mode", "cuda_graph"), ("precision", p))} for p in ("fp32", "tf32")]
    Streams().check(make_tenants(*captured))


def test_hosts_are_the_same_only_with_the_same_options() -> None:
    assert HostProgram(script="a") == HostProgram(script="a")
    assert len({HostProgram(script="a"), HostProgram(script="a", options=(("multiprocessors", 40),))}) == 2


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (["workload=script", "workload.script=run.py"], "offers no step"),
        (["workload=infer_tiny", "workload.serve=http"], "it serves HTTP"),
        (["data.source=disk", "workload.loader_workers=2"], "its data loader starts processes"),
        (["workload=tiny_text"], "share the random numbers of dropout"),
        (["+workload.model_args.drop_rate=0.1"], "share the random numbers of dropout"),
    ],
)
def test_programs_that_need_a_process_of_their_own_are_refused_when_planned(make_plan, overrides, reason) -> None:
    with pytest.raises(ConfigError, match=reason):
        make_plan(["scenario=streams", "degree=2", *overrides])


@pytest.mark.parametrize("workload", ["tiny", "infer_tiny", "infer_tiny_text", "micro"])
def test_training_services_and_repeated_operations_can_share_a_process(make_plan, workload: str) -> None:
    options = ["workload.operation=copy"] if workload == "micro" else []
    plan = make_plan([f"workload={workload}", "scenario=streams", "degree=2", *options])
    assert [(group.scenario, group.skip_reason) for group in plan.groups] == [("streams", None)]


def test_groups_on_streams_are_interleaved_and_green_contexts_are_not(make_plan) -> None:
    sweep = [
        [f"scenario={mode}", f"degree={n}", "window=interleaved", "data.source=synthetic_device"]
        for mode in ("streams", "green")
        for n in (1, 2)
    ]
    plan = make_plan(*sweep)
    launches = {group.name.partition("-window")[0]: group.launch for group in plan.groups}
    assert launches["streams-1x-tiny"] == launches["streams-2x-tiny"] != ""
    assert launches["green-2x-tiny"] == ""
