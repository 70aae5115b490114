"""Readings of one GPU through NVML: sensors, memory and processes, which change while programs run."""

from __future__ import annotations

import itertools
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from statistics import fmean
from typing import Any, NamedTuple

from pipeline.prepare.device import nvml
from pipeline.prepare.device.nvml import pynvml

_MIB = 2**20
_STARTS_WITHIN_S, _LOOK_S = 2.0, 0.1
# From newest to oldest; R535 lacks the first.
_UTILIZATION_CALLS = ("nvmlDeviceGetProcessesUtilizationInfo", "nvmlDeviceGetProcessUtilization")


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProcess:
    """A process that holds a context on a GPU.

    Attributes:
        pid: PID on the host, even for a process in a container with a separate PID namespace.
        name: name of the program; `None` if neither the driver nor /proc reports it.
        memory_mib: GPU memory in MiB; `None` if the driver does not report it.
        kind: `mps` for a client of an MPS server, else `compute` (including an MPS server) or `graphics`.
    """

    pid: int
    name: str | None
    memory_mib: float | None
    kind: str

    def __str__(self) -> str:
        return f"{self.name or 'a program'} (pid {self.pid})"


class UnlistedProcessesError(nvml.NvmlError):
    """The driver cannot list the processes of a GPU, as in the Windows Subsystem for Linux (WSL)."""


def list_processes(uuid: str) -> tuple[GpuProcess, ...]:
    """List the processes with a context on the GPU or, under MIG, on one of its MIG devices, by PID.

    If NVML cannot list the processes, an error is raised instead of returning an empty list.
    """
    with nvml.session():
        return tuple(
            GpuProcess(pid=pid, name=_read_name(pid), memory_mib=None if used is None else used / _MIB, kind=kind)
            for pid, (kind, used) in sorted(GpuReader(uuid).listed_processes().items())
        )


def list_staying_processes(uuid: str, is_meant: Callable[[GpuProcess], bool]) -> list[GpuProcess]:
    """List the selected processes that are still on a GPU after two seconds; return at once if no process is selected.

    The wait is necessary because a process that initialises CUDA is listed on every GPU of the machine for a short
    time: four studies on the four GPUs of one host listed each other's jobs.
    """
    staying = {process.pid: process for process in list_processes(uuid) if is_meant(process)}
    until = time.monotonic() + _STARTS_WITHIN_S
    while staying and time.monotonic() < until:
        time.sleep(_LOOK_S)
        listed = {process.pid for process in list_processes(uuid)}
        staying = {pid: process for pid, process in staying.items() if pid in listed}
    return list(staying.values())


class ProcessUtilization(NamedTuple):
    """Means since the previous reading, in per cent of the time.

    Attributes:
        sm: time in which kernels of the process ran on multiprocessors.
        memory: time in which the process read or wrote device memory.
    """

    sm: float
    memory: float


class GpuReader:
    """Reader of one GPU for repeated readings within `session()`, with the MIG devices that existed at its creation.

    For a MIG device, only its processes can be read.
    """

    def __init__(self, uuid: str) -> None:
        handle = nvml.ask(f"GPU {uuid}", pynvml.nvmlDeviceGetHandleByUUID, uuid)
        parts = None if uuid.startswith(nvml.MIG_PREFIX) else _list_mig_handles(handle)
        self._handle = handle
        self._utilization_calls = [name for name in _UTILIZATION_CALLS if hasattr(pynvml, name)]
        self._last_seen_us: int | None = None
        # In MIG mode, reading the process lists of the MIG devices needs no privilege, unlike those of the GPU.
        self._process_handles = [handle] if parts is None else parts
        with nvml.translate_errors("the MIG devices"):  # the MIG devices of one GPU instance share its memory
            self._instances = {pynvml.nvmlDeviceGetGpuInstanceId(part): part for part in parts or ()}
        self._quantities: dict[str, Callable[[], Any]] = {
            "nvmlDeviceGetMemoryInfo_v2": partial(pynvml.nvmlDeviceGetMemoryInfo, handle, pynvml.nvmlMemory_v2),
            "nvmlDeviceGetUtilizationRates": partial(pynvml.nvmlDeviceGetUtilizationRates, handle),
            "nvmlDeviceGetPowerUsage": partial(pynvml.nvmlDeviceGetPowerUsage, handle),
            "nvmlDeviceGetTotalEnergyConsumption": partial(pynvml.nvmlDeviceGetTotalEnergyConsumption, handle),
            "nvmlDeviceGetClockInfo(SM)": partial(pynvml.nvmlDeviceGetClockInfo, handle, pynvml.NVML_CLOCK_SM),
            "nvmlDeviceGetClockInfo(MEM)": partial(pynvml.nvmlDeviceGetClockInfo, handle, pynvml.NVML_CLOCK_MEM),
            "nvmlDeviceGetTemperature": partial(pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU),
            # The old name of nvmlDeviceGetCurrentClocksEventReasons, which drivers before 535 support as well.
            "nvmlDeviceGetCurrentClocksThrottleReasons": partial(
                pynvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle
            ),
            "nvmlDeviceGetPerformanceState": partial(_read_performance_state, handle),
        }

    def quantities(self) -> dict[str, float]:
        """Read the whole GPU once; return figures in NVML's units by name of the NVML function and `.member`.

        Memory is in bytes. As in nvidia-smi, `used` excludes the memory that the driver reserves (480 MiB on an
        H100). Version 1 of the structure includes this memory, so drivers before 510, which lack version 2, return no
        figure. Power is in mW (mean of 1 s from Ampere on, but instantaneous on GA100: nvml.h), energy in mJ since the
        driver was loaded, clocks in MHz, temperature in degrees Celsius, utilisation in percent.
        """
        values: dict[str, float] = {}
        for name, read in self._quantities.items():
            answer = nvml.ask_if_offered(name, read)
            if hasattr(answer, "_fields_"):
                members = (member[0] for member in answer._fields_ if member[0] != "version")
                values.update({f"{name}.{member}": float(getattr(answer, member)) for member in members})
            elif answer is not None:
                values[name] = float(answer)
        return values

    def instance_memory_bytes(self) -> dict[int, float]:
        """Read the used memory in bytes of each GPU instance, by id, counted as in `quantities`."""
        used_bytes = {}
        for gi_id, handle in self._instances.items():
            memory = nvml.ask_if_offered("the memory", pynvml.nvmlDeviceGetMemoryInfo, handle, pynvml.nvmlMemory_v2)
            if memory is not None:
                used_bytes[gi_id] = float(memory.used)
        return used_bytes

    def process_memory_bytes(self) -> dict[int, int | None] | None:
        """Read the GPU memory in bytes of each process, by PID on the host; `None` for what the driver does not report.

        An MPS client is in two of NVML's lists but counts once. For a process on several MIG devices, the memory on all
        of them is added.
        """
        lists = (
            pynvml.nvmlDeviceGetGraphicsRunningProcesses_v3,
            pynvml.nvmlDeviceGetComputeRunningProcesses_v3,
            pynvml.nvmlDeviceGetMPSComputeRunningProcesses_v3,
        )
        used_bytes: dict[int, int | None] = {}
        is_listed = False
        for handle in self._process_handles:
            listed = [nvml.ask_if_offered("the memory of processes", function, handle) for function in lists]
            is_listed = is_listed or listed[1] is not None
            running = {process.pid: process.usedGpuMemory for part in listed for process in part or ()}
            for pid, used in running.items():
                before = used_bytes.get(pid)
                used_bytes[pid] = used if before is None else before + (used or 0)
        return used_bytes if is_listed else None

    def process_utilization(self) -> dict[int, ProcessUtilization]:
        """Read the utilisation of each process since the previous reading, by PID on the host.

        The driver averages over 1/6 to 1 s, and reports only processes that used the GPU. The result is empty at the
        first reading, if the driver has not sampled since the previous one, and if the driver, the permissions or MIG
        mode do not allow the call. Under MPS, driver 580 reports the server, not its clients.
        """
        since_us, first = self._last_seen_us or 0, self._last_seen_us is None
        self._last_seen_us = since_us
        entries = self._list_utilization(since_us)
        self._last_seen_us = max((entry.timeStamp for entry in entries), default=since_us)
        by_pid: dict[int, list[ProcessUtilization]] = defaultdict(list)
        for entry in () if first else entries:  # the first reading covers the time before this reader
            is_percent = entry.smUtil <= 100 and entry.memUtil <= 100  # else a structure that the driver did not fill
            if entry.timeStamp > since_us and is_percent:
                by_pid[entry.pid].append(ProcessUtilization(entry.smUtil, entry.memUtil))
        return {pid: ProcessUtilization(*map(fmean, zip(*read, strict=True))) for pid, read in by_pid.items()}

    def _list_utilization(self, since_us: int) -> list[Any]:
        """List the driver's samples since an instant, from the first call that the driver has."""
        while self._utilization_calls:
            name = self._utilization_calls[0]
            try:
                entries = nvml.ask_if_offered(name, getattr(pynvml, name), self._handle, since_us)
            except nvml.NvmlError as error:
                # pynvml raises "success" if the driver has no sample; "size" if a process began between its two calls.
                nothing_yet = (pynvml.NVML_SUCCESS, pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_ERROR_INSUFFICIENT_SIZE)
                if getattr(error.__cause__, "value", None) in nothing_yet:
                    return []
                raise
            if entries is not None:
                return list(entries)
            self._utilization_calls.pop(0)
        return []

    def mps_clients(self) -> set[int]:
        """Read the PIDs of the clients of an MPS server."""
        function = pynvml.nvmlDeviceGetMPSComputeRunningProcesses_v3
        listed = [nvml.ask_if_offered("the MPS clients", function, handle) or () for handle in self._process_handles]
        return {process.pid for process in itertools.chain(*listed)}

    def listed_processes(self) -> dict[int, tuple[str, int | None]]:
        """Read kind and memory in bytes of each process, by PID.

        An MPS client is in two of NVML's lists but counts once, as `mps`. For a process on several MIG devices, the
        memory on all of them is added.
        """
        # A later list overrides an earlier one, so the most specific list is the last. The function names have
        # versions, because pynvml raises an exception that is no NVMLError if an unversioned function is missing.
        lists = (
            ("graphics", pynvml.nvmlDeviceGetGraphicsRunningProcesses_v3),
            ("compute", pynvml.nvmlDeviceGetComputeRunningProcesses_v3),
            ("mps", pynvml.nvmlDeviceGetMPSComputeRunningProcesses_v3),
        )
        listed: dict[int, tuple[str, int | None]] = {}
        for handle in self._process_handles:
            on_device: dict[int, tuple[str, int | None]] = {}
            for kind, function in lists:
                entries = nvml.ask_if_offered(f"{kind} processes", function, handle)
                if entries is None and kind == "compute":
                    raise UnlistedProcessesError("NVML cannot list the compute processes, as in WSL")
                for entry in entries or ():
                    # pynvml turns NVML_VALUE_NOT_AVAILABLE into None.
                    on_device[entry.pid] = (kind, entry.usedGpuMemory)
            for pid, (kind, used) in on_device.items():
                _, used_elsewhere = listed.get(pid, (kind, 0))
                listed[pid] = (kind, None if used is None or used_elsewhere is None else used + used_elsewhere)
        return listed


def _read_performance_state(handle: object) -> int | None:
    state: int = pynvml.nvmlDeviceGetPerformanceState(handle)
    return None if state == pynvml.NVML_PSTATE_UNKNOWN else state


def _list_mig_handles(handle: object) -> list[object] | None:
    """List the MIG devices of a GPU; `None` unless MIG mode is on."""
    mode = nvml.ask_if_offered("the MIG mode", pynvml.nvmlDeviceGetMigMode, handle)
    if mode is None or mode[0] == 0:
        return None
    with nvml.translate_errors("the MIG devices"):
        return list(nvml.list_mig_handles(handle))


def _read_name(pid: int) -> str | None:
    """Read a program's name from the driver, else from /proc, whose PIDs differ from the driver's in a container."""
    try:
        command: str = pynvml.nvmlSystemGetProcessName(pid)
        return PurePosixPath(command.split(" ", 1)[0]).name or None
    except pynvml.NVMLError:
        with suppress(OSError):
            return Path(f"/proc/{pid}/comm").read_text().strip()
    return None
