"""The GPU of an acceptance, real or simulated: what a check reads, creates and runs on it.

Every change goes through the journal and is undone by the functions that restore a GPU after a study.
"""

from __future__ import annotations

import dataclasses
import json
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any, cast

from pipeline.base.domain.driver_programs import Execute, Programs
from pipeline.base.domain.records import Device
from pipeline.base.system import helper_program
from pipeline.base.system.errors import CollocationError, LaunchError
from pipeline.base.system.host_info import boot_id
from pipeline.base.system.interrupts import UndoStack
from pipeline.clean import processes
from pipeline.clean.journal import Journal
from pipeline.gpu.selftest import load_process
from pipeline.gpu.selftest.simulated_load import count_multiprocessors
from pipeline.prepare.device import nvml
from pipeline.prepare.device.smi_commands import run_program
from pipeline.prepare.mig import assignment, division, mig_smi
from pipeline.prepare.mig.layouts import Instance, Layout, Placed
from pipeline.prepare.mig.mig_smi import MigSmi
from pipeline.prepare.mig.mig_state import GpuInstance, MigDevice, MigState
from pipeline.prepare.mig.profiles import MigGpu, Profile
from pipeline.simulation.machine import codes
from pipeline.simulation.machine.gpu_clients import Clients
from pipeline.simulation.machine.state_file import StateFile
from pipeline.simulation.mps import control_program

_UUID = re.compile(r"\b(GPU|MIG)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_CREATED = re.compile(r"Successfully (created|destroyed) GPU instance ID +(\d+)")
_JOB_MIB = 512
_NEIGHBOUR_SLOWDOWN = 1.5
_KERNEL_S = 0.05


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
        gpu: its MIG profiles.
        programs: programs of its driver.
        journal: undo steps of the GPU.
        scratch: temporary folder, whose name begins with the mark of all processes.
        mark: mark of all processes that checks start.
        record: commands of nvidia-smi.
        machine: file of a simulated machine; `None` for a real GPU.
        was_on: whether MIG mode was on before the first change.
        broken: what does not hold, as the current check has found it.
    """

    device: Device
    gpu: MigGpu
    programs: Programs
    journal: Journal
    scratch: Path
    mark: str
    record: CommandRecord
    machine: Path | None = None
    was_on: bool = False
    broken: list[str] = field(default_factory=list)
    num_folders: int = 0

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
            return load_process.start_loader(device, self.make_folder(), variables)
        return start_simulated_job(StateFile(self.machine), device, variables)


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


class SimulatedJob:
    """Replacement for `load_process.Loader` on a simulated GPU: a process that holds memory and computes nothing."""

    def __init__(self, file: StateFile, device: Device, process: Popen[bytes]) -> None:
        self._file, self._device, self._process = file, device, process

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def facts(self) -> dict[str, Any]:
        """Multiprocessors as the driver reports them; 1 if it does not."""
        return {"multiprocessors": count_multiprocessors(self._device) or 1, "threads_per_multiprocessor": 2048}

    def wait_for_device(self) -> None:
        """Return at once: the process holds the device since its start."""

    def begin(self, load: object) -> None:
        """Do nothing: no kernel runs on a simulated GPU."""

    def wait_running(self) -> dict[str, Any]:
        """Return what a real load reports."""
        return {"rounds": 1}

    def stop(self) -> None:
        """Do nothing."""

    def wait_done(self) -> dict[str, Any]:
        """Return the result of a load; a GPU with the fault `shared` slows it if other instances have processes."""
        gpu = next(gpu for gpu in self._file.read().gpus if gpu.uuid == self._device.gpu_uuid)
        is_slowed = gpu.health.mig_fault == "shared" and len({p.gpu_instance_id for p in gpu.processes}) > 1
        return {"num_wrong": 0, "kernel_s": _KERNEL_S * (_NEIGHBOUR_SLOWDOWN if is_slowed else 1)}


@contextmanager
def start_simulated_job(file: StateFile, device: Device, environ: Mapping[str, str]) -> Iterator[SimulatedJob]:
    """Start a process that holds memory of a simulated MIG device, as a client of the MPS daemon in its variables.

    Raises:
        LaunchError: the device or the daemon refuses the process.
    """
    argv = [sys.executable, "-I", "-S", "-c", "import sys; sys.stdin.read()"]
    with Popen(argv, stdin=PIPE, env=dict(environ), start_new_session=True) as process:
        try:
            connection = control_program.connect(environ, on_behalf_of=process.pid)
            kind = "C" if connection is None else "M+C"
            if connection is not None:
                connection.close()
            Clients(file).hold(device.uuid, process.pid, "python3", _JOB_MIB, kind)
            yield SimulatedJob(file, device, process)
        except (RuntimeError, codes.DriverError) as error:
            raise LaunchError(f"a job cannot use the simulated device {device.uuid}: {error}") from error
        finally:
            process.kill()


Job = load_process.Loader | SimulatedJob
"""A process that loads a MIG device."""
