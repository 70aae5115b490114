"""The program dcgmi of the simulated driver: `python -m pipeline.simulation.dcgmi --state-file FILE ...`.

The program lists and watches the entities that DCGM's host engine would report for the machine, in the output format of
DCGM 4. Values come from the machine's sources of readings; without a source, values are not available. The program
starts no other program, and reads only the state file and the files of the sources.

Formats, row order and output streams are those of the source code of dcgmi (DCGM 4.6). An exit status is the last byte
of DCGM's return code.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from pipeline.simulation import simulated_program
from pipeline.simulation.machine import queries, readings
from pipeline.simulation.machine.codes import DriverError
from pipeline.simulation.machine.driver import Driver
from pipeline.simulation.machine.queries import model_of
from pipeline.simulation.machine.readings import Quantity
from pipeline.simulation.machine.state_file import Gpu, GpuInstance, State
from pipeline.simulation.simulated_program import RefusedError, Templates, say

# Names of faults. CONNECT: the host engine does not answer. WATCH, as in `dcgmWatchFields:1006`: it does not watch a
# field. PAUSE, RESUME: it does not release the profiling counters, or does not resume profiling.
CONNECT, WATCH = "dcgmConnect", "dcgmWatchFields"
PAUSE, RESUME = "dcgmProfPause", "dcgmProfResume"

_PROFILING_ERROR = -37
_BAD_PARAMETER, _NOT_SUPPORTED, _NO_CONNECTION = -1, -6, -21
_NO_ENGINE = (
    "Error: unable to establish a connection to the specified host: localhost\n"
    "Error: Unable to connect to host engine. Host engine connection invalid/disconnected."
)
_REFUSED = "Error setting watches. Result: -6: Feature not supported"
_UNRECOVERABLE = "The third-party Profiling module returned an unrecoverable error"
# Success messages. Source: DCGM user guide, "Concurrent Usage of NVIDIA Profiling Tools".
_PROFILING = {
    "profile --pause": "Successfully paused profiling.",
    "profile --resume": "Successfully resumed profiling.",
}
# The host engine sees a new instance one or two seconds after its creation (NVIDIA/DCGM#230).
_SEEN_AFTER_S = 1.0
# The header is repeated after the first 15 rounds, and then after every 14 rounds.
_ROUNDS_OF_HEADER = 14


# For each profiling field, its column of dmon and its quantity. Traffic is in bytes per second. Sources:
# dcgm_fields.cpp, dcgm_fields.h, DCGM 4.6.
_COLUMNS = {
    1001: ("GRACT", Quantity.GRACT),
    1002: ("SMACT", Quantity.SMACT),
    1003: ("SMOCC", Quantity.SM_OCCUPANCY),
    1004: ("TENSO", Quantity.TENSOR),
    1005: ("DRAMA", Quantity.DRAM),
    1006: ("FP64A", Quantity.FP64),
    1007: ("FP32A", Quantity.FP32),
    1008: ("FP16A", Quantity.FP16),
    1009: ("PCITX", Quantity.PCIE_OUT),
    1010: ("PCIRX", Quantity.PCIE_IN),
    1011: ("NVLTX", Quantity.NVLINK_OUT),
    1012: ("NVLRX", Quantity.NVLINK_IN),
}
# Columns that GPU instances do not have; their cells are blank, and wider.
_OF_GPU = frozenset({1009, 1010, 1011, 1012})
_MIB = 2**20
_TEMPLATES = Templates(Path(__file__).with_suffix(".txt"))


def main(arguments: Sequence[str]) -> int:
    """Run the program with `--state-file FILE` and the arguments of dcgmi; return the exit status.

    The real host engine is always a client of the driver; the simulated one is a client while this program runs.
    """
    return simulated_program.run(
        lambda driver, words: _Program(driver).run(words), arguments, _refuse_driver, without_machine=1, is_apart=True
    )


def _refuse_driver(_error: DriverError) -> RefusedError:
    return _refusal(_NO_ENGINE, _NO_CONNECTION)


def _refusal(message: str, code: int) -> RefusedError:
    return RefusedError(message, code & 0xFF)


class _Entity(NamedTuple):
    """A GPU or GPU instance of the host engine: the label of its row, and NVML's index of the GPU and instance id."""

    label: str
    gpu: int
    instance_id: int | None


class _Program:
    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def run(self, arguments: Sequence[str]) -> None:
        commands = {"discovery -l": "", "discovery -c": "", "dmon": "-e -i -d -c", **dict.fromkeys(_PROFILING, "")}
        words = 1 if arguments[:1] == ["dmon"] else 2
        command = " ".join(arguments[:words])
        options = _options(arguments[words:], commands.get(command, "").split())
        if options is None or command not in commands:
            raise _refusal(f"The simulated dcgmi does not support {' '.join(arguments)}.", _BAD_PARAMETER)
        self._check(CONNECT, _NO_ENGINE, _NO_CONNECTION)
        if command in _PROFILING:
            self._check(PAUSE if command == "profile --pause" else RESUME, _UNRECOVERABLE, _PROFILING_ERROR)
            self._driver.pause_dcgm(is_paused=command == "profile --pause")
            say(_PROFILING[command])
        elif command == "dmon":
            self._watch(options)
        else:
            say("\n".join(self._devices() if command == "discovery -l" else self._hierarchy()))

    def _check(self, function: str, message: str, code: int) -> None:
        try:
            self._driver.check(function)
        except DriverError as error:
            raise _refusal(message, code) from error

    def _devices(self) -> Iterator[str]:
        gpus = self._driver.state().gpus
        yield f"{len(gpus)} GPU{'' if len(gpus) == 1 else 's'} found."
        yield from _TEMPLATES.fill("discovery -l")
        for index, gpu in enumerate(gpus):
            yield from _TEMPLATES.fill("discovery -l GPU", index=index, gpu=gpu, model=model_of(gpu))
        yield from _TEMPLATES.fill("discovery -l end")

    def _hierarchy(self) -> Iterator[str]:
        yield from _TEMPLATES.fill("discovery -c")
        numbered = [(index, gpu, _list_noticed(index, gpu)) for index, gpu in enumerate(self._driver.state().gpus)]
        divided = [row for row in numbered if row[2]]  # the real program omits GPUs without instances
        for index, gpu, instances in divided:
            yield from _describe_entity(f"GPU {index}", f"GPU {gpu.uuid} (EntityID: {index})")
            for entity, instance in instances:
                place = f"{index}/{instance.id}"
                yield from _describe_entity(f"-> I {place}", f"GPU Instance (EntityID: {entity})")
                # The numbers of compute instances are assigned as those of GPU instances, and start at the same number.
                first = index * model_of(gpu).compute_slices
                first += sum(len(other.compute_instances) for before, other in instances if before < entity)
                numbered_cis = enumerate(instance.compute_instances, start=first)
                for number, ci in sorted(numbered_cis, key=lambda pair: pair[1].id):
                    yield from _describe_entity(f"   -> CI {place}/{ci.id}", f"Compute Instance (EntityID: {number})")
            yield from _TEMPLATES.fill("discovery -c end")
        if not divided:
            yield from _TEMPLATES.fill("discovery -c end")

    def _watch(self, options: dict[str, str]) -> None:
        try:
            numbers = [int(number) for number in options["-e"].split(",")]
            num_rounds, period_s = _count(options.get("-c", "0")), _count(options.get("-d", "1000")) / 1e3
        except (KeyError, ValueError) as error:
            words = " ".join(f"{name} {value}" for name, value in options.items())
            raise _refusal(f"The simulated dcgmi does not support dmon {words}.", _BAD_PARAMETER) from error
        entities = self._entities(options.get("-i"))
        if unknown := [number for number in numbers if number not in _COLUMNS]:
            raise _refusal(f"Error: the simulated dcgmi does not support field {unknown[0]}.", _BAD_PARAMETER)
        titles = {number: title for number, (title, _) in _COLUMNS.items()}
        header = f"{_line('#Entity', titles, numbers)}\n{_line('ID', {}, numbers)}"
        say(header)
        for number in numbers:
            # If one field is refused, the host engine refuses all fields, after the header, without naming the field.
            self._check(f"{WATCH}:{number}", _REFUSED, _NOT_SUPPORTED)
        done, next_header = 0, _ROUNDS_OF_HEADER + 1
        while True:
            state = self._driver.state()
            for label, index, instance_id in entities:
                available = set(numbers) - (_OF_GPU if instance_id is not None else set())
                cells = {number: self._cell(state, number, index, instance_id) for number in available}
                say(_line(label, cells, numbers))
            done += 1
            if done == num_rounds:
                return
            time.sleep(period_s)
            if done == next_header:
                next_header += _ROUNDS_OF_HEADER
                say(header)

    @staticmethod
    def _cell(state: State, number: int, index: int, instance_id: int | None) -> str:
        """Return a reading as it is printed; an instance that no longer exists, or paused counters, have none."""
        reading = None
        with suppress(DriverError):
            if not state.dcgm_is_paused:
                reading = readings.read(state, index, _COLUMNS[number][1], instance_id)
        if reading is None:
            return "N/A"
        return f"{reading * _MIB:.0f}" if number in _OF_GPU else f"{reading:.3f}"

    def _entities(self, targets: str | None) -> list[_Entity]:
        """Return the requested entities, by default every GPU.

        A GPU comes before its instances, which are in the order of NVML's ids.
        """
        entities: dict[str, _Entity] = {}
        for index, gpu in enumerate(self._driver.state().gpus):
            entities[f"gpu:{index}"] = _Entity(f"GPU {index}", index, None)
            for number, instance in _list_noticed(index, gpu):
                entities[f"i:{number}"] = _Entity(f"GPU-I {number}", index, instance.id)
        if targets is None:
            return [entity for entity in entities.values() if entity.instance_id is None]
        names = set(targets.split(","))
        if strange := names - entities.keys():
            raise _refusal(f"Error: the host engine has no entity {min(strange)}.", _BAD_PARAMETER)
        return [entity for name, entity in entities.items() if name in names]


def _describe_entity(place: str, entity: str) -> list[str]:
    return _TEMPLATES.fill("discovery -c row", place=place, entity=entity)


def _list_noticed(index: int, gpu: Gpu) -> list[tuple[int, GpuInstance]]:
    """Return the GPU instances that the host engine has noticed, each with the host engine's number."""
    now_s = time.monotonic()
    # A time in the future is in the file of a kept machine, from before the last boot of this computer.
    noticed = [instance for instance in queries.sort_as_listed(gpu) if not 0 <= now_s - instance.made_s < _SEEN_AFTER_S]
    # For each GPU, DCGM reserves as many numbers as the GPU can have MIG devices. Source: DCGM's cache manager.
    numbered = enumerate(noticed, start=index * model_of(gpu).compute_slices)
    return sorted(numbered, key=lambda pair: pair[1].id)


def _count(text: str) -> int:
    if re.fullmatch("[0-9]{1,9}", text) is None:
        raise ValueError(f"{text} is not a count")
    return int(text)


def _options(arguments: Sequence[str], accepted: Sequence[str]) -> dict[str, str] | None:
    if len(arguments) % 2 or not set(arguments[::2]) <= set(accepted):
        return None
    return dict(zip(arguments[::2], arguments[1::2], strict=True))


def _line(label: str, cells: Mapping[int, str], numbers: Sequence[int]) -> str:
    padded = (f"{cells.get(number, ''):<{28 if number in _OF_GPU else 13}}" for number in numbers)
    return f"{label:<16}{''.join(padded)}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
