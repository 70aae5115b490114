"""`nvidia-smi mig ...`: lists, makes and destroys GPU instances and compute instances.

As with the real program, a list is worked off one by one and what was made before a failure stays, a command that
names no GPU acts on all of them, and without a GPU in MIG mode there is one line and exit status 0. Statuses of other
failures are NVML's return codes; only 2 and 6 are documented.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from pipeline.base.mig_table import CiProfile, GiProfile
from pipeline.simulation.machine import codes, queries
from pipeline.simulation.machine.codes import DriverError, text_of
from pipeline.simulation.machine.driver import Driver
from pipeline.simulation.machine.state import ComputeInstance, Gpu, GpuInstance
from pipeline.simulation.smi import output
from pipeline.simulation.smi.output import Numbered

# An id and a start that no profile has: the driver refuses it with the code that it has for that.
_NO_SUCH = -1

Print = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What was asked for after `nvidia-smi mig`.

    Attributes:
        command: the option that says what to do, as `-cgi`.
        argument: its list; `None` if it has none.
        gpus: indices of the GPUs it is about.
        instances: ids of the GPU instances it is about; `None` for all.
        divisions: ids of the compute instances it is about; `None` for all.
        with_divisions: whether a GPU instance gets a compute instance of its full width at once (`-C`).
    """

    command: str
    argument: str | None
    gpus: tuple[int, ...]
    instances: frozenset[int] | None
    divisions: frozenset[int] | None
    with_divisions: bool


class MigCommands:
    """The sub-commands.

    Args:
        driver: the driver that carries them out.
        say: prints a line.
    """

    def __init__(self, driver: Driver, say: Print) -> None:
        self._driver = driver
        self._say = say

    def run(self, request: Request) -> int:
        """Carry out a request and return the exit status."""
        gpus = self._gpus(request)
        tables = {"-lgip": output.profile_table, "-lgipp": output.placement_list}
        if request.command in tables:
            return self._say_all(tables[request.command](gpus))
        commands: Mapping[str, Callable[[Request], int]] = {
            "-lgi": self._list_instances,
            "-lcip": self._list_division_profiles,
            "-lcipp": self._list_division_profiles,
            "-lci": self._list_divisions,
            "-cgi": self._create_instances,
            "-cci": self._create_divisions,
            "-dgi": self._destroy_instances,
            "-dci": self._destroy_divisions,
        }
        if not any(gpu.mig_current for _, gpu in gpus):
            self._say("No MIG-enabled devices found.")
            return 0
        return commands[request.command](request)

    def _list_instances(self, request: Request) -> int:
        rows = list(self._instances(request))
        return self._say_all(output.instance_table(rows)) if rows else self._nothing("GPU")

    def _list_division_profiles(self, request: Request) -> int:
        rows = list(self._instances(request))
        if not rows:
            return self._nothing("GPU")
        is_table = request.command == "-lcip"
        text = output.division_profile_table(rows) if is_table else output.division_placement_list(rows)
        return self._say_all(text)

    def _list_divisions(self, request: Request) -> int:
        rows = list(self._divisions(request))
        return self._say_all(output.division_table(rows)) if rows else self._nothing("compute")

    def _create_instances(self, request: Request) -> int:
        for index, gpu in self._gpus(request):
            if not gpu.mig_current:
                continue
            for item in (request.argument or "").split(","):
                status = self._create_instance(index, gpu, item.strip(), with_division=request.with_divisions)
                if status:
                    return status
        return 0

    def _create_instance(self, index: int, gpu: Gpu, item: str, *, with_division: bool) -> int:
        name, start = _split(item)
        profile = queries.model_of(gpu).find_profile(name)
        try:
            made = self._driver.create_gpu_instance(index, _NO_SUCH if profile is None else profile.id, start)
        except DriverError as error:
            shown = name if profile is None else profile.id
            self._say(f"Unable to create a GPU instance on GPU {index:>2} using profile {shown}: {error}")
            self._say(f"Failed to create GPU instances: {error}")
            return error.code
        profile = queries.model_of(gpu).profile(made.profile_id)
        self._say(
            f"Successfully created GPU instance ID {made.id:>2} on GPU {index:>2} "
            f"using profile MIG {profile.name} (ID {profile.id:>2})"
        )
        return self._create_division(index, made.id, None) if with_division else 0

    def _create_divisions(self, request: Request) -> int:
        rows = list(self._instances(request))
        if not rows:
            return self._nothing("GPU")
        for index, _, instance in rows:
            for item in request.argument.split(",") if request.argument else [None]:
                status = self._create_division(index, instance.id, item)
                if status:
                    return status
        return 0

    def _create_division(self, index: int, instance_id: int, item: str | None) -> int:
        gpu = self._driver.state().gpus[index]
        profile = queries.profile_of(gpu, queries.instance_of(gpu, instance_id))
        name, start = _split(item or profile.ci_profiles[-1].name_prefix + profile.name)
        chosen = _division(profile, name)
        try:
            made = self._driver.create_compute_instance(
                index, instance_id, _NO_SUCH if chosen is None else chosen.id, start
            )
        except DriverError as error:
            shown = name if chosen is None else chosen.id
            self._say(
                f"Unable to create a compute instance on GPU {index:>2} GPU instance ID {instance_id:>2} "
                f"using profile {shown}: {error}"
            )
            self._say(f"Failed to create compute instances: {error}")
            return error.code
        chosen = queries.division_of(profile, made.profile_id)
        self._say(
            f"Successfully created compute instance ID {made.id:>2} on GPU {index:>2} GPU instance ID "
            f"{instance_id:>2} using profile MIG {chosen.name_prefix}{profile.name} (ID {chosen.id:>2})"
        )
        return 0

    def _destroy_instances(self, request: Request) -> int:
        rows = list(self._instances(request))
        if not rows:
            return self._nothing("GPU")
        for index, _, instance in rows:
            what = f"GPU instance ID {instance.id:>2} from GPU {index:>2}"
            try:
                self._driver.destroy_gpu_instance(index, instance.id)
            except DriverError as error:
                self._say(f"Unable to destroy {what}: {error}")
                self._say(f"Failed to destroy GPU instances: {error}")
                return error.code
            self._say(f"Successfully destroyed {what}")
        return 0

    def _destroy_divisions(self, request: Request) -> int:
        rows = list(self._divisions(request))
        if not rows:
            return self._nothing("compute")
        for index, _, instance, division in rows:
            what = f"compute instance ID {division.id:>2} from GPU {index:>2} GPU instance ID {instance.id:>2}"
            try:
                self._driver.destroy_compute_instance(index, instance.id, division.id)
            except DriverError as error:
                self._say(f"Unable to destroy {what}: {error}")
                self._say(f"Failed to destroy compute instances: {error}")
                return error.code
            self._say(f"Successfully destroyed {what}")
        return 0

    def _gpus(self, request: Request) -> list[Numbered]:
        gpus = self._driver.state().gpus
        return [(index, gpus[index]) for index in request.gpus]

    def _instances(self, request: Request) -> Iterator[tuple[int, Gpu, GpuInstance]]:
        for index, gpu in self._gpus(request):
            for instance in queries.listed(gpu):
                if request.instances is None or instance.id in request.instances:
                    yield index, gpu, instance

    def _divisions(self, request: Request) -> Iterator[tuple[int, Gpu, GpuInstance, ComputeInstance]]:
        for index, gpu, instance in self._instances(request):
            for division in instance.compute_instances:
                if request.divisions is None or division.id in request.divisions:
                    yield index, gpu, instance, division

    def _nothing(self, kind: str) -> int:
        self._say(f"No {kind} instances found: {text_of(codes.NOT_FOUND)}")
        return codes.NOT_FOUND

    def _say_all(self, lines: Iterable[str]) -> int:
        for line in lines:
            self._say(line)
        return 0


def _split(item: str) -> tuple[str, int | None]:
    """Profile and start of `PROFILE` or `PROFILE:START`."""
    name, colon, start = item.strip().partition(":")
    if not colon:
        return name, None
    return name, int(start) if start.isdecimal() else _NO_SUCH


def _division(profile: GiProfile, text: str) -> CiProfile | None:
    name = text.removeprefix("MIG ").rstrip("*")
    for division in profile.ci_profiles:
        if name in (str(division.id), division.name_prefix + profile.name):
            return division
    return None
