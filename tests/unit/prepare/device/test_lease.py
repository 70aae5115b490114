"""One orchestrator a device: the lock dies with its holder and is seen by everyone."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pynvml
import pytest

from pipeline.base.system.errors import GpuBusyError
from pipeline.prepare.device import gpu_reader, lease, nvml, refusals
from tests.conftest import GPU
from tests.support import nvml_library

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
