"""The groups of one configuration: jobs, baselines and digests."""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from pipeline.base.domain import group_names, work_units
from pipeline.base.domain.protocols import Profiler
from pipeline.base.domain.records import (
    DEVICE,
    CpuPinning,
    Device,
    GpuSettings,
    Group,
    Interpreter,
    Job,
    ListenerSpec,
    PackSettings,
    ProfilerSpec,
    Required,
    Resume,
)
from pipeline.base.domain.trial_words import find_shared_words, spell_arguments
from pipeline.base.domain.window import Window, WindowKind
from pipeline.base.domain.workload import RateSource, Workload, refuse_unknown_placeholders
from pipeline.base.system import factory, secrets, user_command
from pipeline.base.system.errors import ConfigError
from pipeline.base.system.factory import Spec
from pipeline.plan import job_entries
from pipeline.plan.config_schema import Baseline, Config, ForeignLoad, GpuKind, ListenerConfig
from pipeline.plan.inventory import Inventory, choose_environment
from pipeline.plan.option_loader import find_root
from pipeline.plan.script_options import ScriptConfig
from pipeline.plan.workload_config import WorkloadConfig

_SERIAL = Spec(target="pipeline.prepare.sharing.naive.Naive")
_SHARED = ("serial", "naive", "mps", "streams")
"""Sharing modes in which the other jobs can use the share of a paused job."""
_MOST_OF_NAME = 60
_IN_CONTAINER = "its container is that of one job; use another environment"


def make_groups(config: Config, inventory: Inventory, notes: list[str], *, is_sweep: bool) -> list[Group]:
    """Make the groups of one configuration, with baselines but without block and number.

    Notes for the user are appended to `notes`. With `baseline=auto`, groups of several jobs get serial baselines; in a
    sweep (`is_sweep`), groups of one job get them too.
    """
    measured, loads = job_entries.split_loads(config)
    co_runner_entries = job_entries.list_co_runners(config) + loads
    device, workloads = inventory.device_of(config.gpu), [workload for _, workload in measured]
    # A dry run on a simulated GPU shows the plan for the real GPU, although simulated jobs run on the CPU.
    checked_for = dataclasses.replace(device, kind="nvidia") if config.dry_run and device.is_simulated else device
    complete: dict[int, WorkloadConfig] = {}  # copies of a workload are one object
    for _, workload in (*measured, *co_runner_entries):
        if id(workload) not in complete:
            complete[id(workload)] = planned = workload.complete()
            planned.refuse_wrong(checked_for, device_was_chosen=config.gpu.kind is not GpuKind.auto)
    unfitted = _choose_window(config, workloads)
    window = _fit_window(unfitted, [workload for _, workload in (*measured, *co_runner_entries)])
    _refuse_unlogged(workloads, co_runner_entries)

    def make_jobs(entries: job_entries.Entries, window: Window, *, first: int = 0) -> tuple[Job, ...]:
        unique = {id(workload) for _, workload in entries}
        workload_of = {key: _make_workload(complete[key], config, device, window, inventory) for key in unique}
        return tuple(
            Job(index=index, workload=workload_of[id(workload)], size=size, is_co_runner=first > 0)
            for index, (size, workload) in enumerate(entries, start=first)
        )

    jobs = make_jobs(measured, window)
    co_runners = make_jobs(co_runner_entries, dataclasses.replace(window, kind=WindowKind.STEADY), first=len(jobs))
    shared_group = _make_group(config, device, window, jobs + co_runners)
    is_chosen = config.window.kind is WindowKind.INTERLEAVED and config.advise_minutes is None  # by the user
    if is_chosen and (reason := _explain_separate(config, workloads)):
        notes.append(f"{reason}; the group is measured in a separate launch ({window.text})")
    notes += [note for workload in workloads for note in workload.window_notes(window)]
    is_other_window = window.kind.is_steady is not config.window.kind.is_steady
    notes += _list_notes(shared_group, inventory, is_other_window=is_other_window)
    if shared_group.pack is not None:
        shared_words = find_shared_words(jobs)
        first, last = (spell_arguments(job, shared_words) for job in (jobs[0], jobs[-1]))
        notes.append(f"{len(jobs)} trials, at most {shared_group.most_at_once} at a time: {first} ... {last}")
    in_turn = _make_serial(shared_group, jobs)
    distinct: dict[str, tuple[Job, Window]] = {}
    for job, workload in zip(jobs, workloads, strict=True):
        distinct.setdefault(job.workload.digest, (job, _fit_window(unfitted, [workload])))
    alone = [
        _make_serial(dataclasses.replace(shared_group, window=own_window), (dataclasses.replace(job, index=0),))
        for job, own_window in distinct.values()
    ]
    load_programs = [workload for _, workload in loads]
    steady = _fit_window(_choose_window(config, load_programs), load_programs) if loads else window
    loads_alone = [
        _make_serial(dataclasses.replace(shared_group, window=steady), (dataclasses.replace(job, index=0),))
        for job in make_jobs(loads, steady)
    ]
    if config.scenario.sequential:
        # n copies in turn take n times as long as one copy, so one copy is measured for all degrees.
        groups = alone if len(alone) == 1 else [in_turn]
    elif config.baseline is Baseline.always or (
        config.baseline is Baseline.auto and (is_sweep or len(shared_group.jobs) > 1)
    ):
        # With fixed work, the total time of a mix is a result, so its jobs are measured one after another.
        is_total_measured = config.mix is not None and window.kind is WindowKind.WORK
        # In a shared launch, one naive job would be measured in the same slices as the baseline.
        is_baseline = (
            window.kind is WindowKind.INTERLEAVED and shared_group.scenario == "naive" and len(shared_group.jobs) == 1
        )
        groups = [*([] if is_baseline else [shared_group]), *([in_turn] if is_total_measured else alone), *loads_alone]
    else:
        groups = [shared_group]
    return [_add_digests(group, inventory) for group in groups]


def _list_notes(group: Group, inventory: Inventory, *, is_other_window: bool) -> Iterator[str]:
    if group.device.is_simulated:
        yield (
            f"{group.device.name} is simulated: jobs run on the CPU, and each counts as gpu.job_memory_mib="
            f"{group.gpu.job_memory_mib} MiB; figures do not apply to a real GPU"
        )
    if group.device.parent is not None:
        yield (
            f"{group.device.name} is a MIG device: power, energy, temperature and clocks are those of the whole GPU, "
            "with its other instances"
        )
    profiler: Profiler = factory.build_object(group.profiler.build)
    yield from profiler.notes(group.device)
    if is_other_window:
        by_end = {True: dict[str, None](), False: dict[str, None]()}
        for job in group.measured:
            by_end[job.workload.ends_by_itself][job.workload.name] = None
        names, stoppable = ", ".join(by_end[True]), ", ".join(by_end[False])
        if any(job.workload.rate.is_sought for job in group.jobs):
            yield (
                f"{names}: its whole run is measured, or, if that takes long, the step numbers or the speed that it "
                f"prints, for {group.window.seconds:g} s; then all copies are stopped (window=work: always whole runs)"
            )
        elif group.window.kind is WindowKind.LOGGED:
            yield f"{names}: measured while all jobs log their rates"
        else:
            epochs = f"; {stoppable}: window.epochs" if stoppable else ""
            yield (
                f"{names}: the whole run is measured, with start-up (window=work{epochs}); if it prints its speed, "
                "measure without start-up by, for example, 'workload.metric_pattern=\"([0-9.]+) samples/s\"'"
            )
    for env in dict.fromkeys(job.workload.env for job in group.jobs):
        if (to_build := inventory.interpreters[env].to_build) is not None:
            yield f"{to_build}; the digests of its groups are known after the build"


def _explain_separate(config: Config, workloads: Iterable[WorkloadConfig]) -> str:
    """Return why groups of a configuration cannot be interleaved; empty if they can be interleaved."""
    if config.scenario.name not in _SHARED:
        return f"scenario={config.scenario.name} fixes each job's share of the GPU at its start"
    if config.mix is not None:
        return "the jobs of a mix run in no other group"
    if config.co_runners:
        return "co-runners cannot be paused"
    if CpuPinning(config.pin_cpus):
        return f"pin_cpus={config.pin_cpus} divides the CPUs among all launched jobs"
    if config.profiler.name != "none":
        return f"profiler={config.profiler.name} profiles jobs from start to end"
    for workload in workloads:
        if reason := workload.explain_own_launch():
            return f"workload {workload.name}: {reason}"
    return ""


def _choose_window(config: Config, workloads: Sequence[WorkloadConfig]) -> Window:
    """Choose the window that fits all jobs; an unmodified script cannot be given a number of epochs."""
    configured = config.window
    window = Window(
        kind=configured.kind,
        seconds=configured.seconds,
        settle_s=configured.settle_s,
        most_s=configured.most_s or 0.0,
        epochs=configured.epochs,
    )
    all_log = all(w.rate_source().is_logged for w in workloads)
    if window.kind is WindowKind.LOGGED and not all_log:
        raise ConfigError(
            "window.kind=LOGGED needs scripts that all log their rates; set workload.metric=NAME or "
            "workload.metric_pattern=EXPRESSION, or window=work"
        )
    if any(w.ends_by_itself for w in workloads):
        is_sought = _is_rate_sought(config, workloads)
        if window.kind is WindowKind.WORK or not (all_log or is_sought):
            return Window(kind=WindowKind.WORK)
        is_printed = is_sought or all(w.rate_source().is_printed for w in workloads)
        return Window(kind=WindowKind.LOGGED, seconds=(configured.logged_s or 0.0) if is_printed else 0.0)
    if window.kind is WindowKind.WORK:
        return Window(kind=WindowKind.WORK, epochs=window.epochs)
    if window.kind is WindowKind.INTERLEAVED and not _explain_separate(config, workloads):
        return Window(
            kind=window.kind,
            seconds=window.seconds,
            settle_s=configured.slice_settle_s,
            slice_s=configured.slice_s or 0.0,
        )
    return dataclasses.replace(window, kind=WindowKind.STEADY, epochs=0)


def _is_rate_sought(config: Config, workloads: Sequence[WorkloadConfig]) -> bool:
    """Return whether the first run of a script decides how the script is measured: a search of one script."""
    is_search = config.advise_minutes is not None and config.mix is None
    return is_search and all(isinstance(w, ScriptConfig) and w.rate_source() == RateSource() for w in workloads)


def _fit_window(window: Window, workloads: Sequence[WorkloadConfig]) -> Window:
    """Return the window with the length that all jobs need."""
    return max((workload.fit_window(window) for workload in workloads), key=lambda fitted: fitted.seconds)


def _refuse_unlogged(workloads: Sequence[WorkloadConfig], co_runner_entries: job_entries.Entries) -> None:
    """Refuse a program whose speed in the turns of a co-runner is unknown.

    Raises:
        ConfigError: a program cannot be stopped and logs no rate, and a co-runner takes turns.
    """
    unlogged = [w.name for w in workloads if w.ends_by_itself and not w.rate_source().is_logged]
    for size, load in co_runner_entries:
        if unlogged and load.takes_turns:
            raise ConfigError(
                f"{unlogged[0]} logs no rate, so its speed in the turns of {load.name} is unknown; set "
                "workload.metric=NAME or workload.metric_pattern=EXPRESSION, or run beside stressors of one resource: "
                f"workload@sizes.{size}=stressor sizes.{size}.resource=l2,memory_bandwidth"
            )


def _make_workload(
    workload: WorkloadConfig, config: Config, device: Device, window: Window, inventory: Inventory
) -> Workload:
    path = inventory.scripts[workload.script].path
    env = choose_environment(config, workload)
    lacks = _find_lack(workload, inventory.interpreters[env])
    if lacks and not workload.may_lack_packages:
        raise ConfigError(lacks)
    # Include the preload module: forked jobs run it too.
    files = workload.source_files()
    codes = [
        inventory.scripts[script]
        for script in (workload.script, *files, workload.runner, workload.preload)
        if script in inventory.scripts
    ]
    of_env = dict(inventory.interpreters[env].environ)
    inherited = {name: value for name, value in inventory.environ.items() if name not in of_env}
    environ = inherited | workload.environ
    flags, settings = workload.program_options(), workload.study_settings()
    if not workload.ends_by_itself:
        flags["seed"] = config.seed
        flags["device"] = "cuda" if device.is_gpu and not device.is_simulated else "cpu"
        flags["epochs"] = 0 if window.kind.is_steady else config.window.epochs
    arguments = _make_flags(flags)
    words = workload.added_words(arguments)
    refuse_unknown_placeholders(workload.name, (*arguments, *words))
    program_digest = make_digest(
        [code.digest for code in codes],
        workload.name,
        {k: v for k, v in (flags | settings).items() if k not in workload.place_options()},
        words,
        environ,
    )
    runner = [str(inventory.scripts[workload.runner].path)] if workload.runner else []
    rate = workload.rate_source()
    return Workload(
        name=workload.name,
        # The user's file; a program such as torchrun only starts it.
        script=str(inventory.scripts[next(iter(files))].path if files and not path.is_absolute() else path),
        argv=(*runner, str(path), *arguments, *words),
        ends_by_itself=workload.ends_by_itself,
        env=env,
        digest=make_digest(program_digest, inventory.interpreters[env].lock_digest),
        program_digest=program_digest,
        sources=tuple(dict.fromkeys(source for code in codes for source in code.sources)),
        params=(
            *((key, _text(secrets.mask(value, key))) for key, value in (flags | settings).items() if value is not None),
            *_list_params(workload, env, environ),
        ),
        environ=tuple(sorted(workload.environ.items())),
        preload=workload.preload,
        is_in_own_folder=workload.is_in_own_folder(),
        rate=RateSource(is_sought=True) if window.kind is WindowKind.LOGGED and not rate.is_logged else rate,
        work_unit=workload.work_unit,
        is_rate_given=workload.has_given_rate(),
        objective=workload.latency_objective(),
        lacks=lacks,
        own_process=_IN_CONTAINER if inventory.interpreters[env].container else workload.explain_own_process(),
        module_path=tuple(map(str, find_root(type(workload)))),
    )


def _find_lack(workload: WorkloadConfig, interpreter: Interpreter) -> str | None:
    if interpreter.why_not_built is not None:
        return f"workload {workload.name}: {interpreter.why_not_built}"
    # A line begins with a package or its file: `uvicorn==0.5`, `https://.../uvicorn-0.5.conda`.
    # A file name may have `-` or `_` in the place of either.
    packages = [] if interpreter.to_build is not None else interpreter.lock
    lines = [line.lower().replace("_", "-") for line in packages]
    for package in workload.needed_packages() if lines else ():
        names = "|".join(map(re.escape, package.split("|")))
        if not any(re.match(rf"(?:.*/)?(?:{names})(?:[-=@ ]|$)", line) for line in lines):
            lack = workload.describe_lack(package.partition("|")[0], str(interpreter.python))
            return f"workload {workload.name}: {lack}"
    return None


def _list_params(workload: WorkloadConfig, env: Spec, environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    if workload.has_given_rate():
        yield work_units.GIVEN_RATE, "true"
    yield "script", secrets.mask_text(workload.script)
    if args := workload.argument_words():
        yield group_names.ARGUMENTS, shlex.join(secrets.mask_words(args))
    for key, value in workload.flag_values().items():
        yield f"{group_names.FLAG}{key}", _text(secrets.mask(value, key))
    for key, value in sorted(environ.items()):
        yield f"environ.{key}", secrets.mask(value, key)
    yield "env", env.target.rpartition(".")[2].removesuffix("Env").lower()
    for key, value in env.options:
        if value is not None and key != "cache_root":
            yield f"env.{key}", secrets.mask_text(_text(value))


def _make_flags(values: dict[str, Any]) -> list[str]:
    """Make command-line flags: omit `None`, write a bool as `--x` or `--no-x`, a dict as `KEY=JSON` words."""
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


def _make_group(config: Config, device: Device, window: Window, jobs: tuple[Job, ...]) -> Group:
    return Group(
        number=0,
        name="",
        experiment=config.tracking.experiment,
        scenario=config.scenario.name,
        sharing=factory.make_spec(_drop_unused_sizes(config, jobs), without=frozenset({"name", "sequential"})),
        jobs=jobs,
        window=window,
        limits=config.limits,
        block=0,
        seed=config.seed,
        sequential=False,
        device=device,
        listeners=tuple(_make_listener(name, listener) for name, listener in config.listeners.items()),
        pin_cpus=CpuPinning(config.pin_cpus),
        is_load_noted=config.foreign_load is ForeignLoad.note,
        digest="",
        gpu=GpuSettings(
            admin=None if config.gpu.admin is None else tuple(config.gpu.admin),
            lock_dir=Path(config.gpu.lock_dir),
            tolerate=tuple(config.gpu.tolerate),
            exclusive_process=config.gpu.exclusive_process,
            job_memory_mib=config.gpu.job_memory_mib,
            num_other_gpus=config.gpu.other_gpus,
            idle_power_s=config.gpu.idle_power_s,
            waiting_power_s=config.gpu.waiting_power_s,
        ),
        config_text=lambda: OmegaConf.to_yaml(OmegaConf.create(secrets.mask(_escape_values(config)))),
        pack=_make_pack(config),
        profiler=ProfilerSpec(
            name=config.profiler.name, build=factory.make_spec(config.profiler, without=frozenset({"name"}))
        ),
    )


def _make_pack(config: Config) -> PackSettings | None:
    pack = config.pack
    if pack.trials is None:
        return None
    settings = PackSettings(most=pack.most, check_share=pack.check_pct / 100, part=pack.part or "")
    if pack.number is None:
        return settings
    return dataclasses.replace(settings, most=pack.number, first=pack.number, is_fixed=True)


def _drop_unused_sizes(config: Config, jobs: Sequence[Job]) -> Any:
    """Return the sharing mode without profiles of sizes that a mix lacks, so that equal layouts are equal groups."""
    profile_of = getattr(config.scenario, "size_profile", None)
    if config.mix is None or not profile_of:
        return config.scenario
    sizes = {job.size for job in jobs}
    used = {size: profile for size, profile in profile_of.items() if size in sizes}
    return dataclasses.replace(config.scenario, size_profile=used)


def _escape_values(value: Any) -> Any:
    """Convert to dicts, lists and scalars, with interpolations escaped."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {part.name: _escape_values(getattr(value, part.name)) for part in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {key: _escape_values(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_escape_values(part) for part in value]
    if isinstance(value, enum.Enum):
        return str(value) if isinstance(value, CpuPinning | Resume) else value.name  # a text in the schema
    return user_command.escape_interpolations(value) if isinstance(value, str) else value


def _make_listener(name: str, config: ListenerConfig) -> ListenerSpec:
    try:
        required = Required(config.required.lower())
    except ValueError as error:
        raise ConfigError(f"listeners.{name}.required={config.required} must be true, false or if_gpu") from error
    options = tuple((key, factory.freeze(value)) for key, value in config.options.items())
    build = Spec(target=config._target_, options=options)
    return ListenerSpec(name=name, build=build, interval_ms=config.interval_ms, required=required)


def _make_serial(group: Group, jobs: tuple[Job, ...]) -> Group:
    gpu = dataclasses.replace(group.gpu, exclusive_process=False)
    return dataclasses.replace(group, scenario="serial", sharing=_SERIAL, jobs=jobs, sequential=True, gpu=gpu)


def name_groups(groups: Sequence[Group]) -> list[Group]:
    """Return the groups of a study with their stored names and the short ones that users see."""
    jobs: dict[tuple[str | None, str], group_names.JobFacts] = {}
    facts = []
    for group in groups:
        for size, workload in {(job.size, job.workload): None for job in group.jobs}:
            jobs[size, workload.digest] = group_names.JobFacts(
                size=size, workload=workload.name, params=dict(workload.params), digest=workload.digest
            )
        measured = tuple(jobs[job.size, job.workload.digest] for job in group.measured)
        facts.append(
            group_names.GroupFacts(
                scenario=group.scenario, jobs=measured, options=group.options, settings=group.settings
            )
        )
    names = zip(groups, group_names.name_groups(facts), group_names.shorten_names(facts), strict=True)
    named = (dataclasses.replace(group, name=name, short_name=short_name) for group, name, short_name in names)
    return [_name_pack(group) if group.pack is not None else group for group in named]


def _name_pack(group: Group) -> Group:
    """Return a pack with a name that does not list its trials."""
    programs = "+".join(dict.fromkeys(job.workload.name for job in group.jobs))
    assert group.pack is not None
    part = f"-{group.pack.part.replace('/', 'of')}" * bool(group.pack.part)
    short_name = f"pack-{group.scenario}-{len(group.jobs)}x-{programs[:_MOST_OF_NAME]}{part}"
    return dataclasses.replace(group, name=f"{short_name}-{group.key[:6]}", short_name=short_name)


def _add_digests(group: Group, inventory: Inventory) -> Group:
    packages = sorted({inventory.interpreters[job.workload.env].lock_digest for job in group.jobs})
    programs = [job.workload.digest for job in group.jobs]
    settings = group.settings
    of_any_gpu = settings | {DEVICE: settings[DEVICE].replace(group.device.name, "")}
    facts = (group.scenario, settings, group.options, *([] if group.pack is None else ["pack"]))
    return dataclasses.replace(
        group,
        key=make_digest(programs, *facts),
        any_gpu_digest=make_digest(programs, group.scenario, of_any_gpu, *facts[2:]),
        program_digest=make_digest([job.workload.program_digest for job in group.jobs], *facts),
        settings_digest=make_digest(settings, packages),
        skip_reason=next((job.workload.lacks for job in group.jobs if job.workload.lacks), None),
    )


def make_digest(*facts: object) -> str:
    """Return a digest of JSON values and enum members."""
    text = json.dumps(facts, sort_keys=True, default=_jsonable)
    return hashlib.sha256(text.encode()).hexdigest()


def _jsonable(value: object) -> object:
    if isinstance(value, enum.Enum):
        return value.name
    raise TypeError(f"{type(value).__name__} cannot be part of a digest")
