"""The GPUs of this host as workers: each free one gets a unit of the study, and the next one when that is done.

A worker (`worker.py`) is a `run.py ... hydra/launcher=worker gpu.device=UUID` of its own: it holds its GPU while a unit
runs, sends what it measured, and undoes what it did. Nothing here touches a GPU.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.base.domain import mig_table
from pipeline.base.domain.modes import PROFILE, mode_of
from pipeline.base.domain.protocols import Exporter
from pipeline.base.domain.records import Device, Plan
from pipeline.base.system import factory, interrupts, words
from pipeline.base.system.errors import ConfigError, InUseError
from pipeline.base.system.interrupts import UndoStack
from pipeline.base.system.words import counted
from pipeline.clean.journal import Journal
from pipeline.plan import shards
from pipeline.plan.schema import GpuKind
from pipeline.prepare.device import chosen, lease, nvml
from pipeline.scale import workers
from pipeline.scale.fleet import Fleet, Part, ports_of
from pipeline.study import plans, stored_results
from pipeline.study.preview import preview
from pipeline.study.study_request import StudyRequest

ALL = "all"


def run(asked: StudyRequest, _: UndoStack, wanted: Any) -> int:
    """Run the units of a study on the GPUs that are wanted; the worst exit status of the workers."""
    devices = free(asked, wanted, "gpus")
    asked.gpus = devices
    refuse_taken_ports(asked, devices)
    by_model: dict[str, list[Device]] = {}
    for device in devices:
        by_model.setdefault(device.name, []).append(device)
    num_units = len(workers.planned(asked, lambda _: devices[0]).unit_sizes)
    beside = sum(min(len(members), num_units) for members in by_model.values()) - 1
    of_models = [_for_model(asked, members[0], beside, len(by_model)) for members in by_model.values()]
    made = [plans.make_plan(each) for each in of_models]
    of_gpus = [(members, plan) for members, (_, plan) in zip(by_model.values(), made, strict=True)]
    refuse_mode_switches(of_gpus, "name one GPU with 'hydra.launcher.devices=[0]'")
    if asked.config.dry_run:
        status = preview(*((each, *planned) for each, planned in zip(of_models, made, strict=True)))
        words.say(f"its units go to {_listed(devices)}; the time is that of one GPU")
        return status
    parts = []
    for of_model, members, (inventory, plan) in zip(of_models, by_model.values(), made, strict=True):
        groups, known = stored_results.open_store(of_model, plan, inventory)
        waiting = deque(shards.group_by_shard(groups))
        begun = {row.group.unit: row.gpu_uuid for row in known}
        parts.append(Part(asked=of_model, devices=members, waiting=waiting, begun=begun))
        words.say(
            f"{counted(len(waiting), 'unit')} of {len(shards.group_by_shard(plan.groups))} to run on "
            f"{_listed(members)}"
            f"{f' ({members[0].name})' if len(by_model) > 1 else ''}"
        )
    fleet = Fleet(asked, devices, parts)
    try:
        fleet.run()
    finally:
        with interrupts.held():
            is_whole = stored_results.show_all(asked, [plan for _, plan in made])
    return fleet.status(is_whole=is_whole)


def _listed(devices: Sequence[Device]) -> str:
    return ", ".join(f"GPU {device.index}" for device in devices)


def _for_model(asked: StudyRequest, first: Device, beside: int, num_models: int) -> StudyRequest:
    """The study as it is asked of the GPUs of one model, with so many at work beside: the plan is the first one's."""
    model = mig_table.find(first.name).name if first.is_simulated else None
    plan_file = workers.new_plan_file(asked.root)
    configs = [
        dataclasses.replace(
            config,
            gpu=dataclasses.replace(config.gpu, device=first.uuid, model=model, beside=beside, models=num_models),
            plan_file=plan_file,
        )
        for config in asked.configs
    ]
    return dataclasses.replace(asked, configs=configs)


def refuse_mode_switches(planned: Sequence[tuple[Sequence[Device], Plan]], instead: str) -> None:
    """Refuse by a ConfigError groups that would switch MIG mode where that resets a GPU that other workers hold."""
    if sum(len(devices) for devices, _ in planned) < 2:
        return
    for devices, plan in planned:
        is_divided = any(
            mode_of(group.scenario).placed_by == PROFILE and not group.skip_reason for group in plan.groups
        )
        switched = [device for device in devices if is_divided and not device.mig_enabled and _needs_reset(device)]
        if switched:
            raise ConfigError(
                f"MIG mode of {switched[0].name} ({switched[0].uuid}) is switched by a reset, which any other process "
                f"that speaks to the driver prevents, as workers on several GPUs do; {instead}"
            )


def _needs_reset(device: Device) -> bool:
    try:
        return mig_table.find(device.name).mode_needs_reset
    except ConfigError:  # a model that is not known
        return False


def free(asked: StudyRequest, wanted: Any, launcher: str, *, of_one_model: bool = False) -> list[Device]:
    """Return the GPUs that are wanted and free: of `all` those that are, else it is an error if one is not.

    Errors name `launcher`. With `of_one_model`, those of another model than the first that is free are left out, or an
    error, as well.
    """
    config = asked.config.gpu
    if config.kind is GpuKind.cpu:
        raise ConfigError(
            f"hydra/launcher={launcher} runs a study on several GPUs, and gpu=cpu was chosen; leave one of them out"
        )
    workers.refuse_what_is_decided(asked.configs, launcher)
    if asked.config.wait:
        raise ConfigError(
            f"wait=true: hydra/launcher={launcher} takes the GPUs that are free now, and waits for none; leave it out"
        )
    if asked.simulated is not None and config.machine is None:
        raise ConfigError(
            f"hydra/launcher={launcher} on simulated GPUs needs a machine that all workers see: gpu.machine=FILE, with "
            "as many GPUs as gpu.count=NUMBER says"
        )
    there = _there(asked)
    if not there:
        raise ConfigError(
            f"hydra/launcher={launcher} found no NVIDIA GPU; leave it out to run on the CPUs, or rehearse it with "
            "gpu=simulated_h100_80gb gpu.count=2 gpu.machine=FILE"
        )
    named = [] if wanted == ALL else _named(wanted)
    asked_for = [chosen.choose("hydra.launcher.devices", each, there) for each in named] or list(there)
    if twice := [device for device in asked_for if asked_for.count(device) > 1]:
        raise ConfigError(f"hydra.launcher.devices={wanted} names {twice[0].name} {twice[0].uuid} twice")
    folder = Path(config.lock_dir)
    if not asked.config.dry_run:
        plans.end_leftovers(asked.root)  # it is no stranger's
    taken = {device: _why_not_free(device, folder, config.tolerate) for device in asked_for}
    model = next((device.name for device in asked_for if not taken[device]), "")
    taken |= {
        device: f"it is another model than the {model} that the study runs on"
        for device in asked_for
        if of_one_model and not taken[device] and device.name != model
    }
    said = [f"GPU {device.index} ({device.uuid}): {why}" for device, why in taken.items() if why]
    if said and (named or len(said) == len(asked_for)):
        raise ConfigError(f"hydra/launcher={launcher}: {'; '.join(said)}")
    for each in said:
        words.say(f"left out: {each}")
    return [device for device in asked_for if not taken[device]]


def _named(wanted: Any) -> list[str]:
    """The GPUs that a user has named: by a list of indices and UUIDs, or one of these."""
    each = list(wanted) if isinstance(wanted, Sequence) and not isinstance(wanted, str) else [wanted]
    if not each or not all(isinstance(one, int | str) for one in each):
        raise ConfigError(f"hydra.launcher.devices={wanted}: give a list of GPUs by index or UUID, or {ALL}")
    return [str(one) for one in each]


def _there(asked: StudyRequest) -> Sequence[Device]:
    """Every GPU that a worker could get; of a simulated machine those of the models that are asked for."""
    if asked.simulated is None:
        return chosen.all_granted(nvml.list_devices())
    asked_for = {mig_table.find(str(config.gpu.model)).name: config.gpu for config in asked.configs}.values()
    selected = [dataclasses.replace(gpu, device=str(index)) for gpu in asked_for for index in range(gpu.count)]
    return [dataclasses.replace(asked.simulated.find_device(gpu), index=index) for index, gpu in enumerate(selected)]


def _why_not_free(device: Device, folder: Path, tolerate: Sequence[str]) -> str:
    """Who holds or uses a GPU, in words; empty if nobody does."""
    if (holder := lease.held_by(device, folder)) is not None:
        return f"it is held by another study: {holder}"
    if Journal(folder, device.uuid).steps():
        return ""  # its worker undoes what a killed orchestrator left on it, and then looks for strangers itself
    try:
        lease.refuse_strangers(device, tolerate)
    except InUseError as error:
        return str(error)
    return ""


def refuse_taken_ports(asked: StudyRequest, devices: Sequence[Device]) -> None:
    """Refuse by a ConfigError exporters of which a worker's could not listen; a dry run tries none."""
    config = asked.config.exporter
    for port in ports_of(config, devices).values():
        spec = factory.make_spec(dataclasses.replace(config, port=port), without=frozenset({"name"}))
        exporter: Exporter = factory.instance(spec)
        if not asked.config.dry_run:
            with exporter.serving():
                """It could; the worker will."""
