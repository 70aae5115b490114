"""The GPU of an acceptance, real or simulated: what a check reads, creates and runs on it.

Every change goes through the journal and is undone by the functions that restore a GPU after a study.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from pipeline.base.domain import mig_table
from pipeline.base.domain.driver_programs import Execute, Programs
from pipeline.base.domain.records import Device
from pipeline.base.system import helper_program
from pipeline.base.system.errors import CollocationError, ConfigError
from pipeline.base.system.host_info import boot_id
from pipeline.base.system.interrupts import UndoStack
from pipeline.clean import processes
from pipeline.clean.journal import Journal
from pipeline.gpu.selftest import loaders
from pipeline.gpu.selftest.loaders import count_multiprocessors
from pipeline.prepare.device import nvml
from pipeline.prepare.device.smi_commands import run_program
from pipeline.prepare.mig import assignment, division, mig_smi, profiles
from pipeline.prepare.mig.layouts import Instance, Layout, Placed
from pipeline.prepare.mig.mig_smi import MigSmi
from pipeline.prepare.mig.mig_state import GpuInstance, MigDevice, MigState
from pipeline.prepare.mig.profiles import MigGpu, Profile
from pipeline.simulation import nvidia_smi
from pipeline.simulation.install import install_driver, write_programs
from pipeline.simulation.machine.driver import Driver
from pipeline.simulation.machine.releases import RELEASES
from pipeline.simulation.machine.state_file import StateFile

_UUID = re.compile(r"\b(GPU|MIG)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_CREATED = re.compile(r"Successfully (created|destroyed) GPU instance ID +(\d+)")


class UntriedError(CollocationError):
    """Error of a check that cannot be run on this machine; no promise is broken."""


class CommandRecord:
    """The commands of nvidia-smi on one GPU, with their output, in the order of their execution.

    They are in a file of JSON lines, to which killed children of this process write too.

    Attributes:
        check: name of the current check.
    """

    def __init__(self, path: Path, execute: Execute = run_program) -> None:
        self._path, self._execute, self.check = path, execute, "begin"
        path.touch()

    @property
    def commands(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._path.read_text(encoding="utf-8").splitlines()]

    def execute(self, words: Sequence[str]) -> helper_program.Completed:
        """Execute and record a command."""
        began_s = time.monotonic()
        completed = self._execute(words)
        line = {
            "check": self.check,
            "command": ["nvidia-smi" if Path(word).name == "nvidia-smi" else word for word in words],
            "status": completed.status,
            "stdout": completed.stdout,
            "stderr": completed.stderr,
            "seconds": round(time.monotonic() - began_s, 3),
        }
        # A full disk must not prevent the commands that restore the GPU.
        with suppress(OSError), self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        return completed

    def list_existing(self) -> list[int]:
        """List the ids of the GPU instances that these commands created and did not destroy."""
        last: dict[int, str] = {}
        for command in self.commands:
            last.update({int(number): effect for effect, number in _CREATED.findall(command["stdout"])})
        return [number for number, effect in last.items() if effect == "created"]


@dataclass(slots=True, kw_only=True)
class MigBoard:
    """One GPU under acceptance.

    Attributes:
        device: the GPU as NVML listed it before the first change.
        programs: programs of its driver.
        folder: folder of the journal.
        scratch: temporary folder, whose name begins with the mark of all processes.
        mark: mark of all processes that checks start.
        record: commands of nvidia-smi.
        machine: file of a simulated machine; `None` for a real GPU.
        was_on: whether MIG mode was on before the first change.
        gpu: the MIG profiles of the GPU.
        journal: undo steps of the GPU.
        broken: what does not hold, as the current check has found it.
    """

    device: Device
    programs: Programs
    folder: Path
    scratch: Path
    mark: str
    record: CommandRecord
    machine: Path | None = None
    was_on: bool = False
    gpu: MigGpu = field(init=False)
    journal: Journal = field(init=False)
    broken: list[str] = field(default_factory=list)
    num_folders: int = 0

    def __post_init__(self) -> None:
        self.gpu = profiles.read_gpu(self.device)
        self.journal = Journal(self.folder, self.device.uuid, self.programs)

    @property
    def control(self) -> MigSmi:
        return MigSmi.locate(self.programs, self.device.uuid)

    def expect(self, is_true: bool, text: str) -> None:
        """Note a broken promise unless the condition holds."""
        if not is_true:
            self.broken.append(text)

    @contextmanager
    def case(self, name: str) -> Iterator[None]:
        """Run a part of a check that begins and ends on a GPU without instances; note its errors, and continue.

        Raises:
            UntriedError: the part cannot be tried.
        """
        try:
            yield
        except UntriedError:
            raise
        except (CollocationError, LookupError, ValueError) as error:
            self.expect(False, f"{name}: {error}")
        state = self.control.read()
        if state.instances or state.devices:
            instances = division.describe_instances(state.instances or ())
            self.expect(False, f"{name}: afterwards the GPU has the GPU instances {instances}")
            self._destroy_created(state)

    def _destroy_created(self, state: MigState) -> None:
        """Destroy instances that commands of this process created and the journal does not know after a kill."""
        for gi_id in self.record.list_existing():
            for device in state.devices:
                if device.gi_id == gi_id:
                    self.control.run(self.control.destruction_command(gi_id, device.ci_id))
            if any(instance.gi_id == gi_id for instance in state.instances or ()):
                self.control.run(self.control.destruction_command(gi_id))

    @contextmanager
    def use_driver(self) -> Iterator[MigBoard]:
        """Install the driver of the twin in this process during the body."""
        assert self.machine is not None, "a twin is simulated"
        with install_driver(self.machine):
            yield self

    def make_folder(self) -> Path:
        """Make an empty folder for one job or daemon."""
        self.num_folders += 1
        folder = self.scratch / str(self.num_folders)
        folder.mkdir()
        return folder

    # Reading

    @property
    def divided_device(self) -> Device:
        """The GPU as NVML lists it in MIG mode."""
        return dataclasses.replace(self.device, mig_enabled=True)

    def list_devices(self) -> list[Device]:
        """List the MIG devices as jobs see them."""
        return list(nvml.list_mig_devices(self.divided_device))

    def read_devices(self, gi_id: int | None = None) -> list[dict[str, Any]]:
        """Read the MIG devices, of one GPU instance or of all: everything but their UUIDs."""
        state = self.control.read()
        widths = {(device.gi_id, device.ci_id): device.compute_slices for device in state.devices}
        return [
            {
                "gi_id": device.gi_id,
                "ci_id": device.ci_id,
                "profile": assignment.read_profile(device),
                "compute_slices": widths.get((cast(int, device.gi_id), cast(int, device.ci_id))),
                "multiprocessors": count_multiprocessors(device),
                "memory_mib": device.memory_mib,
            }
            for device in self.list_devices()
            if gi_id in (None, device.gi_id)
        ]

    # Changing

    def switch_mode(self, *, is_on: bool) -> helper_program.Completed:
        """Run the command that switches MIG mode; the caller reads its effect."""
        return self.control.run(self.control.mode_command(is_on=is_on))

    def switch_off(self) -> None:
        """Switch MIG mode off as after a study."""
        mig_smi.switch_off(self.programs, self.device.uuid, self.control.admin)

    @contextmanager
    def make(self, placed: Placed, parts: Mapping[int, tuple[int, ...]] | None = None) -> Iterator[list[MigDevice]]:
        """Create a layout on the empty GPU as a study does, and destroy it after the body.

        `parts` has the widths of compute instances, by position in `placed`.
        """
        layout = plan_layout(placed, parts)
        with UndoStack() as stack:
            yield division.divide(self.control, self.control.read(), layout, self.journal, stack)

    @contextmanager
    def make_beside(self, profile: Profile, start: int) -> Iterator[GpuInstance]:
        """Create one GPU instance beside the existing ones, and destroy it after the body."""
        with UndoStack() as stack:
            instance = Instance(job=0, profile=profile, start=start)
            yield division.make_instance(self.control, instance, self.journal, stack)[0]

    def attempt(self, profile_id: int, start: int) -> dict[str, Any]:
        """Try to create a GPU instance that the driver has to refuse; return the answer, and undo the creation."""
        arguments = self.control.to_record() | {"profile_id": profile_id, "start": start, "boot": boot_id()}
        with self.journal.guard("mig_instance", **arguments) as step:
            reading = self.run_refused(self.control.creation_command(profile_id, start))
            created = self.control.find_created(reading["printed"], self.control.read(), profile_id, start)
            if reading["is_changed"] and created is not None:
                self.journal.amend(step, **dataclasses.asdict(created))
            elif not reading["is_changed"]:
                # The step would otherwise undo an instance with the same profile and start that exists already.
                self.journal.discard(step)
        return reading

    def run_refused(self, words: Sequence[str]) -> dict[str, Any]:
        """Run a command that the driver has to refuse; return its answer, and whether anything changed."""
        before = self.control.read()
        completed = self.control.run(words)
        is_changed = self.control.read() != before
        command = hide_uuids(" ".join(words[len(self.control.admin) + 1 :]))
        self.expect(not is_changed, f"the driver carried out `{command}`: {completed.printed_line}")
        return {"status": completed.status, "printed": hide_uuids(completed.printed_line), "is_changed": is_changed}

    # Running

    def start_job(self, uuid: str, environ: Mapping[str, str] | None = None) -> AbstractContextManager[Job]:
        """Start a process that can load one MIG device, and end it with the context."""
        (device,) = (device for device in self.list_devices() if device.uuid == uuid)
        variables = {processes.MARK_VARIABLE: self.mark, **(environ or {})}
        if self.machine is None:
            return loaders.start_loader(device, self.make_folder(), variables)
        return loaders.start_simulated_job(StateFile(self.machine), device, variables)


def plan_layout(placed: Placed, parts: Mapping[int, tuple[int, ...]] | None = None) -> Layout:
    """Return the layout with instances at these starts; `parts` has widths of compute instances, by position."""
    return Layout(
        instances=tuple(
            Instance(job=job, profile=profile, start=start, parts=(parts or {}).get(job, ()))
            for job, (profile, start) in enumerate(placed)
        )
    )


def name_layout(placed: Placed) -> str:
    """Name a layout, such as `3g.20gb@4,2g.10gb@0`."""
    return ",".join(f"{profile.name}@{start}" for profile, start in placed)


def hide_uuids(text: str) -> str:
    """Replace UUIDs, which differ between machines, by their kind."""
    return _UUID.sub(r"\1", text)


Job = loaders.Loader | loaders.SimulatedLoader
"""A process that loads a MIG device."""


def find_branch(device: Device) -> str:
    """Find the simulated branch nearest to a GPU's driver: the newest that is not newer, else the oldest."""
    branch = device.facts.driver_branch or 0
    return max((name for name in RELEASES if int(name) <= branch), key=int, default=min(RELEASES, key=int))


def make_twin(device: Device, folder: Path, mark: str, *, is_on: bool) -> MigBoard:
    """Make the twin of a GPU in a new folder; `is_on` is the MIG mode in which it was found.

    A twin is a simulated GPU of the same model and driver branch, on which the same checks run. Its nvidia-smi runs in
    this process, because an acceptance needs hundreds of commands.

    Raises:
        ConfigError: the project has no table of this GPU.
    """
    folder.mkdir()
    try:
        model = mig_table.find(device.name)
    except ConfigError as error:
        raise ConfigError(
            f"{device.name} cannot be compared with the simulated driver: {error}; add its profiles to "
            "pipeline/base/domain/mig_profiles.json"
        ) from error
    file = StateFile(folder / "machine.json")
    file.keep([model.name], find_branch(device))
    if is_on:
        Driver(file).set_mig_mode(0, is_on=True)
    record = CommandRecord(folder / "commands.jsonl", _execute_on(file))
    paths = write_programs(folder / "bin", file.path)
    programs = Programs(
        purpose="the simulated twin",
        simulated={name: str(path) for name, path in paths.items()},
        admin=(),
        execute=record.execute,
    )
    with install_driver(file.path):
        return MigBoard(
            device=nvml.list_devices()[0],
            programs=programs,
            folder=folder,
            scratch=folder,
            mark=mark,
            record=record,
            machine=file.path,
            was_on=is_on,
        )


def _execute_on(file: StateFile) -> Execute:
    def execute(words: Sequence[str]) -> helper_program.Completed:
        position = next(number for number, word in enumerate(words) if Path(word).name == "nvidia-smi")
        with contextlib.redirect_stdout(io.StringIO()) as output:
            status = nvidia_smi.main(["--state-file", str(file.path), *words[position + 1 :]])
        return helper_program.Completed(argv=tuple(words), status=status, stdout=output.getvalue(), stderr="")

    return execute
