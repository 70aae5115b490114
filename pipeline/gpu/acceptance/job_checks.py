"""Checks that run jobs on instances: placement, counters, isolation, MPS."""

from __future__ import annotations

import dataclasses
import time
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import Any

from pipeline.base.system.errors import ConfigError
from pipeline.clean import processes
from pipeline.gpu.acceptance.instance_checks import choose_mixed_layout
from pipeline.gpu.acceptance.mig_board import Job, MigBoard, UntriedError, name_layout
from pipeline.gpu.selftest import load_process, plausibility, simulated_load
from pipeline.gpu.selftest.load_measurement import REHEARSED_PACE, Measurement, list_loadable, measure
from pipeline.gpu.selftest.load_plan import Load
from pipeline.prepare.device import gpu_reader, nvml
from pipeline.prepare.mig.mig_state import MigDevice, list_processes_on
from pipeline.prepare.mps.control_program import CONTROL
from pipeline.prepare.mps.mps_daemon import run_daemon

_THREADS = 512
_WINDOW_S = 5.0
_LEAST_RATE = 0.95
"""Smallest rate of a job beside loaded neighbours, as a share of its rate alone, at equal clocks. Chosen."""
_CLOCK = "nvmlDeviceGetClockInfo(SM)"


def check_jobs(board: MigBoard) -> dict[str, Any]:
    """Run a job on every instance, and check that it is there only and that its instance cannot be destroyed."""
    placed = choose_mixed_layout(board.gpu)
    with board.make(placed) as devices:
        with ExitStack() as stack:
            jobs = [stack.enter_context(board.start_job(device.uuid)) for device in devices]
            for job in jobs:
                _begin(job)
            listed = [list_processes_on(device.uuid) for device in devices]
            for device, pids in zip(devices, listed, strict=True):
                board.expect(len(pids) == 1, f"{len(pids)} processes are listed on GI {device.gi_id}, not its one job")
            board.expect(len(frozenset().union(*listed)) == len(jobs), "a job is listed on several instances")
            with nvml.session():
                used = gpu_reader.GpuReader(board.device.uuid).instance_memory_bytes()
            for device in devices:
                board.expect(used.get(device.gi_id, 0) > 0, f"GI {device.gi_id} uses no memory, although a job runs")
            first = devices[0]
            commands = [board.control.destruction_command(first.gi_id, ci) for ci in (first.ci_id, None)]
            destructions = [board.run_refused(words) for words in commands]
            for job in jobs:
                _end(board, job)
        for device in devices:
            left_over = gpu_reader.list_staying_processes(device.uuid, lambda process: True)
            board.expect(not left_over, f"processes are listed on GI {device.gi_id} after its job has ended")
    return {"layout": name_layout(placed), "num_processes": [len(pids) for pids in listed], "destroy": destructions}


def _begin(job: Job) -> dict[str, Any]:
    """Load all multiprocessors of a job's device; return what the job says of the load."""
    try:
        job.wait_for_device()
    except ConfigError as error:  # torch or Triton cannot use the GPU
        raise UntriedError(str(error)) from error
    sms = int(job.facts["multiprocessors"])
    job.begin(Load(blocks=sms * (int(job.facts["threads_per_multiprocessor"]) // _THREADS), threads=_THREADS))
    return job.wait_running()


def _end(board: MigBoard, job: Job) -> dict[str, Any]:
    job.stop()
    outcome = job.wait_done()
    board.expect(outcome["num_wrong"] == 0, f"{outcome['num_wrong']} results of a job are wrong")
    return outcome


def check_counters(board: MigBoard) -> dict[str, Any]:
    """Load the instances step by step, and compare the counters of every source with the load."""
    placed = choose_mixed_layout(board.gpu)
    with board.make(placed):
        measured = _measure(board)
    if not any(row.readings for row in measured.rows):
        reasons = "; ".join(measured.absent.values())
        raise UntriedError(f"no listener can read counters of instances: {reasons}")
    for text in (
        *map(str, plausibility.find_implausible(measured.rows)),
        *([measured.failure] if measured.failure else []),
        *(f"listener {name} stopped: {why}" for name, why in measured.died.items()),
        *(f"{number} results of the load on {where} are wrong" for where, number in measured.num_wrong.items()),
    ):
        board.expect(False, text)
    rows = [
        {"step": row.step, "where": row.where, "expected": row.expected, "readings": dict(row.readings)}
        for row in measured.rows
    ]
    return {"layout": name_layout(placed), "rows": rows, "absent": measured.absent}


def _measure(board: MigBoard) -> Measurement:
    folder = board.make_folder()
    if board.machine is None:
        start = partial(load_process.start_loader, environ={processes.MARK_VARIABLE: board.mark})
        try:
            return measure(board.divided_device, folder, start)
        except ConfigError as error:
            raise UntriedError(str(error)) from error
    # The counters come from a copy, because a source of readings would remain in the machine.
    with simulated_load.copy_machine("", str(board.machine), folder) as rehearsal:
        device = rehearsal.attach(board.divided_device)
        if not all(map(simulated_load.count_multiprocessors, list_loadable(device))):
            raise UntriedError("the number of SMs of this simulated model is unknown")
        return measure(device, folder, rehearsal.start_loader, REHEARSED_PACE)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rate:
    """Rounds per second of a job, and the GPU's mean clock meanwhile; `None` if the driver does not report it."""

    rounds_per_s: float
    clock_mhz: float | None

    @property
    def per_clock(self) -> float:
        return self.rounds_per_s / (self.clock_mhz or 1)


def check_isolation(board: MigBoard) -> dict[str, Any]:
    """Compare the rate of a job on the largest and smallest instance alone and with all other instances loaded."""
    placed = choose_mixed_layout(board.gpu)
    readings: dict[str, Any] = {}
    with board.make(placed) as devices:
        by_size = sorted(zip(placed, devices, strict=True), key=lambda pair: pair[0][0].size)
        for (profile, start), device in (by_size[0], by_size[-1]):
            name = f"{profile.name}@{start}"
            alone = _measure_rate(board, device, [])
            beside = _measure_rate(board, device, [other for other in devices if other != device])
            readings[name] = {"alone": dataclasses.asdict(alone), "beside": dataclasses.asdict(beside)}
            share = beside.per_clock / alone.per_clock
            text = f"neighbours slow the job on {name} to {share:.3f} of its rate alone"
            board.expect(share >= _LEAST_RATE, text)
    return readings


def _measure_rate(board: MigBoard, device: MigDevice, neighbours: list[MigDevice]) -> _Rate:
    """Measure the rate of a job while jobs load other instances."""
    clocks: list[float] = []
    with ExitStack() as stack:
        loading = [stack.enter_context(board.start_job(other.uuid)) for other in neighbours]
        for neighbour in loading:
            _begin(neighbour)
        job = stack.enter_context(board.start_job(device.uuid))
        rounds = _begin(job)["rounds"]
        with nvml.session():
            reader = gpu_reader.GpuReader(board.device.uuid)
            until = time.monotonic() + (_WINDOW_S if board.machine is None else 0)
            while time.monotonic() < until:
                clocks += [reading for name, reading in reader.quantities().items() if name == _CLOCK]
                time.sleep(0.2)
        rate = rounds / _end(board, job)["kernel_s"]
        for neighbour in loading:
            _end(board, neighbour)
    return _Rate(rounds_per_s=rate, clock_mhz=fmean(clocks) if clocks else None)


def check_mps(board: MigBoard) -> dict[str, Any]:
    """Run a daemon on each of two instances, with two clients on one of them, and check that each has its clients."""
    placed = choose_mixed_layout(board.gpu)
    if (program := board.programs.path(CONTROL)) is None:
        raise UntriedError(f"{CONTROL} is not on PATH")
    folder = board.make_folder()
    readings: list[dict[str, Any]] = []
    with board.make(placed) as devices:
        with ExitStack() as stack:
            for number, (device, num_clients) in enumerate(zip(devices, (2, 1), strict=False)):
                daemon = stack.enter_context(run_daemon(device.uuid, folder, program, board.journal, number=number))
                pipes = {"CUDA_MPS_PIPE_DIRECTORY": str(daemon.control.pipes)}
                jobs = [stack.enter_context(board.start_job(device.uuid, pipes)) for _ in range(num_clients)]
                for job in jobs:
                    _begin(job)
                daemon.check_health()
                clients = daemon.list_clients()
                kinds = sorted(process.kind for process in gpu_reader.list_processes(device.uuid))
                readings.append({"num_clients": len(clients), "kinds": kinds})
                board.expect(len(clients) == num_clients, f"{len(clients)} MPS clients on GI {device.gi_id}")
                board.expect(kinds.count("mps") == num_clients, f"the driver lists {kinds} on GI {device.gi_id}")
                for job in jobs:
                    _end(board, job)
        left_over = gpu_reader.list_staying_processes(board.device.uuid, lambda process: True)
        board.expect(not left_over, f"processes remain after the MPS daemons have ended: {left_over}")
    return {"layout": name_layout(placed), "daemons": readings}
