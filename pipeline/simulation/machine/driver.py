"""The simulated driver: each method is one call of NVML, which changes the shared state or is refused.

The library under pynvml and the program nvidia-smi both use this driver, so they always agree. Source: nvml.h.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace

from pipeline.simulation.machine import codes, placement
from pipeline.simulation.machine.codes import DriverError
from pipeline.simulation.machine.queries import find_ci_profile, find_profile, instance_of, model_of, profile_of
from pipeline.simulation.machine.state_file import ComputeInstance, Gpu, GpuInstance, State, StateFile

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
            free = placement.free_starts(model, gpu.instances, profile)
            if start is not None and gpu.health.mig_fault == "overlapping":
                num_present = sum(other.profile_id == profile_id for other in gpu.instances)
                free = (start,) if num_present < profile.max_instances else ()
            if not free or (start is not None and start not in free):
                raise DriverError(codes.INSUFFICIENT_RESOURCES)
            chosen = free[0] if start is None else start
            if gpu.health.mig_fault == "displaced":
                chosen = next((other for other in free if other != start), chosen)
            instance = GpuInstance(
                id=placement.gpu_instance_id(model, index, chosen, profile.memory_slices),
                profile_id=profile_id,
                start=chosen,
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
            free = placement.free_ci_starts(profile, compute_instances, ci_profile)
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
