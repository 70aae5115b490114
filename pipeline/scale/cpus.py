"""The CPUs of each worker: CPUs of its GPU's NUMA node, divided among the workers of this node."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from pipeline.base.domain.records import Device

_PCI_DEVICES = Path("/sys/bus/pci/devices")
_CPUS = Path("/sys/devices/system/cpu")


def divide(devices: Sequence[Device]) -> Mapping[str, frozenset[int]]:
    """Return the CPUs of each GPU's worker by UUID; workers share no CPU unless there are too few CPUs."""
    available = frozenset(os.sched_getaffinity(0))
    sharing: list[tuple[frozenset[int], list[Device]]] = []
    for device in devices:
        near, members = (_read_near_cpus(device) & available) or available, [device]
        for other in [share for share in sharing if share[0] & near]:  # a GPU of an unknown node shares with all
            sharing.remove(other)
            near, members = near | other[0], [*other[1], *members]
        sharing.append((near, members))
    by_uuid: dict[str, frozenset[int]] = {}
    for cpus, members in sharing:
        cores = _list_cores(cpus)
        parts = cores if len(cores) >= len(members) else [[cpu] for cpu in sorted(cpus)]
        per_worker = len(parts) // len(members)
        for number, device in enumerate(members):
            part = parts[number * per_worker : (number + 1) * per_worker]
            by_uuid[device.uuid] = frozenset(cpu for core in part for cpu in core) or cpus
    return by_uuid


def _list_cores(cpus: frozenset[int]) -> list[list[int]]:
    """Return the CPUs of each core, which are hyperthreads that slow each other down."""
    cores: dict[int, list[int]] = defaultdict(list)
    for cpu in sorted(cpus):
        try:
            siblings = parse_list((_CPUS / f"cpu{cpu}" / "topology" / "thread_siblings_list").read_text())
        except OSError:
            siblings = frozenset({cpu})
        cores[min(siblings, default=cpu)].append(cpu)
    return [members for _, members in sorted(cores.items())]


@contextmanager
def bind_children(cpus: frozenset[int]) -> Iterator[None]:
    """Restrict processes that start within the context to these CPUs."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _read_near_cpus(device: Device) -> frozenset[int]:
    """Return the CPUs of a GPU's NUMA node; empty if Linux does not report them."""
    bus_id = (device.facts.pci_bus_id or "").lower()
    domain, colon, rest = bus_id.partition(":")
    try:
        return parse_list((_PCI_DEVICES / f"{domain[-4:]}{colon}{rest}" / "local_cpulist").read_text())
    except OSError:
        return frozenset()


def parse_list(text: str) -> frozenset[int]:
    """Parse a CPU list of the kernel, such as `0-3,8,10-11`."""
    numbers: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        numbers.update(range(int(first), int(last or first) + 1))
    return frozenset(numbers)
