"""`nvidia-smi mig ...`: lists, creates and destroys GPU instances and compute instances.

As in the real program, a list is processed in order, and instances that were created before a failure remain. A command
without a GPU applies to all GPUs. If no GPU is in MIG mode, one line is printed, with exit status 0. Other exit
statuses are NVML's return codes; only 2 and 6 are documented.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from pipeline.base.domain.mig_table import CiProfile, GiProfile
from pipeline.simulation.machine import codes, queries
from pipeline.simulation.machine.codes import DriverError, text_of
from pipeline.simulation.machine.driver import Driver
from pipeline.simulation.machine.state_file import ComputeInstance, Gpu, GpuInstance
from pipeline.simulation.simulated_program import RefusedError, say
from pipeline.simulation.smi import smi_tables
from pipeline.simulation.smi.smi_tables import Numbered

COMMANDS = ("-lgip", "-lgipp", "-lgi", "-lcip", "-lci", "-cgi", "-cci", "-dgi", "-dci")

# A profile id and a start that do not exist, so that the driver refuses the call with the appropriate code.
_NO_SUCH = -1


def run(driver: Driver, options: Mapping[str, str | None], gpus: Sequence[Numbered]) -> None:
    """Run the command in the options on these GPUs."""
    chosen = [command for command in COMMANDS if command in options]
    gi_ids, ci_ids = _ids(options.get("-gi")), _ids(options.get("-ci"))
    if len(chosen) != 1:
        raise RefusedError("Use one command of `mig`, such as -lgip.", codes.INVALID_ARGUMENT)
    (command,) = chosen
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
            what = f"GPU instance ID {instance.id:>2} from GPU {index:>2}"
            _destroy(what, "GPU", partial(driver.destroy_gpu_instance, index, instance.id))
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
        what = f"compute instance ID {ci.id:>2} from GPU {index:>2} GPU instance ID {instance.id:>2}"
        _destroy(what, "compute", partial(driver.destroy_compute_instance, index, instance.id, ci.id))
    return None


def _create(driver: Driver, gpus: Sequence[Numbered], profiles: str, *, is_whole: bool) -> None:
    """Create GPU instances for `PROFILE` or `PROFILE:START`."""
    for index, gpu in gpus:
        for item in profiles.split(",") if gpu.mig_current else ():
            name, colon, start = item.strip().partition(":")
            known = queries.model_of(gpu).find_profile(name)
            at = (int(start) if start.isdecimal() else _NO_SUCH) if colon else None
            try:
                instance = driver.create_gpu_instance(index, _NO_SUCH if known is None else known.id, at)
            except DriverError as error:
                shown = name if known is None else known.id
                what = f"create a GPU instance on GPU {index:>2} using profile {shown}"
                raise _refusal(what, "create GPU instances", error) from error
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
    known = _find_ci_profile(profile, name)
    place = f"on GPU {index:>2} GPU instance ID {instance.id:>2}"
    try:
        ci = driver.create_compute_instance(index, instance.id, _NO_SUCH if known is None else known.id)
    except DriverError as error:
        what = f"create a compute instance {place} using profile {name if known is None else known.id}"
        raise _refusal(what, "create compute instances", error) from error
    say(
        f"Successfully created compute instance ID {ci.id:>2} {place} "
        f"using profile MIG {queries.mig_device_name(gpu, instance, ci)} (ID {ci.profile_id:>2})"
    )


def _destroy(what: str, kind: str, destroy: Callable[[], None]) -> None:
    try:
        destroy()
    except DriverError as error:
        raise _refusal(f"destroy {what}", f"destroy {kind} instances", error) from error
    say(f"Successfully destroyed {what}")


def _refusal(one: str, action: str, error: DriverError) -> RefusedError:
    return RefusedError(f"Unable to {one}: {error}\nFailed to {action}: {error}", error.code)


def _ids(text: str | None) -> frozenset[int] | None:
    if text is None:
        return None
    try:
        return frozenset(int(part) for part in text.split(","))
    except ValueError as error:
        raise RefusedError(f"{text} is not a list of ids.", codes.INVALID_ARGUMENT) from error


def _find_ci_profile(profile: GiProfile, text: str) -> CiProfile | None:
    name = text.removeprefix("MIG ")
    return next((ci for ci in profile.ci_profiles if name in (str(ci.id), ci.name_prefix + profile.name)), None)
