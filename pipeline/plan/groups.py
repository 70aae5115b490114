"""The groups of one configuration: its jobs, its baselines, and the digests that tell them apart."""

from __future__ import annotations

import dataclasses
import enum
import functools
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from pipeline.base import factory
from pipeline.base.errors import ConfigError
from pipeline.base.modes import mode_of
from pipeline.base.records import (
    Device,
    GpuSettings,
    Group,
    Job,
    Limits,
    ListenerSpec,
    ProfilerSpec,
    Required,
    Spec,
    Window,
    WindowKind,
    Workload,
)
from pipeline.plan.inventory import Inventory, chosen_workloads, env_of
from pipeline.plan.schema import (
    Baseline,
    Config,
    GpuConfig,
    GpuKind,
    ListenerConfig,
    ProfilerConfig,
)
from pipeline.plan.workloads import WorkloadConfig

_SERIAL = Spec(target="pipeline.prepare.sharing.naive.Naive")


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


def groups_of(config: Config, inventory: Inventory, notes: list[str], *, is_sweep: bool) -> list[Group]:
    """The groups of one configuration, without block and number, and its baselines.

    Args:
        config: what was asked for.
        inventory: what the machine has.
        notes: what the user should know is added here.
        is_sweep: whether serial baselines are added where `baseline` is `auto`.

    Raises:
        ConfigError: the configuration cannot be run.
    """
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
        digest=digest_of(
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
        script_digest=digest_of(content, runner_content),
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
        digest=digest_of([job.workload.digest for job in jobs], scenario, group.settings, group.options),
        settings_digest=digest_of(group.settings, packages),
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


def digest_of(*facts: object) -> str:
    """A digest of values that JSON knows, and of choices among enumerated ones."""
    text = json.dumps(facts, sort_keys=True, default=_jsonable)
    return hashlib.sha256(text.encode()).hexdigest()


def _jsonable(value: object) -> object:
    if isinstance(value, enum.Enum):
        return value.name
    raise TypeError(f"{type(value).__name__} has no place in a digest")
