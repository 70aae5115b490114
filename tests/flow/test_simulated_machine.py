"""The simulated machine of a study: which GPUs it has, when it is kept, and what cannot be rehearsed."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from pipeline import rehearsal
from pipeline.base.domain.config_choices import list_choices, make_simulated_gpus
from pipeline.base.domain.records import Slot
from pipeline.base.system.errors import ConfigError, SharingError
from pipeline.base.system.paths import PROJECT_DIR
from pipeline.launch.job_state import JobState, ProcessStart
from pipeline.plan import config_reader, help_text, plan_text
from pipeline.plan.config_schema import Config, GpuConfig, GpuKind
from pipeline.plan.option_loader import load_choice
from pipeline.simulation.mps import control_program
from tests.conftest import GPU
from tests.support.rows import EndedProcess, group

pytestmark = pytest.mark.covers("pipeline/simulation", "pipeline/rehearsal.py")


CHOICES = sorted(make_simulated_gpus())


SIMULATED = dataclasses.replace(GPU, kind="simulated")


@pytest.fixture
def temporary(tmp_path, monkeypatch) -> Path:
    """A temporary folder of the test's own."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def make_configs(*models: str, **changes: object) -> list[Config]:
    scenario = load_choice("scenario", "pipeline.prepare.sharing.naive.Naive")(name="naive")
    gpus = [GpuConfig(kind=GpuKind.simulated, model=model, **changes) for model in models]
    return [Config(scenario=scenario, workload={}, gpu=gpu) for gpu in gpus]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("choice", CHOICES)
def test_every_choice_finds_its_gpu(compose, temporary, choice):
    typed = config_reader.read(compose([f"gpu={choice}"]))
    assert f"simulated_{typed[0].gpu.model}" == choice
    with rehearsal.prepare_machine(typed) as simulated:
        device = simulated.find_device(typed[0].gpu)
    assert device.is_simulated and device.is_gpu
    assert device.memory_mib > 20_000


def test_the_help_lists_every_model_as_a_choice():
    assert {"auto", "cpu", "nvidia", "simulated_a100_40gb", "simulated_gb300"} < set(list_choices("gpu"))
    assert set(CHOICES) <= set(re.findall(r"simulated_\w+", help_text.format_overview()))


def test_a_study_may_rehearse_on_several_models(temporary):
    both = make_configs("a100_40gb", "h100_80gb")
    with rehearsal.prepare_machine(both) as simulated:
        a100, h100 = (simulated.find_device(config.gpu) for config in both)
    assert (a100.name, h100.name) == ("NVIDIA A100-SXM4-40GB", "NVIDIA H100 80GB HBM3")
    assert a100.uuid != h100.uuid


def test_the_machine_goes_with_its_study(temporary):
    import pynvml

    library = pynvml.nvmlLib
    with pytest.raises(RuntimeError), rehearsal.prepare_machine(make_configs("a100_40gb")):
        assert pynvml.nvmlLib is not library
        (folder,) = temporary.iterdir()
        assert (folder / "machine.json").is_file()
        raise RuntimeError
    assert pynvml.nvmlLib is library
    assert list(temporary.iterdir()) == []


@pytest.mark.slow
def test_what_a_killed_study_left_is_removed_and_a_running_one_is_left_alone(temporary):
    text = (
        "import sys, time\nfrom pipeline import rehearsal\nfrom pipeline.plan.config_schema import *\n"
        "gpu = GpuConfig(kind=GpuKind.simulated, model='a30_24gb')\n"
        "with rehearsal.prepare_machine([Config(gpu=gpu)]):\n    print('there', flush=True); time.sleep(60)\n"
    )
    environ = os.environ | {"TMPDIR": str(temporary)}
    other = subprocess.Popen(
        [sys.executable, "-c", text], cwd=PROJECT_DIR, env=environ, stdout=subprocess.PIPE, text=True
    )
    try:
        assert other.stdout is not None and other.stdout.readline() == "there\n"
        (remaining,) = temporary.iterdir()
        with rehearsal.prepare_machine(make_configs("a100_40gb")):
            assert remaining.is_dir()
    finally:
        other.kill()
        other.communicate()
    assert remaining.is_dir()
    with rehearsal.prepare_machine(make_configs("a100_40gb")):
        assert not remaining.exists()


def test_a_kept_machine_is_used_again_as_it_is(temporary, tmp_path):
    path = tmp_path / "kept.json"
    (config,) = make_configs("a100_40gb", machine=str(path))
    with rehearsal.prepare_machine([config]) as simulated:
        device = simulated.find_device(config.gpu)
        smi = dict(device.programs)["nvidia-smi"]
    # Between two studies its programs work: a journal may name them.
    subprocess.run([smi, "-i", device.uuid, "-mig", "1"], check=True, capture_output=True)
    with rehearsal.prepare_machine([config]) as simulated:
        again = simulated.find_device(config.gpu)
        assert (again.uuid, again.mig_enabled, dict(again.programs)["nvidia-smi"]) == (device.uuid, True, smi)
    with rehearsal.open_machine(path) as simulated:
        assert simulated.find_device(config.gpu).uuid == device.uuid
    assert not list(temporary.glob("colloc-simulated-*"))


def test_a_machine_with_several_gpus_has_one_chosen_by_index_or_uuid(temporary):
    first, second = make_configs("a100_40gb", count=2)[0], make_configs("a100_40gb", count=2, device="1")[0]
    other = make_configs("h100_80gb")[0]
    with rehearsal.prepare_machine([first, second, other]) as simulated:
        devices = [simulated.find_device(config.gpu) for config in (first, second, other)]
        assert [device.index for device in devices] == [0, 1, 2]
        (again,) = make_configs("a100_40gb", count=2, device=devices[1].uuid[:12])
        assert simulated.find_device(again.gpu).uuid == devices[1].uuid
        listed = subprocess.run([dict(devices[0].programs)["nvidia-smi"], "-L"], capture_output=True, text=True)
        assert [device.uuid in line for device, line in zip(devices, listed.stdout.splitlines(), strict=True)]
        for wrong in ("2", devices[2].uuid, "GPU-", ""):
            (config,) = make_configs("a100_40gb", device=wrong)
            with pytest.raises(ConfigError, match=r"gpu\.count=NUMBER simulates more"):
                simulated.find_device(config.gpu)
    with (
        pytest.raises(ConfigError, match=r"gpu\.count=0"),
        rehearsal.prepare_machine(make_configs("a100_40gb", count=0)),
    ):
        pass


def test_the_gpus_of_kept_machines_are_different_ones(temporary, tmp_path):
    uuids = []
    for machine in (str(tmp_path / "a"), str(tmp_path / "b"), None, None):
        (config,) = make_configs("a100_40gb", machine=machine)
        with rehearsal.prepare_machine([config]) as simulated:
            uuids.append(simulated.find_device(config.gpu).uuid)
    assert len(set(uuids)) == 3
    assert uuids[2] == uuids[3]


def test_a_machine_that_cannot_be_kept_is_refused(temporary, tmp_path):
    path = tmp_path / "kept.json"
    (a100,) = make_configs("a100_40gb", machine=str(path))
    (h100,) = make_configs("h100_80gb", machine=str(path))
    with rehearsal.prepare_machine([a100]):
        pass
    with (
        rehearsal.prepare_machine([h100]) as simulated,
        pytest.raises(ConfigError, match=r"has 0 h100_80gb, not 1; set .* its GPUs \(a100_40gb\)"),
    ):
        simulated.find_device(h100.gpu)
    with (
        pytest.raises(ConfigError, match=r"gpu\.machine cannot be swept"),
        rehearsal.prepare_machine([a100, *make_configs("a100_40gb")]),
    ):
        pass
    newer = dataclasses.replace(a100, gpu=dataclasses.replace(a100.gpu, driver="590"))
    unknown = dataclasses.replace(a100, gpu=dataclasses.replace(a100.gpu, driver="470"))
    for option, words in (
        ([newer], "kept.json describes a machine with driver 580, but gpu.driver=590"),
        ([a100, newer], "gpu.driver cannot be swept; run one study for each value"),
        ([unknown], "gpu.driver=470 must be one of 535, 550, 570, 580, 590, 595, 615"),
    ):
        with pytest.raises(ConfigError, match=words), rehearsal.prepare_machine(option):
            pass
    (tmp_path / "text").write_text("hello")
    for wrong, words in (("text", "does not contain a simulated machine"), ("absent/kept", "cannot be locked")):
        (config,) = make_configs("a100_40gb", machine=str(tmp_path / wrong))
        with pytest.raises(ConfigError, match=words), rehearsal.prepare_machine([config]):
            pass
    assert not (tmp_path / "text.lock").exists(), "what is refused is left as it was"
    with pytest.raises(ConfigError, match="there is no simulated machine"), rehearsal.open_machine(tmp_path / "absent"):
        pass


@pytest.mark.parametrize(
    "override", ["gpu.count=2", "gpu.machine=kept.json", "gpu.driver=590", "gpu.model=H100", "gpu.job_memory_mib=9"]
)
def test_what_describes_a_simulated_machine_is_refused_for_a_real_gpu(make_plan, override):
    with pytest.raises(ConfigError, match=r"gpu\..* needs a simulated GPU"):
        make_plan(["gpu=nvidia", override], device=GPU)


def test_a_dry_run_keeps_no_machine(temporary, tmp_path):
    (config,) = make_configs("a100_40gb", machine=str(tmp_path / "kept.json"))
    config.dry_run = True
    with rehearsal.prepare_machine([config]) as simulated:
        simulated.find_device(config.gpu)
    assert list(tmp_path.iterdir()) == []


def test_nothing_real_is_mixed_in(temporary):
    real = Config(gpu=GpuConfig(kind=GpuKind.auto))
    with pytest.raises(ConfigError, match="not on both"), rehearsal.prepare_machine([*make_configs("a100_40gb"), real]):
        pass
    with rehearsal.prepare_machine([real]) as simulated:
        assert simulated is None
    assert list(temporary.iterdir()) == []


def test_an_unknown_model_is_refused_with_those_that_are_known(temporary):
    for model in ("v100", None):
        with pytest.raises(ConfigError, match="a100_40gb"), rehearsal.prepare_machine(make_configs(model)):
            pass
    assert list(temporary.iterdir()) == []


def _raise_not_ready(*_: object, **__: object) -> None:
    raise RuntimeError("NOT_READY")


def test_a_job_that_ended_is_charged_nothing_and_a_wrong_device_is_an_error(temporary, tmp_path, monkeypatch):
    job = group("a").jobs[0]
    ended = subprocess.Popen(["true"])
    ended.wait()
    (config,) = make_configs("a100_40gb")
    with rehearsal.prepare_machine([config]) as simulated:
        uuid = simulated.find_device(config.gpu).uuid
        slots = [Slot(visible_devices=uuid)]
        gone, running = (
            JobState(job=job, folder=tmp_path, started=ProcessStart(process=EndedProcess(pid), at_ns=0))
            for pid in (ended.pid, os.getpid())
        )
        simulated.charge([gone], slots, ["python"], 10)
        with monkeypatch.context() as patch:
            patch.setattr(control_program, "connect", _raise_not_ready)
            simulated.charge([gone], slots, ["python"], 10)
            with pytest.raises(SharingError, match="cannot become a client of MPS: NOT_READY"):
                simulated.charge([running], slots, ["python"], 10)
        assert not gone.went_wrong
        with pytest.raises(SharingError, match="GPU-absent: Not Found"):
            simulated.charge([running], [Slot(visible_devices="GPU-absent")], ["python"], 10)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["scenario=mps", "scenario.program=/usr/bin/nvidia-cuda-mps-control"], "cannot be used with a simulated GPU"),
        (["gpu.job_memory_mib=0"], "at least 1"),
        (["+listeners.smi.options.program=/usr/bin/nvidia-smi"], "cannot be used with a simulated GPU"),
        (["workload.step_mode=cuda_graph"], "the job would run on a simulated NVIDIA H100"),
    ],
)
def test_what_cannot_be_rehearsed_is_refused(make_plan, overrides, words):
    with pytest.raises(ConfigError, match=words):
        make_plan(["gpu=simulated_h100_80gb", *overrides], device=SIMULATED)


def test_a_simulated_device_needs_no_privilege_and_may_be_forbidden_to_change(make_plan):
    admin = {
        admin: make_plan(["gpu=simulated_h100_80gb", f"gpu.admin={admin}"], device=SIMULATED).groups[0].gpu.admin
        for admin in ("[sudo,-n]", "null")
    }
    assert admin == {"[sudo,-n]": (), "null": None}


def test_the_plan_trains_on_the_cpu_and_its_digest_knows_what_is_declared(make_plan):
    plans = [
        make_plan(["gpu=simulated_h100_80gb", f"gpu.job_memory_mib={mib}"], device=SIMULATED) for mib in (512, 513)
    ]
    argv = plans[0].groups[0].jobs[0].workload.argv
    assert argv[argv.index("--device") + 1] == "cpu"
    real = make_plan([], device=GPU)
    assert "simulated" not in plan_text.format_plan(real)
    assert len({plan.groups[0].digest for plan in (*plans, real)}) == 3


def test_the_jobs_of_one_process_are_charged_together(temporary, tmp_path):
    jobs = group("a", "b", "c").jobs
    (config,) = make_configs("a100_40gb")
    with rehearsal.prepare_machine([config]) as simulated:
        uuid = simulated.find_device(config.gpu).uuid
        states = [
            JobState(
                job=job,
                folder=tmp_path,
                host_folder=tmp_path,
                started=ProcessStart(process=EndedProcess(os.getpid()), at_ns=0),
            )
            for job in jobs
        ]
        simulated.charge(states, [Slot(visible_devices=uuid)] * 3, ["python"] * 3, 15_000)
        assert [state.went_wrong for state in states] == [False, False, True]
        assert "no room for 15000 MiB" in states[2].ended.noticed.reason
