"""A transition is carried out on a simulated machine, also by several starts of which all but the last are killed."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import os
import random
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from pipeline.base.system import helper_program
from pipeline.clean import journal_file
from pipeline.planner import input_files
from pipeline.planner.__main__ import main
from pipeline.planner.deployment import Instance
from pipeline.planner.transition import proof, transition_plan, transition_steps
from pipeline.planner.transition.transition_steps import Transition
from pipeline.prepare.device import smi_commands
from pipeline.prepare.mig import profiles
from pipeline.simulation import nvidia_smi
from pipeline.simulation.machine import codes
from pipeline.simulation.machine.driver import Driver
from pipeline.simulation.machine.state_file import Fault, StateFile
from tests.support.simulated import set_faults
from tests.unit.planner.transition.deployments import equalize_rates, random_plan
from tests.unit.planner.transition.test_transition import make_deployment_plan, make_instance

CREATE = "nvmlDeviceCreateGpuInstance"


class Bench:
    """A transition in a file, and a machine that is not there yet."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.steps, self.machine = folder, folder / "steps.json", folder / "cluster.json"
        self.file = StateFile(self.machine)

    def plan(self, seed: int, *, model: str = "a30_24gb", num_gpus: int = 2, spare: int = 1) -> Transition:
        chance = random.Random(seed)
        one, other = equalize_rates(*(random_plan(chance, model, num_gpus, 3) for _ in range(2)))
        planned = transition_plan.plan_transition(one, other, spare, {})
        transition_steps.write(planned, self.steps)
        return planned

    def replay(self) -> int:
        locks = ["--lock-dir", str(self.folder)]
        return main(["replay", str(self.steps), "--machine", str(self.machine), *locks, "--json"])

    def read_instances(self) -> list[set[tuple[str, int]]]:
        """The GPU instances of every GPU of the machine, each with one compute instance."""
        instances_by_gpu = []
        for gpu in self.file.read().gpus:
            names = {profile.profile_id: profile.name for profile in profiles.load_model(gpu.model).profiles}
            assert all(len(instance.compute_instances) == 1 for instance in gpu.instances)
            instances_by_gpu.append({(names[instance.profile_id], instance.start) for instance in gpu.instances})
        return instances_by_gpu

    def list_planned_instances(self, planned: Transition) -> list[set[tuple[str, int]]]:
        """Where the GPU instances are to be in the end."""
        instances_by_gpu: list[set[tuple[str, int]]] = [set() for _ in self.file.read().gpus]
        for gpu in planned.reached.gpus:
            instances_by_gpu[int(str(gpu.id))] = {(str(i.profile), int(i.start or 0)) for i in gpu.instances}
        return instances_by_gpu

    def journals(self) -> list[Path]:
        return list(self.folder.rglob("*.journal"))


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """Its nvidia-smi runs in this process, which saves a start of Python for each command."""
    bench = Bench(tmp_path)

    def run(argv: Sequence[str], **_: Any) -> helper_program.Completed:
        assert argv[0] == f"{bench.machine}.bin/nvidia-smi"
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            status = nvidia_smi.main(["--state-file", str(bench.machine), *argv[1:]])
        return helper_program.Completed(argv=tuple(argv), status=status, stdout=printed.getvalue(), stderr="")

    monkeypatch.setattr(helper_program, "run", run)
    monkeypatch.setattr(smi_commands, "_find_writers", lambda uuid: [])
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    return bench


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", range(6))
def test_a_replay_ends_in_the_state_that_was_planned(
    bench: Bench, seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    planned = bench.plan(seed, model=("a30_24gb", "a100_80gb", "rtxpro6000_96gb")[seed % 3], num_gpus=3)
    assert bench.replay() == 0
    assert json.loads(capsys.readouterr().out)["done"] == len(planned.steps)
    assert bench.read_instances() == bench.list_planned_instances(planned)
    assert Counter(map(frozenset, filter(None, bench.read_instances()))) == Counter(
        frozenset((str(i.profile), i.start) for i in gpu.instances) for gpu in planned.reached.gpus
    )
    assert not bench.journals()
    assert bench.replay() == 0  # there is nothing left to do
    assert json.loads(capsys.readouterr().out)["done"] == 0


def test_mig_is_switched_off_for_whole_gpus_and_on_for_instances(bench: Bench) -> None:
    undivided_plan = make_deployment_plan(
        (Instance(profile=None, start=None, service="a", throughput_per_s=50),), rates={"a": 45}, mode="mps"
    )
    divided = make_deployment_plan(
        (make_instance("3g.40gb", 0, "a", 30), make_instance("3g.40gb", 4, "a", 30)), rates={"a": 45}
    )
    for number, plans in enumerate(((divided, undivided_plan), (undivided_plan, divided))):
        bench.machine = bench.folder / f"cluster{number}.json"
        bench.file = StateFile(bench.machine)
        transition_steps.write(transition_plan.plan_transition(*plans, 1, {}), bench.steps)
        assert bench.replay() == 0
        first, spare = bench.file.read().gpus
        assert first.instances == () and len(spare.instances) == 2 * number and spare.mig_current == bool(number)


def run_until_killed(count: int, run: Callable[[], int]) -> bool:
    """Run in a fork that is killed before or after its `count`-th command or line on disk; whether it came that far."""
    child = os.fork()
    if child == 0:
        done = 0

        def count_calls(function: Callable[..., Any]) -> Callable[..., Any]:
            def call(*arguments: Any, **options: Any) -> Any:
                nonlocal done
                done += 1
                if done == count:
                    os.kill(os.getpid(), signal.SIGKILL)
                try:
                    return function(*arguments, **options)
                finally:
                    done += 1
                    if done == count:
                        os.kill(os.getpid(), signal.SIGKILL)

            return call

        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(1, 2)
        try:
            journal_file.append, journal_file.remove = (
                count_calls(journal_file.append),
                count_calls(journal_file.remove),
            )
            helper_program.run = count_calls(helper_program.run)
            os._exit(run())
        finally:
            os._exit(99)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, status
    return os.WIFSIGNALED(status)


def kill_everywhere(bench: Bench, capsys: pytest.CaptureFixture[str], stride: int) -> tuple[int, int]:
    """Kill starts at every `stride`-th point, each followed by one that is not; returns points, and steps undone."""
    planned = bench.plan(1)
    assert {step.kind for step in planned.steps} >= {"repartition", "create", "delete"}
    points, put_back = 0, 0
    while run_until_killed(1 + stride * points, bench.replay):
        points += 1
        capsys.readouterr()
        assert bench.replay() == 0, points
        report = json.loads(capsys.readouterr().out)
        assert report["earlier"] + report["done"] == len(planned.steps), points
        assert bench.read_instances() == bench.list_planned_instances(planned), points
        assert not bench.journals()
        put_back += len(report["put_back"])
        for path in (bench.machine, bench.folder / "cluster.json.replay" / "steps.jsonl"):
            path.unlink()
    return points, put_back


@pytest.mark.slow
def test_killed_anywhere_the_next_start_goes_on_or_puts_back(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    points, put_back = kill_everywhere(bench, capsys, stride=17)
    assert points > 4 and put_back > 0


@pytest.mark.exhaustive
def test_killed_everywhere_the_next_start_goes_on_or_puts_back(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    points, put_back = kill_everywhere(bench, capsys, stride=1)
    assert points > 90 and put_back > 9


@pytest.mark.slow
@pytest.mark.parametrize("skip", [0, 2, 5])
def test_after_a_failure_the_rest_is_planned_anew_and_reached(
    bench: Bench, skip: int, capsys: pytest.CaptureFixture[str]
) -> None:
    planned = bench.plan(19, num_gpus=3, spare=3)
    assert sum(len(step.made) for step in planned.steps) > skip
    num_at_first = sum(len(gpu.instances) for gpu in planned.today.gpus)
    bench.file.keep(["a30_24gb"] * (len(planned.today.gpus) + 3 - planned.spare_used))
    set_faults(bench.file, Fault(function=CREATE, code=codes.INSUFFICIENT_RESOURCES, skip=num_at_first + skip))
    assert bench.replay() == 0
    (failure,) = json.loads(capsys.readouterr().out)["failures"]
    assert "Insufficient Resources" in failure["reason"]
    lines = map(json.loads, (bench.folder / "cluster.json.replay" / "steps.jsonl").read_text().splitlines())
    (anew,) = (input_files.decode(Transition, line["planned"], "log") for line in lines if "planned" in line)
    assert proof.check(anew).broken == () and anew.set_aside == (failure["gpu"],)
    assert failure["gpu"] not in {step.gpu for step in anew.steps}
    instances, planned_instances = bench.read_instances(), bench.list_planned_instances(anew)
    del instances[int(failure["gpu"])], planned_instances[int(failure["gpu"])]
    assert instances == planned_instances
    assert not bench.journals()


def test_without_a_way_around_a_failure_it_stops_and_the_next_start_tries_again(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    planned = bench.plan(2, num_gpus=1, spare=0)
    num_at_first = sum(len(gpu.instances) for gpu in planned.today.gpus)
    bench.file.keep(["a30_24gb"])
    set_faults(bench.file, Fault(function=CREATE, code=codes.INSUFFICIENT_RESOURCES, skip=num_at_first))
    assert bench.replay() == 1
    report = json.loads(capsys.readouterr().out)
    assert "without that GPU, no order of steps" in report["reason"] and report["done"] < len(planned.steps)
    assert bench.replay() == 0
    assert bench.read_instances() == bench.list_planned_instances(planned)


def test_a_machine_that_is_not_as_the_transition_has_it_is_left_alone(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    planned = bench.plan(1)
    bench.file.keep(["a30_24gb"])
    assert bench.replay() == 2
    assert "has no GPU" in capsys.readouterr().err
    bench.machine.unlink()
    bench.file.keep(["a100_80gb"] * 5)
    assert bench.replay() == 2
    assert "is a100_80gb, not a30_24gb" in capsys.readouterr().err
    bench.machine.unlink()
    bench.file.keep(["a30_24gb"] * len(planned.today.gpus))
    Driver(bench.file).set_mig_mode(0, is_on=True)
    taken = {(profile.name, start) for profile in profiles.load_model("a30_24gb").profiles for start in profile.starts}
    somebody = transition_steps.make_initial_progress(planned)["0"].slices
    name, start = min(taken - {(instance_slice.profile, instance_slice.start) for instance_slice in somebody})
    ids = {profile.name: profile.profile_id for profile in profiles.load_model("a30_24gb").profiles}
    nvidia_smi.main(["--state-file", str(bench.machine), "mig", "-i", "0", "-cgi", f"{ids[name]}:{start}", "-C"])
    before = bench.file.read()
    capsys.readouterr()
    assert bench.replay() == 2
    assert f"GPU 0 of the machine has {name}@{start}" in capsys.readouterr().err
    assert bench.file.read() == before


@pytest.mark.slow
def test_another_transition_waits_for_the_end_of_the_first(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    planned = bench.plan(1)
    assert run_until_killed(60, bench.replay)
    bench.plan(2)
    assert bench.replay() == 2
    assert "has an unfinished transition" in capsys.readouterr().err
    transition_steps.write(planned, bench.steps)
    assert bench.replay() == 0


def test_steps_that_do_not_hold_are_not_begun(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    planned = bench.plan(1)
    transition_steps.write(dataclasses.replace(planned, steps=planned.steps[:-1]), bench.steps)
    assert bench.replay() == 1
    assert json.loads(capsys.readouterr().out)["broken"] and not bench.machine.exists()
