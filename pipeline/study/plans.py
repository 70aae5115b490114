"""The plan of a study for this machine, after a restoration from killed orchestrators, and equal for all workers."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.base.domain import driver_programs, layout
from pipeline.base.domain.machine_state import cpu_device
from pipeline.base.domain.package_locks import compare_locks
from pipeline.base.domain.records import Device, Plan
from pipeline.base.system import paths, regular_files, words
from pipeline.base.system.errors import ConfigError
from pipeline.base.system.paths import expand_path
from pipeline.base.system.secrets import mask_text
from pipeline.base.system.words import format_count
from pipeline.clean import leftovers
from pipeline.clean.journal import Journal, replay
from pipeline.plan.config_schema import AUTO_DEVICE, Config, GpuConfig, GpuKind
from pipeline.plan.inventory import Inventory, take_inventory
from pipeline.prepare.device import device_choice, lease
from pipeline.record import group_folder
from pipeline.record.group_folder import Survey
from pipeline.study.study_request import StudyRequest


def make_plan(request: StudyRequest) -> tuple[Inventory, Plan]:
    """Return the inventory of the machine, and the plan for it.

    Except in a dry run, this builds the environments and checks that other workers of the study have the same plan.
    """
    inventory = _take_stock(request)
    plan = request.plan(inventory)
    if request.config.dry_run:
        return inventory, plan
    if any(interpreter.to_build for interpreter in inventory.interpreters.values()):
        # The first plan showed that the study can run; building environments takes minutes.
        inventory = inventory.with_environments()
        plan = request.plan(inventory)
    if request.config.plan_file is not None:
        paths.make_root(request.root)  # a launcher's plan file is below this folder
        agree_on_plan(expand_path("plan_file", request.config.plan_file).absolute(), plan, inventory)
    return inventory, plan


def _take_stock(request: StudyRequest) -> Inventory:
    find = request.simulated.find_device if request.simulated else find_device
    # A dry run on a simulated GPU plans for another machine, which may have the data.
    needs_data = not (request.config.dry_run and request.simulated)
    inventory = take_inventory(request.configs, find, needs_data=needs_data)
    if not request.config.dry_run and _undo_leftovers(request.configs, inventory, request.root):
        inventory = take_inventory(request.configs, find)
    return inventory


def find_device(gpu: GpuConfig) -> Device:
    """Find the real device that a configuration requests."""
    assert gpu.kind is not GpuKind.simulated, "NVML would return a real GPU"
    if gpu.kind is GpuKind.cpu:
        return cpu_device()
    name = None if gpu.device == AUTO_DEVICE else gpu.device
    return device_choice.find_device(name, needs_gpu=gpu.kind is GpuKind.nvidia)


def _undo_leftovers(configs: Sequence[Config], inventory: Inventory, root: Path) -> bool:
    """Undo the changes that killed orchestrators left on the devices; return whether there were any.

    This precedes the plan, because groups that need the undivided GPU would be refused while MIG mode is still on.
    """
    folder = Path(configs[0].gpu.lock_dir)
    devices = dict.fromkeys(inventory.device_of(config.gpu) for config in configs if not _is_temporary(config.gpu))
    dirty = [device for device in devices if device.is_gpu and Journal(folder, device.uuid).read_steps()]
    for device in dirty:
        with lease.hold(device, folder):
            end_leftovers(root)  # running jobs would prevent the undo steps
            undo_steps(device, configs[0].gpu)
    return bool(dirty)


def end_leftovers(root: Path) -> Survey:
    """End all processes that killed orchestrators of this user left; return a survey of this study's spool."""
    survey = group_folder.survey(root / layout.SPOOL)
    leftovers.clear_all_abandoned()
    return survey


def undo_steps(device: Device, gpu: GpuConfig) -> None:
    """Undo the steps that a killed orchestrator recorded in the journal of a device, and print their number."""
    journal = Journal(Path(gpu.lock_dir), device.uuid, driver_programs.find_device_programs(device))
    if _is_temporary(gpu):
        journal.forget_device_steps()  # the simulated machine ended with its study
    if undone := replay(journal):
        words.say(f"undid {format_count(len(undone), 'step')} of a killed orchestrator on {device.name}")


def _is_temporary(gpu: GpuConfig) -> bool:
    return gpu.kind is GpuKind.simulated and gpu.machine is None


_PLAN, _PACKAGES, _FILES, _MACHINE = "plan", "packages", "files", "machine"


def agree_on_plan(path: Path, plan: Plan, inventory: Inventory) -> None:
    """Write the facts that the plan depends on to a file shared by all workers, or compare them with this file.

    Raises:
        ConfigError: the other workers have another plan or driver, or the file cannot be used.
    """
    facts = _collect_facts(plan, inventory)
    try:
        first = _write_first(path, facts)
        differences = list(_compare_facts(first, facts))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"plan_file={path} cannot be used ({error}); delete the file, or set another path") from error
    if differences or first[_PLAN] != facts[_PLAN]:
        raise ConfigError(
            f"plan_file={path}: other workers of this study have another plan "
            f"({'; '.join(differences) or 'its options differ'}); start all workers with equal settings, or start "
            "another study"
        )


def _collect_facts(plan: Plan, inventory: Inventory) -> dict[str, Any]:
    device = plan.groups[0].device
    programs = [job.workload for group in plan.groups for job in group.jobs]
    return {
        _PLAN: plan.digest,
        _MACHINE: {"GPU model": device.name, "driver": device.facts.driver_version or ""},
        _PACKAGES: [list(map(mask_text, interpreter.lock)) for interpreter in inventory.interpreters.values()],
        _FILES: {source.name: source.digest for workload in programs for source in workload.sources},
    }


def _write_first(path: Path, facts: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the facts in the file; if the file is missing, create it atomically with these facts."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary_path = path.with_name(f".{path.name}.{os.uname().nodename}-{os.getpid()}")
    temporary_path.write_text(json.dumps(facts), encoding="utf-8")
    try:
        os.link(temporary_path, path)
    except FileExistsError:
        return dict(json.loads(regular_files.read_text(path)))
    finally:
        temporary_path.unlink()
    return facts


def _compare_facts(first: Mapping[str, Any], facts: Mapping[str, Any]) -> Iterator[str]:
    for name in first[_MACHINE]:
        if (remote := first[_MACHINE][name]) != (local := facts[_MACHINE].get(name)):
            yield f"{name}: {local} here, {remote} for the other workers"
    for before, current in zip(first[_PACKAGES], facts[_PACKAGES], strict=False):
        if words := compare_locks(before, current):
            yield f"{words} here"
    for name in sorted(first[_FILES].keys() | facts[_FILES].keys()):
        if first[_FILES].get(name) != facts[_FILES].get(name):
            yield f"the content of {name} differs here"
