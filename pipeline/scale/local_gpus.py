"""The launcher `gpus`, which assigns the shards of a study to the free GPUs of this host, one shard at a time per GPU.

A worker (`worker.py`) is a separate process, `run.py ... hydra/launcher=worker gpu.device=UUID`: it locks its GPU while
a shard runs, sends the rows, and restores the GPU. This module does not access GPUs itself.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.base.domain import mig_table
from pipeline.base.domain.protocols import Exporter
from pipeline.base.domain.records import Device, Plan
from pipeline.base.domain.sharing_modes import PROFILE, mode_of
from pipeline.base.system import factory, interrupts, words
from pipeline.base.system.errors import ConfigError, InUseError
from pipeline.base.system.interrupts import UndoStack
from pipeline.base.system.words import format_count
from pipeline.clean.journal import Journal
from pipeline.plan import shards
from pipeline.plan.config_schema import GpuKind
from pipeline.prepare.device import device_choice, lease, nvml
from pipeline.scale import worker_command
from pipeline.scale.fleet import Fleet, Part, assign_ports
from pipeline.study import plans, stored_results
from pipeline.study.preview import preview
from pipeline.study.study_request import StudyRequest

ALL = "all"


def run(request: StudyRequest, _: UndoStack, devices_option: Any) -> int:
    """Run the shards of a study on the chosen GPUs; return the worst exit status of the workers."""
    devices = select_free(request, devices_option, "gpus")
    request.gpus = devices
    refuse_taken_ports(request, devices)
    by_model: dict[str, list[Device]] = {}
    for device in devices:
        by_model.setdefault(device.name, []).append(device)
    num_shards = len(worker_command.make_plan(request, lambda _: devices[0]).shard_sizes)
    num_other_gpus = sum(min(len(members), num_shards) for members in by_model.values()) - 1
    of_models = [
        _make_model_request(request, members[0], num_other_gpus, len(by_model)) for members in by_model.values()
    ]
    plans_made = [plans.make_plan(study) for study in of_models]
    of_gpus = [(members, plan) for members, (_, plan) in zip(by_model.values(), plans_made, strict=True)]
    refuse_mode_switches(of_gpus, "name one GPU with 'hydra.launcher.devices=[0]'")
    if request.config.dry_run:
        status = preview(*((study, *planned) for study, planned in zip(of_models, plans_made, strict=True)))
        words.say(f"the shards will run on {_list_names(devices)}; the estimated duration is for one GPU")
        return status
    parts = []
    for of_model, members, (inventory, plan) in zip(of_models, by_model.values(), plans_made, strict=True):
        groups, stored_rows = stored_results.open_store(of_model, plan, inventory)
        waiting = deque(shards.group_by_shard(groups))
        gpu_by_shard = {row.group.shard: row.gpu_uuid for row in stored_rows}
        parts.append(Part(request=of_model, devices=members, waiting=waiting, gpu_by_shard=gpu_by_shard))
        words.say(
            f"{format_count(len(waiting), 'shard')} of {len(shards.group_by_shard(plan.groups))} to run on "
            f"{_list_names(members)}"
            f"{f' ({members[0].name})' if len(by_model) > 1 else ''}"
        )
    fleet = Fleet(request, devices, parts)
    try:
        fleet.run()
    finally:
        with interrupts.hold_interrupts():
            is_whole = stored_results.show_all(request, [plan for _, plan in plans_made])
    return fleet.compute_exit_status(is_whole=is_whole)


def _list_names(devices: Sequence[Device]) -> str:
    return ", ".join(f"GPU {device.index}" for device in devices)


def _make_model_request(request: StudyRequest, first: Device, num_other_gpus: int, num_models: int) -> StudyRequest:
    """Return the study for the GPUs of one model, planned for the first; `num_other_gpus` counts other busy GPUs."""
    model = mig_table.find(first.name).name if first.is_simulated else None
    plan_file = worker_command.name_plan_file(request.root)
    configs = [
        dataclasses.replace(
            config,
            gpu=dataclasses.replace(
                config.gpu, device=first.uuid, model=model, other_gpus=num_other_gpus, models=num_models
            ),
            plan_file=plan_file,
        )
        for config in request.configs
    ]
    return dataclasses.replace(request, configs=configs)


def refuse_mode_switches(planned: Sequence[tuple[Sequence[Device], Plan]], instead: str) -> None:
    """Refuse groups that reset a GPU to switch MIG mode while other workers use the driver."""
    if sum(len(devices) for devices, _ in planned) < 2:
        return
    for devices, plan in planned:
        is_divided = any(
            mode_of(group.scenario).placement_fact == PROFILE and not group.skip_reason for group in plan.groups
        )
        switched = [device for device in devices if is_divided and not device.mig_enabled and _needs_reset(device)]
        if switched:
            raise ConfigError(
                f"switching MIG mode of {switched[0].name} ({switched[0].uuid}) needs a reset, which fails while other "
                f"workers use the driver; {instead}"
            )


def _needs_reset(device: Device) -> bool:
    try:
        return mig_table.find(device.name).mode_needs_reset
    except ConfigError:  # an unknown model
        return False


def select_free(
    request: StudyRequest, devices_option: Any, launcher: str, *, of_one_model: bool = False
) -> list[Device]:
    """Return the chosen GPUs that are free; busy GPUs are omitted with `all`, and refused if the user named them.

    Errors name `launcher`. With `of_one_model`, a GPU counts as busy unless its model is that of the first free GPU.
    """
    config = request.config.gpu
    if config.kind is GpuKind.cpu:
        raise ConfigError(f"hydra/launcher={launcher} does not work with gpu=cpu; remove one of them")
    worker_command.refuse_decided_keys(request.configs, launcher)
    if request.config.wait:
        raise ConfigError(
            f"wait=true has no effect with hydra/launcher={launcher}, which never waits for a GPU; remove wait=true"
        )
    if request.simulated is not None and config.machine is None:
        raise ConfigError(
            f"hydra/launcher={launcher} needs a simulated machine that its workers share; add gpu.machine=FILE and "
            "gpu.count=NUMBER"
        )
    present = _list_present(request)
    if not present:
        raise ConfigError(
            f"hydra/launcher={launcher} found no NVIDIA GPU; remove hydra/launcher to run on the CPUs, or rehearse "
            "with gpu=simulated_h100_80gb gpu.count=2 gpu.machine=FILE"
        )
    named = [] if devices_option == ALL else _parse_devices(devices_option)
    asked_for = [device_choice.choose("hydra.launcher.devices", name, present) for name in named] or list(present)
    if twice := [device for device in asked_for if asked_for.count(device) > 1]:
        raise ConfigError(
            f"hydra.launcher.devices={devices_option} names {twice[0].name} {twice[0].uuid} twice; name each GPU once"
        )
    folder = Path(config.lock_dir)
    if not request.config.dry_run:
        plans.end_leftovers(request.root)  # else they would count as other users' programs
    obstacles = {device: _explain_busy(device, folder, config.tolerate) for device in asked_for}
    model = next((device.name for device in asked_for if not obstacles[device]), "")
    obstacles |= {
        device: f"its model is not {model}"
        for device in asked_for
        if of_one_model and not obstacles[device] and device.name != model
    }
    refusals = [f"GPU {device.index} ({device.uuid}): {obstacle}" for device, obstacle in obstacles.items() if obstacle]
    if refusals and (named or len(refusals) == len(asked_for)):
        raise ConfigError(f"hydra/launcher={launcher}: {'; '.join(refusals)}")
    if request.simulated is None and not named:
        refusals += nvml.list_unusable().values()
    for reason in refusals:
        words.say(f"left out: {reason}")
    return [device for device in asked_for if not obstacles[device]]


def _parse_devices(devices_option: Any) -> list[str]:
    """Return the GPUs that a user named: one index or UUID, or a list of them."""
    names = (
        list(devices_option)
        if isinstance(devices_option, Sequence) and not isinstance(devices_option, str)
        else [devices_option]
    )
    if not names or not all(isinstance(one, int | str) for one in names):
        raise ConfigError(
            f"hydra.launcher.devices={devices_option} names no GPUs; set it to a list of indices or UUIDs, or to {ALL}"
        )
    return [str(one) for one in names]


def _list_present(request: StudyRequest) -> Sequence[Device]:
    """Return every GPU that a worker can get; on a simulated machine, the GPUs of the configured models."""
    if request.simulated is None:
        return device_choice.select_granted(nvml.list_devices())
    asked_for = {mig_table.find(str(config.gpu.model)).name: config.gpu for config in request.configs}.values()
    selected = [dataclasses.replace(gpu, device=str(index)) for gpu in asked_for for index in range(gpu.count)]
    return [dataclasses.replace(request.simulated.find_device(gpu), index=index) for index, gpu in enumerate(selected)]


def _explain_busy(device: Device, folder: Path, tolerate: Sequence[str]) -> str:
    if (holder := lease.describe_holder(device, folder)) is not None:
        return f"in use by another study: {holder}"
    if Journal(folder, device.uuid).read_steps():
        return ""  # the worker undoes changes of a killed orchestrator, and then checks for other programs
    try:
        lease.refuse_strangers(device, tolerate)
    except InUseError as error:
        return str(error)
    return ""


def refuse_taken_ports(request: StudyRequest, devices: Sequence[Device]) -> None:
    """Refuse exporter ports that are in use; a dry run does not check the ports."""
    config = request.config.exporter
    for port in assign_ports(config, devices).values():
        spec = factory.make_spec(dataclasses.replace(config, port=port), without=frozenset({"name"}))
        exporter: Exporter = factory.build_object(spec)
        if not request.config.dry_run:
            with exporter.serve():
                """The port is free."""
