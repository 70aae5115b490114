"""The program nvidia-smi of the simulated driver: `python -m pipeline.simulation.nvidia_smi --state-file FILE ...`.

The program has those functions of the real program that this project needs, and rejects other options with a message.
It starts no other program and reads only the state file.

`nvidia-smi mig` processes a list in order, as the real program, and instances that were created before a failure
remain. A command without a GPU applies to all GPUs. If no GPU is in MIG mode, one line is printed, with exit status 0.
Other exit statuses are NVML's return codes; only 2 and 6 are documented.

The list of `nvidia-smi compute-policy` was recorded on an H100 80GB (driver 580.159.04). The name of the setting, and
the message for GPUs that do not have it (status 3), are from public transcripts: the help text of R525
(NVIDIA/k8s-device-plugin, issue 354) and a Tesla P4 (kubernetes-sigs/dra-driver-nvidia-gpu, issue 41). The success
message is this project's.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial

from pipeline.base.domain.mig_table import CiProfile, GiProfile
from pipeline.simulation import simulated_program, smi_tables
from pipeline.simulation.machine import codes, queries
from pipeline.simulation.machine.codes import DriverError, text_of
from pipeline.simulation.machine.driver import Driver
from pipeline.simulation.machine.state_file import ComputeInstance, Gpu, GpuInstance
from pipeline.simulation.simulated_program import RefusedError, say
from pipeline.simulation.smi_tables import Numbered, Query

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

# A profile id and a start that do not exist, so that the driver refuses the call with the appropriate code.
_NO_SUCH = -1

_MIG_COMMANDS = ("-lgip", "-lgipp", "-lgi", "-lcip", "-lci", "-cgi", "-cci", "-dgi", "-dci")
_SET_TIMESLICE = "--set-timeslice"
_TIMESLICES = ("Default", "Short", "Medium", "Long")

# For each option, whether it has a value.
_OPTIONS = dict.fromkeys(("-i", "-lms", "-mig", "-c", "-gi", "-ci", "-cgi", "--query-gpu", "--format"), True)
_OPTIONS |= dict.fromkeys(("-L", "--gpu-reset"), False)
_MIG_OPTIONS = dict.fromkeys((*_MIG_COMMANDS, "-C"), False) | {"-cgi": True}
_POLICY_OPTIONS = {"-i": True, "--id": True, "-l": False, "--list": False, _SET_TIMESLICE: True}
_WITH_OPTIONAL_VALUE = "-cci"


def main(arguments: Sequence[str]) -> int:
    """Run the program with `--state-file FILE` and the arguments of nvidia-smi; return the exit status.

    While the program runs, it is a client of the driver, which affects changes of MIG mode on Ampere GPUs.
    """
    return simulated_program.run(
        lambda driver, words: _Program(driver).run(words),
        arguments,
        _refuse_driver,
        without_machine=_DRIVER_NOT_LOADED,
        is_apart=False,
    )


def _refuse_driver(error: DriverError) -> RefusedError:
    is_gone = error.code == _DRIVER_NOT_LOADED
    return RefusedError(_NO_DRIVER if is_gone else f"Failed to initialize NVML: {error}", error.code)


class _Program:
    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def run(self, arguments: Sequence[str]) -> None:
        if list(arguments[:1]) == ["compute-policy"]:
            options = _parse(arguments[1:], _POLICY_OPTIONS)
            selected = self._gpus(self._select(options.get("-i", options.get("--id"))))
            return _run_compute_policy(self._driver, options, selected)
        is_mig = bool(arguments) and arguments[0] == "mig"
        options = _parse(arguments[1:] if is_mig else arguments, _OPTIONS | (_MIG_OPTIONS if is_mig else {}))
        indices = self._select(options.get("-i"))
        if is_mig:
            return _run_mig(self._driver, options, self._gpus(indices))
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
            timestamp, gpus = datetime.now().astimezone(), self._gpus(indices)
            if query is not None:
                lines = query.lines(gpus, timestamp, self._driver.state())
            elif "-L" in options:
                lines = smi_tables.device_list(gpus)
            else:
                lines = smi_tables.overview(gpus, timestamp, self._driver.state().release)
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


def _refusal(action: str, gpu: Gpu, error: DriverError) -> RefusedError:
    message = f"Unable to {action} for GPU {gpu.bus_id}: {error}\nTerminating early due to previous errors."
    return RefusedError(message, error.code)


def _parse(arguments: Sequence[str], accepted: Mapping[str, bool]) -> dict[str, str | None]:
    """Return the options with their values; `-i 0` and `-i=0` are equivalent.

    `accepted` maps each option to whether it has a value.
    """
    options: dict[str, str | None] = {}
    remaining = list(arguments)
    while remaining:
        name, has_value, value = remaining.pop(0).partition("=")
        if name not in accepted:
            raise RefusedError(f"The simulated nvidia-smi does not support {name}.", codes.INVALID_ARGUMENT)
        takes_value = accepted[name]
        if name == _WITH_OPTIONAL_VALUE:
            takes_value = bool(has_value or (remaining and not remaining[0].startswith("-")))
        if takes_value and not has_value:
            if not remaining:
                raise RefusedError(f"Option {name} needs a value.", codes.INVALID_ARGUMENT)
            value = remaining.pop(0)
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


def _run_mig(driver: Driver, options: Mapping[str, str | None], gpus: Sequence[Numbered]) -> None:
    """Run the command in the options on these GPUs."""
    commands = [command for command in _MIG_COMMANDS if command in options]
    gi_ids, ci_ids = _parse_ids(options.get("-gi")), _parse_ids(options.get("-ci"))
    if len(commands) != 1:
        raise RefusedError("Use one command of `mig`, such as -lgip.", codes.INVALID_ARGUMENT)
    (command,) = commands
    if command == "-lgip":  # this command also works without MIG mode, and so does the next
        return say(*smi_tables.profile_table(gpus))
    if command == "-lgipp":
        return say(*smi_tables.list_placements(gpus))
    if not any(gpu.mig_current for _, gpu in gpus):
        return say("No MIG-enabled devices found.")
    if command == "-cgi":
        return _create(driver, gpus, options[command] or "", is_whole="-C" in options)
    rows = [
        (index, gpu, instance)
        for index, gpu in gpus
        for instance in queries.sort_as_listed(gpu)
        if gi_ids is None or instance.id in gi_ids
    ]
    if command in ("-lci", "-dci"):
        cis = [(*row, ci) for row in rows for ci in row[2].compute_instances if ci_ids is None or ci.id in ci_ids]
        return _run_on_compute_instances(driver, command, cis)
    return _run_on_gpu_instances(driver, command, options[command], rows)


def _run_on_gpu_instances(
    driver: Driver, command: str, profiles: str | None, rows: Sequence[tuple[int, Gpu, GpuInstance]]
) -> None:
    if not rows:
        raise RefusedError(f"No GPU instances found: {text_of(codes.NOT_FOUND)}", codes.NOT_FOUND)
    if command == "-lgi":
        return say(*smi_tables.instance_table(rows))
    if command == "-lcip":
        return say(*smi_tables.compute_profile_table(rows))
    for index, gpu, instance in rows:
        if command == "-dgi":
            target = f"GPU instance ID {instance.id:>2} from GPU {index:>2}"
            _destroy(target, "GPU", partial(driver.destroy_gpu_instance, index, instance.id))
        else:
            for item in (profiles or "").split(","):
                _create_compute_instance(driver, index, gpu, instance, item.strip())
    return None


def _run_on_compute_instances(
    driver: Driver, command: str, rows: Sequence[tuple[int, Gpu, GpuInstance, ComputeInstance]]
) -> None:
    if not rows:
        raise RefusedError(f"No compute instances found: {text_of(codes.NOT_FOUND)}", codes.NOT_FOUND)
    if command == "-lci":
        return say(*smi_tables.compute_instance_table(rows))
    for index, _, instance, ci in rows:
        target = f"compute instance ID {ci.id:>2} from GPU {index:>2} GPU instance ID {instance.id:>2}"
        _destroy(target, "compute", partial(driver.destroy_compute_instance, index, instance.id, ci.id))
    return None


def _create(driver: Driver, gpus: Sequence[Numbered], profiles: str, *, is_whole: bool) -> None:
    """Create GPU instances for `PROFILE` or `PROFILE:START`."""
    for index, gpu in gpus:
        for item in profiles.split(",") if gpu.mig_current else ():
            name, colon, start = item.strip().partition(":")
            gi_profile = queries.model_of(gpu).find_profile(name)
            at = (int(start) if start.isdecimal() else _NO_SUCH) if colon else None
            try:
                instance = driver.create_gpu_instance(index, _NO_SUCH if gi_profile is None else gi_profile.id, at)
            except DriverError as error:
                shown = name if gi_profile is None else gi_profile.id
                action = f"create a GPU instance on GPU {index:>2} using profile {shown}"
                raise _refuse_instances(action, "create GPU instances", error) from error
            profile = queries.profile_of(gpu, instance)
            say(
                f"Successfully created GPU instance ID {instance.id:>2} on GPU {index:>2} "
                f"using profile MIG {profile.name} (ID {profile.id:>2})"
            )
            if is_whole:
                _create_compute_instance(driver, index, gpu, instance, profile.name)


def _create_compute_instance(driver: Driver, index: int, gpu: Gpu, instance: GpuInstance, item: str) -> None:
    """Create a compute instance of a profile, by default with all compute slices of the GPU instance."""
    profile = queries.profile_of(gpu, instance)
    name = item or profile.name
    ci_profile = _find_ci_profile(profile, name)
    place = f"on GPU {index:>2} GPU instance ID {instance.id:>2}"
    try:
        ci = driver.create_compute_instance(index, instance.id, _NO_SUCH if ci_profile is None else ci_profile.id)
    except DriverError as error:
        action = f"create a compute instance {place} using profile {name if ci_profile is None else ci_profile.id}"
        raise _refuse_instances(action, "create compute instances", error) from error
    say(
        f"Successfully created compute instance ID {ci.id:>2} {place} "
        f"using profile MIG {queries.mig_device_name(gpu, instance, ci)} (ID {ci.profile_id:>2})"
    )


def _destroy(target: str, kind: str, destroy: Callable[[], None]) -> None:
    try:
        destroy()
    except DriverError as error:
        raise _refuse_instances(f"destroy {target}", f"destroy {kind} instances", error) from error
    say(f"Successfully destroyed {target}")


def _refuse_instances(one: str, action: str, error: DriverError) -> RefusedError:
    return RefusedError(f"Unable to {one}: {error}\nFailed to {action}: {error}", error.code)


def _parse_ids(text: str | None) -> frozenset[int] | None:
    if text is None:
        return None
    try:
        return frozenset(int(part) for part in text.split(","))
    except ValueError as error:
        raise RefusedError(f"{text} is not a list of ids.", codes.INVALID_ARGUMENT) from error


def _find_ci_profile(profile: GiProfile, text: str) -> CiProfile | None:
    name = text.removeprefix("MIG ")
    return next((ci for ci in profile.ci_profiles if name in (str(ci.id), ci.name_prefix + profile.name)), None)


def _run_compute_policy(driver: Driver, options: Mapping[str, str | None], gpus: Sequence[Numbered]) -> None:
    """Apply the options to these GPUs, or list their settings."""
    value = options.get(_SET_TIMESLICE)
    if value is None:
        return say(*smi_tables.policy_table(gpus, _TIMESLICES))
    if value not in map(str, range(len(_TIMESLICES))):
        raise RefusedError(f"{_SET_TIMESLICE} must be 0, 1, 2 or 3, not {value}.", codes.INVALID_ARGUMENT)
    name = _TIMESLICES[int(value)]
    for index, _ in gpus:
        try:
            driver.set_timeslice(index, int(value))
        except DriverError as error:
            message = f"Failed to set timeslice policy with value {name} for GPU {index} : {error}\n"
            message += f"Failed to set timeslice for requested devices : {error}"
            raise RefusedError(message, error.code) from error
        say(f"Timeslice policy of GPU {index} is {name}.")
    return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
