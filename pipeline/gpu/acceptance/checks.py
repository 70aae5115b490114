"""The checks of an acceptance, in their order: each reads and changes a board, and notes what does not hold.

Readings are JSON data. Those that are compared are equal on every GPU of a model with the same driver. The loads of
jobs and the limits of counters are those of the self-test.

The last check kills a child that divides the GPU at its k-th side effect, for k = 1, 2, ..., until it is complete. Each
time, the steps in the journal are undone as by the next start of a study.
"""

from __future__ import annotations

import ctypes
import dataclasses
import itertools
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from statistics import fmean
from subprocess import DEVNULL, Popen
from typing import Any

import yaml

from pipeline.base.system import helper_program
from pipeline.base.system.errors import ConfigError, SharingError
from pipeline.base.system.interrupts import UndoStack
from pipeline.clean import processes
from pipeline.gpu.acceptance.mig_board import CommandRecord, Job, MigBoard, UntriedError, name_layout, plan_layout
from pipeline.gpu.selftest import gpu_selftest
from pipeline.gpu.selftest.load_bounds import Place, fill, find_implausible
from pipeline.prepare.device import gpu_reader, nvml
from pipeline.prepare.mig import assignment, compute, division, layouts
from pipeline.prepare.mig.layouts import Placed
from pipeline.prepare.mig.mig_smi import MigSmi
from pipeline.prepare.mig.mig_state import MigDevice, list_processes_on
from pipeline.prepare.mig.profiles import MigGpu, Profile
from pipeline.prepare.mps.control_program import CONTROL
from pipeline.prepare.mps.mps_daemon import run_daemon

_MEMORY_SHARE = 0.02
"""Share by which the memory of an instance may differ from that of its profile."""
_NO_PROFILE = 120
"""A number that is the id of no profile."""
_WINDOW_S = 5.0
_LEAST_RATE = 0.95
"""Smallest rate of a job beside loaded neighbours, as a share of its rate alone, at equal clocks. Chosen."""
_CLOCK = "nvmlDeviceGetClockInfo(SM)"
_PR_SET_PDEATHSIG = 1  # source: linux/prctl.h
_WRITES = os.O_WRONLY | os.O_RDWR
_EFFECTS = frozenset({"os.mkdir", "os.rename", "os.remove"})
_PROGRAM_START = "subprocess.Popen"
_MOST_STEPS = 100

Run = Callable[[MigBoard], dict[str, Any]]
Action = Callable[[MigSmi, UndoStack], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One check; `checks.yaml` explains its facts."""

    name: str
    run: Run
    promise: str
    writes: str
    reads: str
    is_compared: bool = True
    needs_load: bool = False


def _check_mode(board: MigBoard) -> dict[str, Any]:
    state = board.control.read()
    board.expect(state.is_on and state.is_settled, "MIG mode is not on after the switch")
    board.expect(not state.instances and not state.devices, "a GPU that was switched to MIG mode has instances")
    readings: dict[str, Any] = {"found": "on" if board.was_on else "off", "on": _describe_mode(board)}
    if not board.was_on:
        readings["printed_off"] = board.switch_mode(is_on=False).status
        readings["off"] = _describe_mode(board)
        board.expect(readings["off"] == {"now": False, "pending": False}, "MIG mode cannot be switched off")
        first = board.gpu.profiles[0]
        readings["created_without_mode"] = board.attempt(first.profile_id, first.starts[0])
        readings["printed_on"] = board.switch_mode(is_on=True).status
        readings["on_again"] = _describe_mode(board)
        board.expect(readings["on_again"] == {"now": True, "pending": True}, "MIG mode cannot be switched on again")
    return readings


def _describe_mode(board: MigBoard) -> dict[str, bool]:
    state = board.control.read()
    return {"now": state.is_on, "pending": state.is_pending_on}


def _check_profiles(board: MigBoard) -> dict[str, Any]:
    gpu = board.gpu
    sizes = {"compute_slices": gpu.compute_slices, "memory_slices": gpu.memory_slices, "sms": gpu.multiprocessors}
    readings: dict[str, Any] = {"gpu": sizes}
    for profile in gpu.profiles:
        ends = [start + profile.memory_slices for start in profile.starts]
        board.expect(bool(ends) and max(ends) <= gpu.memory_slices, f"{profile.name} has impossible placements")
        fits = layouts.place(gpu, [profile] * profile.max_instances)
        board.expect(fits is not None, f"{profile.max_instances} instances of {profile.name} do not fit")
        board.expect(layouts.resolve(gpu, profile.name) == profile, f"{profile.name} is the name of two profiles")
        keys = ("compute_slices", "memory_slices", "max_instances", "multiprocessors", "memory_mib")
        facts = {key: getattr(profile, key) for key in keys}
        readings[profile.name] = {"id": profile.profile_id, "starts": list(profile.starts), **facts}
    return readings


def _check_placements(board: MigBoard) -> dict[str, Any]:
    readings = {}
    for profile in board.gpu.profiles:
        for start in profile.starts:
            name = f"{profile.name}@{start}"
            with board.case(name), board.make(((profile, start),)) as (device,):
                readings[name] = _read_instance(board, name, profile, device)
    return readings


def _read_instance(board: MigBoard, name: str, profile: Profile, device: MigDevice) -> dict[str, Any]:
    """Read a GPU instance that has one full compute instance, and compare it with its profile."""
    readings = board.read_devices(device.gi_id)
    board.expect(len(readings) == 1, f"{name} has {len(readings)} MIG devices")
    reading = readings[0]
    for key, planned in (
        ("profile", profile.name),
        ("compute_slices", profile.compute_slices),
        ("multiprocessors", profile.multiprocessors),
    ):
        if planned is not None and reading[key] is not None:
            board.expect(reading[key] == planned, f"{name} has {key} {reading[key]}, not {planned}")
    if profile.memory_mib:
        change = abs(reading["memory_mib"] / profile.memory_mib - 1)
        text = f"{name} has {reading['memory_mib']} MiB, not {profile.memory_mib}"
        board.expect(change <= _MEMORY_SHARE, text)
    return reading


def _check_layouts(board: MigBoard) -> dict[str, Any]:
    readings = {}
    for placed in layouts.list_maximal_layouts(board.gpu):
        name = name_layout(placed)
        with board.case(name), board.make(placed) as devices:
            uuids = {device.uuid for device in devices}
            board.expect(len(uuids) == len(placed), f"{name} has {len(uuids)} MIG devices with separate UUIDs")
            readings[name] = {
                "gi_ids": [device.gi_id for device in devices],
                "further": board.attempt(*_choose_further(board.gpu, placed)),
            }
    return readings


def _choose_further(gpu: MigGpu, placed: Placed) -> tuple[int, int]:
    """Choose the smallest profile and a start that is free, or else one that is taken."""
    smallest = layouts.list_slice_profiles(gpu)[0]
    used_slices = {slice_ for profile, start in placed for slice_ in range(start, start + profile.memory_slices)}
    free = [start for start in smallest.starts if start not in used_slices]
    return smallest.profile_id, (free or smallest.starts)[0]


def _check_compute_instances(board: MigBoard) -> dict[str, Any]:
    readings = {}
    for profile in layouts.list_slice_profiles(board.gpu):
        for parts in _list_divisions(profile):
            name = f"{profile.name}({'+'.join(f'{part}c' for part in parts)})"
            with board.case(name), board.make(((profile, profile.starts[0]),), {0: parts}) as devices:
                inside = board.read_devices()
                readings[name] = inside
                widths = tuple(device.compute_slices for device in devices)
                board.expect(widths == parts, f"{name} has compute instances of the widths {widths}")
                memories = {reading["memory_mib"] for reading in inside}
                board.expect(len(memories) == 1, f"compute instances of {name} do not share its memory: {memories}")
                board.expect(len({device.uuid for device in devices}) == len(parts), f"{name} has equal UUIDs")
                board.expect(len({device.gi_id for device in devices}) == 1, f"{name} is in several GPU instances")
    return readings


def _list_divisions(profile: Profile) -> Iterator[tuple[int, ...]]:
    """Yield each set of widths, wider ones first, that uses all compute slices of a GPU instance."""
    widths = compute.list_widths(profile)
    for length in range(2, profile.compute_slices + 1):
        for parts in itertools.combinations_with_replacement(sorted(widths, reverse=True), length):
            if sum(parts) == profile.compute_slices:
                yield parts


def _check_placement_around(board: MigBoard) -> dict[str, Any]:
    readings = {}
    for profile in layouts.list_slice_profiles(board.gpu):
        for start in profile.starts:
            name = f"{profile.name}@{start}"
            with board.case(name), board.make(((profile, start),)) as (resident,):
                readings[name] = _fill_around(board, name, resident, ((profile, start),))
    return readings


def _fill_around(board: MigBoard, name: str, resident: MigDevice, around: Placed) -> list[str]:
    """Add the largest instance that fits, then fill what is left around both; return the instances and their ids."""
    pool = layouts.list_slice_profiles(board.gpu)
    fitting = ((profile, layouts.place(board.gpu, [profile], around)) for profile in reversed(pool))
    largest = next(((profile, layout) for profile, layout in fitting if layout is not None), None)
    board.expect(resident in board.control.read().devices, f"{name} changed while instances were created beside it")
    if largest is None:
        return []
    profile, layout = largest
    start = layout.instances[0].start
    with board.make_beside(profile, start) as created:
        filled = _fill_around(board, name, resident, (*around, (profile, start)))
        return [f"{profile.name}@{start} is GI {created.gi_id}", *filled]


def _check_existing_layout(board: MigBoard) -> dict[str, Any]:
    placed = _choose_mixed_layout(board.gpu)
    requests, uuids = [profile.name for profile, _ in placed], set[str]()
    readings: dict[str, Any] = {"layout": name_layout(placed)}
    with board.case("using instances"), board.make(placed) as devices:
        before = board.control.read()
        assigned = assignment.assign(board.divided_device, requests)
        board.expect([assignment.read_profile(d) for d in assigned] == requests, "jobs get devices of other profiles")
        board.expect(len({d.uuid for d in assigned}) == len(requests), "two jobs get the same MIG device")
        try:
            division.refuse_unready(board.device, before)
        except SharingError:
            pass
        else:
            board.expect(False, "a study would divide a GPU that has instances")
        board.expect(board.control.read() == before, "existing instances changed")
        uuids = {device.uuid for device in devices}
    with board.case("creating the same instances again"), board.make(placed) as devices:
        readings["has_same_uuids_again"] = {device.uuid for device in devices} == uuids
    return readings


def _choose_mixed_layout(gpu: MigGpu) -> Placed:
    """Choose the maximal layout with the most different profiles, then with the most instances."""
    return max(layouts.list_maximal_layouts(gpu), key=lambda placed: (len({p for p, _ in placed}), len(placed)))


def _check_refusals(board: MigBoard) -> dict[str, Any]:
    readings: dict[str, Any] = {}
    control, gpu, pool = board.control, board.gpu, layouts.list_slice_profiles(board.gpu)
    smallest, largest = pool[0], pool[-2]
    readings["start outside"] = board.attempt(smallest.profile_id, gpu.memory_slices)
    readings["unknown profile"] = board.attempt(_NO_PROFILE, 0)
    unaligned = next((s for s in range(gpu.memory_slices) if s not in largest.starts), None)
    if unaligned is not None:
        readings[f"{largest.name} at {unaligned}"] = board.attempt(largest.profile_id, unaligned)
    readings["no such instance"] = board.run_refused(control.destruction_command(_NO_PROFILE))
    with board.case(f"refusals beside {largest.name}"), board.make(((largest, largest.starts[0]),)) as (device,):
        readings["start taken"] = board.attempt(smallest.profile_id, largest.starts[0])
        readings["compute instance in a full GPU instance"] = board.run_refused(
            control.part_creation_command(device.gi_id, compute.find_profile_id(largest, largest.compute_slices))
        )
        readings["no such compute instance"] = board.run_refused(control.destruction_command(device.gi_id, 7))
        # Last, because a driver that destroys it would change what the other commands need.
        readings["destroy with compute instance"] = board.run_refused(control.destruction_command(device.gi_id))
    for profile in (*pool, *(p for p in gpu.profiles if p.suffix == "+me")):
        layout = layouts.plan_layout(gpu, [profile] * profile.max_instances)
        placed = tuple((instance.profile, instance.start) for instance in layout.instances)
        starts = [start for _, start in placed]
        other_starts = [start for start in profile.starts if start not in starts] or starts
        with board.case(f"one more {profile.name}"), board.make(placed):
            readings[f"one more {profile.name}"] = board.attempt(profile.profile_id, other_starts[0])
    return readings


def _check_jobs(board: MigBoard) -> dict[str, Any]:
    placed = _choose_mixed_layout(board.gpu)
    with board.make(placed) as devices:
        with _run_jobs(board, devices):
            listed = [list_processes_on(device.uuid) for device in devices]
            for device, pids in zip(devices, listed, strict=True):
                board.expect(len(pids) == 1, f"{len(pids)} processes are listed on GI {device.gi_id}, not its one job")
            board.expect(len(frozenset().union(*listed)) == len(devices), "a job is listed on several instances")
            with nvml.session():
                used = gpu_reader.GpuReader(board.device.uuid).instance_memory_bytes()
            for device in devices:
                board.expect(used.get(device.gi_id, 0) > 0, f"GI {device.gi_id} uses no memory, although a job runs")
            first = devices[0]
            commands = [board.control.destruction_command(first.gi_id, ci) for ci in (first.ci_id, None)]
            destructions = [board.run_refused(words) for words in commands]
        for device in devices:
            left_over = gpu_reader.list_staying_processes(device.uuid, lambda process: True)
            board.expect(not left_over, f"processes are listed on GI {device.gi_id} after its job has ended")
    return {"layout": name_layout(placed), "num_processes": [len(pids) for pids in listed], "destroy": destructions}


@contextmanager
def _run_jobs(
    board: MigBoard, devices: Sequence[MigDevice], environ: Mapping[str, str] | None = None
) -> Iterator[None]:
    """Run a job on each device, which loads all its multiprocessors; note wrong results."""
    with ExitStack() as stack:
        jobs = [stack.enter_context(board.start_job(device.uuid, environ)) for device in devices]
        for job in jobs:
            _begin(job)
        yield
        for job in jobs:
            _end(board, job)


def _begin(job: Job) -> dict[str, Any]:
    """Load all multiprocessors of a job's device; return what the job says of the load."""
    try:
        job.wait_for_device()
    except ConfigError as error:  # torch or Triton cannot use the GPU
        raise UntriedError(str(error)) from error
    sms, threads_each = (int(job.facts[key]) for key in ("multiprocessors", "threads_per_multiprocessor"))
    job.begin(fill(Place(multiprocessors=sms, counted=sms, threads_each=threads_each)))
    return job.wait_running()


def _end(board: MigBoard, job: Job) -> dict[str, Any]:
    job.stop()
    outcome = job.wait_done()
    board.expect(outcome["num_wrong"] == 0, f"{outcome['num_wrong']} results of a job are wrong")
    return outcome


def _check_counters(board: MigBoard) -> dict[str, Any]:
    placed = _choose_mixed_layout(board.gpu)
    with board.make(placed):
        measured = _measure_counters(board)
    if not any(row.readings for row in measured.rows):
        raise UntriedError(f"no listener can read counters of instances: {'; '.join(measured.absent.values())}")
    board.broken += measured.list_trouble(find_implausible(measured.rows))
    rows = [
        {"step": row.step, "where": row.where, "expected": row.expected, "readings": dict(row.readings)}
        for row in measured.rows
    ]
    return {"layout": name_layout(placed), "rows": rows, "absent": measured.absent}


def _measure_counters(board: MigBoard) -> gpu_selftest.Measurement:
    """Measure as the self-test; of a simulated machine, a copy: a source of readings would remain in the machine."""
    device, machine = board.divided_device, board.machine
    if machine is not None:
        device = dataclasses.replace(device, kind="simulated")
        if (reason := gpu_selftest.explain_unchecked(device)) is not None:
            raise UntriedError(reason)
    environ = {processes.MARK_VARIABLE: board.mark}
    try:
        return gpu_selftest.measure_device(device, board.make_folder(), machine=machine, environ=environ)
    except ConfigError as error:
        raise UntriedError(str(error)) from error


def _check_isolation(board: MigBoard) -> dict[str, Any]:
    placed = _choose_mixed_layout(board.gpu)
    readings: dict[str, Any] = {}
    with board.make(placed) as devices:
        by_size = sorted(zip(placed, devices, strict=True), key=lambda pair: pair[0][0].size)
        for (profile, start), device in (by_size[0], by_size[-1]):
            name = f"{profile.name}@{start}"
            alone = _measure_rate(board, device, [])
            shared = _measure_rate(board, device, [other for other in devices if other != device])
            readings[name] = {"alone": alone, "beside": shared}
            per_clock = [rate["rounds_per_s"] / (rate["clock_mhz"] or 1) for rate in (alone, shared)]
            share = per_clock[1] / per_clock[0]
            text = f"neighbours slow the job on {name} to {share:.3f} of its rate alone"
            board.expect(share >= _LEAST_RATE, text)
    return readings


def _measure_rate(board: MigBoard, device: MigDevice, neighbours: Sequence[MigDevice]) -> dict[str, Any]:
    """Measure the rate of a job while jobs load other instances, and the GPU's mean clock, if the driver reports it."""
    clocks: list[float] = []
    with _run_jobs(board, neighbours), board.start_job(device.uuid) as job:
        rounds = _begin(job)["rounds"]
        with nvml.session():
            reader = gpu_reader.GpuReader(board.device.uuid)
            until = time.monotonic() + (_WINDOW_S if board.machine is None else 0)
            while time.monotonic() < until:
                clocks += [reading for name, reading in reader.quantities().items() if name == _CLOCK]
                time.sleep(0.2)
        rate = rounds / _end(board, job)["kernel_s"]
    return {"rounds_per_s": rate, "clock_mhz": fmean(clocks) if clocks else None}


def _check_mps(board: MigBoard) -> dict[str, Any]:
    placed = _choose_mixed_layout(board.gpu)
    if (program := board.programs.path(CONTROL)) is None:
        raise UntriedError(f"{CONTROL} is not on PATH")
    folder = board.make_folder()
    readings: list[dict[str, Any]] = []
    with board.make(placed) as devices:
        with ExitStack() as stack:
            for number, (device, num_clients) in enumerate(zip(devices, (2, 1), strict=False)):
                daemon = stack.enter_context(run_daemon(device.uuid, folder, program, board.journal, number=number))
                pipes = {"CUDA_MPS_PIPE_DIRECTORY": str(daemon.control.pipes)}
                with _run_jobs(board, [device] * num_clients, pipes):
                    daemon.check_health()
                    clients = daemon.list_clients()
                    kinds = sorted(process.kind for process in gpu_reader.list_processes(device.uuid))
                    readings.append({"num_clients": len(clients), "kinds": kinds})
                    board.expect(len(clients) == num_clients, f"{len(clients)} MPS clients on GI {device.gi_id}")
                    board.expect(kinds.count("mps") == num_clients, f"the driver lists {kinds} on GI {device.gi_id}")
        left_over = gpu_reader.list_staying_processes(board.device.uuid, lambda process: True)
        board.expect(not left_over, f"processes remain after the MPS daemons have ended: {left_over}")
    return {"layout": name_layout(placed), "daemons": readings}


def _check_kill(board: MigBoard) -> dict[str, Any]:
    pool = layouts.list_slice_profiles(board.gpu)
    divided = next(profile for profile in pool if list(_list_divisions(profile)))
    layout = layouts.place(board.gpu, [divided, pool[0]]) or layouts.plan_layout(board.gpu, [divided])
    placed = tuple((instance.profile, instance.start) for instance in layout.instances)
    planned = plan_layout(placed, {0: max(_list_divisions(divided), key=len)})

    def divide(control: MigSmi, stack: UndoStack) -> None:
        division.divide(control, control.read(), planned, board.journal, stack)

    def switch_on(control: MigSmi, stack: UndoStack) -> None:
        stack.enter_context(board.journal.guard("mig_mode", **control.to_mode_record()))
        control.switch_on()

    readings = {"layout": name_layout(placed), "dividing": _kill_everywhere(board, "dividing the GPU", divide)}
    if not board.was_on:
        board.switch_off()
        readings["switching"] = _kill_everywhere(board, "switching MIG mode on", switch_on)
        board.switch_mode(is_on=True)
    return readings


def _kill_everywhere(board: MigBoard, name: str, action: Action) -> dict[str, int]:
    """Kill a child at each side effect, then during each command; return the numbers of kills."""
    before = board.control.read()
    counts = {}
    for moment in ("at a step", "during a command"):
        for number in range(1, _MOST_STEPS):
            status = _run_child(board, action, number, is_during=moment == "during a command")
            place = f"a kill {moment}, number {number}, of {name}"
            board.expect(board.control.read() == before, f"the GPU is not restored after {place}")
            if status != -signal.SIGKILL:
                board.expect(status == 0, f"{name} failed in a child (status {status})")
                break
        counts[moment] = number - 1
    return counts


def _run_child(board: MigBoard, action: Action, number: int, *, is_during: bool) -> int | None:
    """Run the action in a child that is killed at a step; undo what the child did, and return its exit status."""
    earlier = {step.step_id for step in board.journal.read_steps()}
    arguments = (board, action, number, os.getpid(), is_during)
    child = multiprocessing.get_context("fork").Process(target=_die_at, args=arguments)
    with UndoStack() as stack:
        stack.callback(_end_child, board, child, earlier)
        child.start()
        child.join()
    return child.exitcode


def _end_child(board: MigBoard, child: BaseProcess, earlier: set[str]) -> None:
    """End the child if an interrupt came before its end, and undo its steps."""
    if child.pid is not None:
        child.kill()
        child.join()
    for step in reversed(board.journal.read_steps()):
        if step.step_id not in earlier:
            board.journal.undo(step)


def _die_at(board: MigBoard, action: Action, number: int, parent: int, is_during: bool) -> None:
    """Run the action, and die at a step; the parent undoes the steps, as after a kill at the last one."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    programs, countdown = board.programs, itertools.count(1 - number)
    if is_during:
        programs = dataclasses.replace(programs, execute=_make_deadly(board.record, countdown))
    else:
        sys.addaudithook(_make_hook(str(board.journal.path.parent), countdown))
    action(MigSmi.locate(programs, board.device.uuid), UndoStack())
    os._exit(0)


def _make_hook(folder: str, countdown: Iterator[int]) -> Callable[[str, tuple[Any, ...]], None]:
    """Make an audit hook that kills this process before a write to the journal or a start of a program."""

    def hear(event: str, arguments: tuple[Any, ...]) -> None:
        is_write = event in _EFFECTS or (event == "open" and bool(arguments[2] & _WRITES))
        is_effect = event == _PROGRAM_START or (is_write and str(arguments[0]).startswith(folder))
        if is_effect and next(countdown) == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    return hear


def _make_deadly(
    record: CommandRecord, countdown: Iterator[int]
) -> Callable[[Sequence[str]], helper_program.Completed]:
    """Return a function that executes commands, and kills this process while one of them runs."""

    def execute(words: Sequence[str]) -> helper_program.Completed:
        if next(countdown) == 0:
            Popen(list(words), stdout=DEVNULL, stderr=DEVNULL, start_new_session=True)
            os.kill(os.getpid(), signal.SIGKILL)
        return record.execute(words)

    return execute


_RUNS: dict[str, Run] = {
    "mode": _check_mode,
    "profiles": _check_profiles,
    "placements": _check_placements,
    "layouts": _check_layouts,
    "compute-instances": _check_compute_instances,
    "around": _check_placement_around,
    "existing": _check_existing_layout,
    "refusals": _check_refusals,
    "jobs": _check_jobs,
    "counters": _check_counters,
    "isolation": _check_isolation,
    "mps": _check_mps,
    "kill": _check_kill,
}
_FACTS = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
CHECKS = tuple(Check(name=name, run=_RUNS[name], **facts) for name, facts in _FACTS.items())
