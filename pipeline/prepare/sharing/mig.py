"""MIG: each job has separate MIG devices, which are created for the group and destroyed after it, or already exist.

Instances of other users are never changed: a GPU that already has instances, or is in use, is not divided.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from pipeline.base.domain.driver_programs import Programs, find_group_programs
from pipeline.base.domain.protocols import Slots
from pipeline.base.domain.records import Commands, Group, Job, Slot
from pipeline.base.system import entry_points
from pipeline.base.system.errors import ConfigError, SharingError
from pipeline.base.system.interrupts import UndoStack
from pipeline.base.system.option_fields import option
from pipeline.base.system.words import format_count
from pipeline.clean.journal import Journal
from pipeline.clean.processes import list_tree
from pipeline.prepare.device import compute_mode, refusals
from pipeline.prepare.mig import assignment, compute, division, layouts, profiles
from pipeline.prepare.mig.layouts import AUTO, SIZE_PROFILE, Instance, Layout
from pipeline.prepare.mig.mig_smi import MigSmi
from pipeline.prepare.mig.mig_state import MigDevice, MigState, list_processes_on

_EXISTING = "existing"
"""Value of `scenario.layout` for existing MIG devices; no instance is created."""
_MAX_INSTANCES = 7  # largest number of GPU instances on any GPU model


def check_places(slots: Sequence[Slot], jobs: Sequence[Job], pids: Mapping[int, int]) -> None:
    """Raise SharingError if a job runs on the MIG device of another job.

    A job without a process in the driver's lists is not an error: the job may not have initialised CUDA yet, or it may
    run in a container, where PIDs differ from the driver's.
    """
    for uuid in dict.fromkeys(uuid for slot in slots for uuid in slot.device_uuids):
        computing = list_processes_on(uuid)
        for index, pid in pids.items():
            if uuid not in slots[index].device_uuids and list_tree(pid) & computing:
                raise SharingError(
                    f"job {jobs[index].name} (pid {pid}) runs on {uuid}, which is not its MIG device; do not change "
                    "CUDA_VISIBLE_DEVICES in the job"
                )


@dataclass
class Mig:
    """MIG devices for each job. The first key that is set counts: `profiles`, `profile`, `size_profile` (for a mix)."""

    profile: str = option(
        "profile of all instances: `2g`, `2g.10gb`, or `auto`: the largest profile of which all fit", AUTO
    )
    profiles: list[str] | None = option(
        "a profile for each job (`mig`) or each instance (`mig_mps`), by position: `3g` or `1c.3g` "
        "([compute instances](mig.md#compute-instances)); overrides `profile`",
        None,
    )
    size_profile: dict[str, str] = option("profile of each name of a mix", dict(SIZE_PROFILE))
    program: str | None = option("path of `nvidia-smi`, if not on PATH", None, values="path")
    layout: str | None = option("`existing`: use existing instances, make none ([mig.md](mig.md))", None)
    instances_per_job: int | None = option(
        "instances for each job; `profiles` then lists as many per job; `null`: one "
        "([frameworks.md](frameworks.md#several-instances-in-one-process))",
        None,
    )

    def __post_init__(self) -> None:
        layout, instances_per_job, profiles = self.layout, self.instances_per_job, self.profiles
        if layout not in (None, _EXISTING):
            raise ConfigError(
                f"scenario.layout={layout} is unknown; use existing, or leave the key out to create instances"
            )
        if instances_per_job is not None and not 1 <= instances_per_job <= _MAX_INSTANCES:
            raise ConfigError(f"scenario.instances_per_job={instances_per_job} must be from 1 to {_MAX_INSTANCES}")
        if profiles is not None and not profiles:
            raise ConfigError(
                "scenario.profiles=[] is empty; name the profile of each instance, as in [1g.5gb,2g.10gb]"
            )
        self._per_job = instances_per_job or 1
        self._uses_existing = layout == _EXISTING
        self._profile, self._profiles = str(self.profile), tuple(map(str, profiles or ()))
        self._size_profile = {**SIZE_PROFILE, **dict(self.size_profile or ())}
        self._program = self.program

    def check(self, group: Group) -> Layout | None:
        self._check_request(group)
        if not group.device.was_read:  # the device was not read, so its capabilities are unknown
            return None
        if self._uses_existing:
            self._assign_existing(group)
            return None
        return self._plan_layout(group)

    def _check_request(self, group: Group) -> None:
        device, setting = group.device, f"scenario={group.scenario}"
        refusals.refuse_cpus(group, "an NVIDIA GPU with MIG")
        if device.parent is not None:
            raise ConfigError(
                f"{setting} divides a whole GPU, but {device.name} ({device.uuid}) is a MIG device; use "
                "scenario=serial, naive or mps on this MIG device, or all MIG devices of its GPU: "
                f"gpu.device={device.parent} scenario=mig scenario.layout=existing"
            )
        compute_mode.refuse_exclusive(group)
        compute_mode.refuse_forbidden(group, 1 if group.sequential else len(group.jobs))
        if self._per_job > 1 and self._profiles and len(self._profiles) != len(group.jobs) * self._per_job:
            raise ConfigError(
                f"scenario.profiles names {format_count(len(self._profiles), 'instance')}, but "
                f"{format_count(len(group.jobs), 'job')} with scenario.instances_per_job={self._per_job} need "
                f"{len(group.jobs) * self._per_job}; list one MIG profile for each instance"
            )
        if not self._uses_existing:
            refusals.refuse_without_admin(group, f"{setting} changes settings of {device.name}")
        if device.was_read and device.facts.mig_mode_current is None:
            raise ConfigError(
                f"{setting}: {device.name} ({device.uuid}) does not support MIG; choose another GPU with gpu.device, "
                "or scenario=mps"
            )

    def warnings(self, group: Group) -> tuple[str, ...]:
        if not group.device.was_read or self._uses_existing:
            return ()
        gpu = profiles.read_gpu(group.device)
        layout, warnings = self._find_layout(group), []
        names = ",".join(name for _, name in layout.devices)
        if any(instance.parts for instance in layout.instances):
            instances = ", ".join(map(str, layout.instances))
            warnings.append(
                f"[{names}] needs the GPU instances {instances}; compute instances share the memory of their GPU "
                "instance"
            )
        if unused := compute.count_idle_slices(gpu, layout):
            warnings.append(f"[{names}] leaves {unused} of {gpu.compute_slices} compute slices of {gpu.name} unused")
        return tuple(warnings)

    def list_setting_commands(self, group: Group) -> Commands:
        if self._uses_existing:
            return Commands()
        device = group.device
        control = MigSmi.locate(self._programs(group), device.uuid)
        instances = self._find_layout(group).creation_order if device.was_read else ()
        return division.list_commands(control, instances, is_on=bool(device.mig_enabled))

    @contextmanager
    def prepare(self, group: Group, scratch: Path) -> Iterator[Slots]:
        with nullcontext(self._assign_existing(group)) if self._uses_existing else self.divide(group) as places:
            environ = refusals.isolate_from_mps(scratch)
            by_job = [places[begin : begin + self._per_job] for begin in range(0, len(places), self._per_job)]
            slots = tuple(dataclasses.replace(_merge_places(job_places), environ=environ) for job_places in by_job)

            def verify(pids: Mapping[int, int]) -> None:
                check_places(slots, group.jobs, pids)
                refusals.refuse_mps_clients(group.device, ())

            yield Slots(slots, verify)

    @contextmanager
    def divide(self, group: Group) -> Iterator[tuple[Slot, ...]]:
        """Switch MIG mode on if it is off, create the instances, and restore the GPU after the body.

        Yields the MIG devices as slots without variables, in the order of the request.

        Raises:
            SharingError: the GPU is in use, already divided or has a pending change of mode; a command is not permitted
                or has no effect; or the GPU is not restored, and then the journal has the remaining steps.
        """
        self._check_request(group)
        device, layout = group.device, self._find_layout(group)
        programs = self._programs(group)
        control = MigSmi.locate(programs, device.uuid)
        before = control.read()
        division.refuse_unready(device, before)
        journal = Journal(group.gpu.lock_dir, device.uuid, programs)
        with UndoStack() as last, UndoStack() as stack:
            last.callback(_compare, control, before)
            devices = division.divide(control, before, layout, journal, stack)
            yield _make_places(control, devices, layout)

    def _assign_existing(self, group: Group) -> tuple[Slot, ...]:
        devices = assignment.assign(group.device, self._list_requests(group))
        self._refuse_parts_of_one([device.gi_id for device in devices])
        return tuple(
            dataclasses.replace(
                Slot.from_device(mig_device), facts=(("mig_profile", assignment.read_profile(mig_device)),)
            )
            for mig_device in devices
        )

    def _list_requests(self, group: Group) -> list[str | None]:
        return layouts.list_requests(
            self.list_sizes(group), profiles=self._profiles, profile=self._profile, size_profile=self._size_profile
        )

    def list_sizes(self, group: Group) -> Sequence[str | None]:
        """List the mix letter of the job of each instance, or `None`; the instances of a job are consecutive."""
        return [job.size for job in group.jobs for _ in range(self._per_job)]

    def _programs(self, group: Group) -> Programs:
        return find_group_programs(group, {"nvidia-smi": self._program})

    def _find_layout(self, group: Group) -> Layout:
        """Return the layout that was planned with the group; plan it for a group that was not checked."""
        return group.layout if isinstance(group.layout, Layout) else self._plan_layout(group)

    def _plan_layout(self, group: Group) -> Layout:
        gpu = profiles.read_gpu(group.device)
        layout = compute.plan_layout(gpu, compute.choose(gpu, self._list_requests(group)))
        self._refuse_parts_of_one([instance.job for instance, _ in layout.devices])
        return layout

    def _refuse_parts_of_one(self, instances: Sequence[object]) -> None:
        # A process can use only one compute instance. Source: MIG User Guide, CUDA device enumeration.
        for begin in range(0, len(instances), self._per_job):
            of_job = instances[begin : begin + self._per_job]
            if len(set(of_job)) < len(of_job):
                raise ConfigError(
                    f"scenario.instances_per_job={self._per_job}: job {begin // self._per_job} would get several "
                    "compute instances of one GPU instance, but a process can use only one of them; request whole GPU "
                    "instances, or compute instances of different GPU instances"
                )


def _make_places(control: MigSmi, devices: Sequence[MigDevice], layout: Layout) -> tuple[Slot, ...]:
    return tuple(
        Slot(
            visible_devices=device.uuid,
            gpu_uuid=control.uuid,
            gi_id=device.gi_id,
            ci_id=device.ci_id,
            facts=_list_facts(instance, name, device),
        )
        for device, (instance, name) in zip(devices, layout.devices, strict=True)
    )


def _merge_places(places: Sequence[Slot]) -> Slot:
    """Merge the slots of a job; several slots are not one GPU instance, so `gi_id` and `ci_id` are left out."""
    if len(places) == 1:
        return places[0]
    profiles = "+".join(dict(place.facts)["mig_profile"] for place in places)
    return Slot(
        visible_devices=",".join(place.visible_devices for place in places),
        gpu_uuid=places[0].gpu_uuid,
        facts=(("mig_profile", profiles),),
    )


def _list_facts(instance: Instance, name: str, device: MigDevice) -> tuple[tuple[str, str], ...]:
    facts = {
        "mig_profile": name,
        "mig_start": instance.start,
        "mig_multiprocessors": device.multiprocessors if instance.parts else instance.profile.multiprocessors,
    }
    return tuple((key, str(value)) for key, value in facts.items() if value is not None)


def _describe(state: MigState) -> str:
    hidden = "GPU instances visible to administrators only"
    instances = hidden if state.instances is None else f"GPU instances {division.describe_instances(state.instances)}"
    current, next_mode = ("on" if is_on else "off" for is_on in (state.is_on, state.is_pending_on))
    pending = "" if state.is_settled else f", {next_mode} after a reset"
    return f"MIG mode {current}{pending}, {instances}, {len(state.devices)} MIG devices"


def _compare(control: MigSmi, before: MigState) -> None:
    after = control.read()
    if after != before:
        raise SharingError(
            f"{control.uuid} was not restored (before: {_describe(before)}; now: {_describe(after)}); if the journal "
            f"still has steps, run: {entry_points.spell('gpu', 'clean')}"
        )
