"""Changes of MIG mode and instances of one GPU: made through nvidia-smi, verified through NVML, and undone.

Callers decide which instances are created. Commands that destroy instances always name their ids, because without ids
nvidia-smi destroys all instances.
"""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.base.domain.driver_programs import Programs
from pipeline.base.system import entry_points
from pipeline.base.system.errors import SharingError
from pipeline.base.system.host_info import boot_id
from pipeline.base.system.words import format_count
from pipeline.clean.kinds import undoes
from pipeline.prepare.device import gpu_reader, nvml
from pipeline.prepare.device.smi_commands import Smi, await_last_write
from pipeline.prepare.mig.mig_state import GpuInstance, MigDevice, MigState, read_state

# For a short time after its last process exited, a GPU can still report that it is in use. Unit: s.
_RETRY_LIMIT_S = 10.0
_RETRY_S = 0.5
_IN_USE = "in use"
_LOSES_MODE = (9, 0)  # Hopper and later. Source: NVIDIA MIG User Guide
_CLEAN = f"{entry_points.spell('gpu', 'clean')} (`destroy` for instances made by hand)"
# `GPU  MIG NAME  profile id  instance id  start:size` of `nvidia-smi mig -lgi`; the widths differ between drivers.
_INSTANCE_ROW = re.compile(r"^\|\s*\d+\s+MIG \S+\s+(\d+)\s+(\d+)\s+(\d+):\d+\s*\|$", re.MULTILINE)
_CREATED_ID = re.compile(r"created (GPU|compute) instance ID +(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class MigSmi(Smi):
    """Program nvidia-smi for MIG on one GPU; a change without effect is a SharingError."""

    def mode_command(self, *, is_on: bool) -> tuple[str, ...]:
        return self.admin_command("-i", self.uuid, "-mig", str(int(is_on)))

    def to_mode_record(self) -> dict[str, Any]:
        """Return the arguments that undo `switch_on`; the boot is included if a restart switches MIG mode off."""
        is_lost = nvml.read_compute_capability(self.uuid) >= _LOSES_MODE
        return self.to_record() | ({"boot": boot_id()} if is_lost else {})

    def creation_command(self, profile_id: int, start: int, *, is_divided: bool = False) -> tuple[str, ...]:
        """Return the command that creates a GPU instance, with one full compute instance unless it is divided."""
        option = () if is_divided else ("-C",)
        return self.admin_command("mig", "-i", self.uuid, "-cgi", f"{profile_id}:{start}", *option)

    def part_creation_command(self, gi_id: int | str, profile_id: int) -> tuple[str, ...]:
        return self.admin_command("mig", "-i", self.uuid, "-gi", str(gi_id), "-cci", str(profile_id))

    def destruction_command(self, gi_id: int | str, ci_id: int | str | None = None) -> tuple[str, ...]:
        if ci_id is None:
            return self.admin_command("mig", "-dgi", "-i", self.uuid, "-gi", str(gi_id))
        return self.admin_command("mig", "-dci", "-i", self.uuid, "-gi", str(gi_id), "-ci", str(ci_id))

    def read(self) -> MigState:
        """Read mode, instances and MIG devices; if NVML hides the instances, read them through nvidia-smi."""
        state = read_state(self.uuid)
        return state if state.instances is not None else dataclasses.replace(state, instances=self._list_by_program())

    def switch_on(self) -> None:
        """Switch MIG mode on; raise SharingError if the change stays pending, which the caller has to undo."""
        output = self.run(self.mode_command(is_on=True)).printed_line
        if not self.read().is_on:
            raise SharingError(
                f"MIG mode of {self.uuid} was not switched on (nvidia-smi printed: {output}); stop programs that use "
                "the GPU (DCGM, an exporter, a display server) or, as is necessary in a virtual machine, switch it on "
                f"as administrator: nvidia-smi -i {self.uuid} -mig 1, then nvidia-smi -i {self.uuid} --gpu-reset"
            )

    def create(
        self, profile_id: int, start: int, amend: Callable[..., None], *, is_divided: bool = False
    ) -> GpuInstance:
        """Create a GPU instance at a memory slice, with one full compute instance unless it is to be divided.

        `amend` adds to the undo step what was created, also if it differs from the request. After an error, the GPU
        instance may exist without its compute instance.
        """
        output = self.run(self.creation_command(profile_id, start, is_divided=is_divided)).printed_line
        state = self.read()
        created = self.find_created(output, state, profile_id, start)
        if created is not None:
            amend(**dataclasses.asdict(created))
        num_parts = sum(device.gi_id == created.gi_id for device in state.devices) if created else 0
        if (
            created is None
            or (created.profile_id, created.start) != (profile_id, start)
            or num_parts != int(not is_divided)
        ):
            raise SharingError(
                f"nvidia-smi did not create a GPU instance of profile {profile_id} at slice {start} of {self.uuid} "
                f"with {format_count(int(not is_divided), 'compute instance')} (it printed: {output}); "
                f"{_suggest_remedy(output)}"
            )
        return created

    def find_created(self, output: str, state: MigState, profile_id: int, start: int) -> GpuInstance | None:
        """Find the GPU instance that a creation command made: by the id in its output, else by profile and start."""
        gi_id = _parse_created_id("GPU", output)
        instances = state.instances or ()
        if gi_id is not None:
            return next((instance for instance in instances if instance.gi_id == gi_id), None)
        return next((i for i in instances if (i.profile_id, i.start) == (profile_id, start)), None)

    def create_part(
        self, gi_id: int, profile_id: int, slices: int, existing_ids: Collection[int], amend: Callable[..., None]
    ) -> MigDevice:
        """Create a compute instance with `slices` in a GPU instance; `existing_ids` are those of existing ones.

        `amend` adds to the undo step what was created, also if it has another width.
        """
        output = self.run(self.part_creation_command(gi_id, profile_id)).printed_line
        ci_id = _parse_created_id("compute", output)
        inside = [device for device in self.read().devices if device.gi_id == gi_id]
        created = [
            device
            for device in inside
            if (device.ci_id not in existing_ids if ci_id is None else device.ci_id == ci_id)
        ]
        if len(created) == 1:
            amend(ci_id=created[0].ci_id, slices=created[0].compute_slices)
        if len(created) != 1 or created[0].compute_slices != slices:
            raise SharingError(
                f"nvidia-smi did not create one {slices}c compute instance in GPU instance {gi_id} of {self.uuid} (it "
                f"printed: {output}); {_suggest_remedy(output)}"
            )
        return created[0]

    def _list_by_program(self) -> tuple[GpuInstance, ...]:
        completed = self.run(self.admin_command("mig", "-i", self.uuid, "-lgi"))
        rows = _INSTANCE_ROW.findall(completed.stdout)
        if not rows and "No GPU instances found" not in completed.stdout:
            raise SharingError(
                f"nvidia-smi cannot list the MIG instances of {self.uuid}; fix the problem that it printed: "
                f"{completed.printed_line}"
            )
        instances = (GpuInstance(gi_id=int(gi), profile_id=int(profile), start=int(at)) for profile, gi, at in rows)
        return tuple(sorted(instances, key=lambda instance: instance.start))


@undoes("mig_mode", "switch MIG mode off")
def switch_off(programs: Programs, uuid: str, admin: Sequence[str]) -> None:
    """Undo `MigSmi.switch_on`, also if the change is still pending. Safe to repeat.

    Raises:
        SharingError: GPU instances of other users exist, or the mode cannot be switched off.
    """
    control = MigSmi.locate(programs, uuid, admin)
    await_last_write(uuid)
    nvml.release()

    def is_done() -> bool:
        state = control.read()
        if state.instances:
            raise SharingError(
                f"MIG mode of {uuid} stays on because of {format_count(len(state.instances), 'GPU instance')} that "
                f"this project did not create or could not destroy; destroy these GPU instances, then run: {_CLEAN}"
            )
        return not state.is_on and state.is_settled

    def switch() -> str:
        return control.run(control.mode_command(is_on=False)).printed_line

    _repeat(switch, is_done, control, f"switching MIG mode of {uuid} off")


@undoes("mig_instance", "destroy the GPU instance of profile {profile_id} at slice {start}")
def destroy_instance(
    programs: Programs,
    uuid: str,
    admin: Sequence[str],
    profile_id: int,
    start: int,
    gi_id: int | None = None,
    is_divided: bool = False,
) -> None:
    """Undo `MigSmi.create`: destroy the compute instance, then the GPU instance. Safe to repeat, also after a failure.

    Only an instance of this profile at this memory slice is destroyed. These are the requested ones, and `gi_id` is
    `None`, until the creation has recorded what it created. In a divided GPU instance, a separate step of the journal
    destroys each compute instance first; any other compute instance belongs to another program, and then the GPU
    instance is not destroyed.

    Raises:
        SharingError: the GPU instance still exists.
    """
    control = MigSmi.locate(programs, uuid, admin)
    await_last_write(uuid)
    action = f"destroying the MIG instance of profile {profile_id} at slice {start} of {uuid}"

    def ours(state: MigState) -> list[int]:
        candidates = (i for i in state.instances or () if (i.profile_id, i.start) == (profile_id, start))
        return [instance.gi_id for instance in candidates if gi_id in (None, instance.gi_id)]

    def inside(state: MigState, gi_id: int) -> list[int]:
        return [device.ci_id for device in state.devices if device.gi_id == gi_id]

    def destroy() -> str:
        state = control.read()
        (target,) = ours(state)
        if is_divided and (parts := inside(state, target)):
            raise SharingError(
                f"{action} failed because of the compute instances {', '.join(map(str, parts))} that this project "
                f"did not create or could not destroy; destroy these compute instances, then run: {_CLEAN}"
            )
        outputs = [
            control.run(control.destruction_command(target, ci_id)).printed_line for ci_id in inside(state, target)
        ]
        if not inside(read_state(uuid), target):
            outputs.append(control.run(control.destruction_command(target)).printed_line)
        return " / ".join(outputs)

    _repeat(destroy, lambda: not ours(control.read()), control, action)


@undoes(
    "mig_compute_instance",
    "destroy the {slices}c compute instance in the GPU instance of profile {profile_id} at slice {start}",
)
def destroy_part(
    programs: Programs,
    uuid: str,
    admin: Sequence[str],
    profile_id: int,
    start: int,
    gi_id: int,
    slices: int,
    beside: Sequence[int],
    ci_id: int | None = None,
) -> None:
    """Undo `MigSmi.create_part` in the GPU instance of this profile, start and id. Safe to repeat.

    Only a compute instance of this width is destroyed. `ci_id` is `None` if the orchestrator was killed before it
    recorded the id; then the compute instance is found because its id is not in `beside`.

    Raises:
        SharingError: the compute instance still exists, or cannot be distinguished from another program's.
    """
    control = MigSmi.locate(programs, uuid, admin)
    await_last_write(uuid)
    action = f"destroying a {slices}c compute instance in GPU instance {gi_id} of {uuid}"

    def ours() -> list[int]:
        state = control.read()
        if not any((i.gi_id, i.profile_id, i.start) == (gi_id, profile_id, start) for i in state.instances or ()):
            return []
        alike = [device for device in state.devices if (device.gi_id, device.compute_slices) == (gi_id, slices)]
        ids = [device.ci_id for device in alike]
        return [number for number in ids if (number not in beside if ci_id is None else number == ci_id)]

    def destroy() -> str:
        candidates = ours()
        if len(candidates) > 1:
            ids = ",".join(map(str, candidates))
            raise SharingError(
                f"{action} failed, because another program created one of {ids}; destroy all of them as administrator: "
                f"nvidia-smi mig -dci -i {uuid} -gi {gi_id} -ci {ids}; then run: {_CLEAN}"
            )
        return control.run(control.destruction_command(gi_id, candidates[0])).printed_line

    _repeat(destroy, lambda: not ours(), control, action)


def _repeat(step: Callable[[], str], is_done: Callable[[], bool], control: MigSmi, action: str) -> None:
    """Repeat a command until its effect is read back; repeat only while the GPU reports that it is in use."""
    deadline = time.monotonic() + _RETRY_LIMIT_S
    while not is_done():
        output = step()
        if is_done():
            return
        if _IN_USE not in output.lower():
            raise SharingError(f"{action} failed; nvidia-smi printed: {output}; fix this problem, then run: {_CLEAN}")
        if time.monotonic() > deadline:
            raise SharingError(
                f"{action} failed for {_RETRY_LIMIT_S:g} s; nvidia-smi printed: {output}; "
                f"{_describe_holders(control.uuid)}; then run: {_CLEAN}"
            )
        time.sleep(_RETRY_S)


def _describe_holders(uuid: str) -> str:
    if names := ", ".join(map(str, gpu_reader.list_processes(uuid))):
        return f"end the processes on the GPU: {names}"
    return (
        "no process is on the GPU, so stop monitors (DCGM, an exporter), or reset the GPU as administrator: "
        f"nvidia-smi -i {uuid} --gpu-reset"
    )


def _parse_created_id(kind: str, output: str) -> int | None:
    return next((int(number) for created, number in _CREATED_ID.findall(output) if created == kind), None)


def _suggest_remedy(output: str) -> str:
    if "insufficient resources" in output.lower():
        return "stop the other program that divides this GPU at the same time, or install a newer driver"
    return "try again when no other program uses or monitors the GPU"
