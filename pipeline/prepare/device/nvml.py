"""Reads devices through NVML; changes go through nvidia-smi.

Further users of NVML are `gpu_health`, `gpu_reader`, `prepare.mig` and `listeners.gpm`.

Facts that the GPU, the driver or the user's permissions do not provide are left out. All other failures are errors:
`NvmlError` if a GPU does not respond, `ConfigError` if the driver does not work. A driver that does not work is never
treated like a machine without a GPU.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from pipeline.base.domain.records import Device, DeviceFacts
from pipeline.base.system.command_parser import choose_remedy
from pipeline.base.system.errors import CollocationError, ConfigError

MIG_PREFIX = "MIG-"
"""Prefix of the UUIDs of MIG devices."""
_MIB = 2**20
_PCI_DEVICES = Path("/sys/bus/pci/devices")
_NVIDIA_VENDOR, _DISPLAY_CLASS = "0x10de", "0x03"  # Source: PCI ID repository
_SWITCH = {0: "disabled", 1: "enabled"}
_COMPUTE_MODES = {0: "default", 1: "exclusive_thread", 2: "prohibited", 3: "exclusive_process"}
# Single-precision cores of one multiprocessor. Source: CUDA C++ Programming Guide, compute capabilities.
_CORES_PER_MULTIPROCESSOR = {
    **dict.fromkeys(((7, 0), (7, 5), (8, 0)), 64),
    **dict.fromkeys(((8, 6), (8, 9), (9, 0), (10, 0), (12, 0)), 128),
}


class _LazyModule:
    """Module pynvml, imported at its first use, because reports and plans for CPUs do not need it."""

    @functools.cached_property
    def _module(self) -> ModuleType:
        return importlib.import_module("pynvml")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


pynvml = _LazyModule()


class NvmlError(CollocationError):
    """Error of a GPU that NVML lists but that does not respond."""


@contextmanager
def session() -> Iterator[None]:
    """Open NVML during the body. Sessions can be nested and used by several threads, because NVML counts them.

    Raises:
        ConfigError: the NVIDIA driver is missing or does not work.
    """
    if not _start():
        raise ConfigError(f"this machine has no NVIDIA driver; install one{_or_use_cpu()}")
    try:
        yield
    finally:
        pynvml.nvmlShutdown()


def release() -> None:
    """Close all NVML sessions of this process; no thread may use NVML meanwhile.

    A signal during the opening or closing of a session can leave the session open, and an open session prevents an
    Ampere GPU from switching its MIG mode.
    """
    with suppress(pynvml.NVMLError):
        while True:
            pynvml.nvmlShutdown()


def list_devices() -> tuple[Device, ...]:
    """List all GPUs that this process can use, in NVML's order; return none without an NVIDIA driver."""
    return tuple(gpu for gpu in _read_gpus().values() if isinstance(gpu, Device))


def list_unusable() -> dict[int, str]:
    """Describe each GPU that does not respond, with a remedy, by index; without GPUs that are not this process's."""
    remedy = "see `dmesg | grep Xid`, end its programs, and reset it (`nvidia-smi -r -i {}`) or restart the machine"
    return {
        index: f"GPU {index} does not respond ({gpu.__cause__}); {remedy.format(index)}"
        for index, gpu in _read_gpus().items()
        if isinstance(gpu, NvmlError) and not isinstance(gpu.__cause__, pynvml.NVMLError_NoPermission)
    }


def _read_gpus() -> dict[int, Device | NvmlError]:
    """Read each GPU, or the error that it causes, by index; a lost GPU does not affect the others."""
    if not _start():
        return {}
    gpus: dict[int, Device | NvmlError] = {}
    try:
        for index in range(ask("the number of GPUs", pynvml.nvmlDeviceGetCount)):
            try:
                gpus[index] = _make_device(index, ask(f"GPU {index}", pynvml.nvmlDeviceGetHandleByIndex, index))
            except NvmlError as error:
                gpus[index] = error
    finally:
        pynvml.nvmlShutdown()
    return gpus


def refresh_state(device: Device) -> Device:
    """Return the device with its current settings, which an administrator may have changed since the last reading.

    Raises:
        NvmlError: the GPU does not respond.
        ConfigError: the driver does not work.
    """
    with session():
        state = _read_state(ask(f"GPU {device.gpu_uuid}", pynvml.nvmlDeviceGetHandleByUUID, device.gpu_uuid))
    return dataclasses.replace(device, facts=dataclasses.replace(device.facts, **state))


def list_mig_devices(gpu: Device) -> tuple[Device, ...]:
    """List the MIG devices of a GPU in NVML's order; return none unless MIG mode is on."""
    if not gpu.mig_enabled:
        return ()
    with session(), translate_errors(f"the MIG devices of {gpu.uuid}"):
        return tuple(
            _make_mig_device(gpu, handle) for handle in list_mig_handles(pynvml.nvmlDeviceGetHandleByUUID(gpu.uuid))
        )


def read_compute_mode(uuid: str) -> str:
    """Read the compute mode: `default`, `exclusive_process`, `exclusive_thread` or `prohibited`."""
    with session():
        handle = ask(f"GPU {uuid}", pynvml.nvmlDeviceGetHandleByUUID, uuid)
        return _COMPUTE_MODES[ask("the compute mode", pynvml.nvmlDeviceGetComputeMode, handle)]


def read_compute_capability(uuid: str) -> tuple[int, int]:
    """Read the compute capability, such as (8, 0) for an A100 and (9, 0) for an H100."""
    with session():
        handle = ask(f"GPU {uuid}", pynvml.nvmlDeviceGetHandleByUUID, uuid)
        major, minor = ask("the compute capability", pynvml.nvmlDeviceGetCudaComputeCapability, handle)
        return major, minor


def _start() -> bool:
    """Open NVML; return `False` without a driver; ConfigError if the driver does not work."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError_LibraryNotFound:
        return False
    except pynvml.NVMLError_DriverNotLoaded as error:
        if not _has_nvidia_hardware():
            return False
        raise ConfigError(
            "the kernel module of the NVIDIA GPU is not loaded; run `modprobe nvidia` and `dkms status` to find the "
            f"cause{_or_use_cpu()}"
        ) from error
    except pynvml.NVMLError_LibRmVersionMismatch as error:
        raise ConfigError(
            "the NVIDIA kernel module and libnvidia-ml have different versions, probably after a driver upgrade; "
            f"restart the machine or reload the nvidia kernel modules{_or_use_cpu()}"
        ) from error
    except pynvml.NVMLError as error:
        raise ConfigError(f"NVML does not start: {error}; run `nvidia-smi` to find the cause{_or_use_cpu()}") from error
    return True


def _or_use_cpu() -> str:
    return choose_remedy(", or use gpu=cpu", "")


def _has_nvidia_hardware() -> bool:
    for device in _PCI_DEVICES.glob("*"):
        with suppress(OSError):
            vendor, kind = ((device / name).read_text() for name in ("vendor", "class"))
            if vendor.strip() == _NVIDIA_VENDOR and kind.startswith(_DISPLAY_CLASS):
                return True
    return False


@contextmanager
def translate_errors(quantity: str) -> Iterator[None]:
    """Raise errors of NVML as `NvmlError`; `quantity` names the value that is read."""
    try:
        yield
    except pynvml.NVMLError as error:
        raise NvmlError(f"NVML cannot read {quantity}: {error}") from error


def ask(quantity: str, function: Callable[..., Any], *arguments: object) -> Any:
    """Call a function of NVML; if the call fails, raise an NvmlError that names `quantity`."""
    with translate_errors(quantity):
        return function(*arguments)


def ask_if_offered(quantity: str, function: Callable[..., Any], *arguments: object) -> Any:
    """Like `ask`, but return `None` if the GPU, the driver or the permissions do not allow this call.

    For example, NVML reports some quantities of a GPU in MIG mode to root only, and answers "Unknown Error" for some
    in the Windows Subsystem for Linux (WSL).
    """
    try:
        return ask(quantity, function, *arguments)
    except NvmlError as error:
        kinds = (
            *(pynvml.NVMLError_NotSupported, pynvml.NVMLError_FunctionNotFound, pynvml.NVMLError_NoPermission),
            *(pynvml.NVMLError_Deprecated, pynvml.NVMLError_Unknown),
        )
        if isinstance(error.__cause__, kinds):
            return None
        raise


def list_mig_handles(handle: object) -> Iterator[object]:
    """Yield the handle of each MIG device of a GPU, in NVML's order."""
    for index in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        with suppress(pynvml.NVMLError_NotFound):
            yield pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)


def _make_device(index: int, handle: object) -> Device:
    mode = ask_if_offered("the MIG mode", pynvml.nvmlDeviceGetMigMode, handle)
    # For a GPU in MIG mode, NVML reports the memory to root only.
    memory = ask_if_offered("the memory", pynvml.nvmlDeviceGetMemoryInfo, handle)
    return Device(
        kind="nvidia",
        uuid=ask("the UUID", pynvml.nvmlDeviceGetUUID, handle),
        name=ask("the name", pynvml.nvmlDeviceGetName, handle),
        index=index,
        memory_mib=None if memory is None else memory.total // _MIB,
        mig_enabled=mode is not None and mode[0] == 1,
        facts=_read_facts(handle, mode),
    )


def count_multiprocessors(attributes: Any) -> int | None:
    """Read the number of multiprocessors from a structure of NVML; `None` if the driver does not report it."""
    return decode_count(attributes.multiprocessorCount)


def decode_count(count: int) -> int | None:
    """Return a count in a structure of NVML; `None` if the driver does not report it."""
    return None if count == pynvml.NVML_VALUE_NOT_AVAILABLE_uint.value else int(count)


def _make_mig_device(gpu: Device, handle: object) -> Device:
    attributes = pynvml.nvmlDeviceGetAttributes_v2(handle)
    name = pynvml.nvmlDeviceGetName(handle)
    if " MIG " not in name:  # some drivers return the GPU's name only
        is_part = attributes.computeInstanceSliceCount < attributes.gpuInstanceSliceCount
        of_it = f"{attributes.computeInstanceSliceCount}c." if is_part else ""
        name = f"{gpu.name} MIG {of_it}{attributes.gpuInstanceSliceCount}g, {attributes.memorySizeMB} MiB"
    return dataclasses.replace(
        gpu,
        uuid=pynvml.nvmlDeviceGetUUID(handle),
        name=name,
        memory_mib=int(attributes.memorySizeMB),
        mig_enabled=False,
        facts=dataclasses.replace(gpu.facts, multiprocessors=count_multiprocessors(attributes)),
        parent=gpu.uuid,
        gi_id=pynvml.nvmlDeviceGetGpuInstanceId(handle),
        ci_id=pynvml.nvmlDeviceGetComputeInstanceId(handle),
    )


def _read_facts(handle: object, mig_mode: list[int] | None) -> DeviceFacts:
    cuda = ask("the CUDA version", pynvml.nvmlSystemGetCudaDriverVersion)
    pci = ask("the PCI address", pynvml.nvmlDeviceGetPciInfo, handle)
    capability = ask("the compute capability", pynvml.nvmlDeviceGetCudaComputeCapability, handle)
    cores = ask_if_offered("the number of cores", pynvml.nvmlDeviceGetNumGpuCores, handle)
    cores_each = _CORES_PER_MULTIPROCESSOR.get(tuple(capability))
    persistence = ask_if_offered("the persistence mode", pynvml.nvmlDeviceGetPersistenceMode, handle)
    compute_mode = ask_if_offered("the compute mode", pynvml.nvmlDeviceGetComputeMode, handle)
    return DeviceFacts(
        cuda_version=f"{cuda // 1000}.{cuda % 1000 // 10}",
        pci_bus_id=pci.busId.decode() if isinstance(pci.busId, bytes) else pci.busId,
        compute_capability=(capability[0], capability[1]),
        multiprocessors=None if cores is None or cores_each is None else cores // cores_each,
        persistence_mode=_SWITCH.get(persistence),
        compute_mode=_COMPUTE_MODES.get(compute_mode),
        mig_mode_current=None if mig_mode is None else _SWITCH.get(mig_mode[0]),
        mig_mode_pending=None if mig_mode is None else _SWITCH.get(mig_mode[1]),
        **_read_state(handle),
    )


def _read_state(handle: object) -> dict[str, Any]:
    """Read the settings that affect a GPU's speed and can change during a study (`base.domain.machine_state`).

    NVML has no function for the clocks that `nvidia-smi -lgc` and `-lmc` lock. Source: nvml.h of CUDA 13.
    """
    power_limit_mw = ask_if_offered("the power limit", pynvml.nvmlDeviceGetEnforcedPowerLimit, handle)
    ecc = ask_if_offered("the ECC mode", pynvml.nvmlDeviceGetEccMode, handle)
    clocks_mhz = {
        kind: ask_if_offered(f"the {kind} clock that is set", pynvml.nvmlDeviceGetApplicationsClock, handle, clock_type)
        for kind, clock_type in (("graphics", pynvml.NVML_CLOCK_GRAPHICS), ("memory", pynvml.NVML_CLOCK_MEM))
    }
    return {
        "driver_version": ask("the driver's version", pynvml.nvmlSystemGetDriverVersion),
        "power_limit_w": None if power_limit_mw is None else f"{power_limit_mw / 1000:g}",
        "ecc_mode": None if ecc is None else _SWITCH.get(ecc[0]),
        **{f"{kind}_clock_setting_mhz": None if mhz is None else str(mhz) for kind, mhz in clocks_mhz.items()},
    }
