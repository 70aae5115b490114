"""The program nvidia-smi of the simulated driver: `python -m pipeline.simulation.smi.nvidia_smi --state-file FILE ...`.

The program has those functions of the real program that this project needs, and rejects other options with a message.
It starts no other program and reads only the state file.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import datetime

from pipeline.simulation import simulated_program
from pipeline.simulation.machine import codes
from pipeline.simulation.machine.codes import DriverError, text_of
from pipeline.simulation.machine.driver import Driver
from pipeline.simulation.machine.gpu_clients import Clients
from pipeline.simulation.machine.state_file import Gpu, StateFile
from pipeline.simulation.simulated_program import RefusedError, say
from pipeline.simulation.smi import compute_policy, mig_commands, smi_tables
from pipeline.simulation.smi.query import Query
from pipeline.simulation.smi.smi_tables import Numbered

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

# For each option, whether it has a value.
_OPTIONS = dict.fromkeys(("-i", "-lms", "-mig", "-c", "-gi", "-ci", "-cgi", "--query-gpu", "--format"), True)
_OPTIONS |= dict.fromkeys(("-L", "--gpu-reset"), False)
_MIG_OPTIONS = dict.fromkeys((*mig_commands.COMMANDS, "-C"), False) | {"-cgi": True}
_POLICY_OPTIONS = {"-i": True, "--id": True, "-l": False, "--list": False, compute_policy.SET: True}
_WITH_OPTIONAL_VALUE = "-cci"


def main(arguments: Sequence[str]) -> int:
    """Run the program with `--state-file FILE` and the arguments of nvidia-smi; return the exit status."""
    return simulated_program.run(_run, arguments, without_machine=_DRIVER_NOT_LOADED, is_apart=False)


def _run(state_file: StateFile, arguments: Sequence[str]) -> None:
    clients = Clients(state_file)
    try:
        # While the program runs, it is a client of the driver, which affects changes of MIG mode on Ampere GPUs.
        clients.open_session()
    except DriverError as error:
        is_gone = error.code == _DRIVER_NOT_LOADED
        raise RefusedError(_NO_DRIVER if is_gone else f"Failed to initialize NVML: {error}", error.code) from error
    try:
        _Program(Driver(state_file)).run(arguments)
    finally:
        clients.close_session()


class _Program:
    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def run(self, arguments: Sequence[str]) -> None:
        if list(arguments[:1]) == ["compute-policy"]:
            options = _parse(arguments[1:], _POLICY_OPTIONS)
            selected = self._gpus(self._select(options.get("-i", options.get("--id"))))
            return compute_policy.run(self._driver, options, selected)
        is_mig = bool(arguments) and arguments[0] == "mig"
        options = _parse(arguments[1:] if is_mig else arguments, _OPTIONS | (_MIG_OPTIONS if is_mig else {}))
        indices = self._select(options.get("-i"))
        if is_mig:
            return mig_commands.run(self._driver, options, self._gpus(indices))
        if "-mig" in options:
            return self._set_mig_mode(options["-mig"], indices)
        if "-c" in options:
            return self._set_compute_mode(options["-c"], indices)
        if "--gpu-reset" in options:
            return self._reset(indices)
        return self._show(options, indices)

    def _show(self, options: dict[str, str | None], indices: tuple[int, ...]) -> None:
        formats = (options.get("--format") or "").split(",")
        query = _query(options, formats)
        period_s = _period_s(options.get("-lms"))
        if query is not None and "noheader" not in formats:
            say(query.header())
        next_s = time.monotonic()
        while True:
            now, gpus = datetime.now().astimezone(), self._gpus(indices)
            if query is not None:
                lines = query.lines(gpus, now, self._driver.state())
            elif "-L" in options:
                lines = smi_tables.device_list(gpus)
            else:
                lines = smi_tables.overview(gpus, now, self._driver.state().release)
            say(*lines)
            if not period_s:
                return
            next_s = max(next_s + period_s, time.monotonic())
            time.sleep(max(0.0, next_s - time.monotonic()))

    def _set_mig_mode(self, value: str | None, indices: tuple[int, ...]) -> None:
        if value not in ("0", "1"):
            raise RefusedError(f"-mig must be 0 or 1, not {value}.", codes.INVALID_ARGUMENT)
        verb, done = ("enable", "Enabled") if value == "1" else ("disable", "Disabled")
        for index, gpu in self._gpus(indices):
            try:
                pending = self._driver.set_mig_mode(index, is_on=value == "1")
            except DriverError as error:
                raise _refusal(f"{verb} MIG Mode", gpu, error) from error
            if not pending:
                say(f"{done} MIG Mode for GPU {gpu.bus_id}")
                continue
            say(f"Warning: MIG mode is in pending {verb} state for GPU {gpu.bus_id}:{text_of(pending)}")
            if pending == codes.IN_USE:
                say(_HELD.format(bus_id=gpu.bus_id))
            else:
                say(f"Reboot the system or try nvidia-smi --gpu-reset to make MIG mode effective on GPU {gpu.bus_id}")
        say("All done.")

    def _set_compute_mode(self, value: str | None, indices: tuple[int, ...]) -> None:
        if value is None or value.upper() not in _COMPUTE_MODES:
            raise RefusedError(f"-c must be DEFAULT, PROHIBITED or EXCLUSIVE_PROCESS, not {value}.", 2)
        name = value.upper()
        mode = _COMPUTE_MODES[name]
        for index, gpu in self._gpus(indices):
            if gpu.compute_mode == mode:
                say(f"Compute mode is already set to {name} for GPU {gpu.bus_id}.")
                continue
            try:
                self._driver.set_compute_mode(index, mode)
            except DriverError as error:
                raise _refusal("set the compute mode", gpu, error) from error
            say(f"Set compute mode to {name} for GPU {gpu.bus_id}.")
        say("All done.")

    def _reset(self, indices: tuple[int, ...]) -> None:
        for index, gpu in self._gpus(indices):
            try:
                self._driver.reset(index)
            except DriverError as error:
                message = f"The following GPUs could not be reset:\n  GPU {gpu.bus_id}: {error}"
                raise RefusedError(message, error.code) from error
            say(f"GPU {gpu.bus_id} was successfully reset.")
        say("All done.")

    def _gpus(self, indices: tuple[int, ...]) -> list[Numbered]:
        gpus = self._driver.state().gpus
        return [(index, gpus[index]) for index in indices]

    def _select(self, text: str | None) -> tuple[int, ...]:
        gpus = list(enumerate(self._driver.state().gpus))
        if text is not None:
            names = {name.strip() for name in text.split(",")}
            gpus = [(index, gpu) for index, gpu in gpus if not names.isdisjoint((str(index), gpu.uuid, gpu.bus_id))]
        if not gpus:
            raise RefusedError("No devices were found", codes.NOT_FOUND)
        return tuple(index for index, _ in gpus)


def _refusal(what: str, gpu: Gpu, error: DriverError) -> RefusedError:
    message = f"Unable to {what} for GPU {gpu.bus_id}: {error}\nTerminating early due to previous errors."
    return RefusedError(message, error.code)


def _parse(arguments: Sequence[str], known: Mapping[str, bool]) -> dict[str, str | None]:
    """Return the options with their values; `-i 0` and `-i=0` are equivalent.

    `known` maps each option to whether it has a value.
    """
    options: dict[str, str | None] = {}
    rest = list(arguments)
    while rest:
        name, has_value, value = rest.pop(0).partition("=")
        if name not in known:
            raise RefusedError(f"The simulated nvidia-smi does not support {name}.", codes.INVALID_ARGUMENT)
        takes_value = known[name]
        if name == _WITH_OPTIONAL_VALUE:
            takes_value = bool(has_value or (rest and not rest[0].startswith("-")))
        if takes_value and not has_value:
            if not rest:
                raise RefusedError(f"Option {name} needs a value.", codes.INVALID_ARGUMENT)
            value = rest.pop(0)
        options[name] = value if takes_value else None
    return options


def _period_s(text: str | None) -> float:
    """Return the seconds between repeated prints; 0 for a single print."""
    if text is None:
        return 0.0
    if re.fullmatch("[1-9][0-9]{0,8}", text) is None:
        raise RefusedError(f"-lms must be a number of milliseconds, at least 1, not {text}.", codes.INVALID_ARGUMENT)
    return int(text) / 1e3


def _query(options: dict[str, str | None], formats: Sequence[str]) -> Query | None:
    fields = options.get("--query-gpu")
    if fields is None:
        return None
    if "csv" not in formats:
        raise RefusedError("A query needs --format=csv.", codes.INVALID_ARGUMENT)
    return Query(fields, has_units="nounits" not in formats)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
