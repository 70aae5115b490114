"""From configurations to a `Plan`: pure, frozen, printable. Nothing here touches the machine.

A sweep is one study: groups that several configurations ask for run once a block, each serial baseline once a block,
and a repeat is a complete block of all groups in an order of its own.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import hashlib
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from pipeline import check, command_line, factory
from pipeline.errors import ConfigError
from pipeline.inventory import Inventory, chosen_workloads, env_of
from pipeline.modes import mode_of
from pipeline.schema import (
    Baseline,
    Config,
    GpuConfig,
    GpuKind,
    ListenerConfig,
    Order,
    ProfilerConfig,
)
from pipeline.types import (
    Device,
    GpuSettings,
    Group,
    Job,
    Limits,
    ListenerSpec,
    Plan,
    ProfilerSpec,
    Required,
    Spec,
    Window,
    WindowKind,
    Workload,
)
from pipeline.words import counted
from pipeline.workload_options import WorkloadConfig

_SERIAL = Spec(target="pipeline.gpu.naive.Naive")


def read(configs: Sequence[DictConfig]) -> list[Config]:
    """The composed configurations as typed objects.

    Raises:
        ConfigError: a mandatory key is missing, a key does not exist, or a value cannot be used.
    """
    typed: list[Config] = []
    for config in configs:
        try:
            each = OmegaConf.to_object(config)
            assert isinstance(each, Config)
            each.scenario = _node("scenario", each.scenario, name=MISSING, sequential=False)
            each.env = _node("env", each.env)
            each.profiler = _node("profiler", each.profiler, name=MISSING)
            typed.append(each)
        except OmegaConfBaseException as error:
            key = getattr(error, "full_key", None) or "?"
            raise ConfigError(f"{key}: {str(error).splitlines()[0]}; give it as {key}=VALUE") from error
    for each in typed:
        if unknown := next(command_line.unknown_settings(each), None):
            raise ConfigError(unknown)
        if each.gpu.kind is GpuKind.simulated and each.gpu.admin is not None:
            each.gpu.admin = []  # whatever a file says that was written for a real GPU
    return typed


def _node(where: str, node: Any, **defaults: object) -> Any:
    """The node as an object, if it is that of a YAML which extends no node of the schema.

    Raises:
        ConfigError: it lacks what every node of its kind has.
    """
    if not isinstance(node, dict):
        return node
    values = {"_target_": MISSING, **defaults, **node}
    if lacking := [key for key, value in values.items() if value == MISSING]:
        raise ConfigError(f"{where}.{lacking[0]}: missing; give it as {where}.{lacking[0]}=VALUE")
    return dataclasses.make_dataclass("Node", [(key, Any) for key in values])(**values)


def build_plan(configs: Sequence[Config], inventory: Inventory, *, is_sweep: bool) -> Plan:
    """The plan of a study: every group, in the order in which it will run.

    Args:
        configs: what was asked for, one entry a combination of the sweep.
        inventory: what the machine has.
        is_sweep: whether serial baselines are added where `baseline` is `auto`.

    Raises:
        ConfigError: a configuration cannot be run; nothing was touched.
    """
    blocks: dict[int, dict[str, Group]] = {}
    notes: list[str] = []
    for config in configs:
        check.settings(config)
        groups = _groups(config, inventory, notes, is_sweep=is_sweep)
        for block in range(1, config.repeats + 1):
            for group in groups:
                placed = dataclasses.replace(group, block=block, digest=_digest(group.digest, block))
                same = blocks.setdefault(block, {}).setdefault(placed.digest, placed)
                _refuse_other(same, placed)
    first = configs[0]
    ordered: list[Group] = []
    for block, by_digest in sorted(blocks.items()):
        members = list(by_digest.values())
        if first.order is Order.random:
            random.Random(f"{first.seed}-{block}").shuffle(members)  # noqa: S311  an order, not a secret
        ordered += members
    numbered = tuple(dataclasses.replace(group, number=n) for n, group in enumerate(ordered, start=1))
    return Plan(
        experiment=first.tracking.experiment,
        groups=numbered,
        devices=tuple(dict.fromkeys(group.device for group in numbered)),
        digest=_digest([group.digest for group in numbered]),
        notes=tuple(dict.fromkeys(notes)),
    )


def _refuse_other(group: Group, again: Group) -> None:
    """Reject sweep variants that differ but share a digest.

    Raises:
        ConfigError: says in what they differ.
    """
    words = {"jobs": "paths", "device": "the GPU", "profiler": "the profiler's place", "sharing": "a program's place"}
    names = [field.name for field in dataclasses.fields(Group) if field.compare]
    if differing := [words.get(name, name) for name in names if getattr(group, name) != getattr(again, name)]:
        raise ConfigError(
            f"two combinations of the sweep differ only in {' and '.join(differing)} ({group.name}), which does not "
            "tell their results apart; run them as two studies, with tracking.experiment=NAME for each"
        )


def describe(plan: Plan) -> str:
    """The plan as text: one line a group."""
    devices = ", ".join(
        f"{'simulated ' if device.is_simulated else ''}{device.name} ({device.uuid})" for device in plan.devices
    )
    lines = [f"{counted(len(plan.groups), 'group')} on {devices}, plan {plan.digest[:12]}"]
    several = len({device.name for device in plan.devices}) > 1
    for group in plan.groups:
        skip = f"  skipped: {group.skip_reason}" if group.skip_reason else ""
        lines.append(
            f"{group.number:5d}  block {group.block}  {group.name:36s}  {_length(group):28s}  {group.digest[:12]}"
            f"{f'  {group.device.name}' if several else ''}{skip}"
        )
    return "\n".join([*lines, *(f"note: {note}" for note in plan.notes)])


def _length(group: Group) -> str:
    if group.window.kind is WindowKind.WORK and group.jobs[0].workload.ends_by_itself:
        return f"{group.window.kind.value}, until the jobs end"
    return group.window.words


def _specs(config: Config) -> tuple[Spec, list[ListenerSpec]]:
    """How a configuration shares the device, and who observes it."""
    sharing = factory.spec_of(config.scenario, without=frozenset({"name", "sequential"}))
    return sharing, [_listener(name, listener) for name, listener in config.listeners.items()]


def _profiler(config: ProfilerConfig) -> ProfilerSpec:
    return ProfilerSpec(name=config.name, build=factory.spec_of(config, without=frozenset({"name"})))


def _listener(name: str, config: ListenerConfig) -> ListenerSpec:
    options = tuple((key, factory.freeze(value)) for key, value in config.options.items())
    return ListenerSpec(
        name=name,
        build=Spec(target=config._target_, options=options),
        interval_ms=config.interval_ms,
        required=_required(name, config.required),
    )


def _groups(config: Config, inventory: Inventory, notes: list[str], *, is_sweep: bool) -> list[Group]:
    """The groups of one configuration, without block and number, and its baselines."""
    device = inventory.device_of(config.gpu)
    if device.is_simulated:
        notes.append(
            f"{device.name} is simulated: jobs run on the CPU, each is charged gpu.job_memory_mib="
            f"{config.gpu.job_memory_mib} MiB, and these figures say nothing about a real GPU"
        )
    notes += factory.instance(_profiler(config.profiler).build).notes(device)
    workloads = chosen_workloads(config)
    for workload in workloads:
        workload.check(device, device_was_chosen=config.gpu.kind is not GpuKind.auto)
    window = _window(config, workloads, notes)
    for env in dict.fromkeys(env_of(config, workload) for workload in workloads):
        if (to_build := inventory.interpreters[env].to_build) is not None:
            notes.append(f"{to_build}; the digests of its groups are known when it is built")
    sizes: list[str] | list[None] = config.mix or [None] * len(workloads)
    jobs = tuple(
        Job(index=index, workload=_workload(workload, config, device, window, inventory), size=size)
        for index, (workload, size) in enumerate(zip(workloads, sizes, strict=True))
    )
    solos = [_group(config, inventory, device, window, (job,), sequential=True) for job in _distinct(jobs)]
    if not config.scenario.sequential:
        baselines = solos
        if config.mix is not None and window.kind is WindowKind.WORK:
            # A fixed amount of work has a total time, so that of a mix is really measured, one job after another.
            baselines = [_group(config, inventory, device, window, jobs, sequential=True)]
        wanted = config.baseline is Baseline.always or (config.baseline is Baseline.auto and is_sweep)
        return [_group(config, inventory, device, window, jobs, sequential=False), *(baselines if wanted else [])]
    # n copies one after another take n times as long as one, which is measured once for every degree.
    return solos if len(solos) == 1 else [_group(config, inventory, device, window, jobs, sequential=True)]


def _distinct(jobs: Sequence[Job]) -> list[Job]:
    """One job a workload, as it runs alone."""
    first = {job.workload.digest: job for job in reversed(jobs)}
    ordered = sorted(first.values(), key=lambda job: job.index)
    return [dataclasses.replace(job, index=0) for job in ordered]


def _window(config: Config, workloads: Sequence[WorkloadConfig], notes: list[str]) -> Window:
    window = Window(
        kind=config.window.kind,
        seconds=config.window.seconds,
        settle_s=config.window.settle_s,
        epochs=config.window.epochs,
    )
    if window.kind is WindowKind.WORK or not any(w.ends_by_itself for w in workloads):
        return window
    if all(w.ends_by_itself for w in workloads):
        names = ", ".join(sorted({w.name for w in workloads}))
        notes.append(f"{names} cannot be told to stop: measured from start to end (window=work)")
        return dataclasses.replace(window, kind=WindowKind.WORK)
    raise ConfigError(
        "window=steady needs jobs that can be told to stop, and a script in this mix cannot; use window=work"
    )


def _workload(
    workload: WorkloadConfig, config: Config, device: Device, window: Window, inventory: Inventory
) -> Workload:
    path, content = inventory.scripts[workload.script]
    env = env_of(config, workload)
    runner, runner_content = inventory.scripts[workload.runner] if workload.runner else (None, "")
    _, preload_content = inventory.scripts.get(workload.preload or "", (None, ""))
    flags = workload.own_options()
    if not workload.ends_by_itself:
        flags["seed"] = config.seed
        flags["device"] = "cuda" if device.is_gpu and not device.is_simulated else "cpu"
        flags["epochs"] = 0 if window.kind is WindowKind.STEADY else window.epochs
    return Workload(
        name=workload.name,
        script=str(path),
        argv=(*([str(runner)] if runner else []), str(path), *_flags(flags), *workload.args),
        ends_by_itself=workload.ends_by_itself,
        env=env,
        digest=_digest(
            [
                content,
                runner_content,
                preload_content,  # a forked job has executed it
                workload.name,
                {k: v for k, v in flags.items() if k not in workload.PATHS},
                workload.args,
                workload.environ,
                inventory.interpreters[env].lock_digest,
            ]
        ),
        params=tuple((key, _text(value)) for key, value in flags.items() if value is not None),
        environ=tuple(sorted(workload.environ.items())),
        preload=workload.preload,
        script_digest=_digest(content, runner_content),
    )


def _flags(values: dict[str, Any]) -> list[str]:
    """Command-line flags: `None` is left out, a bool is `--x` or `--no-x`, a dict is `KEY=VALUE` words in JSON."""
    argv: list[str] = []
    for key, value in values.items():
        flag = key.replace("_", "-")
        if value is None or value in ({}, []):
            continue
        if isinstance(value, bool):
            argv.append(f"--{flag}" if value else f"--no-{flag}")
        elif isinstance(value, dict):
            argv += [
                f"--{flag}",
                *(f"{name}={json.dumps(item, separators=(',', ':'))}" for name, item in value.items()),
            ]
        elif isinstance(value, list):
            argv += [f"--{flag}", *map(str, value)]
        else:
            argv += [f"--{flag}", value.name if isinstance(value, enum.Enum) else str(value)]
    return argv


def _text(value: object) -> str:
    if isinstance(value, enum.Enum):
        return value.name
    return json.dumps(value) if isinstance(value, dict | list | bool) else str(value)


def _group(
    config: Config, inventory: Inventory, device: Device, window: Window, jobs: tuple[Job, ...], *, sequential: bool
) -> Group:
    scenario = "serial" if sequential else config.scenario.name
    sharing, listeners = _specs(config)
    if sequential:
        sharing = _SERIAL
    gpu = _gpu_settings(config.gpu, sequential=sequential)
    profiler = _profiler(config.profiler)
    packages = sorted({inventory.interpreters[job.workload.env].lock_digest for job in jobs})
    sizes = [job.size or job.workload.name for job in jobs]
    label = f"{len(jobs)}x-{sizes[0]}" if len(set(sizes)) == 1 else "+".join(sizes)
    group = Group(
        number=0,
        name="-".join(
            [scenario, label, *_naming_options(scenario, sharing), *([] if profiler.is_none else [profiler.name])]
        ),
        experiment=config.tracking.experiment,
        scenario=scenario,
        sharing=sharing,
        jobs=jobs,
        window=window,
        limits=Limits(ready_s=config.limits.ready_s, group_s=config.limits.group_s, stop_s=config.limits.stop_s),
        block=0,
        seed=config.seed,
        sequential=sequential,
        device=device,
        listeners=tuple(listeners),
        pin_cpus=config.pin_cpus,
        digest="",
        gpu=gpu,
        config_text=functools.partial(_config_text, config),
        profiler=profiler,
    )
    return dataclasses.replace(
        group,
        digest=_digest([job.workload.digest for job in jobs], scenario, group.settings, group.options),
        settings_digest=_digest(group.settings, packages),
    )


def _gpu_settings(config: GpuConfig, *, sequential: bool) -> GpuSettings:
    return GpuSettings(
        admin=None if config.admin is None else tuple(config.admin),
        lock_dir=Path(config.lock_dir),
        tolerate=tuple(config.tolerate),
        exclusive_process=config.exclusive_process and not sequential,
        job_memory_mib=config.job_memory_mib,
    )


def _config_text(config: Config) -> str:
    return OmegaConf.to_yaml(OmegaConf.structured(config))


def _naming_options(scenario: str, sharing: Spec) -> list[str]:
    """The options of a scenario that were given, so that groups of a sweep over them have names of their own."""
    return [
        f"{key}={','.join(map(str, value)) if isinstance(value, tuple) else value}"
        for key, value in mode_of(scenario).naming(sharing.options)
        if value not in (None, "auto", ())
    ]


def _required(name: str, value: str) -> Required:
    try:
        return Required(value.lower())
    except ValueError as error:
        raise ConfigError(f"listeners.{name}.required={value}: must be true, false or if_gpu") from error


def _digest(*facts: object) -> str:
    text = json.dumps(facts, sort_keys=True, default=_jsonable)
    return hashlib.sha256(text.encode()).hexdigest()


def _jsonable(value: object) -> object:
    if isinstance(value, enum.Enum):
        return value.name
    raise TypeError(f"{type(value).__name__} has no place in a digest")
