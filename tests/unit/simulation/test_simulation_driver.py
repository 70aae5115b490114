"""The simulated driver's rules and its shared state."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pipeline.base.domain import mig_table
from pipeline.base.domain.mig_table import GiProfile, Model
from pipeline.base.system.errors import ConfigError
from pipeline.prepare.mig import layouts, profiles
from pipeline.simulation.machine import codes, queries
from pipeline.simulation.machine.codes import DriverError
from pipeline.simulation.machine.driver import Clients, Driver
from pipeline.simulation.machine.state_file import (
    MAX_GPUS,
    Fault,
    Gpu,
    GpuInstance,
    StateFile,
    is_made_for_study,
    mig_uuid,
)

EVERY_MODEL = sorted(mig_table.models())


def _driver(state_file: StateFile, *names: str, faults: tuple[Fault, ...] = (), mig: bool = True) -> Driver:
    state_file.create(names, faults)
    driver = Driver(state_file)
    for index in range(len(names) if mig else 0):
        driver.set_mig_mode(index, is_on=True)
    return driver


def _make(driver: Driver, *profile_ids: int) -> list[tuple[int, int]]:
    """Create one by one without placements; id and start of each."""
    instances = [driver.create_gpu_instance(0, profile_id) for profile_id in profile_ids]
    return [(instance.id, instance.start) for instance in instances]


def _read_mig_uuid(gpu: Gpu) -> str:
    ((instance, ci),) = queries.mig_devices(gpu)
    return mig_uuid(gpu, instance, ci)


def _refusal(call: Callable[[], object]) -> int:
    with pytest.raises(DriverError) as caught:
        call()
    return caught.value.code


def test_every_model_can_be_simulated() -> None:
    assert len(EVERY_MODEL) == 17
    assert mig_table.find("simulated_H100-80GB-SXM") is mig_table.find("h100_80gb")
    with pytest.raises(ConfigError, match=r"'rtxpro2000' is unknown.*a100_40gb"):
        mig_table.find("rtxpro2000")


@pytest.mark.parametrize("name", EVERY_MODEL)
def test_the_table_agrees_with_itself(name: str) -> None:
    model = mig_table.find(name)
    for profile in model.profiles:
        assert profile.starts[-1] + profile.memory_slices <= model.memory_slices
        assert profile.compute_slices <= model.compute_slices
        assert 0 < profile.capacity_mib <= model.capacity_mib
        # Source: nvml.h, NVML_COMPUTE_INSTANCE_PROFILE_*
        assert profile.ci_profiles[-1].id == {1: 0, 2: 1, 3: 2, 4: 3, 7: 4}[profile.compute_slices]
        assert profile.ci_profiles[-1].compute_slices == profile.compute_slices
        # On an empty GPU the count that the table names must fit: that is what the driver reports as total.
        assert queries.remaining_capacity(model, (), profile) == profile.max_instances


# Orders of creation on GPUs of seven compute slices, with the starts that real drivers chose.
@pytest.mark.parametrize(
    ("profile_ids", "starts"),
    [
        ((19,) * 7, [6, 4, 5, 0, 1, 2, 3]),
        ((9, 9), [4, 0]),
        ((9, 5), [4, 0]),
        ((9, 14), [4, 0]),
        ((14, 14, 19), [4, 0, 6]),
        ((9, 19, 14, 19), [4, 0, 2, 1]),
        ((19, 14, 5), [6, 4, 0]),
    ],
)
def test_without_placement_the_driver_chooses_as_real_ones_did(
    state_file: StateFile, profile_ids: tuple[int, ...], starts: list[int]
) -> None:
    driver = _driver(state_file, "a100_40gb")
    assert [start for _, start in _make(driver, *profile_ids)] == starts


def test_a_legal_set_fails_in_a_bad_order(state_file: StateFile) -> None:
    driver = _driver(state_file, "a100_40gb")
    _make(driver, 19, 19, 14)
    assert _refusal(lambda: driver.create_gpu_instance(0, 9)) == codes.INSUFFICIENT_RESOURCES
    assert len(driver.state().gpus[0].instances) == 3


def test_twelve_memory_slices(state_file: StateFile) -> None:
    driver = _driver(state_file, "rtxpro6000_96gb")
    assert [start for _, start in _make(driver, 5, 14, 14)] == [0, 6, 9]


@pytest.mark.parametrize(
    ("name", "profile_ids", "ids"),
    [
        ("a100_40gb", (9, 19, 14, 19), [1, 11, 6, 12]),
        ("a100_80gb", (14, 14, 19), [3, 5, 9]),
        ("a100_80gb", (9, 5), [1, 2]),
        ("h100_80gb", (19, 19, 19, 19), [13, 11, 12, 7]),
        ("h100_80gb", (9, 14), [2, 3]),
        ("rtxpro6000_96gb", (14, 14, 14, 14), [3, 4, 5, 6]),
    ],
)
def test_ids_are_those_seen_on_real_gpus(
    state_file: StateFile, name: str, profile_ids: tuple[int, ...], ids: list[int]
) -> None:
    driver = _driver(state_file, name)
    assert [number for number, _ in _make(driver, *profile_ids)] == ids


def test_the_third_of_3g_3g_1g_finds_no_memory(state_file: StateFile) -> None:
    driver = _driver(state_file, "h100_80gb")
    _make(driver, 9, 9)
    assert _refusal(lambda: driver.create_gpu_instance(0, 19)) == codes.INSUFFICIENT_RESOURCES


def test_after_4g_one_3g_is_left(state_file: StateFile) -> None:
    driver = _driver(state_file, "a100_40gb")
    _make(driver, 5)
    model, gpu = mig_table.find("a100_40gb"), driver.state().gpus[0]
    counts = {p.name: queries.remaining_capacity(model, gpu.instances, p) for p in model.profiles}
    assert counts == {"1g.5gb": 3, "1g.5gb+me": 1, "1g.10gb": 2, "2g.10gb": 1, "3g.20gb": 1, "4g.20gb": 0, "7g.40gb": 0}


def test_media_engines_belong_to_one_instance(state_file: StateFile) -> None:
    driver = _driver(state_file, "rtxpro6000_96gb")
    driver.create_gpu_instance(0, 65)  # 1g.24gb+me.all
    assert _refusal(lambda: driver.create_gpu_instance(0, 14)) == codes.INSUFFICIENT_RESOURCES
    assert driver.create_gpu_instance(0, 67).start == 3  # 1g.24gb-me


def test_what_was_asked_wrongly_is_told_from_what_does_not_fit(state_file: StateFile) -> None:
    driver = _driver(state_file, "h100_80gb")
    driver.create_gpu_instance(0, 14, 2)
    assert _refusal(lambda: driver.create_gpu_instance(0, 14, 1)) == codes.INVALID_ARGUMENT
    assert _refusal(lambda: driver.create_gpu_instance(0, 14, 2)) == codes.INSUFFICIENT_RESOURCES
    assert _refusal(lambda: driver.create_gpu_instance(0, 77)) == codes.INVALID_ARGUMENT
    assert _refusal(lambda: driver.destroy_gpu_instance(0, 14)) == codes.NOT_FOUND
    off = _driver(state_file, "h100_80gb", mig=False)
    assert _refusal(lambda: off.create_gpu_instance(0, 19)) == codes.NOT_SUPPORTED


def _layouts(
    model: Model, instances: tuple[GpuInstance, ...] = (), first: int = 0
) -> Iterator[tuple[GpuInstance, ...]]:
    """Every legal layout of plain profiles with explicit starts, in a fixed order of profile and start."""
    yield instances
    plain = [profile for profile in model.profiles if not profile.attributes]
    choices: list[tuple[GiProfile, int]] = [(profile, start) for profile in plain for start in profile.starts]
    for position in range(first, len(choices)):
        profile, start = choices[position]
        if start in queries.free_starts(model, instances, profile):
            number = queries.gpu_instance_id(model, 0, start, profile.memory_slices)
            new = GpuInstance(id=number, profile_id=profile.id, start=start, size=profile.memory_slices)
            yield from _layouts(model, (*instances, new), position + 1)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["a30_24gb", "a100_40gb", "h100_80gb", "rtxpro6000_96gb"])
def test_making_a_layout_and_destroying_it_changes_nothing(state_file: StateFile, name: str) -> None:
    """A sample of the layouts; the ids of instances that exist together differ in every single one."""
    driver = _driver(state_file, name)
    model, before = mig_table.find(name), driver.state()
    layouts = list(_layouts(model))
    assert all(len({instance.id for instance in layout}) == len(layout) for layout in layouts)
    for layout in random.Random(1).sample(layouts, 10):
        for instance in layout:
            gpu_instance = driver.create_gpu_instance(0, instance.profile_id, instance.start)
            assert gpu_instance == instance
            driver.create_compute_instance(0, gpu_instance.id)
        for instance in layout:
            assert _refusal(lambda number=instance.id: driver.destroy_gpu_instance(0, number)) == codes.IN_USE
            driver.destroy_compute_instance(0, instance.id, 0)
            driver.destroy_gpu_instance(0, instance.id)
        assert driver.state() == before


@pytest.mark.parametrize("name", EVERY_MODEL)
def test_planner_and_driver_agree_on_what_fits(name: str) -> None:
    """Every maximal combination that the project plans fits where it plans it, and nothing fits beside it."""
    model, gpu = mig_table.find(name), profiles.load_model(name)
    combinations = layouts.list_maximal_combinations(gpu, layouts.list_plain_profiles(gpu))
    assert combinations
    for names in combinations:
        by_name = {profile.name: profile for profile in gpu.profiles}
        layout = layouts.plan_layout(gpu, [by_name[profile_name] for profile_name in names])
        present: tuple[GpuInstance, ...] = ()
        for planned in layout.creation_order:
            profile = model.profile(planned.profile.profile_id)
            assert planned.start in queries.free_starts(model, present, profile)
            number = queries.gpu_instance_id(model, 0, planned.start, profile.memory_slices)
            new = GpuInstance(id=number, profile_id=profile.id, start=planned.start, size=profile.memory_slices)
            present = (*present, new)
        plain = [profile for profile in model.profiles if not profile.attributes]
        assert not any(queries.free_starts(model, present, profile) for profile in plain)


def test_compute_instances_share_a_gpu_instance(state_file: StateFile) -> None:
    driver = _driver(state_file, "a100_40gb")
    driver.create_gpu_instance(0, 9)
    parts = [driver.create_compute_instance(0, 1, profile_id) for profile_id in (0, 0)]
    assert [(ci.id, ci.start, ci.size) for ci in parts] == [(0, 0, 1), (1, 1, 1)]
    assert _refusal(lambda: driver.create_compute_instance(0, 1)) == codes.INSUFFICIENT_RESOURCES
    assert len({mig_uuid(driver.state().gpus[0], *pair) for pair in queries.mig_devices(driver.state().gpus[0])}) == 2
    driver.destroy_compute_instance(0, 1, 0)
    assert driver.create_compute_instance(0, 1, 0).id == 0


def test_a_2c_follows_a_1c_in_a_3g(state_file: StateFile) -> None:
    driver = _driver(state_file, "a100_80gb")
    driver.create_gpu_instance(0, 9)
    parts = [driver.create_compute_instance(0, 1, profile_id) for profile_id in (0, 1)]
    assert [(ci.start, ci.size) for ci in parts] == [(0, 1), (1, 2)]


def test_a_compute_instance_of_the_full_width_leaves_no_room(state_file: StateFile) -> None:
    driver = _driver(state_file, "a100_40gb")
    driver.create_gpu_instance(0, 9)
    assert _refusal(lambda: driver.destroy_compute_instance(0, 1, 0)) == codes.NOT_FOUND
    driver.create_compute_instance(0, 1)
    assert _refusal(lambda: driver.create_compute_instance(0, 1)) == codes.INSUFFICIENT_RESOURCES
    driver.destroy_compute_instance(0, 1, 0)
    assert queries.mig_devices(driver.state().gpus[0]) == []
    driver.create_compute_instance(0, 1)


def test_a_client_leaves_the_mode_of_an_ampere_pending_until_a_reset(state_file: StateFile, sleeper: int) -> None:
    driver = _driver(state_file, "a100_40gb", mig=False)
    clients = Clients(state_file)
    clients.hold(driver.state().gpus[0].uuid, sleeper, "sleep", 100)
    assert driver.set_mig_mode(0, is_on=True) == codes.IN_USE
    gpu = driver.state().gpus[0]
    assert (gpu.mig_current, gpu.mig_pending) == (False, True)
    assert _refusal(lambda: driver.reset(0)) == codes.IN_USE
    clients.release(sleeper)
    driver.reset(0)
    assert driver.state().gpus[0].mig_current


def test_nvml_in_another_process_is_a_client_on_ampere_and_none_on_hopper(state_file: StateFile) -> None:
    script = (
        "import sys; from pathlib import Path; from pipeline.simulation.machine.driver import Clients;"
        "from pipeline.simulation.machine.state_file import StateFile;"
        "Clients(StateFile(Path(sys.argv[1]))).open_session(); print(flush=True); sys.stdin.read()"
    )
    driver = _driver(state_file, "a100_40gb", "h100_80gb", mig=False)
    argv = [sys.executable, "-c", script, str(state_file.path)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        assert [driver.set_mig_mode(index, is_on=True) for index in (0, 1)] == [codes.IN_USE, 0]
        other.kill()
    # A process that was killed holds nothing, although it never closed its session.
    assert driver.state().sessions == ()
    assert driver.set_mig_mode(0, is_on=True) == 0


def test_switching_off_drops_instances_on_ampere_and_is_refused_on_hopper(state_file: StateFile) -> None:
    driver = _driver(state_file, "a100_40gb", "h100_80gb")
    for index in (0, 1):
        driver.create_gpu_instance(index, 19)
    assert driver.set_mig_mode(0, is_on=False) == 0
    assert driver.state().gpus[0].instances == ()
    assert _refusal(lambda: driver.set_mig_mode(1, is_on=False)) == codes.IN_USE
    assert driver.state().gpus[1].mig_current


def test_memory_is_charged_to_the_instance(state_file: StateFile, sleeper: int) -> None:
    driver = _driver(state_file, "h100_80gb")
    clients = Clients(state_file)
    gi = driver.create_gpu_instance(0, 19)
    driver.create_compute_instance(0, gi.id)
    gpu = driver.state().gpus[0]
    device = _read_mig_uuid(gpu)
    clients.hold(device, sleeper, "sleep", 9984)
    assert _refusal(lambda: clients.hold(device, sleeper, "sleep", 9985)) == codes.MEMORY
    assert _refusal(lambda: clients.hold(device, os.getpid(), "python", 1)) == codes.MEMORY
    assert _refusal(lambda: driver.destroy_compute_instance(0, gi.id, 0)) == codes.IN_USE
    # A GPU in MIG mode cannot be used as a whole.
    assert _refusal(lambda: clients.hold(gpu.uuid, sleeper, "sleep", 1)) == codes.NOT_FOUND
    assert queries.used_memory_mib(driver.state().gpus[0], gi.id) == 9984


def test_a_process_on_two_mig_devices_holds_both(state_file: StateFile, sleeper: int) -> None:
    driver, clients = _driver(state_file, "a100_40gb"), Clients(state_file)
    for gi_id, _ in _make(driver, 9, 9):
        driver.create_compute_instance(0, gi_id)
    gpu = driver.state().gpus[0]
    pairs = queries.mig_devices(gpu)
    for amount_mib in (100, 200):
        for pair in pairs:
            clients.hold(mig_uuid(gpu, *pair), sleeper, "sleep", amount_mib)
    gpu = driver.state().gpus[0]
    assert [queries.used_memory_mib(gpu, instance.id) for instance, _ in pairs] == [200, 200]
    for instance, ci in pairs:
        assert _refusal(lambda place=(instance.id, ci.id): driver.destroy_compute_instance(0, *place)) == codes.IN_USE
    clients.release(sleeper)
    assert driver.state().gpus[0].processes == ()


def test_the_dead_hold_nothing(state_file: StateFile) -> None:
    driver = _driver(state_file, "h100_80gb", mig=False)
    uuid = driver.state().gpus[0].uuid
    with subprocess.Popen(["sleep", "60"]) as process:
        Clients(state_file).hold(uuid, process.pid, "sleep", 100)
        assert [p.pid for p in driver.state().gpus[0].processes] == [process.pid]
        process.kill()
    assert driver.state().gpus[0].processes == ()
    assert _refusal(lambda: Clients(state_file).hold(uuid, process.pid, "sleep", 100)) == codes.NOT_FOUND


def test_exclusive_process_lets_one_process_in(state_file: StateFile, sleeper: int) -> None:
    driver = _driver(state_file, "h100_80gb", mig=False)
    driver.set_compute_mode(0, 3)
    clients, uuid = Clients(state_file), driver.state().gpus[0].uuid
    clients.hold(uuid, sleeper, "sleep", 100)
    clients.hold(uuid, sleeper, "sleep", 200)
    assert _refusal(lambda: clients.hold(uuid, os.getpid(), "python", 100)) == codes.IN_USE


def test_faults_strike_as_often_as_they_say(state_file: StateFile) -> None:
    fault = Fault(function="nvmlDeviceCreateGpuInstance", code=codes.IN_USE, skip=1, times=2, gpu=0)
    driver = _driver(state_file, "h100_80gb", "h100_80gb", faults=(fault,))
    driver.create_gpu_instance(1, 19)
    driver.create_gpu_instance(0, 19)
    for _ in range(2):
        assert _refusal(lambda: driver.create_gpu_instance(0, 19)) == codes.IN_USE
    assert driver.create_gpu_instance(0, 19).start == 4


@pytest.mark.parametrize("code", [codes.IN_USE, codes.RESET_REQUIRED, codes.NOT_SUPPORTED])
def test_some_faults_of_the_mode_switch_leave_it_pending(state_file: StateFile, code: int) -> None:
    faults = (Fault(function="nvmlDeviceSetMigMode", code=code),)
    driver = _driver(state_file, "h100_80gb", faults=faults, mig=False)
    assert driver.set_mig_mode(0, is_on=True) == code
    gpu = driver.state().gpus[0]
    assert (gpu.mig_current, gpu.mig_pending) == (False, True)


def test_a_missing_permission_changes_nothing(state_file: StateFile) -> None:
    faults = (Fault(function="nvmlDeviceSetMigMode", code=codes.NO_PERMISSION, times=None),)
    driver = _driver(state_file, "h100_80gb", faults=faults, mig=False)
    before = driver.state()
    assert _refusal(lambda: driver.set_mig_mode(0, is_on=True)) == codes.NO_PERMISSION
    assert driver.state() == before


def test_changes_at_the_same_time_do_not_undo_each_other(state_file: StateFile) -> None:
    driver = _driver(state_file, "h100_80gb")
    with ThreadPoolExecutor(7) as pool:
        instances = list(pool.map(lambda _: driver.create_gpu_instance(0, 19), range(7)))
    assert sorted(instance.start for instance in instances) == list(range(7))
    assert len(driver.state().gpus[0].instances) == 7


def test_the_file_holds_everything(state_file: StateFile, sleeper: int) -> None:
    driver = _driver(state_file, "a100_80gb", faults=(Fault(function="nvmlShutdown", code=999),))
    gi = driver.create_gpu_instance(0, 9)
    driver.create_compute_instance(0, gi.id, 2)
    Clients(state_file).hold(_read_mig_uuid(driver.state().gpus[0]), sleeper, "sleep", 7)
    assert StateFile(state_file.path).read() == driver.state()
    assert json.loads(state_file.path.read_text())["gpus"][0]["processes"][0]["memory_mib"] == 7


def test_a_restart_of_the_computer_ends_what_a_gpu_does_not_keep(
    state_file: StateFile, monkeypatch: pytest.MonkeyPatch, sleeper: int
) -> None:
    driver = _driver(state_file, "a100_40gb", "a100_40gb", "h100_80gb", "h100_80gb", mig=False)
    for index in (0, 2):
        driver.set_mig_mode(index, is_on=True)
        driver.create_gpu_instance(index, 19)
    Clients(state_file).hold(driver.state().gpus[1].uuid, sleeper, "sleep", 100)
    assert driver.set_mig_mode(1, is_on=True) == codes.IN_USE
    driver.set_compute_mode(3, 3)
    driver.set_timeslice(3, 1)
    before = driver.state()
    monkeypatch.setattr("pipeline.simulation.machine.state_file.boot_id", lambda: "another")
    gpus = driver.state().gpus
    assert [(gpu.mig_current, gpu.mig_pending) for gpu in gpus] == [(True, True)] * 2 + [(False, False)] * 2
    assert not any(gpu.instances or gpu.processes or gpu.compute_mode or gpu.timeslice for gpu in gpus)
    # A machine that was kept before the boot was noted is taken for one of this boot.
    state_file.path.write_text(json.dumps({**json.loads(state_file.path.read_text()), "boot": ""}))
    assert driver.state() == dataclasses.replace(before, boot="another")
    driver.create_gpu_instance(0, 19)
    assert json.loads(state_file.path.read_text())["boot"] == "another"


@pytest.mark.parametrize("text", ["", "{}", "[]", "3", "[" * 100_000, '{"gpus": 3}', '{"gpus": [{"model": 1}]}'])
def test_what_is_no_machine_is_refused(state_file: StateFile, text: str) -> None:
    state_file.path.write_text(text)
    with pytest.raises(ConfigError, match="does not contain a simulated machine"):
        state_file.read()


@pytest.mark.parametrize(
    ("of_machine", "health", "words"),
    [
        ({"branch": "620"}, {}, "branch '620' is not one of 535, 550, 570, 580, 590, 595, 615"),
        ({"branch": 580}, {}, "branch must be a text, not 580"),
        (
            {"faults": [{"function": "nvmlShutdown", "code": "19"}]},
            {},
            r"faults\[0\]\.code must be a whole number",
        ),
        ({}, {"counter_fault": "stuk"}, "counter_fault 'stuk' is not one of capped, stuck, swapped"),
        ({}, {"recovery_action": "1"}, r"gpus\[0\]\.health\.recovery_action must be a whole number, not \"1\""),
        ({}, {"ecc_uncorrected_now": True}, "ecc_uncorrected_now must be a whole number, not true"),
        ({}, {"is_remap_pending": "false"}, 'is_remap_pending must be true or false, not "false"'),
    ],
)
def test_what_somebody_wrote_into_the_file_wrongly_is_named(
    state_file: StateFile, of_machine: dict[str, object], health: dict[str, object], words: str
) -> None:
    state_file.create(["a100_40gb"])
    data = json.loads(state_file.path.read_text()) | of_machine
    data["gpus"][0]["health"] = health
    state_file.path.write_text(json.dumps(data))
    with pytest.raises(ConfigError, match=words):
        state_file.read()


def test_a_pipe_is_no_machine_and_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match="not a regular file"):
        StateFile(tmp_path / "pipe").keep(["a100_40gb"])


def test_a_machine_of_a_study_is_known_by_each_of_its_gpus(state_file: StateFile) -> None:
    models = [name for name in EVERY_MODEL for _ in range(MAX_GPUS)]
    assert all(is_made_for_study(gpu.uuid) for gpu in state_file.create(models).gpus)
    state_file.path.unlink()
    assert not any(is_made_for_study(gpu.uuid) for gpu in state_file.keep(["a100_40gb"]).gpus)


def test_gpus_differ_by_uuid_and_address(state_file: StateFile) -> None:
    gpus = state_file.create(["h100_80gb", "h100_80gb", "a30_24gb"]).gpus
    for one, other in itertools.combinations(gpus, 2):
        assert one.uuid != other.uuid
        assert one.bus_id != other.bus_id
