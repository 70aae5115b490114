"""Options of MPS, refusals and warnings."""

from __future__ import annotations

import dataclasses
import json
import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from pipeline.base.domain.machine_state import cpu_device
from pipeline.base.domain.records import Group, Job, Slot
from pipeline.base.system.errors import ConfigError, SharingError
from pipeline.prepare.mps import mps_daemon
from pipeline.prepare.sharing.mps import Mps, MpsPercent
from pipeline.simulation.mps.control_program import write_program
from tests.conftest import GPU
from tests.support.rows import group as make_group
from tests.support.rows import workload
from tests.unit.prepare.sharing.test_mps import H100, daemons, folder, group_in, pid_of_daemon, prepared, server_of  # noqa: F401


def variables(sharing: Mps, group: Group, position: int) -> dict[str, str]:
    control = mps_daemon.ControlProgram(program="/x", pipes=Path("/p"))
    server = mps_daemon.MpsDaemon(control=control, logs=Path("/l"), server=1)
    places = [Slot(visible_devices=GPU.uuid)] * group.degree
    clients = sharing.as_clients(places, [server] * group.degree, group)
    return dict(clients.__enter__().slots[position].environ)


def test_options_reach_the_jobs_by_position():
    group = make_group("a", "b", "c")
    plain = variables(Mps(), group, 0)
    assert set(plain) == {"CUDA_DEVICE_ORDER", "CUDA_MPS_PIPE_DIRECTORY"}
    sharing = MpsPercent(active_thread_pct=(50, 25, 12.5), pinned_mem_limit="10G", priority=(0, 1, 1))
    sharing.check(group)
    third = variables(sharing, group, 2)
    assert third["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "12.5"
    assert third["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=10G"
    assert third["CUDA_MPS_CLIENT_PRIORITY"] == "1"
    assert variables(sharing, group, 0)["CUDA_MPS_CLIENT_PRIORITY"] == "0"
    assert variables(MpsPercent(active_thread_pct=40), group, 1)["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "40"
    assert variables(MpsPercent(), group, 1)["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "33.3333"


@pytest.mark.parametrize("share", [0, -1, 100.5, 400, (50, 0), "half", True, float("nan")])
def test_a_share_that_the_daemon_would_ignore_is_refused(share):
    with pytest.raises(ConfigError, match=r"active_thread_pct=.*greater than 0 and at most 100"):
        MpsPercent(active_thread_pct=share)


@pytest.mark.parametrize(
    "options", [{"priority": 2}, {"priority": (0, -1)}, {"pinned_mem_limit": "0G"}, {"pinned_mem_limit": "10"}]
)
def test_values_that_mps_does_not_know_are_refused(options):
    with pytest.raises(ConfigError, match=f"scenario.{next(iter(options))}="):
        Mps(**options)


@pytest.mark.parametrize(
    "sharing", [MpsPercent(active_thread_pct=(50, 50)), Mps(priority=(1,)), Mps(pinned_mem_limit=("1G", "1G"))]
)
def test_a_list_of_another_length_than_the_jobs_is_refused_before_anything_happens(folder, sharing):  # noqa: F811
    group = group_in(folder, "a", "b", "c")
    with pytest.raises(ConfigError, match="for 3 jobs"):
        sharing.check(group)
    with pytest.raises(ConfigError, match="for 3 jobs"), sharing.prepare(group, folder):
        pass
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("device", "options", "says"),
    [
        (cpu_device(), {}, "needs an NVIDIA GPU"),
        (dataclasses.replace(GPU, mig_enabled=True), {}, "MIG mode is on.*nvidia-smi -i 0 -mig 0"),
        (GPU, {}, "nvidia-cuda-mps-control, which is not on PATH"),
        (GPU, {"program": "/nonexistent"}, "/nonexistent is not executable"),
    ],
)
def test_a_device_that_mps_cannot_share_is_refused_with_the_remedy(folder, monkeypatch, device, options, says):  # noqa: F811
    monkeypatch.setenv("PATH", "/nonexistent")
    group = group_in(folder, "a", device=device)
    with pytest.raises((ConfigError, SharingError), match=says), Mps(**options).prepare(group, folder):
        pass
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(("cuda", "most"), [("12.8", 48), ("13.0", 48), ("13.1", 60), (None, 64)])
def test_more_jobs_than_mps_takes_clients_are_refused(folder, cuda, most):  # noqa: F811
    device = dataclasses.replace(GPU, details=() if cuda is None else (("cuda_version", cuda),))
    Mps().check(group_in(folder, *map(str, range(most)), device=device))
    with (
        pytest.raises(ConfigError, match=rf"most {most} clients on one GPU, not {most + 1}") if cuda else nullcontext()
    ):
        Mps().check(group_in(folder, *map(str, range(most + 1)), device=device))


@pytest.mark.slow
def test_the_program_is_found_on_path_but_never_for_a_simulated_gpu(folder, monkeypatch):  # noqa: F811
    write_program(folder)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    group = group_in(folder, "a")
    with Mps().prepare(group, folder) as slots:
        assert daemons(folder) == sorted([server_of(slots), pid_of_daemon(slots)])
    simulated = dataclasses.replace(group, device=dataclasses.replace(GPU, kind="simulated"))
    with (
        pytest.raises(SharingError, match="needs nvidia-cuda-mps-control, which is not on PATH"),
        Mps().prepare(simulated, folder),
    ):
        pass


def test_a_folder_too_deep_for_sockets_is_refused(folder):  # noqa: F811
    deep = folder / ("x" * 90)
    deep.mkdir()
    with pytest.raises(SharingError, match="longer than 107 bytes"), prepared(deep, group_in(folder, "a")):
        pass


# Share in per cent -> multiprocessors of an H100, and whether its bf16 products were wrong, as measured.
MEASURED = json.loads(
    '{"clean": {"5": 8, "10": 12, "13": 16, "25": 32, "50": 66, "90": 118, "95": 124, "100": 132},'
    '"faulty": {"14": 18, "16": 20, "18": 22, "20": 26, "22": 28, "28": 36, "30": 38, "33": 42, "36": 46, "40": 52,'
    '"42": 54, "45": 58, "52": 68, "55": 72, "60": 78, "66": 86, "70": 92, "75": 98, "80": 104, "85": 112, "89": 116}}'
)


@pytest.mark.parametrize("kind", ["clean", "faulty"])
def test_shares_are_warned_about_as_they_were_measured(kind):
    for share, multiprocessors in MEASURED[kind].items():
        (warning,) = MpsPercent(active_thread_pct=float(share)).warnings(bf16(H100)) or ("",)
        assert (f"{multiprocessors} of 132" in warning) == (kind == "faulty"), share


def bf16(device: Any, precision: str = "bf16", degree: int = 1) -> Group:
    program = dataclasses.replace(workload("a"), params=(("precision", precision),))
    jobs = tuple(Job(index=i, workload=program) for i in range(degree))
    return make_group("a", device=device, jobs=jobs)


def test_a_warning_is_given_where_it_was_measured_and_not_elsewhere():
    natural = MpsPercent()
    assert len(natural.warnings(bf16(H100, degree=7))) == 7  # 100/7 per cent
    assert natural.warnings(bf16(H100, "fp32", degree=7)) == ()
    assert natural.warnings(bf16(GPU, degree=7)) == ()  # of which the capability is not known
    assert "fp16 and bf16" in natural.warnings(make_group(*"abcdefg", device=H100))[0]  # precision not known
    assert "wrong on this GPU" in MpsPercent(active_thread_pct=40).warnings(bf16(H100))[0]
