"""The lease of a GPU, which all orchestrators of a machine see, and the health of the GPU."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pynvml
import pytest

from pipeline.base.domain.marks import NO_MARKS
from pipeline.base.system.errors import GpuBusyError
from pipeline.gpu.selftest import health_checks as judged
from pipeline.prepare.device import gpu_health, gpu_reader, lease, nvml, refusals
from pipeline.prepare.device.gpu_health import Health, Xid
from pipeline.simulation.machine import codes
from pipeline.simulation.machine.state_file import Health as SimulatedHealth
from tests.conftest import GPU
from tests.support import nvml_library, simulated

HOLDER = """
import sys, time, subprocess
from pathlib import Path
from tests.conftest import GPU
from pipeline.prepare.device import lease
with lease.hold(GPU, Path(sys.argv[1])):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], close_fds=False)
    print(child.pid, flush=True)
    time.sleep(60)
"""


def test_a_second_orchestrator_is_refused_and_told_who_holds_the_device(tmp_path):
    refused = pytest.raises(GpuBusyError, match=rf"\(pid {os.getpid()}, started in ")
    with lease.hold(GPU, tmp_path), refused, lease.hold(GPU, tmp_path):
        pytest.fail("two orchestrators on one device")
    with lease.hold(GPU, tmp_path):
        pass  # free again


def test_mig_devices_of_a_gpu_are_held_side_by_side_and_the_gpu_by_nobody_meanwhile(tmp_path):
    first, second = (dataclasses.replace(GPU, uuid=f"MIG-{number}", parent=GPU.uuid) for number in (1, 2))
    with lease.hold(first, tmp_path), lease.hold(second, tmp_path):
        for device in (GPU, first):
            with pytest.raises(GpuBusyError), lease.hold(device, tmp_path):
                pytest.fail("held twice")
    with lease.hold(GPU, tmp_path), pytest.raises(GpuBusyError), lease.hold(first, tmp_path):
        pytest.fail("a part of what is held")


@pytest.mark.slow
def test_a_killed_holder_leaves_no_lock_even_if_its_children_live(tmp_path):
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, env=environ)
    assert holder.stdout is not None
    child = int(holder.stdout.readline())
    try:
        with pytest.raises(GpuBusyError), lease.hold(GPU, tmp_path):
            pass
        holder.kill()
        holder.wait()
        with lease.hold(GPU, tmp_path):
            os.kill(child, 0)  # the child lives, and does not hold the lock
    finally:
        os.kill(child, signal.SIGKILL)
        holder.stdout.close()


def test_other_users_may_lock_the_same_file(tmp_path):
    before = os.umask(0o077)
    try:
        with lease.hold(GPU, tmp_path):
            (path,) = tmp_path.iterdir()
            assert stat.S_IMODE(path.stat().st_mode) == 0o666
            assert json.loads(path.read_text())["pid"] == os.getpid()
    finally:
        os.umask(before)


def test_a_lock_file_that_was_removed_meanwhile_protects_nothing(tmp_path):
    with lease.hold(GPU, tmp_path):
        (path,) = tmp_path.iterdir()
        path.unlink()
        with lease.hold(GPU, tmp_path):
            assert path.exists()


@pytest.mark.parametrize("kind", ["link", "folder", "hard link", "pipe"])
def test_something_else_in_place_of_the_lock_file_is_refused(tmp_path, kind):
    path = tmp_path / f"collocation-{GPU.uuid}.lock"
    (tmp_path / "target").write_text("precious")
    make = {
        "link": lambda: path.symlink_to(tmp_path / "target"),
        "hard link": lambda: path.hardlink_to(tmp_path / "target"),
        "pipe": lambda: os.mkfifo(path),
        "folder": path.mkdir,
    }
    make[kind]()
    with pytest.raises(GpuBusyError, match=r"remove (it|the lock file)"), lease.hold(GPU, tmp_path):
        pass
    assert (tmp_path / "target").read_text() == "precious"


def test_a_folder_that_cannot_hold_locks_is_refused_with_what_to_choose(tmp_path):
    (tmp_path / "file").touch()
    for folder in (tmp_path / "absent", tmp_path / "file"):
        with (
            pytest.raises(GpuBusyError, match=rf"gpu.lock_dir={folder} .* survives a restart"),
            lease.hold(GPU, folder),
        ):
            pass


def test_the_holder_is_told_only_while_it_holds(tmp_path):
    assert lease.find_holder(GPU.uuid, tmp_path) is None
    with lease.hold(GPU, tmp_path):
        holder = lease.find_holder(GPU.uuid, tmp_path)
        assert holder is not None
        assert (holder.pid, holder.folder) == (os.getpid(), os.getcwd())
        (path,) = tmp_path.iterdir()
        path.write_text('{"pid": "x", "user": "evil\\u001b[2J", "folder": 3}')
        assert lease.find_holder(GPU.uuid, tmp_path) == lease.Holder()
        path.write_text("[]")
        assert lease.find_holder(GPU.uuid, tmp_path) == lease.Holder()
    path.write_text('{"pid": 1}')  # as a killed holder leaves it
    assert lease.find_holder(GPU.uuid, tmp_path) is None


def test_strangers_on_the_gpu_are_named(monkeypatch):
    stranger = gpu_reader.GpuProcess(pid=4242, name="python3", memory_mib=None, kind="compute")
    monkeypatch.setattr(gpu_reader, "list_processes", lambda uuid: (stranger,))
    monkeypatch.setattr(gpu_reader, "_STARTS_WITHIN_S", 0.01)
    with pytest.raises(GpuBusyError, match=r"python3 \(pid 4242\)"):
        lease.refuse_strangers(GPU, [])
    lease.refuse_strangers(GPU, ["python3"])


def test_a_process_that_only_starts_on_another_gpu_is_no_stranger(monkeypatch):
    starting = [gpu_reader.GpuProcess(pid=pid, name="python3", memory_mib=None, kind="compute") for pid in (1, 2, 3)]
    looks = iter([starting[:2], starting[1:], starting[2:]])
    monkeypatch.setattr(gpu_reader, "list_processes", lambda uuid: next(looks))
    monkeypatch.setattr(gpu_reader, "_LOOK_S", 0.001)
    lease.refuse_strangers(GPU, [])
    assert next(looks, None) is None


@pytest.mark.parametrize("code", [pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_UNKNOWN])
def test_a_gpu_whose_processes_the_driver_cannot_list_is_used_with_a_note(tmp_path: Path, code: int) -> None:
    lists = [f"nvmlDeviceGet{kind}RunningProcesses_v3" for kind in ("Compute", "Graphics", "MPSCompute")]
    with nvml_library.installed(nvml_library.NvmlLibrary(tmp_path)) as library:
        library.change(processes=())
        (device,) = nvml.list_devices()
        assert lease.refuse_strangers(device, []) == ""
        library.fail(**dict.fromkeys([*lists, "nvmlDeviceGetComputeMode", "nvmlDeviceGetEccMode"], code))
        (device,) = nvml.list_devices()
        assert "cannot list the processes" in lease.refuse_strangers(device, [])
        refusals.refuse_mps_clients(device, [])
        library.fail(nvmlDeviceGetComputeRunningProcesses_v3=pynvml.NVML_ERROR_GPU_IS_LOST)
        with pytest.raises(nvml.NvmlError, match="compute processes"):
            lease.refuse_strangers(device, [])


# As the kernel has them: of this GPU, of another one, and of a switch.
LOG = """\
6,800,5140900,-;NVRM: Xid (PCI:0000:06:00): 31, pid=4711, name=python, Ch 00000008, intr 00000000. MMU Fault
 SUBSYSTEM=pci
4,801,6000000,-;nvidia-nvswitch0: SXid (PCI:0000:06:00.0): 24007, Severity 1
3,802,7000000,-;NVRM: Xid (PCI:0000:07:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.
3,803,9500000,-;NVRM: Xid (PCI:0000:06:00): 94, Contained: SM (0x1). RST: No, D-RST: No
4,804,9600000,-;usb 1-1: new device\
"""
RECORDS = LOG.replace("MMU Fault\n SUB", "MMU Fault\r SUB").split("\n")


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[simulated.Machine]:
    with simulated.Machine.installed(tmp_path / "machine", "h100_80gb") as machine:
        yield machine


def ill(machine: simulated.Machine, **what: Any) -> Health:
    machine.change(health=SimulatedHealth(**what))
    return gpu_health.read(machine.rehearsed)


def list_troubles(read: Health, before: Health | None = None) -> dict[str, str]:
    return {item.name: item.trouble for item in judged.check_health(read, before or read, 100.0) if item.trouble}


def test_a_gpu_is_healthy_unless_its_file_says_otherwise(machine: simulated.Machine) -> None:
    read = gpu_health.read(machine.rehearsed)
    assert (read.num_ecc_uncorrected_now, read.is_remap_pending, read.recovery_action) == (0, False, "none")
    assert (read.num_pages_retired, read.throttle_reasons, read.xids) == (None, None, None)
    assert list_troubles(read) == {}


@pytest.mark.parametrize(
    ("what", "item", "text"),
    [
        ({"ecc_uncorrected_now": 2}, "uncorrected ECC errors", "memory was corrupted"),
        ({"is_remap_pending": True, "rows_remapped_uncorrectable": 1}, "remapped rows", "are pending for remapping"),
        ({"has_remap_failed": True, "is_remap_pending": True}, "remapped rows", "replace the GPU"),
        ({"recovery_action": 1}, "pending resets", "requests: reset of the GPU"),
        ({"recovery_action": 99}, "pending resets", "action 99"),
    ],
)
def test_each_fault_is_named_with_its_remedy(
    machine: simulated.Machine, what: dict[str, Any], item: str, text: str
) -> None:
    reported = list_troubles(ill(machine, **what))
    assert reported.keys() == {item}
    assert text in reported[item]


def test_what_is_over_is_told_and_no_trouble(machine: simulated.Machine) -> None:
    read = ill(machine, ecc_uncorrected_ever=3, rows_remapped_uncorrectable=2, rows_remapped_correctable=1)
    assert list_troubles(read) == {}
    texts = {item.name: item.text for item in judged.check_health(read, read, 100.0)}
    assert texts["uncorrected ECC errors"] == "0 since the driver was loaded, 3 ever"
    assert texts["remapped rows"].startswith("1 after correctable, 2 after uncorrectable errors, none pending")


def test_a_mode_that_waits_for_a_reset_is_a_pending_reset(machine: simulated.Machine) -> None:
    machine.fail("nvmlDeviceSetMigMode", codes.IN_USE)
    machine.driver.set_mig_mode(0, is_on=True)
    assert "MIG mode: off -> on" in list_troubles(gpu_health.read(machine.rehearsed))["pending resets"]


@pytest.mark.parametrize("of_fields", [codes.NOT_SUPPORTED, codes.INVALID_ARGUMENT])
def test_what_the_driver_does_not_offer_is_not_told(machine: simulated.Machine, of_fields: int) -> None:
    for function in ("TotalEccErrors", "RemappedRows"):
        machine.fail(f"nvmlDeviceGet{function}", codes.NOT_SUPPORTED, times=None)
    machine.fail("nvmlDeviceGetFieldValues", of_fields, times=None)
    read = gpu_health.read(machine.rehearsed)
    assert (read.num_ecc_uncorrected_now, read.has_remap_failed, read.recovery_action) == (None, None, None)
    items = {item.name: item for item in judged.check_health(read, read, 100.0)}
    assert not items["remapped rows"].is_known
    assert not any(item.trouble for item in items.values())


def test_a_gpu_that_does_not_answer_is_an_error(machine: simulated.Machine) -> None:
    machine.fail("nvmlDeviceGetRemappedRows", 15)
    with pytest.raises(nvml.NvmlError, match="remapped rows"):
        gpu_health.read(machine.rehearsed)


def test_xids_are_those_of_the_gpu() -> None:
    xids = gpu_health.parse_xids("00000000:06:00.0", RECORDS)
    assert [(xid.number, xid.t_s) for xid in xids] == [(31, 5.1409), (94, 9.5)]
    assert xids[0].text.startswith("NVRM: Xid (PCI:0000:06:00): 31, pid=4711")
    assert [xid.number for xid in gpu_health.parse_xids("00000000:07:00.0", RECORDS)] == [79]
    assert gpu_health.parse_xids("00000000:08:00.0", RECORDS) == ()


@pytest.mark.parametrize(
    ("before", "after", "is_trouble"),
    [((13, 31), (13, 31), False), ((), (31,), True), ((31,), (31, 31), True), ((31, 79), (31, 79), True)],
)
def test_an_xid_of_a_program_is_trouble_only_if_it_came_with_the_load(
    before: tuple[int, ...], after: tuple[int, ...], is_trouble: bool
) -> None:
    def make_health(numbers: tuple[int, ...]) -> Health:
        return Health(xids=tuple(Xid(number=n, t_s=10.0 * i, text=f"Xid {n}") for i, n in enumerate(numbers, 1)))

    items = judged.check_health(make_health(after), make_health(before), 10.0 * len(after) + 60)
    (item,) = (item for item in items if item.name == "XID events")
    assert (item.trouble is not None) == is_trouble
    assert item.text.endswith("in the kernel log, the last one 60 s ago")


def test_a_log_that_may_not_be_read_is_said(machine: simulated.Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_health, "KERNEL_LOG", machine.folder / "none")
    read = gpu_health.read(machine.device)
    assert read.xids is None
    assert "No such file" in str(read.xids_unread)


def test_hardware_that_protects_itself_is_trouble_and_a_power_cap_is_not() -> None:
    assert list_troubles(Health(throttle_reasons=gpu_health.describe_reasons(0x1 | 0x4))) == {}
    assert (
        "heat (hardware)" in list_troubles(Health(throttle_reasons=gpu_health.describe_reasons(0x40)))["throttled now"]
    )


def test_what_the_health_says_of_jobs_is_invalid_or_a_note() -> None:
    healthy, pending = Health(num_ecc_uncorrected_now=1), Health(num_ecc_uncorrected_now=1, is_remap_pending=True)
    corrupted = Health(num_ecc_uncorrected_now=3)
    assert judged.find_marks(None, None, 9.0) == judged.find_marks(Health(), Health(), 9.0) == NO_MARKS
    marks = judged.find_marks(pending, pending, 9.0)
    assert not marks.invalid
    assert "remapped rows of the GPU: rows are pending for remapping; have an administrator reset" in marks.note
    assert judged.find_marks(healthy, corrupted, 9.0).invalid == "2 uncorrected ECC errors while the jobs ran"
