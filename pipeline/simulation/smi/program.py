"""The program nvidia-smi of the simulated driver: `python -m pipeline.simulation.smi.program --state-file FILE ...`.

It prints and does what the real one prints and does, as far as this project needs it, and says so about an option that
it does not know. It starts no program and looks at nothing but the state file.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from pipeline.base.errors import ConfigError
from pipeline.simulation.machine import codes
from pipeline.simulation.machine.clients import Clients
from pipeline.simulation.machine.codes import DriverError, text_of
from pipeline.simulation.machine.driver import Driver
from pipeline.simulation.machine.state import StateFile
from pipeline.simulation.smi import output
from pipeline.simulation.smi.mig import MigCommands, Request
from pipeline.simulation.smi.output import Numbered
from pipeline.simulation.smi.query import Query, UnknownFieldError

_DRIVER_NOT_LOADED = 9
_NO_DRIVER = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. "
    "Make sure that the latest NVIDIA driver is installed and running."
)
_HELD = (
    "{bus_id} is currently being used by one or more other processes (e.g. CUDA application or a monitoring "
    "application such as another instance of nvidia-smi). Please first kill all processes using the device and retry "
    "the command or reboot the system to make MIG mode effective."
)
_COMPUTE_MODES = {"DEFAULT": 0, "PROHIBITED": 2, "EXCLUSIVE_PROCESS": 3}

_WITH_VALUE = frozenset(
    {"-i", "-lms", "-mig", "-c", "-gi", "-ci", "-cgi", "--query-gpu", "--query-compute-apps", "--format"}
)
_WITH_OPTIONAL_VALUE = "-cci"
_WITHOUT_VALUE = frozenset({"-L", "--gpu-reset"})
_MIG_COMMANDS = ("-lgip", "-lgipp", "-lgi", "-lcip", "-lcipp", "-lci", "-cgi", "-cci", "-dgi", "-dci")
_MIG_FLAGS = frozenset(_MIG_COMMANDS) | {"-C"}


class _RefusedError(Exception):
    """The program ends with a message and an exit status."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


def main(arguments: Sequence[str]) -> int:
    """Run the program with `--state-file FILE` and the arguments of nvidia-smi; returns the exit status."""
    if len(arguments) < 2 or arguments[0] != "--state-file":
        _say("The simulated nvidia-smi is called with --state-file FILE first.")
        return codes.INVALID_ARGUMENT
    state_file = StateFile(Path(arguments[1]))
    try:
        # The program is a client of the driver while it runs, which matters to an Ampere GPU whose mode is switched.
        Clients(state_file).open_session()
    except DriverError as error:
        is_gone = error.code == _DRIVER_NOT_LOADED
        _say(_NO_DRIVER if is_gone else f"Failed to initialize NVML: {error}")
        return error.code
    except ConfigError as error:
        _say(str(error))
        return _DRIVER_NOT_LOADED
    try:
        return _Program(Driver(state_file)).run(arguments[2:])
    except _RefusedError as refusal:
        _say(str(refusal))
        return refusal.status
    except BrokenPipeError:
        # Nobody reads any more; Python must not try again when it closes the stream.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    finally:
        Clients(state_file).close_session()


class _Program:
    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def run(self, arguments: Sequence[str]) -> int:
        is_mig = bool(arguments) and arguments[0] == "mig"
        options = _parse(arguments[1:] if is_mig else arguments, is_mig=is_mig)
        indices = self._selected(options.get("-i"))
        if is_mig:
            return self._mig(options, indices)
        if "-mig" in options:
            return self._set_mig_mode(options["-mig"], indices)
        if "-c" in options:
            return self._set_compute_mode(options["-c"], indices)
        if "--gpu-reset" in options:
            return self._reset(indices)
        return self._show(options, indices)

    def _mig(self, options: dict[str, str | None], indices: tuple[int, ...]) -> int:
        chosen = [command for command in _MIG_COMMANDS if command in options]
        if len(chosen) != 1:
            raise _RefusedError("Say one thing that `mig` shall do, as -lgip.", codes.INVALID_ARGUMENT)
        request = Request(
            command=chosen[0],
            argument=options[chosen[0]],
            gpus=indices,
            instances=_ids(options.get("-gi")),
            compute_instances=_ids(options.get("-ci")),
            is_whole="-C" in options,
        )
        return MigCommands(self._driver, _say).run(request)

    def _show(self, options: dict[str, str | None], indices: tuple[int, ...]) -> int:
        formats = (options.get("--format") or "").split(",")
        query = _query(options, formats)
        try:
            period_s = float(options.get("-lms") or 0) / 1e3
        except ValueError as error:
            raise _RefusedError(f"{options['-lms']} is no period.", codes.INVALID_ARGUMENT) from error
        if query is not None and "noheader" not in formats:
            _say(query.header())
        next_s = time.monotonic()
        while True:
            now, gpus = datetime.now().astimezone(), self._gpus(indices)
            if query is not None:
                lines = query.lines(gpus, now)
            elif "-L" in options:
                lines = output.device_list(gpus)
            else:
                lines = output.overview(gpus, now)
            for line in lines:
                _say(line)
            if not period_s:
                return 0
            next_s = max(next_s + period_s, time.monotonic())
            time.sleep(max(0.0, next_s - time.monotonic()))

    def _set_mig_mode(self, value: str | None, indices: tuple[int, ...]) -> int:
        if value not in ("0", "1"):
            raise _RefusedError(f"-mig takes 0 or 1, not {value}.", codes.INVALID_ARGUMENT)
        verb, done = ("enable", "Enabled") if value == "1" else ("disable", "Disabled")
        for index, gpu in self._gpus(indices):
            try:
                pending = self._driver.set_mig_mode(index, is_on=value == "1")
            except DriverError as error:
                _say(f"Unable to {verb} MIG Mode for GPU {gpu.bus_id}: {error}")
                raise _RefusedError("Terminating early due to previous errors.", error.code) from error
            if not pending:
                _say(f"{done} MIG Mode for GPU {gpu.bus_id}")
                continue
            _say(f"Warning: MIG mode is in pending {verb} state for GPU {gpu.bus_id}:{text_of(pending)}")
            if pending == codes.IN_USE:
                _say(_HELD.format(bus_id=gpu.bus_id))
            else:
                _say(f"Reboot the system or try nvidia-smi --gpu-reset to make MIG mode effective on GPU {gpu.bus_id}")
        _say("All done.")
        return 0

    def _set_compute_mode(self, value: str | None, indices: tuple[int, ...]) -> int:
        if value is None or value.upper() not in _COMPUTE_MODES:
            raise _RefusedError(f"-c takes DEFAULT, PROHIBITED or EXCLUSIVE_PROCESS, not {value}.", 2)
        name = value.upper()
        mode = _COMPUTE_MODES[name]
        for index, gpu in self._gpus(indices):
            if gpu.compute_mode == mode:
                _say(f"Compute mode is already set to {name} for GPU {gpu.bus_id}.")
                continue
            try:
                self._driver.set_compute_mode(index, mode)
            except DriverError as error:
                _say(f"Unable to set the compute mode for GPU {gpu.bus_id}: {error}")
                raise _RefusedError("Terminating early due to previous errors.", error.code) from error
            _say(f"Set compute mode to {name} for GPU {gpu.bus_id}.")
        _say("All done.")
        return 0

    def _reset(self, indices: tuple[int, ...]) -> int:
        for index, gpu in self._gpus(indices):
            try:
                self._driver.reset(index)
            except DriverError as error:
                _say("The following GPUs could not be reset:")
                raise _RefusedError(f"  GPU {gpu.bus_id}: {error}", error.code) from error
            _say(f"GPU {gpu.bus_id} was successfully reset.")
        _say("All done.")
        return 0

    def _gpus(self, indices: tuple[int, ...]) -> list[Numbered]:
        gpus = self._driver.state().gpus
        return [(index, gpus[index]) for index in indices]

    def _selected(self, text: str | None) -> tuple[int, ...]:
        gpus = list(enumerate(self._driver.state().gpus))
        if text is not None:
            names = {name.strip() for name in text.split(",")}
            gpus = [(index, gpu) for index, gpu in gpus if not names.isdisjoint((str(index), gpu.uuid, gpu.bus_id))]
        if not gpus:
            raise _RefusedError("No devices were found", codes.NOT_FOUND)
        return tuple(index for index, _ in gpus)


def _parse(arguments: Sequence[str], *, is_mig: bool) -> dict[str, str | None]:
    """Options with their values: `-i 0` and `-i=0` are the same."""
    options: dict[str, str | None] = {}
    rest = list(arguments)
    while rest:
        name, has_value, value = rest.pop(0).partition("=")
        takes_value = name in _WITH_VALUE
        if name == _WITH_OPTIONAL_VALUE:
            takes_value = bool(has_value or (rest and not rest[0].startswith("-")))
        if not (name in _WITH_VALUE or name in _WITHOUT_VALUE or (is_mig and name in _MIG_FLAGS)):
            raise _RefusedError(f"The simulated nvidia-smi does not know {name}.", codes.INVALID_ARGUMENT)
        if takes_value and not has_value:
            if not rest:
                raise _RefusedError(f"Option {name} needs a value.", codes.INVALID_ARGUMENT)
            value = rest.pop(0)
        options[name] = value if takes_value else None
    return options


def _query(options: dict[str, str | None], formats: Sequence[str]) -> Query | None:
    fields = options.get("--query-gpu") or options.get("--query-compute-apps")
    if fields is None:
        return None
    if "csv" not in formats:
        raise _RefusedError("A query needs --format=csv.", codes.INVALID_ARGUMENT)
    try:
        return Query(fields, of_processes="--query-compute-apps" in options, has_units="nounits" not in formats)
    except UnknownFieldError as error:
        text = f'Field "{error.field}" is not a valid field to query.\n'
        raise _RefusedError(text, codes.INVALID_ARGUMENT) from error


def _ids(text: str | None) -> frozenset[int] | None:
    if text is None:
        return None
    try:
        return frozenset(int(part) for part in text.split(","))
    except ValueError as error:
        raise _RefusedError(f"{text} is no list of ids.", codes.INVALID_ARGUMENT) from error


def _say(line: str) -> None:
    # Flushed, because whoever reads a loop waits for its lines.
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
