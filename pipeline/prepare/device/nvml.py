"""The one module that reads NVML, but for the counters of `listeners.gpm`; writes go through nvidia-smi.

What a GPU, its driver or our permissions do not offer is absent from the answers; anything else that goes wrong is an
error. A driver that does not work is never taken for a machine without a GPU.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

from pipeline.base.errors import CollocationError, ConfigError
from pipeline.base.records import Device

_log = logging.getLogger(__name__)
_MIB = 2**20
_PCI_DEVICES = Path("/sys/bus/pci/devices")
_NVIDIA_VENDOR, _DISPLAY_CLASS = "0x10de", "0x03"  # Source: PCI ID repository
_SWITCH = {0: "disabled", 1: "enabled"}
_COMPUTE_MODES = {0: "default", 1: "exclusive_thread", 2: "prohibited", 3: "exclusive_process"}
# Source: CUDA C++ Programming Guide, compute capabilities: cores for single precision of one multiprocessor.
_CORES_PER_MULTIPROCESSOR = {
    **dict.fromkeys(((7, 0), (7, 5), (8, 0)), 64),
    **dict.fromkeys(((8, 6), (8, 9), (9, 0), (10, 0), (12, 0)), 128),
}


class NvmlError(CollocationError):
    """A GPU that NVML knows did not answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProcess:
    """A process that holds a context on a GPU.

    Attributes:
        pid: as the driver counts: of the host, even for a process in a container with PIDs of its own.
        name: of its program; `None` when neither the driver nor /proc tells it.
        memory_mib: GPU memory in MiB; `None` when the driver does not tell it.
        kind: `mps` for a client of an MPS server, else `compute` (an MPS server too) or `graphics`.
    """

    pid: int
    name: str | None
    memory_mib: float | None
    kind: str


@contextmanager
def session() -> Iterator[None]:
    """Keep NVML open. Can be nested and used by several threads: NVML counts.

    Raises:
        ConfigError: there is no NVIDIA driver, or one that does not work; the message says which and what to do.
    """
    if not _start():
        raise ConfigError("there is no NVIDIA driver on this machine: install one, or use gpu=cpu")
    try:
        yield
    finally:
        _pynvml().nvmlShutdown()


def release() -> None:
    """Close NVML in this process, however often it is open: for a moment when nobody here may use it.

    A signal that comes while a session is opened or closed leaves it open, and then we ourselves would keep an Ampere
    GPU from switching its MIG mode.
    """
    nvml = _pynvml()
    with suppress(nvml.NVMLError):
        while True:
            nvml.nvmlShutdown()


def list_devices() -> tuple[Device, ...]:
    """Every GPU that this process may use, in NVML's order; empty on a machine without an NVIDIA driver.

    Raises:
        ConfigError: the driver does not work.
        NvmlError: a GPU does not answer.
    """
    if not _start():
        return ()
    nvml = _pynvml()
    try:
        devices = []
        for index in range(_ask("the number of GPUs", nvml.nvmlDeviceGetCount)):
            try:
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
            except (nvml.NVMLError_NoPermission, nvml.NVMLError_GpuIsLost) as error:
                _log.warning("GPU %d is left out: %s", index, error)
                continue
            devices.append(_device(index, handle))
        return tuple(devices)
    finally:
        nvml.nvmlShutdown()


def find_device(selector: str) -> Device | None:
    """The GPU that is meant, or `None` on a machine without an NVIDIA driver or without a GPU.

    Args:
        selector: NVML's index as text, a UUID, or how exactly one UUID begins.

    Raises:
        ConfigError: no GPU or more than one matches, or the driver does not work.
        NvmlError: a GPU does not answer.
    """
    devices = list_devices()
    return choose("gpu.device", selector, devices) if devices else None


def choose(key: str, selector: str, devices: Sequence[Device], remedy: str = "") -> Device:
    """The one of the devices whose index, UUID or beginning of its UUID the key of the configuration selects.

    Raises:
        ConfigError: no device or more than one matches; ends with the remedy.
    """
    if selector.isdecimal():
        matches = [device for device in devices if device.index == int(selector)]
    else:
        matches = [device for device in devices if selector and device.uuid.startswith(selector)]
    if len(matches) != 1:
        each = (f"{'-' if device.index is None else device.index}: {device.name} {device.uuid}" for device in devices)
        raise ConfigError(
            f"{key}={selector!r} matches {len(matches)} GPUs, not one. There are {'; '.join(each) or 'none'}{remedy}"
        )
    return matches[0]


def processes(uuid: str) -> tuple[GpuProcess, ...]:
    """Every process with a context on the GPU or, under MIG, on one of its MIG devices; in the order of PIDs.

    Raises:
        ConfigError: there is no driver, or it does not work.
        NvmlError: the list cannot be had. It is never taken for empty.
    """
    with session():
        return tuple(
            GpuProcess(pid=pid, name=_name(pid), memory_mib=None if used is None else used / _MIB, kind=kind)
            for pid, (kind, used) in sorted(GpuReader(uuid).listed_processes().items())
        )


def compute_mode(uuid: str) -> str:
    """Who may compute on the GPU: `default`, `exclusive_process`, `exclusive_thread` or `prohibited`.

    Raises:
        ConfigError: there is no driver, or it does not work.
        NvmlError: the GPU does not answer.
    """
    nvml = _pynvml()
    with session():
        handle = _ask(f"GPU {uuid}", nvml.nvmlDeviceGetHandleByUUID, uuid)
        return _COMPUTE_MODES[_ask("the compute mode", nvml.nvmlDeviceGetComputeMode, handle)]


class GpuReader:
    """One GPU, opened for many readings; to be used within `session()`. Knows the MIG devices of its creation.

    Raises:
        NvmlError: no GPU has this UUID, or it does not answer.
    """

    def __init__(self, uuid: str) -> None:
        nvml = _pynvml()
        handle = _ask(f"GPU {uuid}", nvml.nvmlDeviceGetHandleByUUID, uuid)
        self._process_handles = _process_handles(handle)
        self._quantities: dict[str, Callable[[], Any]] = {
            "nvmlDeviceGetMemoryInfo_v2": partial(nvml.nvmlDeviceGetMemoryInfo, handle, nvml.nvmlMemory_v2),
            "nvmlDeviceGetUtilizationRates": partial(nvml.nvmlDeviceGetUtilizationRates, handle),
            "nvmlDeviceGetPowerUsage": partial(nvml.nvmlDeviceGetPowerUsage, handle),
            "nvmlDeviceGetTotalEnergyConsumption": partial(nvml.nvmlDeviceGetTotalEnergyConsumption, handle),
            "nvmlDeviceGetClockInfo(SM)": partial(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_SM),
            "nvmlDeviceGetClockInfo(MEM)": partial(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_MEM),
            "nvmlDeviceGetTemperature": partial(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU),
            # The name of nvmlDeviceGetCurrentClocksEventReasons that drivers before 535 know as well.
            "nvmlDeviceGetCurrentClocksThrottleReasons": partial(
                nvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle
            ),
            "nvmlDeviceGetPerformanceState": partial(_performance_state, handle),
        }

    def quantities(self) -> dict[str, float]:
        """One reading of the whole GPU, by NVML function (and `.member` where it fills a structure), in NVML's units.

        Memory is in bytes, and `used` leaves out what the driver keeps for itself (480 MiB on an H100), as nvidia-smi
        does: version 1 of the structure counts that as used, so drivers before 510 (no version 2) give no value.
        Power is in mW (mean of 1 s from Ampere on, instantaneous on GA100: nvml.h), energy in mJ since the driver
        was loaded, clocks in MHz, temperature in degrees Celsius, utilisation in percent.

        Raises:
            NvmlError: the GPU does not answer.
        """
        values: dict[str, float] = {}
        for name, read in self._quantities.items():
            answer = _ask_if_offered(name, read)
            if hasattr(answer, "_fields_"):
                members = (member[0] for member in answer._fields_ if member[0] != "version")
                values.update({f"{name}.{member}": float(getattr(answer, member)) for member in members})
            elif answer is not None:
                values[name] = float(answer)
        return values

    def process_memory_bytes(self) -> dict[int, int]:
        """PID (of the host) to GPU memory in bytes, for each computing process whose memory the driver tells.

        Raises:
            NvmlError: the GPU does not answer.
        """
        nvml = _pynvml()
        lists = (nvml.nvmlDeviceGetComputeRunningProcesses_v3, nvml.nvmlDeviceGetMPSComputeRunningProcesses_v3)
        return {
            entry.pid: entry.usedGpuMemory
            for handle in self._process_handles
            for processes_of in lists
            for entry in _ask_if_offered("the memory of processes", processes_of, handle) or ()
            if entry.usedGpuMemory is not None
        }

    def listed_processes(self) -> dict[int, tuple[str, int | None]]:
        """PID to kind and memory in bytes. A client of MPS is in two of NVML's lists and counts once, as `mps`.

        Raises:
            NvmlError: the list of compute processes cannot be had.
        """
        nvml = _pynvml()
        listed: dict[int, tuple[str, int | None]] = {}
        for handle in self._process_handles:
            # The list that says most about a process comes last and decides. By versioned names: for the others pynvml
            # turns "function not found" into an exception that is no NVMLError.
            lists = {
                "graphics": _ask_if_offered(
                    "graphics processes", nvml.nvmlDeviceGetGraphicsRunningProcesses_v3, handle
                ),
                "compute": _ask("compute processes", nvml.nvmlDeviceGetComputeRunningProcesses_v3, handle),
                "mps": _ask_if_offered("MPS clients", nvml.nvmlDeviceGetMPSComputeRunningProcesses_v3, handle),
            }
            for kind, entries in lists.items():
                for entry in entries or ():
                    # pynvml turns NVML_VALUE_NOT_AVAILABLE into None.
                    listed[entry.pid] = (kind, entry.usedGpuMemory)
        return listed


def _pynvml() -> Any:
    import pynvml

    return pynvml


def _start() -> bool:
    """Open NVML; `False` without a driver, and `ConfigError` with one that does not work."""
    nvml = _pynvml()
    try:
        nvml.nvmlInit()
    except nvml.NVMLError_LibraryNotFound:
        return False
    except nvml.NVMLError_DriverNotLoaded as error:
        if not _has_nvidia_hardware():
            return False
        raise ConfigError(
            "this machine has an NVIDIA GPU, but its kernel module is not loaded: `modprobe nvidia` says why, "
            "`dkms status` whether it was built for this kernel; or use gpu=cpu"
        ) from error
    except nvml.NVMLError_LibRmVersionMismatch as error:
        raise ConfigError(
            "the NVIDIA kernel module and libnvidia-ml are of different versions, as after an upgrade of the driver: "
            "restart the machine, or unload and load the nvidia kernel modules; or use gpu=cpu"
        ) from error
    except nvml.NVMLError as error:
        raise ConfigError(f"NVML does not start: {error}. See what `nvidia-smi` says; or use gpu=cpu") from error
    return True


def _has_nvidia_hardware() -> bool:
    for device in _PCI_DEVICES.glob("*"):
        with suppress(OSError):
            vendor, kind = ((device / name).read_text() for name in ("vendor", "class"))
            if vendor.strip() == _NVIDIA_VENDOR and kind.startswith(_DISPLAY_CLASS):
                return True
    return False


def _ask(what: str, function: Callable[..., Any], *arguments: object) -> Any:
    nvml = _pynvml()
    try:
        return function(*arguments)
    except nvml.NVMLError as error:
        raise NvmlError(f"NVML does not give {what}: {error}") from error


def _ask_if_offered(what: str, function: Callable[..., Any], *arguments: object) -> Any:
    """As `_ask`, but `None` for what this GPU or driver does not offer, or not to us (the whole GPU under MIG)."""
    nvml = _pynvml()
    try:
        return function(*arguments)
    except (nvml.NVMLError_NotSupported, nvml.NVMLError_FunctionNotFound, nvml.NVMLError_NoPermission):
        return None
    except nvml.NVMLError as error:
        raise NvmlError(f"NVML does not give {what}: {error}") from error


def _performance_state(handle: object) -> int | None:
    nvml = _pynvml()
    state: int = nvml.nvmlDeviceGetPerformanceState(handle)
    return None if state == nvml.NVML_PSTATE_UNKNOWN else state


def _process_handles(handle: object) -> list[object]:
    """The handles whose process lists need no privilege: the GPU or, under MIG, its MIG devices."""
    nvml = _pynvml()
    mode = _ask_if_offered("the MIG mode", nvml.nvmlDeviceGetMigMode, handle)
    if mode is None or mode[0] == 0:
        return [handle]
    handles: list[object] = []
    for index in range(_ask("the number of MIG devices", nvml.nvmlDeviceGetMaxMigDeviceCount, handle)):
        with suppress(nvml.NVMLError_NotFound):
            handles.append(nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index))
    return handles


def _name(pid: int) -> str | None:
    """Program of a process. The driver is asked first: in a container its PIDs are not those of /proc."""
    nvml = _pynvml()
    try:
        command: str = nvml.nvmlSystemGetProcessName(pid)
        return PurePosixPath(command.split(" ", 1)[0]).name or None
    except nvml.NVMLError:
        with suppress(OSError):
            return Path(f"/proc/{pid}/comm").read_text().strip()
    return None


def _device(index: int, handle: object) -> Device:
    nvml = _pynvml()
    mode = _ask_if_offered("the MIG mode", nvml.nvmlDeviceGetMigMode, handle)
    # Of a GPU in MIG mode as a whole, NVML tells it to root only.
    memory = _ask_if_offered("the memory", nvml.nvmlDeviceGetMemoryInfo, handle)
    return Device(
        kind="nvidia",
        uuid=_ask("the UUID", nvml.nvmlDeviceGetUUID, handle),
        name=_ask("the name", nvml.nvmlDeviceGetName, handle),
        index=index,
        memory_mib=None if memory is None else memory.total // _MIB,
        mig_enabled=mode is not None and mode[0] == 1,
        details=tuple((key, text) for key, text in _details(handle, mode).items() if text is not None),
    )


def _details(handle: object, mig_mode: list[int] | None) -> dict[str, str | None]:
    nvml = _pynvml()
    cuda = _ask("the CUDA version", nvml.nvmlSystemGetCudaDriverVersion)
    pci = _ask("the PCI address", nvml.nvmlDeviceGetPciInfo, handle)
    capability = _ask("the compute capability", nvml.nvmlDeviceGetCudaComputeCapability, handle)
    cores = _ask_if_offered("the number of cores", nvml.nvmlDeviceGetNumGpuCores, handle)
    cores_each = _CORES_PER_MULTIPROCESSOR.get(tuple(capability))
    persistence = _ask_if_offered("the persistence mode", nvml.nvmlDeviceGetPersistenceMode, handle)
    compute_mode = _ask_if_offered("the compute mode", nvml.nvmlDeviceGetComputeMode, handle)
    return {
        "driver_version": _ask("the driver's version", nvml.nvmlSystemGetDriverVersion),
        "cuda_version": f"{cuda // 1000}.{cuda % 1000 // 10}",
        "pci_bus_id": pci.busId.decode() if isinstance(pci.busId, bytes) else pci.busId,
        "compute_capability": f"{capability[0]}.{capability[1]}",
        "multiprocessors": None if cores is None or cores_each is None else str(cores // cores_each),
        "persistence_mode": _SWITCH.get(persistence),
        "compute_mode": _COMPUTE_MODES.get(compute_mode),
        "mig_mode_current": None if mig_mode is None else _SWITCH.get(mig_mode[0]),
        "mig_mode_pending": None if mig_mode is None else _SWITCH.get(mig_mode[1]),
    }
