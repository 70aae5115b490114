"""`nvidia-smi -q` and `nvidia-smi -q -x`: everything about each GPU, as text and as XML.

The layout and all that the state does not decide are in `smi_q.txt` and `smi_q.xml`, which follow recordings of an H100
80GB (driver 580.159.04): a head, a part for each GPU and an end, divided by lines of `---`. There `{name}` is what the
state tells, `[[value]]` what was recorded and is not available of another model, and every reading is N/A. The sections
on MIG devices and processes, which those recordings have not, follow public transcripts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import cache
from pathlib import Path
from xml.sax.saxutils import escape

from pipeline.simulation import machine
from pipeline.simulation.smi_text import Numbered
from pipeline.simulation.state import CUDA_VERSION, DRIVER_VERSION, ComputeInstance, Gpu, GpuInstance, Process

# A section: what it is called in the text and in the XML, and its value or the list of those below it.
_Section = tuple[str, str, object]

_RECORDED_MODEL = "h100_80gb"
_OF_RECORDED_MODEL = re.compile(r"\[\[(.*?)\]\]")
_NOT_AVAILABLE = "N/A"
_KEY_WIDTH = 55
_SWITCH = {False: "Disabled", True: "Enabled"}
_COMPUTE_MODES = {0: "Default", 2: "Prohibited", 3: "Exclusive_Process"}


def lines(gpus: Sequence[Numbered], num_attached: int, now: datetime, *, as_xml: bool) -> list[str]:
    """What is printed.

    Args:
        gpus: those that were asked about, with their indices.
        num_attached: how many the machine has.
        now: of the timestamp.
        as_xml: whether as XML.
    """
    head, each, end = _template("smi_q.xml" if as_xml else "smi_q.txt")
    common = {
        "now": f"{now:%a %b %d %H:%M:%S %Y}",
        "driver_version": DRIVER_VERSION,
        "cuda_version": f"{CUDA_VERSION // 1000}.{CUDA_VERSION % 1000 // 10}",
        "num_attached": str(num_attached),
    }
    printed = [line.format_map(common) for line in head]
    for index, gpu in gpus:
        blocks = _xml_blocks(gpu) if as_xml else _text_blocks(gpu)
        values = common | _values(index, gpu)
        is_recorded = machine.model_of(gpu).name == _RECORDED_MODEL
        for line in each:
            if line in blocks:
                printed += blocks[line]
            else:
                known = _OF_RECORDED_MODEL.sub(r"\1" if is_recorded else _NOT_AVAILABLE, line)
                printed.append(known.format_map(values))
    return printed + end


@cache
def _template(name: str) -> tuple[list[str], list[str], list[str]]:
    text = (Path(__file__).parent / name).read_text(encoding="utf-8")
    head, each, end = (part.splitlines() for part in text.split("---\n"))
    return head, each, end


def _values(index: int, gpu: Gpu) -> dict[str, object]:
    model = machine.model_of(gpu)
    used_mib = machine.used_memory_mib(gpu)
    domain, bus, device = gpu.bus_id.split(":")
    return {
        "index": index,
        "uuid": gpu.uuid,
        "product": model.product,
        "architecture": model.architecture,
        "mig_current": _SWITCH[gpu.mig_current],
        "mig_pending": _SWITCH[gpu.mig_pending],
        "bus_id": gpu.bus_id,
        "pci_domain": domain[-4:],
        "pci_bus": bus,
        "pci_device": device.split(".")[0],
        "memory_total": model.memory_mib,
        "memory_reserved": machine.RESERVED_MIB,
        "memory_used": used_mib,
        "memory_free": model.memory_mib - machine.RESERVED_MIB - used_mib,
        "compute_mode": _COMPUTE_MODES[gpu.compute_mode],
    }


def _text_blocks(gpu: Gpu) -> Mapping[str, list[str]]:
    devices = _text([("MIG Device", "", section) for section in _mig_devices(gpu)], 1)
    processes = [line for process in _processes(gpu) for line in _text(process, 2)]
    title = "    Processes"
    return {
        "{mig_devices}": list(devices),
        "{processes}": [title, *processes] if processes else [f"{title:<{_KEY_WIDTH}}: None"],
    }


def _xml_blocks(gpu: Gpu) -> Mapping[str, list[str]]:
    devices = list(_xml([("", "mig_device", section) for section in _mig_devices(gpu)], 3)) or ["\t\t\tNone"]
    processes = _xml([("", "process_info", section) for section in _processes(gpu)], 3)
    return {
        "{mig_devices}": ["\t\t<mig_devices>", *devices, "\t\t</mig_devices>"],
        "{processes}": ["\t\t<processes>", *processes, "\t\t</processes>"],
    }


def _text(sections: Sequence[_Section], depth: int) -> Iterator[str]:
    for title, _, content in sections:
        key = "    " * depth + title
        if isinstance(content, list):
            yield key
            yield from _text(content, depth + 1)
        else:
            yield f"{key:<{_KEY_WIDTH}}: {content}"


def _xml(sections: Sequence[_Section], depth: int) -> Iterator[str]:
    for _, tag, content in sections:
        indent = "\t" * depth
        if isinstance(content, list):
            yield f"{indent}<{tag}>"
            yield from _xml(content, depth + 1)
            yield f"{indent}</{tag}>"
        else:
            yield f"{indent}<{tag}>{escape(str(content))}</{tag}>"


def _mig_devices(gpu: Gpu) -> list[list[_Section]]:
    return [
        _mig_device(gpu, position, instance, division)
        for position, (instance, division) in enumerate(machine.mig_devices(gpu))
    ]


def _mig_device(gpu: Gpu, position: int, instance: GpuInstance, division: ComputeInstance) -> list[_Section]:
    profile = machine.profile_of(gpu, instance)
    used_mib = machine.used_memory_mib(gpu, instance.id)
    count = machine.division_of(profile, division.profile_id).num_multiprocessors
    shared: list[_Section] = [
        ("Multiprocessor count", "multiprocessor_count", _known(count)),
        ("Copy Engine count", "copy_engine_count", _known(profile.num_copy)),
        ("Encoder count", "encoder_count", _known(profile.num_encoder)),
        ("Decoder count", "decoder_count", _known(profile.num_decoder)),
        ("OFA count", "ofa_count", _known(profile.num_ofa)),
        ("JPG count", "jpg_count", _known(profile.num_jpeg)),
    ]
    memory: list[_Section] = [
        ("Total", "total", f"{profile.memory_mib} MiB"),
        ("Reserved", "reserved", "0 MiB"),
        ("Used", "used", f"{used_mib} MiB"),
        ("Free", "free", f"{profile.memory_mib - used_mib} MiB"),
    ]
    return [
        ("Index", "index", position),
        ("GPU Instance ID", "gpu_instance_id", instance.id),
        ("Compute Instance ID", "compute_instance_id", division.id),
        ("Device Attributes", "device_attributes", [("Shared", "shared", shared)]),
        ("Shared FB Memory Usage", "fb_memory_usage", memory),
        (
            "Shared BAR1 Memory",
            "bar1_memory_usage",
            [(title, title.lower(), _NOT_AVAILABLE) for title in ("Total", "Used", "Free")],
        ),
    ]


def _processes(gpu: Gpu) -> list[list[_Section]]:
    return [_process(process) for process in sorted(gpu.processes, key=lambda process: process.pid)]


def _process(process: Process) -> list[_Section]:
    # What the text sets below the process ID stands beside it in the XML.
    return [
        ("GPU instance ID", "gpu_instance_id", _known(process.gpu_instance_id)),
        ("Compute instance ID", "compute_instance_id", _known(process.compute_instance_id)),
        ("Process ID", "pid", process.pid),
        ("    Type", "type", process.kind),
        ("    Name", "process_name", process.name),
        ("    Used GPU Memory", "used_memory", f"{process.memory_mib} MiB"),
    ]


def _known(number: int | None) -> object:
    return _NOT_AVAILABLE if number is None else number
