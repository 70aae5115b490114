"""The state of a machine that determines the speed of its GPU; only rows with equal states are compared.

The live table, MLflow, `resume`, the shard overview and the report use this definition.
"""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pipeline.base.domain.records import Device
from pipeline.base.system import host_info

FACTS = {
    "gpu_uuid": ("GPU", ""),
    "boot_id": ("boot", ""),
    "driver_version": ("driver", ""),
    "power_limit_w": ("power limit", " W"),
    "ecc_mode": ("ECC mode", ""),
    "graphics_clock_setting_mhz": ("graphics clock setting", " MHz"),
    "memory_clock_setting_mhz": ("memory clock setting", " MHz"),
}
"""Name in texts and unit of each fact, by tag."""


@dataclass(frozen=True, slots=True, order=True)
class MachineState:
    """The known facts of a state, in the order of `FACTS`; facts that the driver does not report are missing."""

    facts: tuple[tuple[str, str], ...]

    @classmethod
    def from_facts(cls, facts: Mapping[str, str | None]) -> MachineState:
        """Create a state from facts by name, such as the tags of a run; other facts are ignored."""
        return cls(tuple((name, value) for name in FACTS if (value := facts.get(name))))

    @classmethod
    def read(cls, device: Device) -> MachineState:
        """Read the state of this machine with a device whose details were just read."""
        return cls.from_facts({**device.facts.as_texts(), "gpu_uuid": device.uuid, "boot_id": host_info.boot_id()})

    def is_same(self, other: MachineState) -> bool:
        """Return whether nothing differs; a fact missing on one side is not a difference."""
        return not self._differing(other)

    def _differing(self, other: MachineState) -> list[tuple[str, str, str]]:
        other_facts = dict(other.facts)
        return [(name, value, other_facts[name]) for name, value in self.facts if other_facts.get(name, value) != value]

    def difference(self, other: MachineState) -> str:
        """Name the differences: `driver and power limit`; empty if there are none."""
        return " and ".join(FACTS[name][0] for name, *_ in self._differing(other))

    def changes(self, since: MachineState) -> str:
        """Describe the changes: `driver 590.48.01, was 580.159.04`; empty if there are none."""
        return "; ".join(
            "the machine was restarted"
            if name == "boot_id"
            else f"{FACTS[name][0]} {value}{FACTS[name][1]}, was {before}{FACTS[name][1]}"
            for name, value, before in self._differing(since)
        )


def merge_same(states: Iterable[MachineState]) -> dict[MachineState, MachineState]:
    """Map each state to a merged state that combines the facts of all equal states.

    The result does not depend on the order of the states, because states with more facts are processed first.
    """
    merged: list[MachineState] = []
    place: dict[MachineState, int] = {}
    for state in sorted(set(states), key=lambda state: (-len(state.facts), state)):
        number = next((number for number, met in enumerate(merged) if met.is_same(state)), len(merged))
        if number == len(merged):
            merged.append(state)
        merged[number] = MachineState.from_facts(dict(state.facts) | dict(merged[number].facts))
        place[state] = number
    return {state: merged[number] for state, number in place.items()}


def cpu_device() -> Device:
    """Return the CPUs of this machine as a device."""
    return Device(kind="cpu", uuid=f"{host_info.CPU_PREFIX}{platform.node()}", name=host_info.cpu_model())
