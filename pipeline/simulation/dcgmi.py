"""The program dcgmi of the simulated driver: `python -m pipeline.simulation.dcgmi --state-file FILE ...`.

It lists and watches what DCGM's host engine would see of the machine, in the layout of DCGM 4, and has no reading at
all: every cell is not available. It starts no program and looks at nothing but the state file.

Source of the formats, of the order of rows and of what goes to which stream: the source of dcgmi, DCGM 4.6. Statuses
are DCGM's return codes, of which a process keeps the last byte.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.base.errors import ConfigError
from pipeline.simulation.machine import queries
from pipeline.simulation.machine.codes import DriverError
from pipeline.simulation.machine.driver import Driver
from pipeline.simulation.machine.queries import model_of
from pipeline.simulation.machine.state import Gpu, GpuInstance, StateFile

# What a fault names to keep the host engine from answering, or from watching a field, as `dcgmWatchFields:1006`.
CONNECT, WATCH = "dcgmConnect", "dcgmWatchFields"
# And what keeps it from releasing the profiling counters, or from taking them again.
PAUSE, RESUME = "dcgmProfPause", "dcgmProfResume"

_PROFILING_ERROR = -37
_BAD_PARAMETER, _NOT_SUPPORTED, _NO_CONNECTION, _INCOMPATIBLE = -1, -6, -21, -23
_NO_ENGINE = (
    "Error: unable to establish a connection to the specified host: localhost\n"
    "Error: Unable to connect to host engine. Host engine connection invalid/disconnected."
)
_REFUSED = "Error setting watches. Result: -6: Feature not supported"
_UNRECOVERABLE = "The third-party Profiling module returned an unrecoverable error"
# What is said when it worked. Source: DCGM user guide, "Concurrent Usage of NVIDIA Profiling Tools".
_PROFILING = {
    "profile --pause": "Successfully paused profiling.",
    "profile --resume": "Successfully resumed profiling.",
}
# The host engine sees a new instance a second or two after it was made (NVIDIA/DCGM#230).
_SEEN_AFTER_S = 1.0
# The header comes again after 15 rounds, then after every 14.
_ROUNDS_OF_HEADER = 14
_LABEL_WIDTH, _CELL_PADDING = 16, 8
_NOT_AVAILABLE = "N/A"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Field:
    """A profiling field.

    Attributes:
        title: what dmon calls its column.
        width: of a value.
        tag: what `profile -l` calls it.
        group: with which others an Ampere GPU counts it at once; those of one letter take turns.
        is_of_gpu: whether instances have none of it; their cells are blank.
    """

    title: str
    width: int
    tag: str
    group: str
    is_of_gpu: bool = False


# Source: dcgm_fields.cpp, DCGM 4.6; the groups: an A100's.
_FIELDS = {
    1001: _Field(title="GRACT", width=5, tag="gr_engine_active", group="D.0"),
    1002: _Field(title="SMACT", width=5, tag="sm_active", group="A.1"),
    1003: _Field(title="SMOCC", width=5, tag="sm_occupancy", group="A.1"),
    1004: _Field(title="TENSO", width=5, tag="tensor_active", group="A.1"),
    1005: _Field(title="DRAMA", width=5, tag="dram_active", group="B.0"),
    1006: _Field(title="FP64A", width=5, tag="fp64_active", group="A.1"),
    1007: _Field(title="FP32A", width=5, tag="fp32_active", group="A.3"),
    1008: _Field(title="FP16A", width=5, tag="fp16_active", group="A.2"),
    1009: _Field(title="PCITX", width=20, tag="pcie_tx_bytes", group="C.0", is_of_gpu=True),
    1010: _Field(title="PCIRX", width=20, tag="pcie_rx_bytes", group="C.0", is_of_gpu=True),
    1011: _Field(title="NVLTX", width=20, tag="nvlink_tx_bytes", group="E.0", is_of_gpu=True),
    1012: _Field(title="NVLRX", width=20, tag="nvlink_rx_bytes", group="E.0", is_of_gpu=True),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entity:
    """A GPU or GPU instance that the host engine sees.

    Attributes:
        label: how a row of dmon begins.
        names: what it can be asked for by.
        gpu: the GPU that it is, or is on.
        is_instance: whether it is a GPU instance.
    """

    label: str
    names: frozenset[str]
    gpu: Gpu
    is_instance: bool


class _RefusedError(Exception):
    """The program ends with a message and a return code of DCGM."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.status = code & 0xFF


def main(arguments: Sequence[str]) -> int:
    """Run the program.

    Args:
        arguments: `--state-file FILE`, then those of dcgmi.

    Returns:
        The exit status.
    """
    if len(arguments) < 2 or arguments[0] != "--state-file":
        _say("The simulated dcgmi is called with --state-file FILE first.")
        return 1
    try:
        return _Program(Driver(StateFile(Path(arguments[1])))).run(arguments[2:])
    except ConfigError as error:
        _say(str(error))
        return 1
    except _RefusedError as refusal:
        sys.stderr.write(f"{refusal}\n")
        return refusal.status
    except BrokenPipeError:
        # Nobody reads any more; Python must not try again when it closes the stream.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


class _Program:
    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def run(self, arguments: Sequence[str]) -> int:
        known = {"discovery -l": "", "discovery -c": "", "profile -l": "-i", "dmon": "-e -i -d -c"}
        known |= dict.fromkeys(_PROFILING, "")
        words = 1 if arguments[:1] == ["dmon"] else 2
        command = " ".join(arguments[:words])
        options = _options(arguments[words:], known.get(command, "").split())
        if options is None or command not in known:
            raise _RefusedError(f"The simulated dcgmi does not know {' '.join(arguments)}.", _BAD_PARAMETER)
        self._check(CONNECT, _NO_ENGINE, _NO_CONNECTION)
        if command in _PROFILING:
            self._check(PAUSE if command == "profile --pause" else RESUME, _UNRECOVERABLE, _PROFILING_ERROR)
            self._driver.pause_dcgm(is_paused=command == "profile --pause")
            _say(_PROFILING[command])
            return 0
        targets = options.get("-i", "*")
        if command == "dmon":
            return self._watch(options, targets)
        if command == "profile -l":
            lines = self._groups(targets)
        else:
            lines = self._devices() if command == "discovery -l" else self._hierarchy()
        _say("\n".join(lines))
        return 0

    def _check(self, function: str, message: str, code: int) -> None:
        try:
            self._driver.check(function)
        except DriverError as error:
            raise _RefusedError(message, code) from error

    def _devices(self) -> Iterator[str]:
        gpus = self._driver.state().gpus
        rule = f"+--------+{'':-<70}+"
        yield f"{len(gpus)} GPU{'' if len(gpus) == 1 else 's'} found."
        yield from (rule, f"| GPU ID | {'Device Information':<68} |", rule)
        for index, gpu in enumerate(gpus):
            yield f"| {index:<6} | {f'Name: {model_of(gpu).product}':<68} |"
            yield f"| {'':<6} | {f'PCI Bus ID: {gpu.bus_id}':<68} |"
            yield f"| {'':<6} | {f'Device UUID: {gpu.uuid}':<68} |"
            yield rule
        yield from ("0 NvSwitches found.", "+-----------+", "| Switch ID |", "+-----------+", "+-----------+")

    def _hierarchy(self) -> Iterator[str]:
        rule = f"+{'':-<19}+{'':-<68}+"
        yield from (rule, f"| {'Instance Hierarchy':<86} |", rule.replace("-", "="))
        num_gpus = 0
        for index, gpu in enumerate(self._driver.state().gpus):
            instances = _seen_instances(index, gpu)
            if not instances:
                continue  # a GPU without instances is not in it
            num_gpus += 1
            yield f"| {f'GPU {index}':<17} | {f'GPU {gpu.uuid} (EntityID: {index})':<66} |"
            divisions = _seen_divisions(index, gpu)
            for entity, instance in instances:
                place = f"{index}/{instance.id}"
                yield f"| {f'-> I {place}':<17} | {f'GPU Instance (EntityID: {entity})':<66} |"
                for division in sorted(instance.compute_instances, key=lambda each: each.id):
                    name = f"   -> CI {place}/{division.id}"
                    number = divisions[instance.id, division.id]
                    yield f"| {name:<17} | {f'Compute Instance (EntityID: {number})':<66} |"
            yield rule
        if not num_gpus:
            yield rule

    def _groups(self, targets: str) -> Iterator[str]:
        gpus = [entity.gpu for entity in self._entities(targets)]
        if len({gpu.model for gpu in gpus}) > 1:
            raise _RefusedError("Error: the GPUs provided (or not provided) are not the same SKU.", _INCOMPATIBLE)
        rule = f"+{'':-<16}+{'':-<10}+{'':-<54}+"
        yield from (rule, f"| {'Group.Subgroup':<14} | {'Field ID':<8} | {'Field Tag':<52} |", rule)
        takes_turns = model_of(gpus[0]).architecture == "Ampere"
        rows = [(field.group if takes_turns else "A.0", number, field.tag) for number, field in _FIELDS.items()]
        for group, number, tag in sorted(rows):
            yield f"| {group:<14} | {number:<8} | {tag:<52} |"
        yield rule

    def _watch(self, options: dict[str, str], targets: str) -> int:
        try:
            numbers = [int(number) for number in options["-e"].split(",")]
            num_rounds, period_s = int(options.get("-c", "0")), int(options.get("-d", "1000")) / 1e3
        except (KeyError, ValueError) as error:
            words = " ".join(f"{name} {value}" for name, value in options.items())
            raise _RefusedError(f"The simulated dcgmi does not know dmon {words}.", _BAD_PARAMETER) from error
        entities = self._entities(targets)
        if unknown := [number for number in numbers if number not in _FIELDS]:
            raise _RefusedError(f"Error: the simulated dcgmi does not know field {unknown[0]}.", _BAD_PARAMETER)
        fields = [_FIELDS[number] for number in numbers]
        header = [
            _line("#Entity", [field.title for field in fields], fields),
            _line("ID", ["" for _ in fields], fields),
        ]
        _say("\n".join(header))
        for number in numbers:
            # One field that is refused refuses them all, after the header, and nothing says which it was.
            self._check(f"{WATCH}:{number}", _REFUSED, _NOT_SUPPORTED)
        done, next_header = 0, _ROUNDS_OF_HEADER + 1
        while True:
            for entity in entities:
                cells = ["" if field.is_of_gpu and entity.is_instance else _NOT_AVAILABLE for field in fields]
                _say(_line(entity.label, cells, fields))
            done += 1
            if done == num_rounds:
                return 0
            time.sleep(period_s)
            if done == next_header:
                next_header += _ROUNDS_OF_HEADER
                _say("\n".join(header))

    def _entities(self, targets: str) -> list[_Entity]:
        """What is asked for: each GPU before its instances, and those in the order of NVML's ids.

        Raises:
            _RefusedError: the host engine sees no such thing, as an instance that has just been made.
        """
        known: list[_Entity] = []
        for index, gpu in enumerate(self._driver.state().gpus):
            names = frozenset({f"{index}", f"g:{index}", f"gpu:{index}", gpu.uuid, "*"})
            known.append(_Entity(label=f"GPU {index}", names=names, gpu=gpu, is_instance=False))
            for entity, instance in _seen_instances(index, gpu):
                by_nvml = {f"{index}/{instance.id}", f"{gpu.uuid}/{instance.id}", f"{index}/*", "*/*"}
                names = frozenset({f"i:{entity}", f"instance:{entity}", *by_nvml})
                known.append(_Entity(label=f"GPU-I {entity}", names=names, gpu=gpu, is_instance=True))
        wanted = set(targets.split(","))
        for target in wanted:
            if not any(target in entity.names for entity in known):
                raise _RefusedError(f"Error: the host engine knows no entity {target}.", _BAD_PARAMETER)
        return [entity for entity in known if wanted & entity.names]


def _first_entity(index: int, gpu: Gpu) -> int:
    # Source: DCGM's cache manager: each GPU has room for as many numbers as it may have MIG devices.
    return index * model_of(gpu).compute_slices


def _seen_instances(index: int, gpu: Gpu) -> list[tuple[int, GpuInstance]]:
    """The GPU instances that the host engine has noticed, by NVML's ids, with the numbers that it gives them."""
    numbered = enumerate(_noticed(gpu), start=_first_entity(index, gpu))
    return sorted(numbered, key=lambda pair: pair[1].id)


def _seen_divisions(index: int, gpu: Gpu) -> dict[tuple[int, int], int]:
    """The number of each compute instance, by NVML's ids. They are counted like GPU instances."""
    places = [(instance.id, division.id) for instance in _noticed(gpu) for division in instance.compute_instances]
    return {place: number for number, place in enumerate(places, start=_first_entity(index, gpu))}


def _noticed(gpu: Gpu) -> list[GpuInstance]:
    now_s = time.monotonic()
    # An instant that is still to come is of a kept machine, from before this computer was started.
    return [each for each in queries.listed(gpu) if not 0 <= now_s - each.made_s < _SEEN_AFTER_S]


def _options(arguments: Sequence[str], known: Sequence[str]) -> dict[str, str] | None:
    if len(arguments) % 2 or not set(arguments[::2]) <= set(known):
        return None
    return dict(zip(arguments[::2], arguments[1::2], strict=True))


def _line(label: str, cells: Sequence[str], fields: Sequence[_Field]) -> str:
    padded = (f"{cell:<{field.width + _CELL_PADDING}}" for cell, field in zip(cells, fields, strict=True))
    return f"{label:<{_LABEL_WIDTH}}{''.join(padded)}"


def _say(line: str) -> None:
    # Flushed, because whoever reads waits for its lines.
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
