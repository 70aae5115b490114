"""Every legal MIG layout of every model, against the published tables and through the commands that make it."""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from pipeline.base.domain import mig_table
from pipeline.base.domain.records import Group
from pipeline.base.system import helper_program
from pipeline.base.system.paths import PROJECT_DIR
from pipeline.prepare.device import nvml, smi_commands
from pipeline.prepare.mig import compute, layouts, profiles
from pipeline.prepare.mig.layouts import Instance, Layout
from pipeline.prepare.mig.mig_state import read_state
from pipeline.prepare.mig.profiles import MigGpu, Profile
from pipeline.prepare.sharing.mig import Mig
from pipeline.simulation import nvidia_smi
from pipeline.simulation.install import install_driver
from pipeline.simulation.machine import queries
from pipeline.simulation.machine.state_file import GpuInstance, State, StateFile
from tests.support.rows import gpu_settings
from tests.support.rows import group as make_group
from tests.support.simulated import Machine

TABLE: dict[str, Any] = json.loads((PROJECT_DIR / "pipeline/base/domain/mig_profiles.json").read_text())["gpus"]
MODELS = tuple(mig_table.models())
SEVEN_SLICES = tuple(name for name, model in mig_table.models().items() if model.compute_slices == 7)
# Models with equal placements, counts and limits have the same layouts; one of each such family is examined closely.
FAMILIES = ("a30_24gb", "a100_40gb", "h100_80gb", "b200_180gb", "rtxpro6000_96gb", "rtxpro5000_48gb", "rtxpro4500_32gb")
NUM_LAYOUTS = {"a30_24gb": 76, "rtxpro6000_96gb": 717, "rtxpro5000_48gb": 30, "rtxpro4500_32gb": 22}
NUM_LAYOUTS |= dict.fromkeys(SEVEN_SLICES, 2319)

# `nvidia-smi mig -lgipp` in the MIG User Guide (getting started, A100 40GB); an H100 80GB HBM3 with driver 580.159.04
# and an H100 NVL print the same.
PUBLISHED_PLACEMENTS = {
    19: ((0, 1, 2, 3, 4, 5, 6), 1),
    20: ((0, 1, 2, 3, 4, 5, 6), 1),
    15: ((0, 2, 4, 6), 2),
    14: ((0, 2, 4), 2),
    9: ((0, 4), 4),
    5: ((0,), 4),
    0: ((0,), 8),
}
# The layouts `all-balanced` of NVIDIA/mig-parted, deployments/systemd/config-default.yaml.
BALANCED = {
    "a30_24gb": "1g.6gb 1g.6gb 2g.12gb",
    "a100_40gb": "1g.5gb 1g.5gb 2g.10gb 3g.20gb",
    "a100_80gb": "1g.10gb 1g.10gb 2g.20gb 3g.40gb",
    "h100_80gb": "1g.10gb 1g.10gb 2g.20gb 3g.40gb",
    "h100_80gb_pcie": "1g.10gb 1g.10gb 2g.20gb 3g.40gb",
    "h100_94gb": "1g.12gb 1g.12gb 2g.24gb 3g.47gb",
    "h100_96gb": "1g.12gb 1g.12gb 2g.24gb 3g.48gb",
    "h20_96gb": "1g.12gb 1g.12gb 2g.24gb 3g.48gb",
    "h200_141gb": "1g.18gb 1g.18gb 2g.35gb 3g.71gb",
    "gh200_144gb": "1g.18gb 1g.18gb 2g.36gb 3g.72gb",
    "b200_180gb": "1g.23gb 1g.23gb 2g.45gb 3g.90gb",
    "rtxpro6000_96gb": "1g.24gb 1g.24gb 2g.48gb",
}

Places = frozenset[tuple[str, int]]


def find_row(name: str) -> dict[str, Any]:
    product = mig_table.find(name).product
    return next(row for row in TABLE.values() if row["product"][0] == product)


def iterate_layouts(model: dict[str, Any]) -> Iterator[Places]:
    """Yield each set of places that the published limits allow, with the whole GPU's engines as what there is."""
    rows = model["gi_profiles"]
    num_engines = max(rows, key=lambda row: row["memory_slices"])["engines"]
    places = sorted(
        (place["start"], place["size"], number) for number, row in enumerate(rows) for place in row["placements"]
    )

    def is_within_limits(chosen: tuple[tuple[int, int, int], ...]) -> bool:
        counts = Counter(number for *_, number in chosen)
        if any(count > rows[number]["max_instances"] for number, count in counts.items()):
            return False
        if sum(rows[number]["compute_slices"] * count for number, count in counts.items()) > model["compute_slices"]:
            return False
        return all(
            most is None
            or sum((rows[number]["engines"][kind] or 0) * count for number, count in counts.items()) <= most
            for kind, most in num_engines.items()
        )

    def extend(chosen: tuple[tuple[int, int, int], ...], first: int) -> Iterator[Places]:
        yield frozenset((rows[number]["name"], start) for start, _, number in chosen)
        end = chosen[-1][0] + chosen[-1][1] if chosen else 0
        for position in range(first, len(places)):
            if places[position][0] >= end and is_within_limits(wider := (*chosen, places[position])):
                yield from extend(wider, position + 1)

    return extend((), 0)


@cache
def list_legal(name: str) -> frozenset[Places]:
    return frozenset(iterate_layouts(find_row(name)))


def count_names(places: Places) -> tuple[str, ...]:
    return tuple(sorted(name for name, _ in places))


def place_profiles(gpu: MigGpu, places: Places) -> layouts.Placed:
    by_name = {profile.name: profile for profile in gpu.profiles}
    return tuple((by_name[name], start) for name, start in sorted(places, key=lambda place: place[1]))


def select_maximal(name: str, *, doubled: bool) -> tuple[set[tuple[str, ...]], int]:
    """Return the maximal combinations of profiles without a suffix, and the number of maximal layouts."""
    rows = [row for row in find_row(name)["gi_profiles"] if not {"+", "-"} & set(row["name"])]
    # NVML's number of 1g with twice the memory is 9.
    plain = {row["name"] for row in rows if doubled or row["nvml_enum"] <= 6}
    legal = [places for places in list_legal(name) if {profile for profile, _ in places} <= plain]
    counters = {count_names(places): Counter(count_names(places)) for places in legal}
    maximal = {
        names
        for names, counter in counters.items()
        if not any(len(other) > len(names) and counter <= larger for other, larger in counters.items())
    }
    return maximal, sum(not any(places < other for other in legal) for places in legal)


@pytest.mark.parametrize(
    ("name", "doubled"),
    [
        *((name, False) for name in ("a30_24gb", "a100_40gb", "h100_80gb", "gb300", "rtxpro6000_96gb")),
        ("a100_40gb", True),
    ],
)
def test_maximal_combinations_and_layouts_are_those_of_all_layouts(name: str, doubled: bool) -> None:
    gpu = profiles.load_model(name)
    pool = layouts.list_plain_profiles(gpu) if doubled else None
    combinations = layouts.list_maximal_combinations(gpu, pool)
    assert len(combinations) == len(set(combinations))
    num_layouts = len(layouts.list_maximal_layouts(gpu, pool))
    assert (set(combinations), num_layouts) == select_maximal(name, doubled=doubled)
    assert name != "a100_40gb" or len(combinations) == (28 if doubled else 12)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", MODELS)
def test_every_layout_is_allowed_and_no_other(name: str) -> None:
    gpu = profiles.load_model(name)
    arranged = [
        frozenset((p.name, start) for p, start in placed) for placed in layouts._iterate_arrangements(gpu, gpu.profiles)
    ]
    assert len(arranged) == len(set(arranged)) == NUM_LAYOUTS[name]
    assert set(arranged) == list_legal(name)


@pytest.mark.parametrize("name", SEVEN_SLICES)
def test_gpus_with_seven_slices_have_the_published_placements(name: str) -> None:
    model = mig_table.find(name)
    assert {profile.id: (profile.starts, profile.memory_slices) for profile in model.profiles} == PUBLISHED_PLACEMENTS


@pytest.mark.parametrize("name", MODELS)
def test_as_many_instances_of_one_profile_fit_as_the_driver_names(name: str) -> None:
    gpu = profiles.load_model(name)
    for profile in gpu.profiles:
        assert layouts.place(gpu, [profile] * profile.max_instances) is not None, profile.name
        assert layouts.place(gpu, [profile] * (profile.max_instances + 1)) is None, profile.name


@pytest.mark.parametrize("name", BALANCED)
def test_a_layout_that_nvidia_configures_is_placed(name: str) -> None:
    gpu = profiles.load_model(name)
    requested = [layouts.resolve(gpu, request) for request in BALANCED[name].split()]
    layout = layouts.plan_layout(gpu, requested)
    assert frozenset((i.profile.name, i.start) for i in layout.instances) in list_legal(name)


@pytest.mark.parametrize("name", FAMILIES)
def test_mixed_requests_are_placed_exactly_if_a_layout_has_them(name: str) -> None:
    """Requests of random sizes, in random order."""
    gpu, choose = profiles.load_model(name), random.Random(1)
    legal = {count_names(places) for places in list_legal(name)}
    outcomes: Counter[bool] = Counter()
    for _ in range(400):
        requested = choose.choices(gpu.profiles, k=choose.randint(1, gpu.compute_slices))
        layout = layouts.place(gpu, requested)
        assert (layout is not None) == (tuple(sorted(p.name for p in requested)) in legal), requested
        assert (layouts.explain_illegal(gpu, requested) is None) == (layout is not None)
        outcomes[layout is not None] += 1
        if layout is not None:
            assert [instance.profile for instance in layout.instances] == requested
            assert frozenset((i.profile.name, i.start) for i in layout.instances) in list_legal(name)
    assert min(outcomes.values()) >= 20


@pytest.mark.parametrize("name", FAMILIES)
def test_a_layout_grows_around_what_stays_wherever_there_is_room(name: str) -> None:
    gpu, choose = profiles.load_model(name), random.Random(2)
    legal = sorted(map(sorted, list_legal(name)))
    for _ in range(60):
        stays = frozenset(choose.choice(legal))
        for profile in gpu.profiles:
            possible = {start for start in profile.starts if stays | {(profile.name, start)} in list_legal(name)}
            possible -= {start for other, start in stays if other == profile.name}
            layout = layouts.place(gpu, [profile], place_profiles(gpu, stays))
            assert (layout is not None) == bool(possible), (stays, profile.name)
            assert layout is None or layout.instances[0].start in possible


@pytest.mark.parametrize("name", FAMILIES)
def test_the_simulated_driver_creates_every_layout_and_refuses_every_other(name: str) -> None:
    model, choose = mig_table.find(name), random.Random(3)
    by_name = {profile.name: profile for profile in model.profiles}
    legal = sorted(map(sorted, list_legal(name)))
    for _ in range(60):
        places = frozenset(choose.choice(legal))
        starts = tuple(
            GpuInstance(id=number, profile_id=by_name[kind].id, start=start, size=by_name[kind].memory_slices)
            for number, (kind, start) in enumerate(places)
        )
        for profile in model.profiles:
            possible = {start for start in profile.starts if places | {(profile.name, start)} in list_legal(name)}
            possible -= {start for other, start in places if other == profile.name}
            assert set(queries.free_starts(model, starts, profile)) == possible, (places, profile.name)


@pytest.mark.parametrize("name", FAMILIES)
def test_the_nearest_layouts_of_an_illegal_request_are_legal(name: str) -> None:
    gpu, choose = profiles.load_model(name), random.Random(4)
    legal = {count_names(places) for places in list_legal(name)}
    num_illegal = 0
    while num_illegal < 20:
        requested: list[Profile] = choose.choices(gpu.profiles, k=choose.randint(2, gpu.compute_slices + 1))
        if layouts.place(gpu, requested) is None:
            num_illegal += 1
            near = layouts.find_nearest(gpu, requested)
            assert near
            assert {tuple(sorted(names)) for names in near} <= legal


def test_old_drivers_lack_the_profiles_that_the_guide_dates() -> None:
    """MIG User Guide: `+me` from R470, double memory and 2g.12gb+me from R525."""

    def lacking(name: str, branch: int) -> set[str]:
        return {p.name for p in profiles.load_model(name).profiles} - {
            p.name for p in profiles.load_model(name, branch).profiles
        }

    assert lacking("a100_40gb", 460) == {"1g.5gb+me", "1g.10gb"}
    assert lacking("a100_80gb", 510) == {"1g.20gb"}
    assert lacking("a30_24gb", 470) == {"2g.12gb+me"}
    assert lacking("a100_40gb", 525) == lacking("h100_80gb", 525) == set()
    old = profiles.load_model("a100_40gb", 470)
    arranged = {
        frozenset((p.name, start) for p, start in placed) for placed in layouts._iterate_arrangements(old, old.profiles)
    }
    assert len(arranged) == 1088
    assert arranged == {
        places
        for places in list_legal("a100_40gb")
        if "1g.10gb" not in count_names(places) and not {"3g.20gb", "4g.20gb"} <= set(count_names(places))
    }


def test_the_engines_decide_which_instances_coexist_also_where_no_name_tells() -> None:
    """The guide's edition R580 gives an RTX PRO 5000 one JPEG decoder, and three kinds of 1g that have it."""
    common = {
        "compute_slices": 1,
        "memory_slices": 1,
        "starts": (0, 1, 2, 3),
        "multiprocessors": None,
        "memory_mib": None,
    }
    one = [
        Profile(name=name, profile_id=number, max_instances=most, engines=engines, **common)
        for number, (name, most, engines) in enumerate(
            [
                ("1g.12gb", 1, (1, 1, 1, 1, 0)),
                ("1g.12gb+gfx", 1, (1, 1, 1, 1, 0)),
                ("1g.12gb-me", 3, (1, 0, 0, 0, 0)),
            ]
        )
    ]
    full = Profile(
        name="4g.48gb",
        profile_id=9,
        compute_slices=4,
        memory_slices=4,
        starts=(0,),
        max_instances=1,
        multiprocessors=None,
        memory_mib=None,
        engines=(4, 3, 3, 1, 1),
    )
    gpu = MigGpu(name="RTX", compute_slices=4, memory_slices=4, multiprocessors=None, profiles=(*one, full))
    plain, graphics, without = one
    assert layouts.place(gpu, [plain, without, without, without]) is not None
    reason = "2 JPEG decoders of 1g.12gb and 1g.12gb+gfx, but the GPU has 1"
    assert layouts.explain_illegal(gpu, [plain, graphics]) == reason


# How many layouts of each model are tried by default, at least.
NUM_TRIED = 20


class FixedMig(Mig):
    """MIG with a layout that is given instead of planned."""

    def __init__(self, layout: Layout, program: str) -> None:
        super().__init__(program=program)
        self.layout = layout

    def _plan_layout(self, group: Group) -> Layout:
        return self.layout


def choose_parts(profile: Profile, number: int) -> tuple[int, ...]:
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
    by_name = {profile.name: profile for profile in profiles.load_model(name).profiles}
    all_places = [
        [(by_name[profile], start) for profile, start in places] for places in sorted(map(sorted, list_legal(name)))[1:]
    ]
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
                    Instance(job=job, profile=profile, start=start, parts=choose_parts(profile, number))
                    for job, (profile, start) in enumerate(places)
                ]
                devices = [
                    (instance.profile.profile_id, instance.start)
                    for instance in instances
                    for _ in instance.device_names
                ]
                gpu = gpu_settings(lock_dir=machine.folder)
                group = make_group(*["job"] * len(devices), device=device, gpu=gpu, scenario="mig")
                scratch = machine.folder / "scratch"
                scratch.mkdir()
                sharing = FixedMig(Layout(instances=tuple(instances)), machine.programs["nvidia-smi"])
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
