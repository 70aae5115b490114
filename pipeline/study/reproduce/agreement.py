"""The workers of a study measure one plan: the first writes down what it rests on, the others compare with it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pipeline.base.domain.package_locks import compare_locks
from pipeline.base.domain.records import Plan
from pipeline.base.system import regular_files
from pipeline.base.system.errors import ConfigError
from pipeline.base.system.secrets import mask_text
from pipeline.plan.inventory import Inventory

_PLAN, _PACKAGES, _FILES, _MACHINE = "plan", "packages", "files", "machine"


def agree(path: Path, plan: Plan, inventory: Inventory) -> None:
    """Write down what the plan rests on, or compare it with what another worker wrote.

    Args:
        path: of the file that all workers of the study see.
        plan: of the whole study, or one shard of it.
        inventory: what this machine has.

    Raises:
        ConfigError: the plan of the others is another one, or their driver is; or the file cannot be used.
    """
    facts = _collect_facts(plan, inventory)
    try:
        first = _write_first(path, facts)
        differences = list(_compare_facts(first, facts))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"plan_file={path} cannot be used ({error}); remove it, or give another") from error
    if differences or first[_PLAN] != facts[_PLAN]:
        raise ConfigError(
            f"plan_file={path}: the other workers of this study have another plan "
            f"({'; '.join(differences) or 'its options differ'}); make this worker like them, or start another study"
        )


def _collect_facts(plan: Plan, inventory: Inventory) -> dict[str, Any]:
    device = plan.groups[0].device
    programs = [job.workload for group in plan.groups for job in group.jobs]
    return {
        _PLAN: plan.digest,
        _MACHINE: {"GPU model": device.name, "driver": dict(device.details).get("driver_version", "")},
        _PACKAGES: [list(map(mask_text, interpreter.lock)) for interpreter in inventory.interpreters.values()],
        _FILES: {source.name: source.digest for workload in programs for source in workload.sources},
    }


def _write_first(path: Path, facts: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what the file says: ours if nobody was first. It appears whole, whoever else writes it now."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.uname().nodename}-{os.getpid()}")
    beside.write_text(json.dumps(facts), encoding="utf-8")
    try:
        os.link(beside, path)
    except FileExistsError:
        return dict(json.loads(regular_files.read_text(path)))
    finally:
        beside.unlink()
    return facts


def _compare_facts(first: Mapping[str, Any], facts: Mapping[str, Any]) -> Iterator[str]:
    for name in first[_MACHINE]:
        if (remote := first[_MACHINE][name]) != (local := facts[_MACHINE].get(name)):
            yield f"{name}: {local} here, {remote} there"
    for before, now in zip(first[_PACKAGES], facts[_PACKAGES], strict=False):
        if words := compare_locks(before, now):
            yield f"{words} here"
    for name in sorted(first[_FILES].keys() | facts[_FILES].keys()):
        if first[_FILES].get(name) != facts[_FILES].get(name):
            yield f"{name} has another content here"
