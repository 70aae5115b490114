"""Differences since a group ran: device, driver, source, packages and scripts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pipeline.base.domain import layout
from pipeline.base.domain.package_locks import compare_locks, compare_packages, normalize_name
from pipeline.base.domain.records import Group
from pipeline.base.system import secrets
from pipeline.base.system.errors import ConfigError
from pipeline.plan.inventory import Inventory
from pipeline.prepare.env import lock
from pipeline.record.group_record import Original, name_script_artifacts

# Recorded facts that may change results or speed, with their descriptions.
_FACTS = {"python": "Python of the orchestrator", "kernel": "kernel", "cpus": "number of CPUs"}
# Details of a device that change during a study.
_PASSING_DETAILS = frozenset({"mig_mode", "compute_mode"})


def find(original: Original, group: Group, inventory: Inventory, facts: Mapping[str, str]) -> list[str]:
    """Return a line for each difference; facts that the original did not record are left out."""
    lines = [*_compare_devices(original, group), *_compare_commits(original, facts)]
    lines += [_describe_change(words, original.group.facts.get(key), facts.get(key)) for key, words in _FACTS.items()]
    lines += _compare_locks(original, group, inventory)
    lines += _compare_sources(original, group)
    differences = [line for line in lines if line]
    # The digest covers the packages, which are unknown until an environment is built.
    is_built = not any(inventory.interpreters[job.workload.env].to_build for job in group.jobs)
    if not differences and is_built and original.group.digest != group.digest:
        differences.append("digest of the plan, for an unknown reason")
    return differences


def find_result_changes(original: Original, group: Group, inventory: Inventory) -> list[str]:
    """Return a line for each difference that changes a result."""
    return [
        *_compare_plans(original, group),
        *filter(None, _compare_locks(original, group, inventory)),
        *_compare_requests(original, group, inventory),
        *_compare_sources(original, group),
        *_compare_options(original, group),
    ]


def list_masked_scripts(original: Original, group: Group) -> Iterable[str]:
    """Return one line for each script whose recorded copy lacks its secrets.

    Raises:
        ConfigError: the script that would run is such a copy.
    """
    before = _read_programs(original)
    files = name_script_artifacts(program.script for program in before)
    lines: dict[str, None] = {}
    for recorded, workload in zip(before, (job.workload for job in group.jobs), strict=False):
        artifact, name = files[recorded.script], Path(recorded.script).name
        if secrets.HIDDEN not in original.files.get(artifact, ""):
            continue
        digests = {source.name: source.digest for source in workload.sources}
        if digests.get(name) != recorded.sources.get(name) and secrets.HIDDEN in _read_text(Path(workload.script)):
            raise ConfigError(
                f"reproduce={original.run_id}: {workload.script} contains {secrets.HIDDEN} in place of its secrets; "
                f"replace {secrets.HIDDEN} by your own values"
            )
        lines[f"{artifact} was recorded without its secrets; {workload.script} runs instead"] = None
    return lines


def _read_text(script: Path) -> str:
    try:
        return script.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _compare_plans(original: Original, group: Group) -> Iterable[str]:
    recorded = original.group
    for old, plain in ((recorded.settings, group.settings), (recorded.options, group.options)):
        new = secrets.mask(json.loads(json.dumps(plain)))
        for key in sorted(old.keys() | new.keys()):
            if old.get(key) != new.get(key):
                yield f"{key}: {old.get(key) or 'not set'}, now {new.get(key) or 'not set'}"


def _compare_options(original: Original, group: Group) -> Iterable[str]:
    lines: dict[str, None] = {}
    for recorded, workload in zip(_read_programs(original), (job.workload for job in group.jobs), strict=False):
        old, new = recorded.params, dict(workload.params)
        for key in sorted(old.keys() | new.keys()):
            if old.get(key) != new.get(key):
                lines[f"{key} of {workload.name}: {old.get(key, 'not set')}, now {new.get(key, 'not set')}"] = None
    return lines


@dataclass(frozen=True, slots=True, kw_only=True)
class _Program:
    script: str
    sources: dict[str, str]
    params: dict[str, str]


def _read_programs(original: Original) -> list[_Program]:
    try:
        return [
            _Program(
                script=str(job["workload"]["script"]),
                sources={source["name"]: source["digest"] for source in job["workload"]["sources"]},
                params=dict(job["workload"]["params"]),
            )
            for job in json.loads(original.files.get(layout.GROUP, "{}")).get("jobs", [])
        ]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"the artifact {layout.GROUP} of run {original.run_id} is damaged or from an earlier version: {error}; "
            "choose another run"
        ) from error


def _describe_change(words: str, before: str | None, current: str | None) -> str:
    return f"{words}: {before}, now {current or 'unknown'}" if before is not None and before != current else ""


def _compare_devices(original: Original, group: Group) -> Iterable[str]:
    device = group.device
    before = original.group
    was_simulated = before.is_simulated
    if was_simulated != device.is_simulated:
        yield "device: simulated, now real" if was_simulated else "device: real, now simulated"
    if device.name != before.device:
        yield _describe_change("device", before.device, device.name)
    else:
        yield _describe_change("another device of the same model", before.gpu_uuid, device.uuid)
    for key, value in device.facts.as_texts().items():
        if key not in _PASSING_DETAILS:
            yield _describe_change(key.replace("_", " "), original.group.facts.get(key), value)


def _compare_commits(original: Original, facts: Mapping[str, str]) -> Iterable[str]:
    yield _describe_change("git commit", original.group.facts.get("git_commit"), facts.get("git_commit"))
    if original.group.facts.get("git_changed") == "true":
        yield "the original's source has uncommitted changes"
    if facts.get("git_changed") == "true":
        yield "the present source has uncommitted changes"


def _compare_locks(original: Original, group: Group, inventory: Inventory) -> Iterable[str]:
    compared: set[tuple[str, tuple[str, ...]]] = set()
    for job in group.jobs:
        before = original.job_locks.get(str(job.index))
        current = tuple(map(secrets.mask_text, inventory.interpreters[job.workload.env].lock))
        # An environment that is not built yet has no lock; it will be built from the original's lock.
        if before is not None and current and (before, current) not in compared:
            compared.add((before, current))
            yield compare_locks(before.splitlines(), current)


def _compare_requests(original: Original, group: Group, inventory: Inventory) -> Iterable[str]:
    """Compare the requested packages of environments that are not built yet with the original's packages."""
    lines: dict[str, None] = {}
    for job in group.jobs:
        interpreter = inventory.interpreters[job.workload.env]
        before = original.job_locks.get(str(job.index))
        if interpreter.to_build is not None and before is not None:
            old_request = lock.read_request(before.splitlines())
            changes = compare_packages(*map(_map_requests, (old_request, interpreter.requested))) if old_request else ""
            lines[changes or f"packages: not known yet, because {interpreter.to_build}"] = None
    return lines


def _map_requests(request: Iterable[str]) -> dict[str, str]:
    names = {line: re.match(r"(?:[\w./-]+::)?([A-Za-z0-9][\w.-]*)(?![\w./:-])", line) for line in request}
    return {normalize_name(name[1]) if name else line: line for line, name in names.items()}


def _compare_sources(original: Original, group: Group) -> Iterable[str]:
    """Compare the files of each job by name, not by path, because scripts may have moved or have equal names."""
    before = _read_programs(original)
    files = name_script_artifacts(program.script for program in before)
    lines: dict[str, None] = {}
    for recorded, workload in zip(before, (job.workload for job in group.jobs), strict=False):
        old, new = recorded.sources, {source.name: source.digest for source in workload.sources}
        for name in sorted(old.keys() | new.keys()):
            artifact = files[recorded.script] if name == Path(recorded.script).name else ""
            text = original.files.get(artifact)
            lacks = ", without its secrets" if text is not None and secrets.HIDDEN in text else ""
            hint = f"; the original is artifact {artifact}{lacks}" if text is not None else ""
            if name not in new:
                lines[f"{name} no longer belongs to {workload.name}{hint}"] = None
            elif name not in old:
                lines[f"{name} now belongs to {workload.name}"] = None
            elif old[name] != new[name]:
                lines[f"the content of {name} has changed{hint}"] = None
    return lines
