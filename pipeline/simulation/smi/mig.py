"""`nvidia-smi mig ...`: lists, makes and destroys GPU instances and compute instances.

As with the real program, a list is worked off one by one and what was made before a failure stays, a command that
names no GPU acts on all of them, and without a GPU in MIG mode there is one line and exit status 0. Statuses of other
failures are NVML's return codes; only 2 and 6 are documented.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from pipeline.base.mig_table import CiProfile, GiProfile
from pipeline.simulation.machine import codes, queries
from pipeline.simulation.machine.codes import DriverError, text_of
from pipeline.simulation.machine.driver import Driver
from pipeline.simulation.machine.state import ComputeInstance, Gpu, GpuInstance
from pipeline.simulation.smi import output
from pipeline.simulation.smi.output import Numbered

# An id and a start that no profile has: the driver refuses it with the code that it has for that.
_NO_SUCH = -1
# What is listed with MIG mode off as well.
_TABLES = {"-lgip": output.profile_table, "-lgipp": output.placement_list}
_TABLES_OF_GPU_INSTANCES = {
    "-lgi": output.instance_table,
    "-lcip": output.ci_profile_table,
    "-lcipp": output.ci_placement_list,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What was asked for after `nvidia-smi mig`.

    Attributes:
        command: the option that says what to do, as `-cgi`.
        argument: its list; `None` if it has none.
        gpus: indices of the GPUs it is about.
        instances: ids of the GPU instances it is about; `None` for all.
        compute_instances: ids of the compute instances it is about; `None` for all.
        is_whole: whether a GPU instance gets a compute instance of its full width at once (`-C`).
    """

    command: str
    argument: str | None
    gpus: tuple[int, ...]
    instances: frozenset[int] | None
    compute_instances: frozenset[int] | None
    is_whole: bool


class MigCommands:
    """The sub-commands, carried out by a driver; `say` prints a line."""

    def __init__(self, driver: Driver, say: Callable[[str], None]) -> None:
        self._driver = driver
        self._say = say

    def run(self, request: Request) -> int:
        """Carry out a request and return the exit status."""
        gpus = self._driver.state().gpus
        chosen = [(index, gpus[index]) for index in request.gpus]
        if request.command in _TABLES:
            return self._say_all(_TABLES[request.command](chosen))
        if not any(gpu.mig_current for _, gpu in chosen):
            return self._say_all(["No MIG-enabled devices found."])
        if request.command == "-cgi":
            return self._create(request, chosen)
        rows = [
            (index, gpu, instance)
            for index, gpu in chosen
            for instance in queries.listed(gpu)
            if request.instances is None or instance.id in request.instances
        ]
        cis = [
            (*row, ci)
            for row in rows
            for ci in row[2].compute_instances
            if request.compute_instances is None or ci.id in request.compute_instances
        ]
        is_of_compute = request.command in ("-lci", "-dci")
        if not (cis if is_of_compute else rows):
            self._say(f"No {'compute' if is_of_compute else 'GPU'} instances found: {text_of(codes.NOT_FOUND)}")
            return codes.NOT_FOUND
        if request.command in _TABLES_OF_GPU_INSTANCES:
            return self._say_all(_TABLES_OF_GPU_INSTANCES[request.command](rows))
        if request.command == "-lci":
            return self._say_all(output.compute_instance_table(cis))
        if request.command == "-cci":
            return self._divide(request, rows)
        return self._destroy_compute_instances(cis) if is_of_compute else self._destroy_gpu_instances(rows)

    def _create(self, request: Request, gpus: Iterable[Numbered]) -> int:
        for index, gpu in gpus:
            for item in (request.argument or "").split(",") if gpu.mig_current else ():
                status = self._create_instance(index, gpu, item.strip(), is_whole=request.is_whole)
                if status:
                    return status
        return 0

    def _create_instance(self, index: int, gpu: Gpu, item: str, *, is_whole: bool) -> int:
        name, start = _split(item)
        known = queries.model_of(gpu).find_profile(name)
        try:
            made = self._driver.create_gpu_instance(index, _NO_SUCH if known is None else known.id, start)
        except DriverError as error:
            shown = name if known is None else known.id
            what = f"create a GPU instance on GPU {index:>2} using profile {shown}"
            return self._failed(what, "create GPU instances", error)
        profile = queries.profile_of(gpu, made)
        self._say(
            f"Successfully created GPU instance ID {made.id:>2} on GPU {index:>2} "
            f"using profile MIG {profile.name} (ID {profile.id:>2})"
        )
        return self._create_compute_instance(index, gpu, made, None) if is_whole else 0

    def _divide(self, request: Request, rows: Iterable[tuple[int, Gpu, GpuInstance]]) -> int:
        for index, gpu, instance in rows:
            for item in request.argument.split(",") if request.argument else [None]:
                status = self._create_compute_instance(index, gpu, instance, item)
                if status:
                    return status
        return 0

    def _create_compute_instance(self, index: int, gpu: Gpu, instance: GpuInstance, item: str | None) -> int:
        """Make a compute instance of `PROFILE` or `PROFILE:START`, or of the full width if there is no item."""
        profile = queries.profile_of(gpu, instance)
        name, start = _split(item.strip() if item else profile.name)
        known = _find_ci_profile(profile, name)
        place = f"on GPU {index:>2} GPU instance ID {instance.id:>2}"
        try:
            made = self._driver.create_compute_instance(
                index, instance.id, _NO_SUCH if known is None else known.id, start
            )
        except DriverError as error:
            what = f"create a compute instance {place} using profile {name if known is None else known.id}"
            return self._failed(what, "create compute instances", error)
        self._say(
            f"Successfully created compute instance ID {made.id:>2} {place} "
            f"using profile MIG {queries.mig_device_name(gpu, instance, made)} (ID {made.profile_id:>2})"
        )
        return 0

    def _destroy_gpu_instances(self, rows: Iterable[tuple[int, Gpu, GpuInstance]]) -> int:
        for index, _, instance in rows:
            what = f"GPU instance ID {instance.id:>2} from GPU {index:>2}"
            status = self._destroy(what, "GPU", partial(self._driver.destroy_gpu_instance, index, instance.id))
            if status:
                return status
        return 0

    def _destroy_compute_instances(self, rows: Iterable[tuple[int, Gpu, GpuInstance, ComputeInstance]]) -> int:
        for index, _, instance, ci in rows:
            what = f"compute instance ID {ci.id:>2} from GPU {index:>2} GPU instance ID {instance.id:>2}"
            destroy = partial(self._driver.destroy_compute_instance, index, instance.id, ci.id)
            status = self._destroy(what, "compute", destroy)
            if status:
                return status
        return 0

    def _destroy(self, what: str, kind: str, destroy: Callable[[], None]) -> int:
        try:
            destroy()
        except DriverError as error:
            return self._failed(f"destroy {what}", f"destroy {kind} instances", error)
        self._say(f"Successfully destroyed {what}")
        return 0

    def _failed(self, one: str, every: str, error: DriverError) -> int:
        self._say(f"Unable to {one}: {error}")
        self._say(f"Failed to {every}: {error}")
        return error.code

    def _say_all(self, lines: Iterable[str]) -> int:
        for line in lines:
            self._say(line)
        return 0


def _split(item: str) -> tuple[str, int | None]:
    """Profile and start of `PROFILE` or `PROFILE:START`."""
    name, colon, start = item.partition(":")
    if not colon:
        return name, None
    return name, int(start) if start.isdecimal() else _NO_SUCH


def _find_ci_profile(profile: GiProfile, text: str) -> CiProfile | None:
    name = text.removeprefix("MIG ").rstrip("*")
    for ci_profile in profile.ci_profiles:
        if name in (str(ci_profile.id), ci_profile.name_prefix + profile.name):
            return ci_profile
    return None
