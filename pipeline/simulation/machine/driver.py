"""What the simulated driver does: each method is one call of NVML, carried out on the shared state or refused.

Both the library beneath pynvml and the program nvidia-smi stand on it, so that they cannot disagree.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from pipeline.base.mig_table import GiProfile, Model
from pipeline.simulation.machine import placement
from pipeline.simulation.machine.codes import (
    IN_USE,
    INSUFFICIENT_RESOURCES,
    INVALID_ARGUMENT,
    NOT_FOUND,
    NOT_SUPPORTED,
    RESET_REQUIRED,
    DriverError,
)
from pipeline.simulation.machine.faults import meet
from pipeline.simulation.machine.queries import (
    division_of,
    instance_of,
    model_of,
    profile_of,
)
from pipeline.simulation.machine.state import (
    ComputeInstance,
    Gpu,
    GpuInstance,
    State,
    StateFile,
)

# The calls of nvmlDeviceSetMigMode that do not fail but leave the mode pending. Source: nvml.h, activationStatus.
_PENDING_CODES = frozenset({NOT_SUPPORTED, RESET_REQUIRED, IN_USE})

_T = TypeVar("_T")


class Driver:
    """The driver of the machine that a file holds.

    Args:
        state_file: the machine.
    """

    def __init__(self, state_file: StateFile) -> None:
        self._file = state_file

    def state(self) -> State:
        """The machine as it is now."""
        return self._file.read()

    def check(self, function: str, gpu: int | None = None) -> None:
        """Fail as a fault says, if one concerns this call.

        Raises:
            DriverError: it fails.
        """
        # A look without the lock is enough where nothing is injected, which is nearly always.
        if any(fault.function == function for fault in self.state().faults):
            with self._file.changing() as cell:
                meet(cell, function, gpu)

    def pause_dcgm(self, *, is_paused: bool) -> None:
        """Let DCGM's host engine leave the profiling counters alone, or take them again."""
        with self._file.changing() as cell:
            cell.state = replace(cell.state, dcgm_is_paused=is_paused)

    def set_mig_mode(self, index: int, *, is_on: bool) -> int:
        """Switch MIG mode; the returned activation status is 0 when it is in force, else why it is only pending.

        An Ampere GPU is reset for it, which a client prevents: a process on it, or another one that has NVML open. That
        loses the instances. Later ones switch at once unless a process computes on them.

        Raises:
            DriverError: refused; nothing changed. Later GPUs refuse to switch off with instances on them.
        """

        def change(gpu: Gpu, state: State, forced: int) -> tuple[Gpu, int]:
            if gpu.mig_current == is_on:
                return replace(gpu, mig_pending=is_on), 0
            needs_reset = model_of(gpu).mode_needs_reset
            is_held = bool(gpu.processes) or (needs_reset and any(s.pid != os.getpid() for s in state.sessions))
            if forced or is_held:
                return replace(gpu, mig_pending=is_on), forced or IN_USE
            if gpu.instances and not needs_reset:
                raise DriverError(IN_USE)
            return replace(gpu, mig_current=is_on, mig_pending=is_on, instances=()), 0

        with self._file.changing() as cell:
            forced = 0
            try:
                meet(cell, "nvmlDeviceSetMigMode", index)
            except DriverError as error:
                if error.code not in _PENDING_CODES:
                    raise
                forced = error.code
            gpu, status = change(_gpu(cell.state, index), cell.state, forced)
            cell.state = cell.state.with_gpu(index, gpu)
            return status

    def set_compute_mode(self, index: int, mode: int) -> None:
        """Set who may compute: 0 all, 3 one process, 2 nobody.

        Raises:
            DriverError: refused; under MIG only 0 is possible.
        """

        def change(gpu: Gpu) -> tuple[Gpu, None]:
            if gpu.mig_current and mode:
                raise DriverError(NOT_SUPPORTED)
            return replace(gpu, compute_mode=mode), None

        self._change("nvmlDeviceSetComputeMode", index, change)

    def create_gpu_instance(self, index: int, profile_id: int, start: int | None = None) -> GpuInstance:
        """Make a GPU instance, where the driver chooses or at a given start.

        Raises:
            DriverError: MIG mode is off, there is no such profile or start, or no room.
        """

        def change(gpu: Gpu) -> tuple[Gpu, GpuInstance]:
            if not gpu.mig_current:
                raise DriverError(NOT_SUPPORTED)
            model = model_of(gpu)
            profile = _profile(model, profile_id)
            if start is not None and start not in profile.starts:
                raise DriverError(INVALID_ARGUMENT)
            free = placement.free_starts(model, gpu.instances, profile)
            if not free or (start is not None and start not in free):
                raise DriverError(INSUFFICIENT_RESOURCES)
            chosen = free[0] if start is None else start
            instance = GpuInstance(
                id=placement.gpu_instance_id(model, chosen, profile.memory_slices),
                profile_id=profile_id,
                start=chosen,
                size=profile.memory_slices,
                made_s=time.monotonic(),
            )
            return replace(gpu, instances=(*gpu.instances, instance)), instance

        return self._change("nvmlDeviceCreateGpuInstance", index, change)

    def destroy_gpu_instance(self, index: int, instance_id: int) -> None:
        """Remove a GPU instance.

        Raises:
            DriverError: there is none, or it holds compute instances.
        """

        def change(gpu: Gpu) -> tuple[Gpu, None]:
            instance = instance_of(gpu, instance_id)
            if instance.compute_instances:
                raise DriverError(IN_USE)
            return replace(gpu, instances=tuple(other for other in gpu.instances if other is not instance)), None

        self._change("nvmlGpuInstanceDestroy", index, change)

    def create_compute_instance(
        self, index: int, instance_id: int, profile_id: int | None = None, start: int | None = None
    ) -> ComputeInstance:
        """Make a compute instance in a GPU instance: of its full width if no profile is given.

        Raises:
            DriverError: there is no such GPU instance, profile or start, or no room.
        """

        def change(gpu: Gpu) -> tuple[Gpu, ComputeInstance]:
            instance = instance_of(gpu, instance_id)
            profile = profile_of(gpu, instance)
            division = profile.ci_profiles[-1] if profile_id is None else division_of(profile, profile_id)
            if start is not None and start not in placement.ci_starts(profile, division):
                raise DriverError(INVALID_ARGUMENT)
            free = placement.free_ci_starts(profile, instance.compute_instances, division)
            if not free or (start is not None and start not in free):
                raise DriverError(INSUFFICIENT_RESOURCES)
            made = ComputeInstance(
                id=placement.lowest_free_id(other.id for other in instance.compute_instances),
                profile_id=division.id,
                start=free[0] if start is None else start,
                size=division.compute_slices,
            )
            return _with_divisions(gpu, instance, (*instance.compute_instances, made)), made

        return self._change("nvmlGpuInstanceCreateComputeInstance", index, change)

    def destroy_compute_instance(self, index: int, instance_id: int, division_id: int) -> None:
        """Remove a compute instance.

        Raises:
            DriverError: there is none, or a process computes on it.
        """

        def change(gpu: Gpu) -> tuple[Gpu, None]:
            instance = instance_of(gpu, instance_id)
            left = tuple(other for other in instance.compute_instances if other.id != division_id)
            if len(left) == len(instance.compute_instances):
                raise DriverError(NOT_FOUND)
            place = (instance_id, division_id)
            if any((p.gpu_instance_id, p.compute_instance_id) == place for p in gpu.processes):
                raise DriverError(IN_USE)
            return _with_divisions(gpu, instance, left), None

        self._change("nvmlComputeInstanceDestroy", index, change)

    def reset(self, index: int) -> None:
        """Reset a GPU: a pending MIG mode comes into force, and the instances are gone.

        Raises:
            DriverError: a client holds it.
        """
        with self._file.changing() as cell:
            gpu = _gpu(cell.state, index)
            if gpu.processes or any(session.pid != os.getpid() for session in cell.state.sessions):
                raise DriverError(IN_USE)
            cell.state = cell.state.with_gpu(index, replace(gpu, mig_current=gpu.mig_pending, instances=()))

    def reload(self) -> None:
        """Load the kernel module again, as a reboot does: no process is left and no instance.

        MIG mode stays on Ampere only, which keeps it on the board.
        """
        with self._file.changing() as cell:
            gpus = (
                replace(
                    gpu,
                    mig_current=gpu.mig_pending and model_of(gpu).mode_needs_reset,
                    mig_pending=gpu.mig_pending and model_of(gpu).mode_needs_reset,
                    compute_mode=0,
                    instances=(),
                    processes=(),
                )
                for gpu in cell.state.gpus
            )
            cell.state = replace(cell.state, gpus=tuple(gpus), sessions=())

    def _change(self, function: str, index: int, change: Callable[[Gpu], tuple[Gpu, _T]]) -> _T:
        with self._file.changing() as cell:
            meet(cell, function, index)
            gpu, result = change(_gpu(cell.state, index))
            cell.state = cell.state.with_gpu(index, gpu)
            return result


def _gpu(state: State, index: int) -> Gpu:
    if not 0 <= index < len(state.gpus):
        raise DriverError(INVALID_ARGUMENT)
    return state.gpus[index]


def _profile(model: Model, profile_id: int) -> GiProfile:
    try:
        return model.profile(profile_id)
    except KeyError as error:
        raise DriverError(INVALID_ARGUMENT) from error


def _with_divisions(gpu: Gpu, instance: GpuInstance, divisions: tuple[ComputeInstance, ...]) -> Gpu:
    changed = replace(instance, compute_instances=divisions)
    return replace(gpu, instances=tuple(changed if other is instance else other for other in gpu.instances))
