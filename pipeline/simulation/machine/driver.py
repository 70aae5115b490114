"""The simulated driver: each method is one call of NVML, which changes the shared state or is refused.

Clients of GPUs are processes with NVML open, and processes with a context and memory on a GPU.

The library under pynvml and the program nvidia-smi both use this driver, so they always agree. Source: nvml.h.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace

from pipeline.simulation.machine import codes, queries
from pipeline.simulation.machine.codes import IN_USE, MEMORY, NOT_FOUND, DriverError
from pipeline.simulation.machine.queries import (
    find_ci_profile,
    find_profile,
    instance_of,
    memory_capacity_mib,
    mig_devices,
    model_of,
    profile_of,
)
from pipeline.simulation.machine.state_file import (
    ComputeInstance,
    Gpu,
    GpuInstance,
    Process,
    Session,
    State,
    StateFile,
    mig_uuid,
    start_ticks,
)

# With these codes, nvmlDeviceSetMigMode succeeds, but the mode stays pending. Source: nvml.h, activationStatus.
_PENDING_CODES = frozenset({codes.NOT_SUPPORTED, codes.RESET_REQUIRED, codes.IN_USE})


class Driver:
    """The driver of the machine in a file. A refused call raises `DriverError` and changes nothing."""

    def __init__(self, state_file: StateFile) -> None:
        self._file = state_file

    def state(self) -> State:
        return self._file.read()

    def check(self, function: str, gpu: int | None = None) -> None:
        # Without injected faults, which is the usual case, reading without the lock is enough.
        if any(fault.function == function for fault in self._file.faults()):
            with self._file.change() as cell:
                cell.meet(function, gpu)

    def pause_dcgm(self, *, is_paused: bool) -> None:
        """Make DCGM's host engine release the profiling counters, or resume profiling."""
        with self._file.change() as cell:
            cell.state = replace(cell.state, dcgm_is_paused=is_paused)

    def set_mig_mode(self, index: int, *, is_on: bool) -> int:
        """Set MIG mode; return activation status 0 if the mode is in force, else the code of the reason for pending.

        An Ampere GPU must be reset, which removes its instances. A client prevents the reset; clients are processes on
        the GPU, and other processes with NVML open. Later GPUs change the mode at once unless a process computes on
        them; while they have instances, MIG mode cannot be disabled.
        """
        with self._file.change() as cell:
            forced = 0
            try:
                cell.meet("nvmlDeviceSetMigMode", index)
            except DriverError as error:
                if error.code not in _PENDING_CODES:
                    raise
                forced = error.code
            gpu, status = cell.state.gpus[index], 0
            needs_reset = model_of(gpu).mode_needs_reset
            if gpu.mig_current != is_on:
                if forced or gpu.processes or (needs_reset and _has_other_session(cell.state)):
                    status = forced or codes.IN_USE
                elif gpu.instances and not needs_reset:
                    raise DriverError(codes.IN_USE)
                else:
                    gpu = replace(gpu, mig_current=is_on, instances=())
            cell.state = cell.state.replace_gpu(index, replace(gpu, mig_pending=is_on))
            return status

    def set_compute_mode(self, index: int, mode: int) -> None:
        """Set the compute mode: 0 default, 2 prohibited, 3 exclusive process; under MIG, only 0 is allowed."""

        def change(gpu: Gpu) -> Gpu:
            if gpu.mig_current and mode:
                raise DriverError(codes.NOT_SUPPORTED)
            return replace(gpu, compute_mode=mode)

        self._change("nvmlDeviceSetComputeMode", index, change)

    def set_timeslice(self, index: int, timeslice: int) -> None:
        """Set the time slice of processes that share the GPU; refused under MIG."""

        def change(gpu: Gpu) -> Gpu:
            if gpu.mig_current:
                raise DriverError(codes.NOT_SUPPORTED)
            return replace(gpu, timeslice=timeslice)

        self._change("compute-policy", index, change)

    def create_gpu_instance(self, index: int, profile_id: int, start: int | None = None) -> GpuInstance:
        """Create a GPU instance at the given start; without a start, the driver chooses one."""

        def change(gpu: Gpu) -> Gpu:
            if not gpu.mig_current:
                raise DriverError(codes.NOT_SUPPORTED)
            model, profile = model_of(gpu), find_profile(gpu, profile_id)
            if start is not None and start not in profile.starts:
                raise DriverError(codes.INVALID_ARGUMENT)
            free = queries.free_starts(model, gpu.instances, profile)
            if start is not None and gpu.health.mig_fault == "overlapping":
                num_present = sum(other.profile_id == profile_id for other in gpu.instances)
                free = (start,) if num_present < profile.max_instances else ()
            if not free or (start is not None and start not in free):
                raise DriverError(codes.INSUFFICIENT_RESOURCES)
            selected = free[0] if start is None else start
            if gpu.health.mig_fault == "displaced":
                selected = next((other for other in free if other != start), selected)
            instance = GpuInstance(
                id=queries.gpu_instance_id(model, index, selected, profile.memory_slices),
                profile_id=profile_id,
                start=selected,
                size=profile.memory_slices,
                made_s=time.monotonic(),
            )
            return replace(gpu, instances=(*gpu.instances, instance))

        return self._change("nvmlDeviceCreateGpuInstance", index, change).instances[-1]

    def destroy_gpu_instance(self, index: int, instance_id: int) -> None:
        """Remove a GPU instance, which must have no compute instance."""

        def change(gpu: Gpu) -> Gpu:
            instance = instance_of(gpu, instance_id)
            if instance.compute_instances and gpu.health.mig_fault != "destroys_filled":
                raise DriverError(codes.IN_USE)
            return replace(gpu, instances=tuple(other for other in gpu.instances if other is not instance))

        self._change("nvmlGpuInstanceDestroy", index, change)

    def create_compute_instance(self, index: int, instance_id: int, profile_id: int | None = None) -> ComputeInstance:
        """Create a compute instance in a GPU instance, by default with all its compute slices."""

        def change(gpu: Gpu) -> Gpu:
            instance = instance_of(gpu, instance_id)
            profile, compute_instances = profile_of(gpu, instance), instance.compute_instances
            ci_profile = profile.ci_profiles[-1] if profile_id is None else find_ci_profile(profile, profile_id)
            if gpu.health.mig_fault == "narrow":
                ci_profile = profile.ci_profiles[0]
            free = queries.free_ci_starts(profile, compute_instances, ci_profile)
            if not free:
                raise DriverError(codes.INSUFFICIENT_RESOURCES)
            compute_instance = ComputeInstance(
                id=min(set(range(len(compute_instances) + 1)) - {other.id for other in compute_instances}),
                profile_id=ci_profile.id,
                start=free[0],
                size=ci_profile.compute_slices,
            )
            return _replace_compute_instances(gpu, instance, (*compute_instances, compute_instance))

        gpu = self._change("nvmlGpuInstanceCreateComputeInstance", index, change)
        return instance_of(gpu, instance_id).compute_instances[-1]

    def destroy_compute_instance(self, index: int, instance_id: int, ci_id: int) -> None:
        """Remove a compute instance, which no process may use."""

        def change(gpu: Gpu) -> Gpu:
            instance = instance_of(gpu, instance_id)
            remaining = tuple(other for other in instance.compute_instances if other.id != ci_id)
            if len(remaining) == len(instance.compute_instances):
                raise DriverError(codes.NOT_FOUND)
            place = (instance_id, ci_id)
            is_used = any((p.gpu_instance_id, p.compute_instance_id) == place for p in gpu.processes)
            if is_used and gpu.health.mig_fault != "destroys_used":
                raise DriverError(codes.IN_USE)
            return _replace_compute_instances(gpu, instance, remaining)

        self._change("nvmlComputeInstanceDestroy", index, change)

    def reset(self, index: int) -> None:
        """Reset a GPU, which must have no clients: apply a pending MIG mode and remove the instances."""
        with self._file.change() as cell:
            gpu = cell.state.gpus[index]
            if gpu.processes or _has_other_session(cell.state):
                raise DriverError(codes.IN_USE)
            cell.state = cell.state.replace_gpu(index, replace(gpu, mig_current=gpu.mig_pending, instances=()))

    def _change(self, function: str, index: int, change: Callable[[Gpu], Gpu]) -> Gpu:
        with self._file.change() as cell:
            cell.meet(function, index)
            gpu = change(cell.state.gpus[index])
            cell.state = cell.state.replace_gpu(index, gpu)
            return gpu


def _has_other_session(state: State) -> bool:
    return any(session.pid != os.getpid() for session in state.sessions)


def _replace_compute_instances(gpu: Gpu, instance: GpuInstance, compute_instances: tuple[ComputeInstance, ...]) -> Gpu:
    changed = replace(instance, compute_instances=compute_instances)
    return replace(gpu, instances=tuple(changed if other is instance else other for other in gpu.instances))


EXCLUSIVE_PROCESS, PROHIBITED = 3, 2  # Source: nvml.h, nvmlComputeMode_t


class Clients:
    """The clients of the machine in a file."""

    def __init__(self, state_file: StateFile) -> None:
        self._file = state_file

    def open_session(self) -> None:
        """Open NVML for this process, which then is a client of every GPU; an injected fault can prevent this."""
        with self._file.change() as cell:
            cell.meet("nvmlInitWithFlags", None)
            pid = os.getpid()
            other_sessions = tuple(session for session in cell.state.sessions if session.pid != pid)
            num_open = 1 + sum(session.num_open for session in cell.state.sessions if session.pid == pid)
            session = Session(pid=pid, num_open=num_open, start_ticks=start_ticks(pid))
            cell.state = replace(cell.state, sessions=(*other_sessions, session))

    def close_session(self) -> None:
        """Close one of this process's sessions."""
        with self._file.change() as cell:
            sessions = (
                replace(session, num_open=session.num_open - (session.pid == os.getpid()))
                for session in cell.state.sessions
            )
            cell.state = replace(cell.state, sessions=tuple(session for session in sessions if session.num_open > 0))

    def hold(
        self, device_uuid: str, pid: int, name: str, memory_mib: int, kind: str = "C", *, never_ends: bool = False
    ) -> None:
        """Assign a context and memory on a GPU or MIG device to a process until it ends, or change the amount.

        A whole GPU can be used only without MIG. A process that `never_ends` is fictitious and need not exist.

        Raises:
            DriverError: the device or process does not exist (NOT_FOUND), the compute mode excludes the process
                (IN_USE), or the memory of the GPU or GPU instance is too small (MEMORY).
        """
        began = None if never_ends else start_ticks(pid)
        if began is None and not never_ends:
            raise DriverError(NOT_FOUND)
        with self._file.change() as cell:
            index, (instance_id, ci_id) = _device(cell.state, device_uuid)
            gpu = cell.state.gpus[index]
            process = Process(
                pid=pid,
                name=name,
                memory_mib=memory_mib,
                kind=kind,
                gpu_instance_id=instance_id,
                compute_instance_id=ci_id,
                start_ticks=began,
            )
            cell.state = cell.state.replace_gpu(index, _add_process(gpu, process))

    def release(self, pid: int) -> None:
        with self._file.change() as cell:
            gpus = (replace(g, processes=tuple(p for p in g.processes if p.pid != pid)) for g in cell.state.gpus)
            cell.state = replace(cell.state, gpus=tuple(gpus))


def _add_process(gpu: Gpu, process: Process) -> Gpu:
    is_taken = any(other.kind == "C" and other.pid != process.pid for other in gpu.processes) and process.kind == "C"
    if gpu.compute_mode == PROHIBITED or (gpu.compute_mode == EXCLUSIVE_PROCESS and is_taken):
        raise DriverError(IN_USE)
    # A process may have contexts, and hold memory, on several MIG devices of one GPU.
    other_processes = [other for other in gpu.processes if _context(other) != _context(process)]
    beside_mib = sum(other.memory_mib for other in other_processes if other.gpu_instance_id == process.gpu_instance_id)
    if beside_mib + process.memory_mib > memory_capacity_mib(gpu, process.gpu_instance_id):
        raise DriverError(MEMORY)
    if len(other_processes) == len(gpu.processes):
        return replace(gpu, processes=(*gpu.processes, process))
    held = (process if _context(other) == _context(process) else other for other in gpu.processes)
    return replace(gpu, processes=tuple(held))


def _context(process: Process) -> tuple[int, int | None, int | None]:
    return process.pid, process.gpu_instance_id, process.compute_instance_id


def _device(state: State, uuid: str) -> tuple[int, tuple[int | None, int | None]]:
    """Return the index of the GPU and the two ids of a MIG device."""
    for index, gpu in enumerate(state.gpus):
        # In MIG mode, no process can use the whole GPU.
        if gpu.uuid == uuid and not gpu.mig_current:
            return index, (None, None)
        for instance, ci in mig_devices(gpu):
            if mig_uuid(gpu, instance, ci) == uuid:
                return index, (instance.id, ci.id)
    raise DriverError(NOT_FOUND)
