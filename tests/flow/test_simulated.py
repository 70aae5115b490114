"""`gpu=simulated_*`: the commands of a real GPU, rehearsed to their end, and no real program ever started."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from textwrap import dedent

import pytest

from pipeline import rehearsal
from pipeline.base.system.factory import Spec
from pipeline.prepare.device import lease
from pipeline.record.store import results
from pipeline.simulation.install import write_programs
from pipeline.simulation.machine import codes
from pipeline.simulation.machine.driver import Clients
from pipeline.simulation.machine.state_file import Fault, Settings, StateFile
from pipeline.simulation.mps import control_program
from tests.conftest import GPU
from tests.support import fast_programs, power_source
from tests.support.programs import write_script
from tests.support.run_cases import BRIEF, TOY, groups
from tests.support.run_program import Program
from tests.support.simulated import set_faults
from tests.support.studies import Study

pytestmark = pytest.mark.covers("pipeline/simulation", "pipeline/rehearsal.py")
OFTEN = [f"listeners.{name}.interval_ms=200" for name in ("host", "nvml", "smi")]
SHORT = ["window.seconds=0.3", *BRIEF, *OFTEN]
DECOYS = ("nvidia-smi", "dcgmi", "nvidia-cuda-mps-control", "nvidia-persistenced", "sudo")


@pytest.fixture
def decoys(tmp_path) -> Path:
    """Programs of a real driver that come first on PATH and leave a note when they are run."""
    folder = tmp_path / "decoys"
    folder.mkdir()
    for name in DECOYS:
        write_script(folder / name, f'echo "$0 $@" >> {tmp_path}/decoys-ran')
    return folder


@pytest.fixture
def program(program, tmp_path, decoys) -> Program:
    """run.py on a simulated A100, with the decoys first on PATH."""
    (tmp_path / "tmp").mkdir()
    program.last = ["gpu=simulated_a100_40gb", f"gpu.lock_dir={tmp_path}"]
    path = f"{decoys}:{os.environ['PATH']}"
    program.environ = {"PATH": path, "TMPDIR": str(tmp_path / "tmp"), "CUDA_VISIBLE_DEVICES": "0"}
    return program


@pytest.fixture
def rehearse(study_of, tmp_path, monkeypatch, decoys) -> Callable[..., Study]:
    """The same in this process, with rows in files instead of a store."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    monkeypatch.setenv("PATH", f"{decoys}:{os.environ['PATH']}")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")

    def write_fast(folder: Path, state_file: Path) -> dict[str, Path]:
        programs = write_programs(folder, state_file)
        fast_programs.use_mps(programs[control_program.MPS_CONTROL])
        return programs

    monkeypatch.setattr(rehearsal, "write_programs", write_fast)
    return partial(study_of, gpu="simulated_a100_40gb")


def get_a100(folder: Path) -> StateFile:
    """A machine to start a study on, which outlives it."""
    file = StateFile(folder / "kept.json")
    file.keep(["a100_40gb"])
    return file


def read_stored(client):
    """The runs in the store: of groups, and of jobs."""
    pairs = groups(client, "collocation-rehearsal")
    return [group for group, _ in pairs], [job for _, jobs in pairs for job in jobs]


def test_a_sweep_runs_to_its_end_and_says_everywhere_that_it_is_simulated(run, client, tmp_path, decoys):
    status, out, err = run("-m", *TOY, *SHORT, "scenario=serial,naive", "degree=2", "gpu.job_memory_mib=700")
    assert status == 0, err
    assert "note: NVIDIA A100-SXM4-40GB is simulated: jobs run on the CPU" in err
    ended = "rehearsal on simulated NVIDIA A100-SXM4-40GB: 2 of 2 groups ran; nothing to clean; its speeds mean nothing"
    assert ended in out and "GPU MiB" in out and "speed-up" not in out and "samples/s" not in out + err
    groups, jobs = read_stored(client)
    assert sorted(run_.data.tags["collocation.scenario"] for run_ in groups) == ["naive", "serial"]
    assert len(jobs) == 3
    assert "activity" not in err
    left_out = "absent: listener activity: the simulated NVIDIA A100-SXM4-40GB has no counters; leave activity out"
    assert {run_.data.tags["collocation.listener.activity"] for run_ in groups} == {left_out}
    for run_ in (*groups, *jobs):
        assert run_.data.tags["collocation.simulated"] == "true"
        assert run_.data.tags["collocation.device"] == "NVIDIA A100-SXM4-40GB"
        invented = [name for name in run_.data.metrics if "power" in name or "clock" in name or "energy" in name]
        assert not invented
    assert [job.data.metrics["memory_peak_mib"] for job in jobs] == [700] * 3
    naive = next(run_ for run_ in groups if run_.data.tags["collocation.scenario"] == "naive")
    assert naive.data.metrics["memory_peak_mib"] == 1400
    assert {"system/nvml/memory_used_mib", "system/smi/memory_used_mib"} <= naive.data.metrics.keys()

    assert not (tmp_path / "decoys-ran").exists()
    subprocess.run([decoys / "nvidia-smi"], check=True)
    assert (tmp_path / "decoys-ran").exists()  # a decoy that is run does tell
    assert list((tmp_path / "tmp").iterdir()) == []
    assert not (tmp_path / "mlruns/spool").exists()


@pytest.mark.slow
def test_mps_is_rehearsed_alone_and_inside_mig(rehearse, tmp_path):
    scenarios = "scenario=mps,mps_percent,mps_static,mig_mps"
    often = ["degree=2", "baseline=never", "gpu.driver=590"]
    done = rehearse("-m", *TOY, *SHORT, scenarios, *often, "gpu.admin=[sudo,-n]")
    assert done.status == 0, done.err
    groups = [row for row, _ in done.groups]
    assert [row.data.tags["collocation.result"] for row in groups] == ["ok"] * 4, done.out
    # Two jobs and a server, or two servers, one an instance.
    memory = {row.data.params["scenario"]: row.data.metrics["memory_peak_mib"] for row in groups}
    assert memory == {"mps": 1090, "mps_percent": 1090, "mps_static": 1090, "mig_mps": 1156}
    # Of 27 chunks of 4 multiprocessors.
    multiprocessors = [job.data.params.get("placement.mps_multiprocessors") for job in done.jobs]
    assert sorted(filter(None, multiprocessors)) == ["52", "52"]
    assert not (tmp_path / "decoys-ran").exists()
    assert [path.name for path in tmp_path.glob("*.journal")] == []


@pytest.mark.slow
def test_mps_runs_a_study_with_a_driver_that_reports_no_status_of_servers(rehearse):
    done = rehearse("-m", *TOY, *SHORT, "scenario=mps,mps_percent,mps_static", "degree=2", "gpu.driver=535")
    assert done.status == 0, done.err
    results = {row.data.params["scenario"]: row.data.tags["collocation.result"] for row, _ in done.groups}
    assert {results[name] for name in ("serial", "mps", "mps_percent")} == {"ok"}, done.out
    assert "mps_static needs a driver with CUDA 13.1 or newer (R590), not 535.309.01 with CUDA 12.2" in done.out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("bypass", "not clients of MPS: 0-toy"),
        ("start_fails", "Failed to start the MPS control daemon"),
        ("fault_on_client", "job 0-toy: MpsClientFault: simulated fatal fault"),
    ],
)
def test_mps_that_fails_is_a_row_that_says_why(rehearse, tmp_path, fault, words):
    set_faults(machine := get_a100(tmp_path), of_mps=(fault,))
    done = rehearse(*TOY, "baseline=never", *SHORT, "scenario=mps", f"gpu.machine={machine.path}")
    assert done.status == 1, done.err
    assert words in done.out
    ((group, _),) = done.groups
    assert group.data.tags["collocation.result"] == "failed"


@pytest.mark.slow
def test_more_memory_than_mps_allows_is_a_row_oom(rehearse):
    done = rehearse(*TOY, "baseline=never", *SHORT, "scenario=mps", "scenario.pinned_mem_limit=256M")
    assert done.status == 0, done.err
    assert "512 MiB exceed the MPS limit of 256 MiB" in done.out
    ((group, _),) = done.groups
    assert group.data.tags["collocation.result"] == "oom"


@pytest.mark.slow
def test_a_dry_run_prints_the_commands_that_change_the_gpu(rehearse):
    status, out, err = rehearse(
        "-m", "scenario=naive,mps,mig", "degree=2", "dry_run=true", "gpu.exclusive_process=false"
    )
    assert status == 0, err
    _, _, commands = out.partition("GPU settings are changed and restored by group ")
    words = [line.split()[1:] for line in commands.splitlines()[1:] if line.startswith("    ")]
    assert [line[0] for line in words] == ["-i", "mig", "mig", "mig", "mig", "mig", "mig", "-i"]
    status, out, _ = rehearse("scenario=naive", "dry_run=true")
    assert "no GPU settings are changed" in out
    status, out, _ = rehearse("scenario=mps", "gpu.exclusive_process=true", "dry_run=true")
    words = [line.split()[3:] for line in out.splitlines() if line.startswith("    ") and " -c " in line]
    assert words == [["-c", "EXCLUSIVE_PROCESS"], ["-c", "DEFAULT"]]


@pytest.mark.slow
def test_listeners_without_any_reading_let_a_group_run_to_its_end(run, client, tmp_path):
    listeners = "listeners=[host,nvml,smi,gpm,dcgm]"
    often = ["window.seconds=0.3", listeners]
    status, _, err = run(*TOY, "baseline=never", *BRIEF, *often, "scenario=mig", "degree=2", "gpu.model=h100_80gb")
    assert status == 0, err
    for name in ("gpm", "dcgm"):
        assert err.count(f"listener {name}: the simulated NVIDIA H100 80GB HBM3 has no readings for it") == 1
    (group_run,), jobs = read_stored(client)
    for run_ in (group_run, *jobs):
        assert run_.data.tags["collocation.result"] == "ok"
        assert not [name for name in run_.data.metrics if "gpm" in name or "dcgm" in name or "act_" in name]
    assert not (tmp_path / "decoys-ran").exists()


@pytest.mark.slow
def test_a_listener_that_is_left_out_is_said_once_a_study_and_by_the_tags_of_every_group(rehearse):
    listeners = ["listeners=[host,gpm]", "listeners.gpm.required=false"]
    done = rehearse("-m", *TOY, *BRIEF, "window.seconds=0.3", *listeners, "scenario=naive", "degree=1,2")
    assert done.status == 0, done.err
    assert done.err.count("left out: listener gpm: ") == 1
    assert len(done.groups) == 3
    assert all(row.data.tags["collocation.listener.gpm"].startswith("absent: ") for row, _ in done.groups)


@pytest.mark.slow
def test_a_listener_that_is_not_required_may_end_during_a_group(rehearse, tmp_path):
    text = """
        import psutil, time
        time.sleep(0.5)
        beside = psutil.Process().parent().parent().children()
        next(child for child in beside if "simulation.nvidia_smi" in " ".join(child.cmdline())).kill()
        time.sleep(1)
        """
    (tmp_path / "train.py").write_text(dedent(text))
    listeners = ["listeners=[host,smi]", "listeners.smi.required=false"]
    done = rehearse("workload=script", "workload.script=train.py", "degree=1", "baseline=never", *listeners)
    assert done.status == 0, done.err
    assert done.err.count("left out: listener smi: ") == 1
    ((group, _),) = done.groups
    assert "ended with status -9" in group.data.tags["collocation.listener.smi"]
    assert group.data.metrics["orchestrator_cpu_pct"] >= 0


@pytest.mark.slow
def test_jobs_see_no_gpu(rehearse, tmp_path):
    text = "import os, pathlib\npathlib.Path('seen').write_text(repr(os.environ.get('CUDA_VISIBLE_DEVICES')))\n"
    (tmp_path / "train.py").write_text(text)
    done = rehearse("workload=script", "workload.script=train.py", "degree=1")
    assert done.status == 0, done.err
    assert (tmp_path / "seen").read_text() == "''"


@pytest.mark.slow
def test_too_much_memory_is_a_row_oom_and_the_next_group_is_unharmed(rehearse):
    memory = "gpu.job_memory_mib=20000,300"
    done = rehearse("-m", *TOY, *SHORT, "degree=3", memory, "order=listed", "baseline=never")
    assert done.status == 0, done.err
    assert [row.data.tags["collocation.result"] for row, _ in done.groups] == ["oom", "ok"]
    assert "no room for 20000 MiB (gpu.job_memory_mib)" in done.groups[0][0].data.tags["collocation.reason"]
    assert "where 2 jobs use 40000 MiB" in done.out
    results = sorted(job.data.tags["collocation.result"] for job in done.jobs)
    assert results == ["interrupted"] * 2 + ["ok"] * 3 + ["oom"]


def test_a_dry_run_leaves_nothing(rehearse, tmp_path):
    before = sorted(tmp_path.rglob("*"))
    status, out, err = rehearse("-m", "degree=1,2", "dry_run=true")
    assert status == 0, err
    assert "groups on simulated NVIDIA A100-SXM4-40GB" in out
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.slow
def test_a_stranger_on_another_gpu_does_not_matter(rehearse, tmp_path):
    machine = StateFile(tmp_path / "kept.json")
    uuids = [gpu.uuid for gpu in machine.keep(["a100_40gb"] * 2).gpus]
    Clients(machine).hold(uuids[1], os.getpid(), "stranger", 100)
    study = [*TOY, *SHORT, "scenario=naive", "degree=1", f"gpu.machine={machine.path}"]
    done = rehearse(*study, "gpu.device=0")
    assert done.status == 0, done.err
    assert done.groups[0][0].data.metrics["memory_peak_mib"] == 512
    status, _, err = rehearse(*study, "gpu.device=1")
    assert status == 2 and f"({uuids[1]}) is in use by stranger" in err


@pytest.mark.slow
def test_a_study_that_waits_begins_when_the_other_study_and_the_strangers_are_gone(start, run, tmp_path):
    machine = StateFile(tmp_path / "kept.json")
    (gpu,) = machine.keep(["a100_40gb"]).gpus
    study = [*TOY, *SHORT, "scenario=mig", "degree=1", f"gpu.machine={machine.path}"]
    clients = Clients(machine)
    with lease.hold(dataclasses.replace(GPU, uuid=gpu.uuid), tmp_path):
        status, out, err = run(*study)
        assert (status, out) == (2, "") and "in use by another study of " in err and "with wait=true" in err
        status, out, err = run(*study, "wait=true", "wait_limit_s=0.2")
        assert (status, out) == (2, "") and "waited 0 s (wait_limit_s), but " in err
        waiting = start(*study, "wait=true")
        assert f"({gpu.uuid}), which is held by " in next(waiting.stderr)
        clients.hold(gpu.uuid, os.getpid(), "stranger", 100)
    assert f"({gpu.uuid}), which is in use by stranger" in next(waiting.stderr)
    clients.release(os.getpid())
    _, err = waiting.communicate(timeout=300)
    assert waiting.returncode == 0 and "; 1 ok)" in err and "waiting for" not in err


@pytest.mark.slow
def test_ctrl_c_ends_the_waiting(start, tmp_path):
    machine = StateFile(tmp_path / "kept.json")
    (gpu,) = machine.keep(["a100_40gb"]).gpus
    before = machine.read()
    with lease.hold(dataclasses.replace(GPU, uuid=gpu.uuid), tmp_path):
        waiting = start(*TOY, "baseline=never", *SHORT, f"gpu.machine={machine.path}", "wait=true")
        assert next(waiting.stderr).startswith("waiting for ")
        waiting.send_signal(signal.SIGINT)
        waiting.communicate(timeout=120)
    assert waiting.returncode == 130 and machine.read() == before


@pytest.mark.smoke
def test_a_driver_that_fails_is_a_row_and_what_it_made_is_undone(rehearse, tmp_path):
    machine = get_a100(tmp_path)
    set_faults(machine, Fault(function="nvmlDeviceCreateGpuInstance", code=codes.INSUFFICIENT_RESOURCES, skip=1))
    status, out, err = rehearse(*TOY, "baseline=never", "scenario=mig", "degree=2", f"gpu.machine={machine.path}")
    assert status == 1, err
    assert "failed" in out and "Insufficient Resources" in out
    (gpu,), (fault,) = machine.read().gpus, machine.read().faults
    assert (gpu.instances, gpu.mig_current, fault.times) == ((), False, 0)


@pytest.mark.slow
def test_what_a_killed_study_left_on_a_kept_machine_is_undone_by_the_next(run, tmp_path):
    machine_file = tmp_path / "kept.json"
    study = [*TOY, *SHORT, "degree=2", f"gpu.machine={machine_file}"]

    def instances() -> list[object]:
        return (
            [i for gpu in StateFile(machine_file).read().gpus for i in gpu.instances] if machine_file.exists() else []
        )

    alone = ["scenario=mig", "baseline=never", "window.seconds=60"]
    status, _, _ = run(*study, *alone, killed_when=lambda: len(instances()) == 2)
    assert status == -signal.SIGKILL
    assert len(instances()) == 2
    status, _, err = run(*study, "scenario=mig")
    assert status == 0, err
    assert "undid 3 steps of a killed orchestrator on NVIDIA A100-SXM4-40GB" in err
    (gpu,) = StateFile(machine_file).read().gpus
    assert (gpu.instances, gpu.mig_current) == ((), False)


@pytest.mark.slow
def test_idle_power_is_measured_before_mps_has_a_context_and_while_jobs_wait(run, client, tmp_path):
    machine = get_a100(tmp_path)
    with machine.change() as cell:
        cell.state = dataclasses.replace(cell.state, sources=(Spec(target="tests.support.power_source.PowerSource"),))
    lengths = ["gpu.idle_power_s=1", "gpu.waiting_power_s=1"]
    study = [*TOY, *BRIEF, *OFTEN, "window.seconds=1", "scenario=mps", "baseline=never"]
    status, _, err = run(*study, f"gpu.machine={machine.path}", *lengths)
    assert status == 0, err
    assert "note: idle power is measured once for all blocks, in 2 s: 1 s without jobs" in err
    ((group_run,), _) = read_stored(client)
    figures = group_run.data.metrics
    assert (figures["power_idle_w"], figures["power_waiting_w"]) == (power_source.IDLE_W, power_source.WAITING_W)
    assert figures["energy_above_idle_j"] == pytest.approx(50.0, rel=0.05)
    assert figures["energy_above_waiting_j"] == pytest.approx(0.0, abs=2.0)
    assert 2 <= figures["time_idle_s"] < 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"branch": "590"}, "driver 590.48.01, was 580.159.04"),
        ({"settings": Settings(power_limit_w=500)}, "power limit 500 W, was 700 W"),
    ],
)
def test_after_a_change_of_the_gpu_the_block_that_was_begun_starts_again(run, client, tmp_path, changed, words):
    """What was measured before has no figure against what was measured after, in the table as in MLflow."""
    machine = get_a100(tmp_path)

    def change(branch: str = "580", settings: Settings | None = None) -> None:
        with machine.change() as cell:
            gpu = dataclasses.replace(cell.state.gpus[0], settings=settings or Settings(power_limit_w=700))
            cell.state = dataclasses.replace(cell.state.replace_gpu(0, gpu), branch=branch)

    study = [*TOY, *SHORT[:-2], "degree=2", "listeners=[host]", f"gpu.machine={machine.path}"]
    change()
    status, _, err = run(*study, "time_limit_s=0.1")
    assert status == 1, err
    change(**changed)
    status, _, err = run(*study, "resume=true")
    assert status == 0, err
    assert "resume: 0 of 2 groups are finished" in err
    assert f"resume: unfinished blocks start again without 1 earlier result ({words})" in err
    (first, *later_groups), _ = read_stored(client)
    assert [("slowdown_worst_ratio" in group.data.metrics) for group in later_groups] == [True, True]
    assert first.data.tags["collocation.power_limit_w"] == "700"


@pytest.mark.torch
@pytest.mark.slow
def test_a_framework_answers_on_several_instances_and_a_missing_one_is_a_row(run, tmp_path):
    pytest.importorskip("torch")
    status, out, err = run(
        *("-m", "workload=framework", "workload.framework=torch,paddle", "workload.rows=8", "workload.rounds=1"),
        *("scenario=mig", "scenario.instances_per_job=2", "scenario.profile=1g"),
        *("degree=1", "baseline=never", "window=work", "listeners=[host]"),
    )
    assert status == 0, err
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "PaddlePaddle - - - - not installed" in lines
    (answered,) = [line for line in lines if line.startswith("PyTorch")]
    assert answered.endswith("MIG 1g.5gb + 1g.5gb at once 2 CPU yes")
    rows = results.load(tmp_path / "mlruns", "collocation-rehearsal")
    (job,) = rows[rows["params.job.works"] == "yes"].to_dict("records")
    assert len(job["params.placement.device"].split(",")) == 2
    assert job["group.tags.collocation.simulated"] == "true"
    (probe,) = Path(tmp_path).rglob("probe.json")
    assert json.loads(probe.read_text())["framework"] == "torch"
