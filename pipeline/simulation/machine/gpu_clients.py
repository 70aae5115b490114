"""Clients of the simulated GPUs: processes with NVML open, and processes with a context and memory on a GPU."""

from __future__ import annotations

import os
from dataclasses import replace

from pipeline.simulation.machine.codes import IN_USE, MEMORY, NOT_FOUND, DriverError
from pipeline.simulation.machine.queries import memory_capacity_mib, mig_devices
from pipeline.simulation.machine.state_file import Gpu, Process, Session, State, StateFile, mig_uuid, start_ticks

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
