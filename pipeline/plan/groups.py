"""The groups of one configuration: its jobs, its baselines, and the digests that tell them apart."""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from pipeline.base import factory, placeholders
from pipeline.base.errors import ConfigError
from pipeline.base.modes import mode_of
from pipeline.base.protocols import Profiler
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
from pipeline.plan.schema import Baseline, Config, GpuKind, ListenerConfig
from pipeline.plan.workloads import WorkloadConfig

_SERIAL = Spec(target="pipeline.prepare.sharing.naive.Naive")


def groups_of(config: Config, inventory: Inventory, notes: list[str], *, is_sweep: bool) -> list[Group]:
    """The groups of one configuration, without block and number, and its baselines.

    What the user should know is added to `notes`; `is_sweep` adds serial baselines where `baseline` is `auto`.
    """
    device, workloads = inventory.device_of(config.gpu), chosen_workloads(config)
    for workload in workloads:
        workload.check(device, device_was_chosen=config.gpu.kind is not GpuKind.auto)
    window = _window(config, workloads)
    sizes: list[str] | list[None] = config.mix or [None] * len(workloads)
    jobs = tuple(
        Job(index=index, workload=_workload(workload, config, device, window, inventory), size=size)
        for index, (workload, size) in enumerate(zip(workloads, sizes, strict=True))
    )
    together = _group(config, device, window, jobs)
    notes += _notes(together, inventory, is_other_window=window.kind is not config.window.kind)
    in_turn = _in_turn(together, jobs)
    alone = [_in_turn(together, (dataclasses.replace(job, index=0),)) for job in _distinct(jobs)]
    if config.scenario.sequential:
        # n copies one after another take n times as long as one, which is measured once for every degree.
        groups = alone if len(alone) == 1 else [in_turn]
    elif config.baseline is Baseline.always or (config.baseline is Baseline.auto and is_sweep):
        # A fixed amount of work has a total time, so that of a mix is really measured, one job after another.
        is_total_measured = config.mix is not None and window.kind is WindowKind.WORK
        groups = [together, *([in_turn] if is_total_measured else alone)]
    else:
        groups = [together]
    return [_identified(group, inventory) for group in groups]


def _notes(group: Group, inventory: Inventory, *, is_other_window: bool) -> Iterator[str]:
    if group.device.is_simulated:
        yield (
            f"{group.device.name} is simulated: jobs run on the CPU, each is charged gpu.job_memory_mib="
            f"{group.gpu.job_memory_mib} MiB, and these figures say nothing about a real GPU"
        )
    profiler: Profiler = factory.instance(group.profiler.build)
    yield from profiler.notes(group.device)
    if is_other_window:
        names = ", ".join(sorted({job.workload.name for job in group.jobs}))
        if group.window.kind is WindowKind.LOGGED:
            yield f"{names} cannot be told to stop: measured while all jobs log their samples/s"
        else:
            yield f"{names} cannot be told to stop: measured from start to end, start-up included (window=work)"
    for env in dict.fromkeys(job.workload.env for job in group.jobs):
        if (to_build := inventory.interpreters[env].to_build) is not None:
            yield f"{to_build}; the digests of its groups are known when it is built"


def _distinct(jobs: Sequence[Job]) -> list[Job]:
    """The first job of each workload."""
    first: dict[str, Job] = {}
    for job in jobs:
        first.setdefault(job.workload.digest, job)
    return list(first.values())


def _window(config: Config, workloads: Sequence[WorkloadConfig]) -> Window:
    window = Window(**vars(config.window))
    all_log = all(w.rate().is_logged for w in workloads)
    if window.kind is WindowKind.LOGGED and not all_log:
        raise ConfigError(
            "window.kind=LOGGED needs scripts that all log their samples/s; name it with workload.metric=NAME or "
            "workload.metric_pattern=EXPRESSION, or choose window=work"
        )
    if window.kind is not WindowKind.STEADY or not any(w.ends_by_itself for w in workloads):
        return window
    if all(w.ends_by_itself for w in workloads):
        return dataclasses.replace(window, kind=WindowKind.LOGGED if all_log else WindowKind.WORK)
    raise ConfigError(
        "window=steady needs jobs that can be told to stop, and a script in this mix cannot; use window=work"
    )


def _workload(
    workload: WorkloadConfig, config: Config, device: Device, window: Window, inventory: Inventory
) -> Workload:
    path = inventory.scripts[workload.script].path
    env = env_of(config, workload)
    # A forked job has executed the module that was preloaded.
    codes = [
        inventory.scripts[each]
        for each in (workload.script, workload.runner, workload.preload)
        if each in inventory.scripts
    ]
    flags, settings = workload.own_options(), workload.settings()
    if not workload.ends_by_itself:
        flags["seed"] = config.seed
        flags["device"] = "cuda" if device.is_gpu and not device.is_simulated else "cpu"
        flags["epochs"] = 0 if window.kind is WindowKind.STEADY else window.epochs
    arguments = (*_flags(flags), *workload.args)
    placeholders.check(workload.name, arguments)
    program_digest = digest_of(
        [code.digest for code in codes],
        workload.name,
        {k: v for k, v in (flags | settings).items() if k not in workload.PATHS},
        workload.args,
        workload.environ,
    )
    return Workload(
        name=workload.name,
        script=str(path),
        argv=(*([str(inventory.scripts[workload.runner].path)] if workload.runner else []), str(path), *arguments),
        ends_by_itself=workload.ends_by_itself,
        env=env,
        digest=digest_of(program_digest, inventory.interpreters[env].lock_digest),
        program_digest=program_digest,
        sources=tuple(dict.fromkeys(source for code in codes for source in code.sources)),
        params=tuple((key, _text(value)) for key, value in (flags | settings).items() if value is not None),
        environ=tuple(sorted(workload.environ.items())),
        preload=workload.preload,
        is_in_own_folder=workload.is_in_own_folder(),
        rate=workload.rate(),
    )


def _flags(values: dict[str, Any]) -> list[str]:
    """Command-line flags: `None` is left out, a bool is `--x` or `--no-x`, a dict is `KEY=VALUE` words in JSON."""
    argv: list[str] = []
    for key, value in values.items():
        flag = key.replace("_", "-")
        if isinstance(value, bool):
            argv.append(f"--{flag}" if value else f"--no-{flag}")
        elif isinstance(value, dict):
            value = [f"{name}={json.dumps(item, separators=(',', ':'))}" for name, item in value.items()]
        if isinstance(value, list):
            argv += [f"--{flag}", *map(str, value)] if value else []
        elif value is not None and not isinstance(value, bool):
            argv += [f"--{flag}", value.name if isinstance(value, enum.Enum) else str(value)]
    return argv


def _text(value: object) -> str:
    if isinstance(value, enum.Enum):
        return value.name
    return json.dumps(value) if isinstance(value, dict | list | bool) else str(value)


def _group(config: Config, device: Device, window: Window, jobs: tuple[Job, ...]) -> Group:
    """The jobs together, without what tells them from other groups."""
    return Group(
        number=0,
        name="",
        experiment=config.tracking.experiment,
        scenario=config.scenario.name,
        sharing=factory.spec_of(config.scenario, without=frozenset({"name", "sequential"})),
        jobs=jobs,
        window=window,
        limits=Limits(**vars(config.limits)),
        block=0,
        seed=config.seed,
        sequential=False,
        device=device,
        listeners=tuple(_listener(name, listener) for name, listener in config.listeners.items()),
        pin_cpus=config.pin_cpus,
        digest="",
        gpu=GpuSettings(
            admin=None if config.gpu.admin is None else tuple(config.gpu.admin),
            lock_dir=Path(config.gpu.lock_dir),
            tolerate=tuple(config.gpu.tolerate),
            exclusive_process=config.gpu.exclusive_process,
            job_memory_mib=config.gpu.job_memory_mib,
        ),
        config_text=lambda: OmegaConf.to_yaml(OmegaConf.structured(config)),
        profiler=ProfilerSpec(
            name=config.profiler.name, build=factory.spec_of(config.profiler, without=frozenset({"name"}))
        ),
    )


def _listener(name: str, config: ListenerConfig) -> ListenerSpec:
    try:
        required = Required(config.required.lower())
    except ValueError as error:
        raise ConfigError(f"listeners.{name}.required={config.required}: must be true, false or if_gpu") from error
    options = tuple((key, factory.freeze(value)) for key, value in config.options.items())
    build = Spec(target=config._target_, options=options)
    return ListenerSpec(name=name, build=build, interval_ms=config.interval_ms, required=required)


def _in_turn(group: Group, jobs: tuple[Job, ...]) -> Group:
    """Jobs of the group one after another, whatever the group's sharing mode is."""
    gpu = dataclasses.replace(group.gpu, exclusive_process=False)
    return dataclasses.replace(group, scenario="serial", sharing=_SERIAL, jobs=jobs, sequential=True, gpu=gpu)


def _identified(group: Group, inventory: Inventory) -> Group:
    """The group with its name and the digests that tell it from others."""
    packages = sorted({inventory.interpreters[job.workload.env].lock_digest for job in group.jobs})
    sizes = [job.size or job.workload.name for job in group.jobs]
    label = f"{len(sizes)}x-{sizes[0]}" if len(set(sizes)) == 1 else "+".join(sizes)
    # The options that were given, so that groups of a sweep over them have names of their own.
    options = [
        f"{key}={','.join(map(str, value)) if isinstance(value, tuple) else value}"
        for key, value in mode_of(group.scenario).naming(group.sharing.options)
        if value not in (None, "auto", ())
    ]
    facts = (group.scenario, group.settings, group.options)
    return dataclasses.replace(
        group,
        name="-".join([group.scenario, label, *options, *([] if group.profiler.is_none else [group.profiler.name])]),
        key=digest_of([job.workload.digest for job in group.jobs], *facts),
        program_digest=digest_of([job.workload.program_digest for job in group.jobs], *facts),
        settings_digest=digest_of(group.settings, packages),
    )


def digest_of(*facts: object) -> str:
    """A digest of values that JSON knows, and of choices among enumerated ones."""
    text = json.dumps(facts, sort_keys=True, default=_jsonable)
    return hashlib.sha256(text.encode()).hexdigest()


def _jsonable(value: object) -> object:
    if isinstance(value, enum.Enum):
        return value.name
    raise TypeError(f"{type(value).__name__} has no place in a digest")
