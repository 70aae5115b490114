"""To make a layout and to restore is to change nothing: every legal layout, on every model, from either MIG mode.

From layout to layout, GPU instances are divided into compute instances in another way, or not at all.

The real code runs, down to the commands that it would start; those are answered in this process, because a process for
each would take days for all layouts. A part of the layouts is tried by default, all of them with `-m exhaustive`.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pipeline.base.domain import mig_table
from pipeline.base.domain.records import Group
from pipeline.base.system import helper_program
from pipeline.prepare.device import nvml, smi_commands
from pipeline.prepare.mig import compute, profiles
from pipeline.prepare.mig.layouts import Instance, Layout
from pipeline.prepare.mig.mig_state import read_state
from pipeline.prepare.mig.profiles import Profile
from pipeline.prepare.sharing.mig import Mig
from pipeline.simulation.install import install_driver
from pipeline.simulation.machine import placement
from pipeline.simulation.machine.state_file import GpuInstance, State, StateFile
from pipeline.simulation.smi import nvidia_smi as nvidia_smi
from tests.support.rows import gpu_settings
from tests.support.rows import group as make_group
from tests.support.simulated import Machine

Places = tuple[tuple[int, int], ...]  # profile id and start of each instance

NUM_LAYOUTS = {"a30_24gb": 75, "rtxpro6000_96gb": 716, "rtxpro5000_48gb": 29, "rtxpro4500_32gb": 21}
NUM_LAYOUTS_OF_SEVEN_SLICES = 2318
# How many layouts of each model are tried by default, at least.
NUM_TRIED = 20


class Placed(Mig):
    """MIG with a layout that is given instead of planned."""

    def __init__(self, layout: Layout, program: str) -> None:
        super().__init__(program=program)
        self.layout = layout

    def _plan_layout(self, group: Group) -> Layout:
        return self.layout


def layouts(model: mig_table.Model) -> list[Places]:
    """Every legal set of instances, by the rules of the simulated driver, in an order that is always the same."""
    options = sorted((start, profile.id) for profile in model.profiles for start in profile.starts)
    legal: list[Places] = []

    def extend(existing: tuple[GpuInstance, ...], first: int) -> None:
        if existing:
            legal.append(tuple((instance.profile_id, instance.start) for instance in existing))
        for position in range(first, len(options)):
            start, profile_id = options[position]
            profile = model.profile(profile_id)
            if start in placement.free_starts(model, existing, profile):
                new = GpuInstance(id=position, profile_id=profile_id, start=start, size=profile.memory_slices)
                extend((*existing, new), position + 1)

    extend((), 0)
    return legal


def some_parts(profile: Profile, number: int) -> tuple[int, ...]:
    """One way to divide a GPU instance, or not to, another one for each number: all of it in parts of one width."""
    width = (None, *compute.list_widths(profile))[number % (len(compute.list_widths(profile)) + 1)]
    return () if width is None else (width,) * (profile.compute_slices // width)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A machine in memory, whose nvidia-smi runs in this process: files and syncing would take most of the time."""
    states: dict[Path, State] = {}
    monkeypatch.setattr(StateFile, "read", lambda self: states[self.path])
    monkeypatch.setattr(StateFile, "faults", lambda self: states[self.path].faults)
    monkeypatch.setattr(StateFile, "_write", lambda self, state: states.update({self.path: state}))
    monkeypatch.setattr(StateFile, "_lock_file", lambda self: contextlib.nullcontext())
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    machine = Machine.make(tmp_path)

    def run(argv: Sequence[str], **_: Any) -> helper_program.Completed:
        assert argv[0] == machine.programs["nvidia-smi"]
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            status = nvidia_smi.main(["--state-file", str(machine.file.path), *argv[1:]])
        return helper_program.Completed(argv=tuple(argv), status=status, stdout=printed.getvalue(), stderr="")

    monkeypatch.setattr(helper_program, "run", run)
    monkeypatch.setattr(
        smi_commands, "_find_writers", lambda uuid: []
    )  # no other process: there is none to be looked for
    return machine


def try_layouts(machine: Machine, name: str, *, is_sample: bool) -> int:
    """Make and restore the layouts of a model, from MIG off and from MIG on; returns how many times."""
    model, gpu = mig_table.find(name), profiles.load_model(name)
    by_id = {profile.profile_id: profile for profile in gpu.profiles}
    all_places = layouts(model)
    assert len(all_places) == NUM_LAYOUTS.get(name, NUM_LAYOUTS_OF_SEVEN_SLICES)
    stride = len(all_places) // NUM_TRIED if is_sample else 1
    num_tried = 0
    for is_on in (False, True):
        machine.file.create([name])
        if is_on:
            machine.driver.set_mig_mode(0, is_on=True)
        with install_driver(machine.file.path):
            (device,) = nvml.list_devices()
            before, raw = read_state(device.uuid), machine.file.read()
            for number, places in enumerate(all_places[::stride]):
                instances = [
                    Instance(job=job, profile=by_id[i], start=at, parts=some_parts(by_id[i], number))
                    for job, (i, at) in enumerate(places)
                ]
                devices = [
                    (i, at) for instance, (i, at) in zip(instances, places, strict=True) for _ in instance.device_names
                ]
                gpu = gpu_settings(lock_dir=machine.folder)
                group = make_group(*["job"] * len(devices), device=device, gpu=gpu, scenario="mig")
                scratch = machine.folder / "scratch"
                scratch.mkdir()
                sharing = Placed(Layout(instances=tuple(instances)), machine.programs["nvidia-smi"])
                with sharing.prepare(group, scratch) as slots:
                    by_gi = {instance.id: (instance.profile_id, instance.start) for instance in machine.gpu.instances}
                    assert [by_gi[slot.gi_id] for slot in slots.slots if slot.gi_id is not None] == devices
                    assert len({slot.visible_devices for slot in slots.slots}) == len(devices)
                    assert len(by_gi) == len(places)
                assert read_state(device.uuid) == before, places
                assert machine.file.read() == raw, places
                (scratch / "no-mps").rmdir()
                scratch.rmdir()
                num_tried += 1
            assert not list(machine.folder.glob("*/*.journal"))
    print(f"{name}: {num_tried} of {2 * len(all_places)} (layouts times starting modes) made and restored")
    return num_tried


@pytest.mark.slow
def test_to_make_a_layout_and_restore_is_to_change_nothing(machine: Machine) -> None:
    num_tried = sum(try_layouts(machine, name, is_sample=True) for name in mig_table.models())
    assert num_tried >= 2 * NUM_TRIED * len(mig_table.models())


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", mig_table.models())
def test_to_make_any_layout_and_restore_is_to_change_nothing(machine: Machine, name: str) -> None:
    try_layouts(machine, name, is_sample=False)
