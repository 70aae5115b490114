"""The texts of nvidia-smi: overview, list of devices, lists of `nvidia-smi mig`, and `--query-gpu`. Text only.

The formats in `smi_tables.txt` were recorded on an H100 80GB (driver 580.159.04); those of tables that need
MIG mode are from public transcripts of drivers 570 to 580.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from pathlib import Path

from pipeline.simulation.machine import codes, queries, readings
from pipeline.simulation.machine.readings import Quantity
from pipeline.simulation.machine.releases import Release
from pipeline.simulation.machine.state_file import (
    ComputeInstance,
    Gpu,
    GpuInstance,
    Process,
    State,
    mig_uuid,
)
from pipeline.simulation.simulated_program import RefusedError, Templates

Numbered = tuple[int, Gpu]
"""The index of a GPU, and the GPU."""

_MODES_IN_OVERVIEW = {0: "Default", 2: "Prohibited", 3: "E. Process"}
_NAME_WIDTH, _PROCESS_NAME_WIDTH = 27, 36
_TEMPLATES = Templates(Path(__file__).with_suffix(".txt"))


def overview(gpus: Sequence[Numbered], timestamp: datetime, release: Release) -> list[str]:
    """Return the lines of nvidia-smi without arguments."""
    cuda = f"{release.cuda_version // 1000}.{release.cuda_version % 1000 // 10}"
    lines = [
        f"{timestamp:%a %b %d %H:%M:%S %Y}       ",
        *_TEMPLATES.fill("overview", driver=release.driver_version, cuda=cuda),
    ]
    for index, gpu in gpus:
        lines += _describe_gpu(index, gpu)
    if any(gpu.mig_current for _, gpu in gpus):
        devices = [line for index, gpu in gpus for line in _list_mig_devices(index, gpu)]
        lines += ["", *_TEMPLATES.fill("overview MIG")]
        lines += devices or _TEMPLATES.fill("overview without MIG devices")
    lines += ["", *_TEMPLATES.fill("overview processes")]
    rows = [
        line
        for index, gpu in gpus
        for process in sorted(gpu.processes, key=lambda p: p.pid)
        for line in _describe_process(index, process)
    ]
    return [*lines, *(rows or _TEMPLATES.fill("overview without processes")), *_TEMPLATES.fill("overview end")]


def device_list(gpus: Iterable[Numbered]) -> list[str]:
    """Return the lines of `nvidia-smi -L`."""
    lines = []
    for index, gpu in gpus:
        lines += _TEMPLATES.fill("-L GPU", index=index, gpu=gpu, model=queries.model_of(gpu))
        for position, (instance, ci) in enumerate(queries.mig_devices(gpu)):
            name, uuid = queries.mig_device_name(gpu, instance, ci), mig_uuid(gpu, instance, ci)
            lines += _TEMPLATES.fill("-L MIG device", name=name, device=position, uuid=uuid)
    return lines


def profile_table(gpus: Iterable[Numbered]) -> list[str]:
    """Return the lines of `nvidia-smi mig -lgip`."""
    lines = _TEMPLATES.fill("-lgip")
    for index, gpu in gpus:
        model = queries.model_of(gpu)
        for profile in model.profiles:
            free = f"{queries.remaining_capacity(model, gpu.instances, profile)}/{profile.max_instances}"
            gib = f"{profile.capacity_mib / 1024:.2f}"
            lines += _TEMPLATES.fill("-lgip profile", index=index, profile=profile, free=free, gib=gib)
    return lines


def list_placements(gpus: Iterable[Numbered]) -> list[str]:
    """Return the lines of `nvidia-smi mig -lgipp`."""
    lines = []
    for index, gpu in gpus:
        for profile in queries.model_of(gpu).profiles:
            word = "Placements:" if len(profile.starts) > 1 else "Placement :"
            starts = ",".join(map(str, profile.starts))
            lines += _TEMPLATES.fill("-lgipp profile", index=index, profile=profile, word=word, starts=starts)
    return lines


def instance_table(rows: Iterable[tuple[int, Gpu, GpuInstance]]) -> list[str]:
    """Return the lines of `nvidia-smi mig -lgi`."""
    lines = _TEMPLATES.fill("-lgi")
    for index, gpu, instance in rows:
        profile = queries.profile_of(gpu, instance)
        name, placement = f"MIG {profile.name}", f"{instance.start}:{instance.size}"
        lines += _TEMPLATES.fill(
            "-lgi instance", index=index, name=name, profile=profile, instance=instance, placement=placement
        )
    return lines


def compute_profile_table(rows: Iterable[tuple[int, Gpu, GpuInstance]]) -> list[str]:
    """Return the lines of `nvidia-smi mig -lcip`; an asterisk marks the profile with all compute slices."""
    lines = _TEMPLATES.fill("-lcip")
    for index, gpu, instance in rows:
        profile = queries.profile_of(gpu, instance)
        for part in profile.ci_profiles:
            num_free = queries.remaining_ci_capacity(profile, instance.compute_instances, part)
            lines += _TEMPLATES.fill(
                "-lcip profile",
                index=index,
                instance=instance,
                profile=profile,
                part=part,
                name=f"MIG {part.name_prefix}{profile.name}",
                number=f"{part.id}{'' if part.name_prefix else '*'}",
                free=f"{num_free}/{part.max_instances}",
            )
    return lines


def compute_instance_table(rows: Iterable[tuple[int, Gpu, GpuInstance, ComputeInstance]]) -> list[str]:
    """Return the lines of `nvidia-smi mig -lci`."""
    lines = _TEMPLATES.fill("-lci")
    for index, gpu, instance, ci in rows:
        name, placement = f"MIG {queries.mig_device_name(gpu, instance, ci)}", f"{ci.start}:{ci.size}"
        lines += _TEMPLATES.fill("-lci instance", index=index, instance=instance, name=name, ci=ci, placement=placement)
    return lines


def policy_table(gpus: Iterable[Numbered], values: Sequence[str]) -> list[str]:
    """Return the lines of `nvidia-smi compute-policy -l`; `values` names the time slices."""
    rows = (_TEMPLATES.fill("compute-policy GPU", index=index, value=values[gpu.timeslice]) for index, gpu in gpus)
    return [*_TEMPLATES.fill("compute-policy"), *itertools.chain(*rows), *_TEMPLATES.fill("compute-policy end")]


def _describe_gpu(index: int, gpu: Gpu) -> list[str]:
    model, pending = queries.model_of(gpu), "*" if gpu.mig_current != gpu.mig_pending else ""
    name = model.product if len(model.product) <= _NAME_WIDTH else model.product[: _NAME_WIDTH - 3] + "..."
    return _TEMPLATES.fill(
        "overview GPU",
        index=index,
        name=name,
        bus_id=gpu.bus_id,
        ecc="On" if gpu.mig_current else gpu.health.ecc_uncorrected_now,
        used_mib=queries.used_memory_mib(gpu),
        total_mib=model.capacity_mib,
        compute_mode=_MODES_IN_OVERVIEW[gpu.compute_mode],
        mig_mode=_SWITCH[gpu.mig_current] + pending,
    )


def _list_mig_devices(index: int, gpu: Gpu) -> list[str]:
    """Return the lines of the MIG devices. Compute instances share the memory of their instance, printed once."""
    lines: list[str] = []
    previous = None
    for position, (instance, ci) in enumerate(queries.mig_devices(gpu)):
        profile, memory, bar = queries.profile_of(gpu, instance), "", ""
        if instance is previous:
            lines[-1:] = _TEMPLATES.fill("overview rule of a compute instance")
        else:
            used_mib = queries.used_memory_mib(gpu, instance.id)
            (memory,) = _TEMPLATES.fill("overview MIG memory", used_mib=used_mib, profile=profile)
            (bar,) = _TEMPLATES.fill("overview MIG BAR1")
        previous = instance
        part = queries.find_ci_profile(profile, ci.profile_id)
        places = {"index": index, "gi": instance.id, "ci": ci.id, "device": position}
        lines += _TEMPLATES.fill("overview MIG device", **places, memory=memory, bar=bar, part=part, profile=profile)
        lines += _TEMPLATES.fill("overview rule of a GPU instance")
    return lines


def _describe_process(index: int, process: Process) -> list[str]:
    name = process.name
    if len(name) > _PROCESS_NAME_WIDTH:
        name = "..." + name[3 - _PROCESS_NAME_WIDTH :]
    return _TEMPLATES.fill("overview process", index=index, process=process, name=name)


_COMPUTE_MODES = {0: "Default", 2: "Prohibited", 3: "Exclusive_Process"}
_SWITCH = {False: "Disabled", True: "Enabled"}
# All supported columns, with their units.
_UNITS = {
    **dict.fromkeys(("timestamp", "count", "index", "name", "uuid", "pci.bus_id", "driver_version"), ""),
    **dict.fromkeys(("memory.total", "memory.reserved", "memory.used", "memory.free"), "MiB"),
    **dict.fromkeys(("mig.mode.current", "mig.mode.pending", "compute_mode", "pstate"), ""),
    **dict.fromkeys(("power.draw", "power.draw.average", "power.draw.instant"), "W"),
    **dict.fromkeys(("utilization.gpu", "utilization.memory"), "%"),
    **dict.fromkeys(("clocks.current.sm", "clocks.current.memory"), "MHz"),
    **dict.fromkeys(("temperature.gpu", "temperature.memory", "clocks_event_reasons.active"), ""),
    "ecc.errors.uncorrected.volatile.total": "",
}
# Aliases of columns.
_ALIASES = {
    "clocks.sm": "clocks.current.sm",
    "clocks.mem": "clocks.current.memory",
    "gpu_name": "name",
    "gpu_uuid": "uuid",
    "gpu_bus_id": "pci.bus_id",
}
# Prefixes of columns that only the real program supports. Source: nvidia-smi --help-query-gpu.
_FAMILIES = re.compile(
    "accounting|addressing_mode|c2c|clocks(_(event|throttle)_reasons(_counters)?)?|compute_cap"
    "|display_(active|attached|mode)|dramEncryption|driver_model|ecc|encoder|enforced|fabric|fan|gom"
    "|gpu_(operation_mode|recovery_action|serial)|gsp|hostname|inforom|kmd_version|memory|mig|module|pcie?"
    "|persistence_mode|platform|power|protected_memory|remapped_rows|reset_status|retired_pages|serial|temperature"
    "|utilization|vbios_version"
)

# The quantities of sensor columns and their formats. All three power columns are means over a second, despite their
# names.
_SENSORS: dict[str, tuple[Quantity, Callable[[float], str]]] = {
    **dict.fromkeys(("power.draw", "power.draw.average", "power.draw.instant"), (Quantity.POWER, "{:.2f}".format)),
    "utilization.gpu": (Quantity.GPU_UTILIZATION, "{:.0f}".format),
    "utilization.memory": (Quantity.MEMORY_UTILIZATION, "{:.0f}".format),
    "clocks.current.sm": (Quantity.SM_CLOCK, "{:.0f}".format),
    "clocks.current.memory": (Quantity.MEMORY_CLOCK, "{:.0f}".format),
    "temperature.gpu": (Quantity.TEMPERATURE, "{:.0f}".format),
    "pstate": (Quantity.PERFORMANCE_STATE, "P{:.0f}".format),
    "clocks_event_reasons.active": (Quantity.THROTTLE_REASONS, lambda bits: f"0x{int(bits):016x}"),
}
# These columns are not supported for a GPU in MIG mode. Source: nvml.h, nvmlDeviceGetUtilizationRates.
_NOT_UNDER_MIG = frozenset({"utilization.gpu", "utilization.memory"})


class Query:
    """Columns, given by comma-separated names; an unknown name is refused."""

    def __init__(self, fields: str, *, has_units: bool) -> None:
        self._has_units = has_units
        self._columns = []
        for field in (part.strip() for part in fields.split(",")):
            name = _ALIASES.get(field, field)
            if name not in _UNITS:
                is_real = _FAMILIES.fullmatch(name.partition(".")[0])
                end = ": the simulated nvidia-smi does not support it." if is_real else ".\n"
                raise RefusedError(f'Field "{field}" is not a valid field to query{end}', codes.INVALID_ARGUMENT)
            self._columns.append(name)

    def header(self) -> str:
        """Return the header, which has units even if the values are printed without units."""
        return ", ".join(f"{name} [{_UNITS[name]}]" if _UNITS[name] else name for name in self._columns)

    def lines(self, gpus: Iterable[Numbered], timestamp: datetime, state: State) -> list[str]:
        rows = (_collect_known(timestamp, index, gpu, state) | self._readings(index, gpu, state) for index, gpu in gpus)
        return [", ".join(self._cell(name, values.get(name)) for name in self._columns) for values in rows]

    def _readings(self, index: int, gpu: Gpu, state: State) -> dict[str, object]:
        texts: dict[str, object] = {}
        for name in self._columns:
            if name not in _SENSORS or (gpu.mig_current and name in _NOT_UNDER_MIG):
                continue
            quantity, layout = _SENSORS[name]
            if (value := readings.read(state, index, quantity)) is not None:
                texts[name] = layout(value)
        return texts

    def _cell(self, name: str, value: object) -> str:
        if value is None:
            return "[N/A]"
        return f"{value} {_UNITS[name]}" if _UNITS[name] and self._has_units else str(value)


def _collect_known(timestamp: datetime, index: int, gpu: Gpu, state: State) -> dict[str, object]:
    model, used_mib = queries.model_of(gpu), queries.used_memory_mib(gpu)
    return {
        "timestamp": f"{timestamp:%Y/%m/%d %H:%M:%S}.{timestamp.microsecond // 1000:03d}",
        "count": len(state.gpus),
        "index": index,
        "name": model.product,
        "uuid": gpu.uuid,
        "pci.bus_id": gpu.bus_id,
        "driver_version": state.release.driver_version,
        "memory.total": model.capacity_mib,
        "memory.reserved": queries.RESERVED_MIB,
        "memory.used": used_mib,
        "memory.free": model.capacity_mib - queries.RESERVED_MIB - used_mib,
        "mig.mode.current": _SWITCH[gpu.mig_current],
        "mig.mode.pending": _SWITCH[gpu.mig_pending],
        "compute_mode": _COMPUTE_MODES[gpu.compute_mode],
        "ecc.errors.uncorrected.volatile.total": gpu.health.ecc_uncorrected_now,
    }
