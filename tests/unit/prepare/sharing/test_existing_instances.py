"""MIG devices that are granted, and jobs on instances that exist."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from pipeline.base.domain.records import Commands, Device
from pipeline.base.system.errors import ConfigError
from pipeline.clean import temporary_folder
from pipeline.prepare.device import device_choice, nvml
from pipeline.prepare.mig import assignment
from pipeline.prepare.sharing.mig import Mig
from pipeline.prepare.sharing.mps import Mps
from pipeline.prepare.sharing.naive import Naive
from tests.support.rows import gpu_settings
from tests.unit.prepare.sharing.test_mig import Machine, a100, h100  # noqa: F401


@pytest.fixture
def divided(a100: Machine) -> Machine:  # noqa: F811
    """A GPU that somebody else divided into 3g, 2g and 1g."""
    a100.driver.set_mig_mode(0, is_on=True)
    for profile, start in ((9, 4), (14, 0), (19, 2)):
        instance = a100.driver.create_gpu_instance(0, profile, start).id
        a100.driver.create_compute_instance(0, instance, None)
    device = nvml.list_devices()[0]
    return dataclasses.replace(a100, device=device)


def granted(uuid: str, monkeypatch: pytest.MonkeyPatch) -> Device:
    """The device of a study to which an allocation grants this one."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", uuid)
    return device_choice.find_device(None, needs_gpu=False)


def test_a_mig_device_that_is_granted_is_a_device_of_its_own(divided: Machine, monkeypatch) -> None:
    first = nvml.list_mig_devices(divided.device)[0]
    device = granted(first.uuid, monkeypatch)
    assert device.name == "NVIDIA A100-SXM4-40GB MIG 3g.20gb"
    assert (device.gpu_uuid, device.memory_mib) == (divided.device.uuid, 19968)
    assert device.facts.as_texts()["multiprocessors"] == "42"
    before = divided.gpu
    for sharing in (Naive(), Mps(program=divided.programs["nvidia-cuda-mps-control"])):
        group = divided.group(None, None, device=device, admin=None)
        sharing.check(group)
        assert sharing.list_setting_commands(group) == Commands()
        with (
            temporary_folder.hold(Path("/tmp"), "colloc-") as scratch,
            sharing.prepare(group, scratch) as slots,
        ):
            for slot in slots.slots:
                assert (slot.visible_devices, slot.gpu_uuid) == (device.uuid, divided.device.uuid)
                assert (slot.gi_id, slot.ci_id) == (device.gi_id, 0)
    assert divided.gpu == before
    Mps().check(divided.group(*[None] * 21, device=device))
    with pytest.raises(ConfigError, match=r"supports at most 21 clients on NVIDIA .* 3g.20gb, not 22"):
        Mps().check(divided.group(*[None] * 22, device=device))


def test_what_would_change_the_gpu_of_a_mig_device_is_refused(divided: Machine, monkeypatch) -> None:
    device = granted(nvml.list_mig_devices(divided.device)[1].uuid, monkeypatch)
    for options in ({}, {"layout": "existing"}):
        with pytest.raises(ConfigError, match=f"divides a whole GPU.* gpu.device={divided.device.uuid} scenario=mig"):
            Mig(**options).check(divided.group(None, device=device))
    exclusive = gpu_settings(lock_dir=divided.folder, exclusive_process=True)
    with pytest.raises(ConfigError, match="exclusive_process does not work on a MIG device"):
        Mps().check(divided.group(None, device=device, gpu=exclusive))


def test_jobs_get_the_instances_that_are_there_and_nothing_is_changed(divided: Machine) -> None:
    before = divided.gpu

    def places(*sizes: str | None, **options: Any) -> list[str]:
        with divided.shared(*sizes, admin=None, program="none", layout="existing", **options) as slots:
            assert {slot.gpu_uuid for slot in slots.slots} == {divided.device.uuid}
            assert len({slot.visible_devices for slot in slots.slots}) == len(sizes)
            return [dict(slot.facts)["mig_profile"] for slot in slots.slots]

    assert places(None, None) == ["3g.20gb", "2g.10gb"]
    assert places("S", "L", "M") == ["1g.5gb", "3g.20gb", "2g.10gb"]
    assert places(None, None, profiles=["2g", "1g.5gb"]) == ["2g.10gb", "1g.5gb"]
    with pytest.raises(
        ConfigError, match=r"has no free MIG device of 2g for job 1; .* its MIG devices: 3g.20gb, 2g.10gb, 1g.5gb"
    ):
        places(None, None, profile="2g")
    with pytest.raises(ConfigError, match=r"has no free MIG device for job 3"):
        places(None, None, None, None)
    assert divided.gpu == before
    assert not divided.journal.path.exists()


def test_jobs_get_parts_of_one_gpu_instance_that_is_there(divided: Machine) -> None:
    """Beside 3g, 2g and 1g there are, after this, a 2g with two parts instead of a whole one."""
    (two,) = (instance.id for instance in divided.gpu.instances if instance.profile_id == 14)
    divided.driver.destroy_compute_instance(0, two, 0)
    for _ in range(2):
        divided.driver.create_compute_instance(0, two, 0)
    before = divided.gpu

    def places(*requests: str | None) -> list[tuple[int | None, int | None, str]]:
        options = {"profiles": requests} if None not in requests else {}
        with divided.shared(*[None] * len(requests), admin=None, program="none", layout="existing", **options) as slots:
            return [(slot.gi_id, slot.ci_id, dict(slot.facts)["mig_profile"]) for slot in slots.slots]

    parts = [(two, 0, "1c.2g.10gb"), (two, 1, "1c.2g.10gb")]
    assert places("1c.2g", "1c.2g.10gb") == parts
    assert [profile for _, _, profile in places(None, None, None, None)] == ["3g.20gb", *["1c.2g.10gb"] * 2, "1g.5gb"]
    with pytest.raises(
        ConfigError, match=r"has no free MIG device of 2g for job 0; .* its MIG devices: 3g.20gb, 1c.2g.10gb, 1c.2g"
    ):
        places("2g")
    assert divided.gpu == before


def test_parts_that_follow_each_other_come_from_the_gpu_instance_that_has_them_all(h100: Machine) -> None:  # noqa: F811
    first, second = (h100.driver.create_gpu_instance(0, 9, start).id for start in (0, 4))
    h100.driver.create_compute_instance(0, first, 0)
    for width in (0, 1):
        h100.driver.create_compute_instance(0, second, width)
    device = nvml.list_devices()[0]
    assert [part.gi_id for part in assignment.assign(device, ["1c.3g", "2c.3g"])] == [second, second]
    assert [part.gi_id for part in assignment.assign(device, ["1c.3g", "2c.3g", "1c.3g"])] == [second, second, first]
    assert [part.gi_id for part in assignment.assign(device, ["1c.3g", "1c.3g"])] == [first, second]
