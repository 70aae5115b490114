"""The tables of nvidia-smi: the overview, the list of devices, and the lists of `nvidia-smi mig`. Text only.

The formats were recorded on an H100 80GB (driver 580.159.04); those of tables that need MIG mode are from public
transcripts of drivers 570 to 580. As in the real program, an unknown value is printed as N/A.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from pipeline.simulation.machine import placement, queries
from pipeline.simulation.machine.releases import Release
from pipeline.simulation.machine.state_file import (
    ComputeInstance,
    Gpu,
    GpuInstance,
    Process,
    mig_uuid,
)

# The index of a GPU, and the GPU.
Numbered = tuple[int, Gpu]

_COMPUTE_MODES = {0: "Default", 2: "Prohibited", 3: "E. Process"}
_NAME_WIDTH, _PROCESS_NAME_WIDTH = 27, 36

_RULE = "+-----------------------------------------------------------------------------------------+"
_GPU_RULE = "+-----------------------------------------+------------------------+----------------------+"
_GPU_HEADER = (
    "| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |",
    "| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |",
    "|                                         |                        |               MIG M. |",
    "|=========================================+========================+======================|",
)
_MIG_RULE = "+------------------+----------------------------------+-----------+-----------------------+"
_MEMORY_WIDTH = 34
_MIG_RULE_WITHIN = f"+------------------+{'':<{_MEMORY_WIDTH}}+-----------+-----------------------+"
_MIG_HEADER = (
    _RULE,
    "| MIG devices:                                                                            |",
    _MIG_RULE,
    "| GPU  GI  CI  MIG |              Shared Memory-Usage |        Vol|        Shared         |",
    "|      ID  ID  Dev |                Shared BAR1-Usage | SM     Unc| CE ENC  DEC  OFA  JPG |",
    "|                  |                                  |        ECC|                       |",
    "|==================+==================================+===========+=======================|",
)
_PROCESS_HEADER = (
    _RULE,
    "| Processes:                                                                              |",
    "|  GPU   GI   CI              PID   Type   Process name                        GPU Memory |",
    "|        ID   ID                                                               Usage      |",
    "|=========================================================================================|",
)
_PROFILE_HEADER = (
    "| GPU instance profiles:                                                        |",
    "| GPU   Name               ID    Instances   Memory     P2P    SM    DEC   ENC  |",
    "|                                Free/Total   GiB              CE    JPEG  OFA  |",
)
_INSTANCE_HEADER = (
    "| GPU instances:                                          |",
    "| GPU   Name               Profile  Instance   Placement  |",
    "|                            ID       ID       Start:Size |",
)
_COMPUTE_PROFILE_HEADER = (
    "| Compute instance profiles:                                                           |",
    "| GPU     GPU       Name             Profile  Instances   Exclusive       Shared       |",
    "|       Instance                       ID     Free/Total     SM       DEC   ENC   OFA  |",
    "|         ID                                                          CE    JPEG       |",
)
_COMPUTE_HEADER = (
    "| Compute instances:                                                 |",
    "| GPU     GPU       Name             Profile   Instance   Placement  |",
    "|       Instance                       ID        ID       Start:Size |",
    "|         ID                                                         |",
)


def overview(gpus: Sequence[Numbered], now: datetime, release: Release) -> list[str]:
    """Return the lines of nvidia-smi without arguments."""
    cuda = f"{release.cuda_version // 1000}.{release.cuda_version % 1000 // 10}"
    driver = release.driver_version
    versions = f"| NVIDIA-SMI {driver:<22} Driver Version: {driver:<14} CUDA Version: {cuda:<9}|"
    lines = [f"{now:%a %b %d %H:%M:%S %Y}       ", _RULE, versions, _GPU_RULE, *_GPU_HEADER]
    for index, gpu in gpus:
        lines += [*_gpu_row(index, gpu), _GPU_RULE]
    if any(gpu.mig_current for _, gpu in gpus):
        rows = [line for index, gpu in gpus for line in _mig_rows(index, gpu)]
        lines += ["", *_MIG_HEADER, *(rows or [f"|  {'No MIG devices found':<87}|", _RULE])]
    lines += ["", *_PROCESS_HEADER]
    rows = [
        _process_row(index, process) for index, gpu in gpus for process in sorted(gpu.processes, key=lambda p: p.pid)
    ]
    return [*lines, *(rows or [f"|  {'No running processes found':<87}|"]), _RULE]


def device_list(gpus: Iterable[Numbered]) -> list[str]:
    """Return the lines of `nvidia-smi -L`."""
    lines = []
    for index, gpu in gpus:
        lines.append(f"GPU {index}: {queries.model_of(gpu).product} (UUID: {gpu.uuid})")
        for position, (instance, ci) in enumerate(queries.mig_devices(gpu)):
            name = queries.mig_device_name(gpu, instance, ci)
            lines.append(f"  MIG {name:<11} Device {position:>2}: (UUID: {mig_uuid(gpu, instance, ci)})")
    return lines


def profile_table(gpus: Iterable[Numbered]) -> list[str]:
    """Return the lines of `nvidia-smi mig -lgip`."""
    rows = []
    for index, gpu in gpus:
        model = queries.model_of(gpu)
        for profile in model.profiles:
            free = placement.remaining_capacity(model, gpu.instances, profile)
            first = (
                f"|{index:>4}  MIG {profile.name:<15}{profile.id:>3}     {f'{free}/{profile.max_instances}':<11}"
                f"{f'{profile.capacity_mib / 1024:.2f}':<11}No     {_count(profile.num_multiprocessors):<7}"
                f"{_count(profile.num_decoder):<6}{_count(profile.num_encoder):<4}|"
            )
            engines = f"{_count(profile.num_copy):<6}{_count(profile.num_jpeg):<6}{_count(profile.num_ofa):<4}"
            rows.append((first, f"|{'':<63}{engines}|"))
    return _table(_PROFILE_HEADER, rows)


def list_placements(gpus: Iterable[Numbered]) -> list[str]:
    """Return the lines of `nvidia-smi mig -lgipp`."""
    lines = []
    for index, gpu in gpus:
        for profile in queries.model_of(gpu).profiles:
            word = "Placements:" if len(profile.starts) > 1 else "Placement :"
            starts = ",".join(map(str, profile.starts))
            lines.append(f"GPU {index:>2} Profile ID {profile.id:>2} {word} {{{starts}}}:{profile.memory_slices}")
    return lines


def instance_table(rows: Iterable[tuple[int, Gpu, GpuInstance]]) -> list[str]:
    """Return the lines of `nvidia-smi mig -lgi`."""
    lines = []
    for index, gpu, instance in rows:
        profile = queries.profile_of(gpu, instance)
        name, place = f"MIG {profile.name}", f"{instance.start}:{instance.size}"
        lines.append((f"|{index:>4}  {name:<21}{profile.id:>3}{instance.id:>9}{'':<10}{place:<8}|",))
    return _table(_INSTANCE_HEADER, lines)


def compute_profile_table(rows: Iterable[tuple[int, Gpu, GpuInstance]]) -> list[str]:
    """Return the lines of `nvidia-smi mig -lcip`; an asterisk marks the profile with all compute slices."""
    lines = []
    for index, gpu, instance in rows:
        profile = queries.profile_of(gpu, instance)
        for part in profile.ci_profiles:
            name, number = f"MIG {part.name_prefix}{profile.name}", f"{part.id}{'' if part.name_prefix else '*'}"
            free = placement.remaining_ci_capacity(profile, instance.compute_instances, part)
            first = (
                f"|{index:>4}{instance.id:>7}       {name:<21}{number:<7}{f'{free}/{part.max_instances}':<13}"
                f" {_count(part.num_multiprocessors):<10}{_count(profile.num_decoder):<6}"
                f"{_count(profile.num_encoder):<6}{_count(profile.num_ofa):<4}|"
            )
            lines.append((first, f"|{'':<70}{_count(profile.num_copy):<6}{_count(profile.num_jpeg):<10}|"))
    return _table(_COMPUTE_PROFILE_HEADER, lines)


def compute_instance_table(rows: Iterable[tuple[int, Gpu, GpuInstance, ComputeInstance]]) -> list[str]:
    """Return the lines of `nvidia-smi mig -lci`."""
    lines = []
    for index, gpu, instance, ci in rows:
        name, place = f"MIG {queries.mig_device_name(gpu, instance, ci)}", f"{ci.start}:{ci.size}"
        ids = f"{ci.profile_id:>2}{ci.id:>10}"
        lines.append((f"|{index:>4}{instance.id:>7}       {name:<20}{ids}{'':<10}{place:<8}|",))
    return _table(_COMPUTE_HEADER, lines)


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    width = len(header[0]) - 2
    rule = f"+{'-' * width}+"
    return [rule, *header, f"|{'=' * width}|", *(line for row in rows for line in (*row, rule))]


def _gpu_row(index: int, gpu: Gpu) -> list[str]:
    model = queries.model_of(gpu)
    name = model.product if len(model.product) <= _NAME_WIDTH else model.product[: _NAME_WIDTH - 3] + "..."
    ecc = "On" if gpu.mig_current else str(gpu.health.ecc_uncorrected_now)
    mode = "Enabled" if gpu.mig_current else "Disabled"
    pending = "*" if gpu.mig_current != gpu.mig_pending else ""
    return [
        f"|{index:>4}  {name:<{_NAME_WIDTH}}    On  |   {gpu.bus_id} Off |{ecc:>21} |",
        f"| N/A   N/A    N/A           N/A  /  N/A  |{queries.used_memory_mib(gpu):>8}MiB /{model.capacity_mib:>7}MiB |"
        f"     N/A{_COMPUTE_MODES[gpu.compute_mode]:>13} |",
        f"|{'':<41}|{'':<24}|{mode + pending:>21} |",
    ]


def _mig_rows(index: int, gpu: Gpu) -> list[str]:
    lines: list[str] = []
    previous = None
    for position, (instance, ci) in enumerate(queries.mig_devices(gpu)):
        profile = queries.profile_of(gpu, instance)
        used_mib = queries.used_memory_mib(gpu, instance.id)
        memory = f"{used_mib:>16}MiB /{profile.capacity_mib:>6}MiB    ", f"{'N/A':>19} / {'N/A':>8}    "
        if instance is previous:
            # The memory of a GPU instance is printed once, because its compute instances share it.
            memory = " " * _MEMORY_WIDTH, " " * _MEMORY_WIDTH
            lines[-1] = _MIG_RULE_WITHIN
        previous = instance
        count = _count(queries.find_ci_profile(profile, ci.profile_id).num_multiprocessors)
        lines += [
            f"|{index:>3}{instance.id:>5}{ci.id:>4}{position:>4}  |{memory[0]}|{count:>3}{'N/A':>7} |"
            f"{_count(profile.num_copy):>3}{_count(profile.num_encoder):>4}{_count(profile.num_decoder):>5}"
            f"{_count(profile.num_ofa):>5}{_count(profile.num_jpeg):>5} |",
            f"|{'':<18}|{memory[1]}|{'':<11}|{'':<23}|",
            _MIG_RULE,
        ]
    return lines


def _process_row(index: int, process: Process) -> str:
    name = process.name
    if len(name) > _PROCESS_NAME_WIDTH:
        name = "..." + name[3 - _PROCESS_NAME_WIDTH :]
    ids = process.gpu_instance_id, process.compute_instance_id
    instance, ci = ("N/A" if number is None else number for number in ids)
    return (
        f"|{index:>5}{instance:>6}{ci:>5}{process.pid:>16}{process.kind:>7}   {name:<{_PROCESS_NAME_WIDTH}}"
        f"{process.memory_mib:>7}MiB |"
    )


def _count(number: int | None) -> str:
    return "N/A" if number is None else str(number)
