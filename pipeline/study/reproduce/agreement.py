"""Check that all workers of a study have the same plan: the first writes its facts, the others compare theirs."""

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
            yield f"{name}: {local} here, {remote} for the other workers"
    for before, now in zip(first[_PACKAGES], facts[_PACKAGES], strict=False):
        if words := compare_locks(before, now):
            yield f"{words} here"
    for name in sorted(first[_FILES].keys() | facts[_FILES].keys()):
        if first[_FILES].get(name) != facts[_FILES].get(name):
            yield f"the content of {name} differs here"
