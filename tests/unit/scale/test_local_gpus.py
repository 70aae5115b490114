"""Studies on several GPUs of one host: their workers, CPUs and shards."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import select
import signal
import time
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from pipeline import rehearsal
from pipeline.base.domain.machine_state import cpu_device
from pipeline.base.domain.records import Device, DeviceFacts
from pipeline.base.system.errors import ConfigError, InUseError
from pipeline.base.system.interrupts import UndoStack
from pipeline.plan import config_reader
from pipeline.plan.overrides import set_values
from pipeline.scale import fleet as fleets
from pipeline.scale import interference as company
from pipeline.scale import local_gpus, worker_command, worker_process
from pipeline.scale.worker import STATUS
from pipeline.scale.worker_process import WorkerProcess
from pipeline.study.study_request import StudyRequest
from tests.conftest import GPU
from tests.support.rows import group


def test_a_worker_gets_what_was_typed_but_for_what_is_decided_for_it() -> None:
    typed = ["run.py", "-m", "degree=1,2", "hydra/launcher=gpus", "+hydra.launcher.devices=[0,1]", "resume=true"]
    typed += ["gpu.count=2", "gpu.other_gpus=3", "time_limit_s=9", "--", "train.py", "shard=1", "--resume=true"]
    decided = {"shard": 3, "gpu.device": "GPU-1", "resume": "true"}
    assert "degree=5" not in worker_command.make_command(["run.py", "degree=5"], {"degree": 1})
    assert worker_command.make_command(typed, decided) == [
        *(
            "run.py",
            "-m",
            "degree=1,2",
            "gpu.count=2",
            "gpu.other_gpus=3",
            "shard=3",
            "gpu.device=GPU-1",
            "resume=true",
        ),
        *("--", "train.py", "shard=1", "--resume=true"),
    ]


@pytest.mark.parametrize(
    "text", ["/tmp/lr=0.1/p.json", "/a,b", "x y", "it's", "${a}", "ä", "plain/1.json", "#1", "(a)"]
)
def test_what_is_decided_for_a_worker_reaches_it_whatever_its_letters(text: str) -> None:
    (word,) = worker_command.make_command([], {"plan_file": text})
    (override,) = OverridesParser.create().parse_overrides([word])
    config = OmegaConf.create({"plan_file": ""})
    set_values([override], config)
    assert config.plan_file == text


def test_workers_share_no_core(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    devices = [dataclasses.replace(GPU, uuid=f"GPU-{number}") for number in range(4)]
    for cpu in range(16):  # two hyperthreads a core, n and n + 8; a node with the first and one with the last cores
        (folder := tmp_path / f"cpu{cpu}" / "topology").mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{cpu % 8},{cpu % 8 + 8}\n")
    monkeypatch.setattr(worker_process, "_CPUS", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    near = {"GPU-0": "0-3,8-11", "GPU-1": "0-3,8-11", "GPU-2": "4-7,12-15", "GPU-3": ""}
    monkeypatch.setattr(worker_process, "_read_near_cpus", lambda device: worker_process.parse_cpus(near[device.uuid]))
    shares = worker_process.divide_cpus(devices[:3])
    assert {uuid: sorted(share) for uuid, share in shares.items()} == {
        "GPU-0": [0, 1, 8, 9],
        "GPU-1": [2, 3, 10, 11],
        "GPU-2": [4, 5, 6, 7, 12, 13, 14, 15],
    }
    cores = [{cpu % 8 for cpu in share} for share in worker_process.divide_cpus(devices).values()]
    assert [len(share) for share in cores] == [2] * 4 and len(set.union(*cores)) == 8


def test_gpus_are_those_that_an_allocation_grants(monkeypatch: pytest.MonkeyPatch) -> None:
    machine_devices = devices_of("A", "A", "A")
    monkeypatch.setattr(local_gpus.nvml, "list_devices", lambda: machine_devices)
    request: Any = SimpleNamespace(simulated=None)
    for variable in ("CUDA_VISIBLE_DEVICES", "SLURM_STEP_GPUS", "SLURM_JOB_GPUS"):
        monkeypatch.delenv(variable, raising=False)
    assert local_gpus._list_present(request) == machine_devices
    monkeypatch.setenv("SLURM_JOB_GPUS", "1,2")
    assert local_gpus._list_present(request) == machine_devices[1:]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "NoDevFiles")
    assert local_gpus._list_present(request) == []


def test_what_a_killed_orchestrator_left_is_no_strangers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(*_: object) -> None:
        raise InUseError("in use", "it", lambda: False)

    monkeypatch.setattr(local_gpus.lease, "refuse_strangers", refuse)
    assert local_gpus._explain_busy(GPU, tmp_path, []) == "in use"
    monkeypatch.setattr(local_gpus.Journal, "read_steps", lambda _: ["a daemon"])
    assert local_gpus._explain_busy(GPU, tmp_path, []) == ""


def test_a_refused_worker_whose_shard_another_gpu_ran_is_no_failure() -> None:
    fleet = make_fleet(devices_of("A", "A"), {"A": [1, 2]})
    nobody: Any = None
    fleet.start_more(nobody)
    first, second = fleet.workers
    for worker, status in ((first, 2), (second, 0)):
        end(fleet, worker, status)
    assert first.is_dismissed and not second.is_dismissed
    assert (fleet.compute_exit_status(is_whole=True), fleet.compute_exit_status(is_whole=False)) == (0, 1)
    fleet.has_measured = False
    assert fleet.compute_exit_status(is_whole=False) == 2


@dataclasses.dataclass
class Taking:
    """An exporter of which some ports are taken."""

    name: str
    port: int
    _target_: str = f"{__name__}.Listening"


class Listening:
    TAKEN = 9003

    def __init__(self, port: int) -> None:
        self.port = port

    @contextlib.contextmanager
    def serve(self) -> Iterator[None]:
        if self.port == self.TAKEN:
            raise ConfigError(f"{self.port} is taken")
        yield


def test_each_gpu_has_a_port_of_its_own_and_one_that_is_taken_is_refused() -> None:
    devices = [dataclasses.replace(GPU, uuid=f"GPU-{number}") for number in range(3)]

    def ports(exporter: object, dry_run: bool = False) -> Mapping[str, int]:
        config = SimpleNamespace(exporter=exporter, dry_run=dry_run)
        local_gpus.refuse_taken_ports(SimpleNamespace(config=config), devices)  # type: ignore[arg-type]
        return fleets.assign_ports(exporter, devices)

    assert ports(SimpleNamespace(name="none")) == {}
    assert ports(Taking("x", 9000)) == {"GPU-0": 9000, "GPU-1": 9001, "GPU-2": 9002}
    assert ports(Taking("x", 9002), dry_run=True)["GPU-1"] == 9003
    with pytest.raises(ConfigError, match="9003 is taken"):
        ports(Taking("x", 9001))


def test_what_only_some_launchers_decide_is_otherwise_as_it_was_typed() -> None:
    typed = ["run.py", "exporter=prometheus", "exporter.port=9500"]
    assert worker_command.make_command(typed, {"shard": 1}) == [*typed, "shard=1"]
    assert worker_command.make_command(typed, {"exporter.port": 9501}) == [
        "run.py",
        "exporter=prometheus",
        "exporter.port=9501",
    ]


@pytest.mark.parametrize(("text", "numbers"), [("0-2,8,10-11\n", {0, 1, 2, 8, 10, 11}), ("", set())])
def test_a_list_of_cpus_is_read_as_the_kernel_writes_it(text: str, numbers: set[int]) -> None:
    assert worker_process.parse_cpus(text) == numbers


def test_workers_share_no_cpu_and_keep_to_those_next_to_their_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_process, "_PCI_DEVICES", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(9)))
    devices = []
    for number, near in enumerate(["0-3", "0-3", "4-7", None]):
        bus_id = f"00000000:0{number}:00.0"
        devices.append(dataclasses.replace(GPU, uuid=f"GPU-{number}", facts=DeviceFacts(pci_bus_id=bus_id)))
        if near is not None:
            (tmp_path / bus_id[4:]).mkdir()
            (tmp_path / bus_id[4:] / "local_cpulist").write_text(near)
    shares = worker_process.divide_cpus(devices[:3])
    assert shares == {"GPU-0": {0, 1}, "GPU-1": {2, 3}, "GPU-2": {4, 5, 6, 7}}
    assert worker_process.divide_cpus([devices[3]]) == {"GPU-3": set(range(9))}
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    assert worker_process.divide_cpus(devices[:2]) == {"GPU-0": {0}, "GPU-1": {0}}


def devices_of(*models: str) -> list[Device]:
    return [dataclasses.replace(GPU, index=i, uuid=f"GPU-{i}", name=model) for i, model in enumerate(models)]


class IdleWorker(WorkerProcess):
    """A worker that only keeps what it was to do."""

    def __init__(self, device: Device, decided: Mapping[str, object]) -> None:
        self.device, self.decided, self.is_busy, self.is_dismissed = device, decided, False, False

    @property
    def takes_shards(self) -> bool:
        return not (self.is_busy or self.is_dismissed)

    def give(self, what: str, shard: int = 0) -> None:
        self.what, self.shard, self.is_busy, self.begin_s = what, shard, True, time.monotonic()

    def dismiss(self) -> None:
        self.is_dismissed = True


def end(fleet: fleets.Fleet, worker: WorkerProcess, status: int) -> None:
    worker.is_busy = False
    fleet.handle_end(worker, status)


def make_fleet(devices: list[Device], shards: Mapping[str, list[int]], limit_s: float | None = None) -> fleets.Fleet:
    """A fleet whose workers only say what they were to do; shards by GPU model."""

    def request(model: str) -> Any:
        gpu = SimpleNamespace(other_gpus=len(devices) - 1, models=len(shards), model=None)
        config = SimpleNamespace(gpu=gpu, plan_file=f"{model}.json", time_limit_s=limit_s, resume="false")
        return SimpleNamespace(config=config)

    def list_devices(model: str) -> list[Device]:
        return [device for device in devices if device.name == model]

    parts = [
        fleets.Part(request=request(model), devices=list_devices(model), waiting=deque(waiting))
        for model, waiting in shards.items()
    ]
    fleet = fleets.Fleet(request(""), devices, parts)

    def start(device: Device, decided: Mapping[str, object], _: object) -> WorkerProcess:
        fleet.workers.append(IdleWorker(device, decided))
        return fleet.workers[-1]

    fleet.start = start  # type: ignore[method-assign]
    return fleet


def test_each_gpu_gets_shards_of_the_plan_for_its_model() -> None:
    fleet = make_fleet(devices_of("A", "B", "A", "A"), {"A": [1, 2], "B": [1, 2, 3]})
    nobody: Any = None

    def started() -> list[tuple[str, object, object]]:
        assert fleet.start_more(nobody)
        return [
            (worker.device.uuid, worker.shard, worker.decided["plan_file"])
            for worker in fleet.workers
            if worker.is_busy
        ]

    assert started() == [("GPU-0", 1, "A.json"), ("GPU-2", 2, "A.json"), ("GPU-1", 1, "B.json")]
    assert {worker.decided["gpu.models"] for worker in fleet.workers} == {2}
    assert {worker.decided["gpu.other_gpus"] for worker in fleet.workers} == {3}
    first, second, other = list(fleet.workers)
    for worker in (first, second, other):
        end(fleet, worker, 0)
    assert started() == [("GPU-1", 2, "B.json")]
    assert fleet.workers == [first, second, other]  # nothing was started anew
    end(fleet, other, 2)
    assert [list(part.waiting) for part in fleet.parts] == [[], [2, 3]]
    assert not fleet.start_more(nobody)  # the GPU of the other model is idle, and those shards are none of its own


@pytest.mark.parametrize(
    ("model", "scenario", "num_gpus", "is_refused"),
    [
        ("NVIDIA A100-SXM4-40GB", "mig", 2, True),
        ("NVIDIA A100-SXM4-40GB", "mig", 1, False),
        ("NVIDIA A100-SXM4-40GB", "naive", 2, False),
        ("NVIDIA H100 80GB HBM3", "mig", 2, False),
        ("unknown", "mig", 2, False),
    ],
)
def test_a_switch_of_mig_mode_that_resets_a_gpu_is_refused_on_several(model, scenario, num_gpus, is_refused) -> None:
    plan: Any = SimpleNamespace(groups=[group("a", scenario="naive"), group("a", "a", scenario=scenario)])
    refused = (
        pytest.raises(ConfigError, match=r"switching MIG mode of .* needs a reset")
        if is_refused
        else contextlib.nullcontext()
    )
    with refused:
        local_gpus.refuse_mode_switches([(devices_of(*[model] * num_gpus), plan)], "leave it out")


def test_a_gpu_goes_on_with_the_shard_that_it_has_begun() -> None:
    devices = devices_of("A", "A", "A")
    begun = {4: "GPU-1", 2: "GPU-2", 3: "GPU-gone"}
    part = fleets.Part(
        request=make_fleet([], {}).request, devices=devices, waiting=deque([2, 3, 4, 5]), gpu_by_shard=begun
    )
    assert [device.uuid for device in part.sort_devices()] == ["GPU-1", "GPU-2", "GPU-0"]
    assert [part.take(devices[number]) for number in (1, 0, 2, 0)] == [4, 5, 2, 3]
    part = dataclasses.replace(part, waiting=deque([4]))
    assert [device.uuid for device in part.sort_devices()] == ["GPU-1", "GPU-0", "GPU-2"]
    assert part.take(devices[0]) == 4  # its own GPU may be busy, and it need not wait for it


def test_a_shard_whose_gpu_is_refused_goes_to_one_that_had_none() -> None:
    fleet = make_fleet(devices_of("A", "A"), {"A": [1]})
    nobody: Any = None
    assert fleet.start_more(nobody)
    (refused,) = fleet.workers
    end(fleet, refused, 2)
    assert fleet.start_more(nobody)
    assert [(worker.device.uuid, worker.shard) for worker in fleet.workers if worker.is_busy] == [("GPU-1", 1)]


def test_when_a_shard_ends_the_study_says_how_much_is_left(capsys: pytest.CaptureFixture[str]) -> None:
    fleet = make_fleet(devices_of("A", "A", "B"), {"A": [1, 2, 3, 4, 5], "B": [1]})
    nobody: Any = None
    fleet.start_more(nobody)
    now_s = time.monotonic()

    def end_one(device: int, took_s: float, status: int = 0) -> str:
        (worker,) = (worker for worker in fleet.workers if worker.device.index == device)
        worker.begin_s = now_s - took_s
        end(fleet, worker, status)
        return capsys.readouterr().err.strip()

    assert end_one(0, 1000.0, status=1) == "GPU 0 shard 1 | ended with exit status 1; 1 of 6 shards ended"
    assert end_one(1, 600.0) == "GPU 1 shard 2 | ended with exit status 0; 2 of 6 shards ended"  # of B none has
    fleet.start_more(nobody)
    for worker in fleet.workers:
        worker.begin_s = now_s - 200.0
    # Of A, two shards with 400 s left and one of 600 s, on two GPUs.
    assert end_one(2, 100.0).endswith("3 of 6 shards ended, about 12 min left")
    assert end_one(0, 600.0).endswith("4 of 6 shards ended, about 10 min left")  # the one that waits takes longest
    assert end_one(1, 600.0).endswith("5 of 6 shards ended, about 10 min left")
    fleet.start_more(nobody)
    assert end_one(0, 600.0).endswith("; 6 of 6 shards ended")


def test_a_study_whose_time_is_over_leaves_the_shards_of_every_model(capsys: pytest.CaptureFixture[str]) -> None:
    fleet = make_fleet(devices_of("A", "B"), {"A": [1, 2], "B": [1]}, limit_s=-1.0)
    nobody: Any = None
    assert not fleet.start_more(nobody)
    assert "time_limit_s=-1 has passed: 3 shards left" in capsys.readouterr().err
    assert fleet._describe_progress() == "0 of 3 shards ended"
    assert fleet.worst == 1 and not any(part.waiting for part in fleet.parts)


def test_gpus_of_several_models_are_free_and_of_one_model_the_others_are_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    devices = devices_of("A", "B", "A")
    monkeypatch.setattr(local_gpus, "_list_present", lambda _: devices)
    monkeypatch.setattr(local_gpus, "_explain_busy", lambda *_: "")
    gpu = SimpleNamespace(kind="nvidia", device="auto", lock_dir=str(tmp_path), tolerate=[])
    config = SimpleNamespace(gpu=gpu, shard=None, repeats=1, wait=False, dry_run=False)
    request: Any = SimpleNamespace(config=config, configs=[config], simulated=None, root=tmp_path)
    assert local_gpus.select_free(request, "all", "gpus") == devices
    assert local_gpus.select_free(request, "all", "gpus", of_one_model=True) == [devices[0], devices[2]]
    assert "left out: GPU 1 (GPU-1): its model is not A" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="its model is not A"):
        local_gpus.select_free(request, ["0", "1"], "gpus", of_one_model=True)
    assert (
        local_gpus.select_free(request, 1, "gpus") == local_gpus.select_free(request, "GPU-1", "gpus") == [devices[1]]
    )
    for value in (None, [], {"a": 1}, [[0]], [None]):
        with pytest.raises(ConfigError, match="set it to a list of indices or UUIDs, or to all"):
            local_gpus.select_free(request, value, "gpus")
    config.wait = True
    with pytest.raises(ConfigError, match="never waits for a GPU; remove wait=true"):
        local_gpus.select_free(request, "all", "gpus")


@pytest.mark.parametrize(("engine", "launcher"), [(local_gpus.run, "gpus"), (company.run, "beside")])
def test_an_error_names_the_launcher_that_was_chosen(
    monkeypatch: pytest.MonkeyPatch, engine: Any, launcher: str
) -> None:
    monkeypatch.setattr(local_gpus, "_list_present", lambda _: [])
    gpu = SimpleNamespace(kind="nvidia", device="auto")
    config = SimpleNamespace(gpu=gpu, shard=None, repeats=1, wait=False)
    request: Any = SimpleNamespace(config=config, configs=[config], simulated=None)
    with pytest.raises(ConfigError, match=rf"^hydra/launcher={launcher} found no NVIDIA GPU; .* gpu=simulated_"):
        engine(request, None, "all")
    gpu.device = "0"
    with pytest.raises(ConfigError, match=f"gpu.device=0 conflicts with hydra/launcher={launcher}"):
        engine(request, None, "all")


@pytest.fixture
def make_request(compose, tmp_path: Path):
    """A dry run of a study on simulated GPUs of one model."""
    with UndoStack() as stack:

        def ask(num_gpus: int, *overrides: str) -> StudyRequest:
            machine = [f"gpu.machine={tmp_path}/machine.json", f"gpu.count={num_gpus}", f"gpu.lock_dir={tmp_path}"]
            configs = config_reader.read(
                compose(["gpu=simulated_h100_80gb", "workload=tiny", "degree=2", *machine, *overrides])
            )
            simulated = stack.enter_context(rehearsal.prepare_machine(configs))
            nobody: Any = None
            return StudyRequest(
                configs=configs, is_sweep=True, sender=None, simulated=simulated, exporter=nobody, reproduction=nobody
            )

        yield ask


@pytest.mark.parametrize(("num_shards", "beside"), [(2, 1), (5, 2)])
def test_no_more_gpus_count_as_at_work_than_there_are_shards(make_request, monkeypatch, num_shards, beside) -> None:
    shown: list[int] = []
    monkeypatch.setattr(
        local_gpus, "preview", lambda *planned: shown.extend(a.config.gpu.other_gpus for a, *_ in planned)
    )
    local_gpus.run(make_request(3, f"repeats={num_shards}", "dry_run=true"), UndoStack(), "all")
    assert shown == [beside]


def test_a_dry_run_of_several_plans_is_one_json_list(make_request, capsys) -> None:
    assert company.run(make_request(2, "dry_run=json"), UndoStack(), "all") == 0
    alone, in_company = json.loads(capsys.readouterr().out)
    assert [group["name"] for group in alone["groups"]] == [group["name"] for group in in_company["groups"]]
    assert alone["plan"] != in_company["plan"]


ANSWERS = f"""
import json, sys
for line in sys.stdin:
    print(json.dumps({{{STATUS!r}: int(line)}}), flush=True)
"""


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[WorkerProcess]:
    """A worker whose shards end with their number as exit status."""
    script = tmp_path / "worker.py"
    script.write_text(ANSWERS)
    running = WorkerProcess(cpu_device(), [str(script)], os.environ, frozenset(os.sched_getaffinity(0)))
    yield running
    if not running.has_ended:
        running.send_signal(signal.SIGKILL)
        wait_for_status(running)


def wait_for_status(worker: WorkerProcess) -> int | None:
    """Listen until a shard or the process has ended; return the exit status of the shard."""
    while not worker.has_ended:
        ready, _, _ = select.select([output for output in worker.outputs if not output.closed], [], [], 60)
        assert ready, "no answer"
        for output in ready:
            if not output.closed and (status := worker.listen(output)) is not None:
                return status
    return None


def test_a_busy_worker_takes_no_other_shard(worker: WorkerProcess) -> None:
    assert worker.takes_shards
    for shard in (3, 1):
        worker.give("shard", shard)
        assert not worker.takes_shards
        assert wait_for_status(worker) == shard
        assert worker.takes_shards
    worker.dismiss()
    assert not worker.takes_shards


def test_a_killed_worker_ends_its_shard_as_a_shell_says_it(worker: WorkerProcess) -> None:
    worker.send_signal(signal.SIGSTOP)
    worker.give("shard", 1)
    worker.send_signal(signal.SIGKILL)
    assert wait_for_status(worker) == 128 + signal.SIGKILL
    assert worker.has_ended and not worker.takes_shards
