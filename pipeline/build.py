"""From a `_target_` to an object: the plan names classes as `Spec`s, the executor builds them here."""

from __future__ import annotations

import dataclasses
import importlib
import shlex
from typing import Any

from pipeline.errors import ConfigError
from pipeline.gpu import dcgm_profiling
from pipeline.protocols import Profiler, Sharing
from pipeline.types import Plan, Spec


def spec_of(config: object, *, without: frozenset[str] = frozenset()) -> Spec:
    """The class that a structured config names in `_target_`, with the config's other keys as its arguments."""
    values = {f.name: getattr(config, f.name) for f in dataclasses.fields(config)}  # type: ignore[arg-type]
    target = values.pop("_target_")
    return Spec(target=target, options=tuple((key, freeze(v)) for key, v in values.items() if key not in without))


def instance(spec: Spec, **arguments: object) -> Any:
    """Build the object that the spec names.

    Raises:
        ConfigError: there is no such class, or it does not take these arguments.
    """
    module_name, _, class_name = spec.target.rpartition(".")
    try:
        factory = getattr(importlib.import_module(module_name), class_name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"_target_={spec.target}: there is no such class ({error})") from error
    try:
        return factory(**arguments, **dict(spec.options))
    except TypeError as error:
        raise ConfigError(f"_target_={spec.target} does not take these arguments: {error}") from error


def checked(plan: Plan) -> Plan:
    """The plan, with every class that it names built once: what is wrong is refused before anything happens.

    A group that its sharing mode cannot hold is refused if it is alone; among others it is marked to be skipped, with
    the reason, because that is a finding of the study.

    Raises:
        ConfigError: a class or an option is wrong, or no group at all can run.
    """
    for listener in dict.fromkeys(spec for group in plan.groups for spec in group.listeners):
        instance(listener.build, interval_ms=listener.interval_ms)
    for spec in dict.fromkeys(group.profiler.build for group in plan.groups):
        profiler: Profiler = instance(spec)
        profiler.check()
    for group in plan.groups:
        dcgm_profiling.commands(group, instance(group.profiler.build))
    groups = []
    refusal: ConfigError | None = None
    for group in plan.groups:
        sharing: Sharing = instance(group.sharing)
        try:
            sharing.check(group)
        except ConfigError as error:
            refusal = error
            groups.append(dataclasses.replace(group, skip_reason=str(error)))
        else:
            groups.append(group)
    if refusal is not None and all(group.skip_reason or group.sequential for group in groups):
        raise refusal  # baselines alone would answer nothing
    return dataclasses.replace(plan, groups=tuple(groups))


def describe_privileged(plan: Plan) -> str:
    """The commands that change settings of a GPU, as text: once for all groups that use the same ones.

    Raises:
        SharingError: a program that they need is not there.
    """
    groups_by_commands: dict[tuple[tuple[str, ...], ...], list[int]] = {}
    for group in plan.groups:
        if group.skip_reason is None:
            sharing: Sharing = instance(group.sharing)
            of_dcgm = dcgm_profiling.commands(group, instance(group.profiler.build))
            privileged = (*of_dcgm[:1], *sharing.privileged(group), *of_dcgm[1:])
            groups_by_commands.setdefault(privileged, []).append(group.number)
    groups_by_commands.pop((), None)
    if not groups_by_commands:
        return "no command changes the settings of a GPU"
    lines = []
    for commands, numbers in groups_by_commands.items():
        lines.append(f"settings of the GPU are changed, and put back, by group {', '.join(map(str, numbers))}:")
        lines += [f"    {shlex.join(command)}" for command in commands]
    return "\n".join(lines)


def freeze(value: object) -> object:
    """The value with lists and dicts as tuples, so that records stay hashable."""
    if isinstance(value, dict):
        return tuple((key, freeze(item)) for key, item in value.items())
    if isinstance(value, list):
        return tuple(freeze(item) for item in value)
    return value
