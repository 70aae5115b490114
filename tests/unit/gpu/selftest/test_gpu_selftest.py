"""`python -m pipeline.gpu selftest` on simulated GPUs: what it says, its exit status, and what it leaves alone."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.gpu.__main__ import main
from pipeline.gpu.selftest import gpu_selftest, loaders
from pipeline.gpu.selftest.load_bounds import Step, plan_steps
from pipeline.prepare.device import gpu_reader, lease, nvml
from pipeline.simulation.machine.driver import Clients
from pipeline.simulation.machine.state_file import Health
from tests.support import simulated

Answer = tuple[int, Any]


@dataclasses.dataclass(kw_only=True)
class SelftestMachine(simulated.Machine):
    """A simulated machine on which the command is run."""

    capture: pytest.CaptureFixture[str]

    def run(self, *arguments: str) -> tuple[int, str]:
        self.capture.readouterr()
        words = ["selftest", *arguments, "--machine", str(self.file.path), "--lock-dir", str(self.locks)]
        status = main(words)
        out, err = self.capture.readouterr()
        return status, out or err

    def run_json(self, *arguments: str) -> Answer:
        status, text = self.run(*arguments, "--json")
        return status, json.loads(text)

    def make_ill(self, **what: Any) -> None:
        with self.file.change() as cell:
            gpu = dataclasses.replace(cell.state.gpus[0], health=Health(**what))
            cell.state = cell.state.replace_gpu(0, gpu)

    def divide(self, *profiles: tuple[int, int]) -> None:
        self.driver.set_mig_mode(0, is_on=True)
        for profile, start in profiles:
            gpu_instance = self.driver.create_gpu_instance(0, profile, start)
            self.driver.create_compute_instance(0, gpu_instance.id)


@pytest.fixture
def h100(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> SelftestMachine:
    monkeypatch.setattr(gpu_reader, "_STARTS_WITHIN_S", 0.05)
    return SelftestMachine.make(tmp_path / "machine", "h100_80gb", capture=capsys)


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first and the last step only."""

    def first_and_last(places: Any) -> tuple[Step, ...]:
        steps = {step.name: step for step in plan_steps(places)}
        return steps["idle"], steps["full"]

    monkeypatch.setattr(gpu_selftest, "plan_steps", first_and_last)


@pytest.mark.slow
def test_every_listener_is_asked_at_every_step(h100: SelftestMachine) -> None:
    before = h100.file.path.read_text()
    status, report = h100.run_json()
    assert (status, report["is_ok"], report["is_simulated"]) == (0, True, True)
    assert [(row["blocks"], row["threads"], row["verdict"]) for row in report["steps"]] == [
        *((blocks, threads, "ok") for blocks, threads in [(0, 0), (1, 32), (33, 32), (66, 32), (132, 32)]),
        *((blocks, threads, "ok") for blocks, threads in [(132, 512), (528, 512)]),
    ]
    half = report["steps"][3]["readings"]
    right = {"gract_ratio": 1.0, "smact_ratio": 0.5, "smocc_ratio": pytest.approx(1 / 128, abs=0.001)}
    readings = {"dcgm": right, "gpm": right, "nvml": {"utilization_ratio": 1.0}, "smi": {"utilization_ratio": 1.0}}
    # A program that a busy machine does not let start in time is absent.
    assert half == {source: values for source, values in readings.items() if source not in report["absent"]}
    assert report["absent"].keys() <= {"dcgm", "smi"}
    assert h100.file.path.read_text() == before


@pytest.mark.usefixtures("ends")
def test_an_instance_that_is_capped_fails_with_its_name(h100: SelftestMachine) -> None:
    h100.divide((9, 0), (19, 4))
    h100.make_ill(counter_fault="capped")
    status, text = h100.run()
    assert status == 1
    assert "simulated, by a model of the load" in text
    assert "not ok: gpm, GI 1: SMACT is 0.267, expected 1.000" in text
    assert "capped at the share of GI 11 with 16 SMs" in text
    assert text.splitlines()[0].startswith("simulated NVIDIA H100")


@pytest.mark.usefixtures("ends")
def test_a_source_that_is_not_there_or_stops_is_said(h100: SelftestMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = {"dcgm": "dcgmi", "smi": "nvidia-smi"}

    def simulated(self: loaders.Rehearsal, device: Any) -> Any:
        programs = {**dict(self._programs), "dcgmi": "", "nvidia-smi": str(ends_soon)}
        return dataclasses.replace(device, kind="simulated", programs=tuple(programs.items()))

    ends_soon = h100.folder / "nvidia-smi"
    ends_soon.write_text("#!/bin/sh\necho 'utilization.gpu [%]'\necho 0\nsleep 0.4\nexit 9\n")
    ends_soon.chmod(0o755)
    monkeypatch.setattr(loaders.Rehearsal, "attach", simulated)
    monkeypatch.setattr(gpu_selftest, "REHEARSED_PACE", dataclasses.replace(gpu_selftest.REHEARSED_PACE, limit_s=1.0))
    status, report = h100.run_json()
    assert (status, report["is_ok"]) == (1, False)
    assert report["absent"].keys() | report["died"].keys() == broken.keys()
    assert "has no dcgmi" in report["absent"]["dcgm"]
    assert "status 9" in report["died"]["smi"]


@pytest.mark.usefixtures("ends")
def test_a_load_that_breaks_leaves_the_health_to_be_told(
    h100: SelftestMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pipeline.base.system.errors import LaunchError

    def broken(*_: object) -> None:
        raise LaunchError("CUDA error")

    monkeypatch.setattr(loaders.SimulatedLoader, "begin", broken)
    h100.make_ill(ecc_uncorrected_now=1)
    status, report = h100.run_json()
    assert (status, report["trouble"][-1]) == (1, "CUDA error")
    assert report["trouble"][0].startswith("uncorrected ECC errors: memory was corrupted")


def test_without_a_gpu_it_is_one_line(h100: SelftestMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "list_devices", tuple)
    status, text = h100.run()
    assert (status, text.count("\n")) == (2, 1)
    assert "needs an NVIDIA GPU, but this machine has none" in text


def test_the_health_alone_is_read_whoever_computes(h100: SelftestMachine, sleeper: int) -> None:
    Clients(h100.file).hold(h100.device.uuid, sleeper, "python", 100)
    assert h100.run("--health")[0] == 0
    h100.make_ill(is_remap_pending=True)
    status, text = h100.run("--health")
    assert status == 1
    assert "counters: not checked: --health" in text
    assert "not ok: remapped rows: rows are pending for remapping" in text


def test_whoever_uses_or_holds_the_gpu_is_not_disturbed(h100: SelftestMachine, sleeper: int) -> None:
    with lease.hold(h100.device, h100.locks):
        status, text = h100.run()
        assert status == 2
        assert "which is held by" in text
    Clients(h100.file).hold(h100.device.uuid, sleeper, "python", 100)
    status, text = h100.run()
    assert (status, text.count("\n")) == (2, 1)
    assert f"in use by python (pid {sleeper})" in text


def test_without_an_instance_there_is_nothing_to_load(h100: SelftestMachine) -> None:
    h100.divide()
    status, report = h100.run_json()
    assert (status, report["steps"]) == (0, [])
    assert "MIG mode is on, but no instance exists" in report["counters_unchecked"]
