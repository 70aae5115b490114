"""Writes MIG through nvidia-smi, reads it back through NVML, and undoes it: mode and instances of one GPU.

Nothing here decides what to make. Every command names its GPU by UUID, and what it destroys by its ids: without them
nvidia-smi acts on all there is. What it says and its exit status are never believed to mean success.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import psutil

from pipeline import command
from pipeline.errors import CommandError, SharingError
from pipeline.gpu import nvml
from pipeline.gpu.mig_state import GpuInstance, MigState, read_state
from pipeline.host import boot_id

log = logging.getLogger(__name__)

# An Ampere GPU is reset when its mode is switched, which takes seconds.
_COMMAND_LIMIT_S = 60.0
# A GPU can report itself in use for a moment after its last process ended. Unit: s.
_RETRY_LIMIT_S = 10.0
_RETRY_S = 0.5
_LOOK_S = 0.05
_SUDO_REFUSES = "sudo:"
_IN_USE = "in use"
_CLEAN = "python -m pipeline.gpu clean"
_WRITES = frozenset({"-mig", "-cgi", "-dci", "-dgi", "-c"})
# `GPU  MIG NAME  profile id  instance id  start:size` of `nvidia-smi mig -lgi`; the widths differ between drivers.
_INSTANCE_ROW = re.compile(r"^\|\s*\d+\s+MIG \S+\s+(\d+)\s+(\d+)\s+(\d+):\d+\s*\|$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """nvidia-smi for one GPU.

    Attributes:
        uuid: of the GPU.
        program: absolute path of nvidia-smi.
        admin: what is put before it for a command that needs an administrator.
    """

    uuid: str
    program: str
    admin: tuple[str, ...]

    def arguments(self) -> dict[str, Any]:
        """What the functions that undo need to find this GPU again; JSON can hold it."""
        return {"uuid": self.uuid, "program": self.program, "admin": list(self.admin)}

    def read(self) -> MigState:
        """Mode, instances and MIG devices as they are now; the instances are never `None`.

        Raises:
            ConfigError: there is no driver, or it does not work.
            SharingError: the GPU has no MIG, or its instances can be listed neither by us nor by way of `gpu.admin`.
            NvmlError: the GPU does not answer.
        """
        state = read_state(self.uuid)
        return state if state.instances is not None else replace(state, instances=self._listed_by_program())

    def switch_on(self) -> None:
        """Switch MIG mode on, at once or not at all: what stays pending is for the caller to take back.

        Raises:
            SharingError: refused, or the mode is pending.
        """
        said = self.write("-i", self.uuid, "-mig", "1")
        if not self.read().is_on:
            raise SharingError(
                f"MIG mode of {self.uuid} was not switched on: a client holds the GPU (a monitor such as DCGM, an "
                "exporter or a display server), or it is passed through to a virtual machine. Stop the clients and try "
                f"again, or let an administrator do it: nvidia-smi -i {self.uuid} -mig 1, then --gpu-reset. "
                f"nvidia-smi said: {said}"
            )

    def create(self, profile_id: int, start: int) -> GpuInstance:
        """Make a GPU instance at a start, with a compute instance of its full width.

        Raises:
            SharingError: it is not there as it was asked for; some of it may be.
        """
        said = self.write("mig", "-i", self.uuid, "-cgi", f"{profile_id}:{start}", "-C")
        state = self.read()
        made = [i for i in state.instances or () if (i.profile_id, i.start) == (profile_id, start)]
        if len(made) != 1 or sum(device.gi_id == made[0].gi_id for device in state.devices) != 1:
            raise SharingError(
                f"a MIG instance of profile {profile_id} at slice {start} of {self.uuid} is not there, or has not one "
                f"compute instance. nvidia-smi said: {said}. {_remedy(said)}"
            )
        return made[0]

    def write(self, *arguments: str) -> str:
        """Run a command that changes the GPU; returns what it said, in one line, whatever that means.

        Raises:
            SharingError: it could not be run, or we are not allowed to.
        """
        return _said(self._run(*arguments))

    def _run(self, *arguments: str) -> command.Completed:
        try:
            completed = command.run([*self.admin, self.program, *arguments], timeout_s=_COMMAND_LIMIT_S, check=False)
        except CommandError as error:
            raise SharingError(f"MIG of {self.uuid}: {error}") from error
        said = _said(completed)
        log.debug("%s: status %d: %s", " ".join(completed.argv), completed.status, said)
        if "permission" in said.lower() or (self.admin and completed.status != 0 and _SUDO_REFUSES in said):
            raise SharingError(
                f"no permission for `{' '.join(completed.argv)}`: {said}. An administrator must allow it, for example "
                "in sudoers; then say how it is run, as in 'gpu.admin=[sudo,-n]'"
            )
        return completed

    def _listed_by_program(self) -> tuple[GpuInstance, ...]:
        """The instances for whoever NVML does not show them to."""
        completed = self._run("mig", "-i", self.uuid, "-lgi")
        rows = _INSTANCE_ROW.findall(completed.stdout)
        if not rows and "No GPU instances found" not in completed.stdout:
            raise SharingError(
                f"the MIG instances of {self.uuid} cannot be listed. nvidia-smi said: {_said(completed)}"
            )
        found = (GpuInstance(gi_id=int(gi), profile_id=int(profile), start=int(at)) for profile, gi, at in rows)
        return tuple(sorted(found, key=lambda instance: instance.start))


def switch_off(uuid: str, program: str, admin: list[str]) -> None:
    """Undo `Control.switch_on`, also when it left the mode pending. Safe to repeat.

    Raises:
        SharingError: instances are left, which switching off would take from their owner; or it does not switch.
    """
    control = Control(uuid=uuid, program=program, admin=tuple(admin))
    await_last_write(control.uuid)
    nvml.release()

    def is_done() -> bool:
        state = control.read()
        if state.instances:
            raise SharingError(
                f"MIG mode of {uuid} stays on: it has {len(state.instances)} GPU instances that are not ours or could "
                "not be destroyed; when they are gone: python -m pipeline.gpu clean"
            )
        return not state.is_on and state.is_settled

    def switch() -> str:
        return control.write("-i", uuid, "-mig", "0")

    remedy = f"an administrator can reset it: nvidia-smi -i {uuid} --gpu-reset"
    _repeat(switch, is_done, control, f"switching MIG mode of {uuid} off", remedy)


def destroy_instance(
    uuid: str, program: str, admin: list[str], profile_id: int, start: int, boot: str, gi_id: int | None = None
) -> None:
    """Undo `Control.create`: the compute instances first. Safe to repeat, and after half of it was done.

    Args:
        uuid: as `Control`.
        program: as `Control`.
        admin: as `Control`.
        profile_id: what was asked for. Only an instance of this profile at this start is touched.
        start: where it was asked for.
        boot: `boot_id` when it was made.
        gi_id: id of what was made; not known if the orchestrator was killed before it could write it down.

    Raises:
        SharingError: it is still there.
    """
    if boot != boot_id():
        return
    control = Control(uuid=uuid, program=program, admin=tuple(admin))
    await_last_write(control.uuid)

    def ours(state: MigState) -> GpuInstance | None:
        for instance in state.instances or ():
            if (instance.profile_id, instance.start) == (profile_id, start) and gi_id in (None, instance.gi_id):
                return instance
        return None

    def destroy() -> str:
        state = control.read()
        instance = ours(state)
        assert instance is not None, "what is gone is not destroyed"
        which = ("-i", uuid, "-gi", str(instance.gi_id))
        inside = [device.ci_id for device in state.devices if device.gi_id == instance.gi_id]
        said = [control.write("mig", "-dci", *which, "-ci", str(ci_id)) for ci_id in inside]
        if not any(device.gi_id == instance.gi_id for device in control.read().devices):
            said.append(control.write("mig", "-dgi", *which))
        return " / ".join(said)

    what = f"destroying the MIG instance of profile {profile_id} at slice {start} of {uuid}"
    remedy = f"an administrator can reset the GPU: nvidia-smi -i {uuid} --gpu-reset"
    _repeat(destroy, lambda: ours(control.read()) is None, control, what, remedy)


def _repeat(
    step: Callable[[], str], is_done: Callable[[], bool], control: Control, what: str, last_remedy: str
) -> None:
    """Take a step until reading back shows that it is done, for as long as the GPU says that it is in use.

    Raises:
        SharingError: it is not done; names who holds the GPU.
    """
    deadline = time.monotonic() + _RETRY_LIMIT_S
    while not is_done():
        said = step()
        if is_done():
            return
        if _IN_USE not in said.lower():
            raise SharingError(f"{what} failed. nvidia-smi said: {said}. When that is mended: {_CLEAN}")
        if time.monotonic() > deadline:
            raise SharingError(
                f"{what} failed for {_RETRY_LIMIT_S:g} s. nvidia-smi said: {said}. "
                f"{_holders(control.uuid, last_remedy)}; then: {_CLEAN}"
            )
        time.sleep(_RETRY_S)


def _holders(uuid: str, last_remedy: str) -> str:
    """Who keeps a GPU in use, and what to do."""
    names = ", ".join(f"{process.name or 'a program'} (pid {process.pid})" for process in nvml.processes(uuid))
    if names:
        return f"{names} holds it: end it"
    return f"No process is on it, so a monitor (DCGM, an exporter) or the driver holds it: end it, or {last_remedy}"


def await_last_write(uuid: str) -> None:
    """Wait for a command of an orchestrator that was killed: it runs on by itself and would come after the undoing.

    Raises:
        SharingError: it does not end.
    """
    deadline = time.monotonic() + _COMMAND_LIMIT_S
    while pids := _writers(uuid):
        if time.monotonic() > deadline:
            raise SharingError(
                f"nvidia-smi (pid {', '.join(map(str, pids))}) still changes {uuid}: it hangs in the driver; "
                "when it is gone, or after a restart of the machine: python -m pipeline.gpu clean"
            )
        time.sleep(_LOOK_S)


def _writers(uuid: str) -> list[int]:
    """PIDs of the programs that change this GPU, by their command line: sudo hides everything else of them."""
    found = ((p.pid, p.info["cmdline"] or ()) for p in psutil.process_iter(["cmdline"]))
    return [pid for pid, line in found if uuid in line and not _WRITES.isdisjoint(line)]


def _said(completed: command.Completed) -> str:
    """All that a command printed, in one line."""
    lines = f"{completed.stdout}\n{completed.stderr}".splitlines()
    return " / ".join(line.strip() for line in lines if line.strip())


def _remedy(said: str) -> str:
    if "insufficient resources" in said.lower():
        return "There is no room for it: another program divides this GPU at the same time, or its driver is older"
    return "Try again when nobody else uses or monitors the GPU"
