"""Structured configs that mirror `conf/`: types and defaults. docs/configuration.md explains each key.

Hydra reports a wrong key, type or choice. The keys of workloads, sharing modes, environments, profilers and exporters
are declared by their classes (`pipeline/plan/option_loader.py`).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING

from pipeline.base.domain.config_choices import make_simulated_gpus
from pipeline.base.domain.records import Limits
from pipeline.base.domain.window import WindowKind
from pipeline.base.system import locks, paths
from pipeline.base.system.option_fields import MAX_S, option
from pipeline.plan.option_loader import KINDS, open_maps

Baseline = enum.Enum("Baseline", "auto always never", start=0)
Order = enum.Enum("Order", "random listed", start=0)
ForeignLoad = enum.Enum("ForeignLoad", "invalid note", start=0)
OnFailure = enum.Enum("OnFailure", "continue stop", start=0)
Memory = enum.Enum("Memory", "measure forecast", start=0)
GpuKind = enum.Enum("GpuKind", "auto nvidia cpu simulated", start=0)
ShardOf = enum.Enum("ShardOf", "block case", start=0)
SOURCES = ("disk", "files", "synthetic_files", "synthetic_host", "synthetic_device")
"""Values of `data.source`, which workloads read as `${data.source}`: `workloads.model_options.DataSource`."""
AUTO_DEVICE = "auto"
"""Default of `gpu.device`: the GPU of an allocation, or the first GPU."""
AUTO_REPEATS = "auto"
"""Value of `repeats`: blocks until the speed-ups are known within `precision_goal_pct`."""
NO_EXPORTER = "none"
BRACES = "braces"
"""Value of `pack.trials` for the combinations of the braces in the command line."""
JSON = "json"
"""Value of `dry_run` that prints the plan as JSON."""
MAX_SEED = 2**32 - 1
"""The largest seed that libraries accept."""


@dataclass
class GpuConfig:
    """The device."""

    kind: GpuKind = option("set by `gpu=`", GpuKind.auto)
    device: str = option(
        "the GPU, or a MIG device by UUID; `auto`: the first device of `CUDA_VISIBLE_DEVICES`, else of "
        "`SLURM_STEP_GPUS` or `SLURM_JOB_GPUS`, else of the machine",
        AUTO_DEVICE,
        values="`auto`, index or UUID",
    )
    admin: list[str] | None = option(
        "prefix of commands that change the GPU: `[]` as root, `[sudo,-n]` otherwise; `null` forbids such commands; a "
        "missing program is refused if a command needs it",
        [],
    )
    exclusive_process: bool = option(
        "allow only the MPS server to compute on the GPU while a group runs under MPS", False
    )
    tolerate: list[str] = option("other programs that may stay on the GPU, such as `Xorg`", [])
    lock_dir: str = option(
        "folder of locks and journals, the same for all users of a machine ([cleanup.md](cleanup.md))",
        str(locks.DEFAULT_FOLDER),
        values="path",
    )
    idle_power_s: float = option(
        "time in s for which the power of the GPU without jobs is measured, before the first group; 0: not measured "
        "([method.md](method.md#idle-power))",
        10.0,
        least=0,
        most=MAX_S,
    )
    waiting_power_s: float = option(
        "time in s for which jobs wait at the barrier for a measurement of power, in the first group of each sharing "
        "mode and number of jobs; 0: not measured",
        4.0,
        least=0,
        most=MAX_S,
    )
    model: str | None = option("simulated GPU, such as `a100_40gb`", None)
    other_gpus: int = option(
        "number of other busy GPUs of the host; rows are compared only if it is equal; set by `hydra/launcher=gpus` "
        "([scale.md](scale.md))",
        0,
        least=0,
    )
    models: int = option(
        "number of GPU models of the study, each with its own plan; set by `hydra/launcher=gpus` and `slurm`",
        1,
        least=1,
    )
    driver: str | None = option(
        "driver branch of a simulated machine; `null`: 580 ([simulation.md](simulation.md))",
        None,
        values="`535`, `550`, `570`, `580`, `590`, `595`, `615`",
    )
    count: int = option("number of GPUs of a simulated machine", 1)
    machine: str | None = option(
        "file that stores a simulated machine; `null`: the machine is deleted after the study", None, values="path"
    )
    job_memory_mib: int = option("memory of each job on a simulated GPU", 512)


@dataclass
class TrackingConfig:
    """The store of the results."""

    uri: str | None = option(
        "tracking server; `null` is the store in `root`",
        MISSING,
        values="address",
        shown="`null`; required for `server`",
    )
    root: str = option("folder of store, artifacts and spool", str(paths.DEFAULT_ROOT), values="path")
    experiment: str = option(
        "MLflow experiment; rehearsals go to `NAME-rehearsal`, reproductions to `NAME-reproductions`",
        paths.DEFAULT_EXPERIMENT,
    )
    series_points: int = option(
        "points of a series in MLflow's charts; `samples.parquet` has all samples", 500, least=1
    )


@dataclass
class WindowConfig:
    """The window in which throughput is measured."""

    kind: WindowKind = option("set by `window=`; `LOGGED` if all scripts log their rate", MISSING)
    seconds: float = option(
        "length of the steady window: 20; shortest length of a window by need: 1; of all slices of a group in one "
        "launch: 4",
        20.0,
        above=0,
        most=MAX_S,
        shown="by window",
    )
    most_s: float | None = option(
        "longest length of a steady window by need: 10; `null`: the length is `window.seconds`",
        None,
        above=0,
        most=MAX_S,
        shown="by window",
    )
    settle_s: float = option(
        "time from the start of all jobs to the steady window: 2; 1 for groups that cannot be interleaved; by need 1, "
        "followed by the trial of 1 s",
        2.0,
        least=0,
        most=MAX_S,
        shown="by window",
    )
    slice_s: float | None = option(
        "length of a slice of an interleaved window: 0.5, 1 or 2, for [50 steps of each "
        "job](method.md#windows-and-baselines); power and activity need 2",
        None,
        above=0,
        most=MAX_S,
        shown="by speed",
    )
    slice_settle_s: float = option("time at the begin of each slice that is not measured", 0.1, least=0, most=MAX_S)
    epochs: int = option("epochs of each job in a `work` window", 5, least=1)
    logged_s: float | None = option(
        "time after which scripts that all print their rate are stopped; `null`: they end by themselves; 8 for "
        "`advise`",
        None,
        above=0,
        most=MAX_S,
    )


@dataclass
class ListenerConfig:
    """One listener. `_target_` is a `pipeline.base.domain.protocols.Listener`."""

    _target_: str = MISSING
    interval_ms: int = option("sampling interval; from 200 to 86,400,000 (a day)", 1000)
    required: str = option(
        "whether a missing source is an error: always, never (a warning), or only on a GPU",
        "true",
        values="`true`, `false`, `if_gpu`",
        shown="by listener",
    )
    options: dict[str, Any] = option("options of the listener, such as `program`", {})


@dataclass
class DataConfig:
    """The source of training data, for every workload of the study."""

    source: str = option(
        "where data comes from ([workloads.md](workloads.md#data))",
        "disk",
        values=", ".join(f"`{source}`" for source in SOURCES),
    )
    root: str | None = option("folder of the data sets", None, values="path")


@dataclass
class PackConfig:
    """A pack: many trials, several at a time."""

    trials: str | None = option(
        "the trials of a pack ([pack.md](pack.md)): `braces` for every combination of the braces in the command line "
        "after `--`, or a file with one command a line; set by `collocate pack`",
        None,
        values="`braces` or path",
    )
    most: int = option("largest number of trials at a time", 32, least=1, most=1000)
    number: int | None = option(
        "run exactly this many trials at a time, without comparing numbers; `null`: as many as gain", None, least=1
    )
    part: str | None = option(
        "run only every N-th trial, from the I-th one on; set by `collocate pack --gpus N`", None, values="`I/N`"
    )
    check_pct: float = option(
        "share of the time, in per cent, for turns in which one trial runs alone, for comparison; 0: no turns",
        5.0,
        least=0,
        most=50,
    )


@dataclass
class Config:
    """All settings of `python run.py`."""

    scenario: Any = MISSING
    workload: Any = MISSING
    sizes: dict[str, Any] = field(default_factory=dict)
    degree: int | None = option("copies of `workload` that run together; 2 if neither `degree` nor `mix` is set", None)
    mix: list[Any] | None = option(
        "different jobs that run together, instead of `degree`: each entry is a name from `sizes`, `workload`, a "
        "command line, or a map ([workloads.md](workloads.md#mixes))",
        None,
    )
    co_runners: Any = option(
        "co-runners: copies of `workload`, or names from `sizes` ([method.md](method.md#windows-and-baselines))",
        None,
        values="int or list",
    )
    gpu: GpuConfig = field(default_factory=GpuConfig)
    listeners: dict[str, ListenerConfig] = field(default_factory=dict)
    env: Any = MISSING
    profiler: Any = MISSING
    exporter: Any = MISSING
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    window: WindowConfig = field(default_factory=WindowConfig)
    pack: PackConfig = field(default_factory=PackConfig)
    limits: Limits = field(default_factory=Limits)
    data: DataConfig = field(default_factory=DataConfig)
    repeats: int | str = option(
        "complete blocks of the study, each with its own baselines; `auto`: blocks until the speed-ups are known "
        "([statistics.md](statistics.md#blocks-until-the-speed-ups-are-known))",
        1,
        least=1,
        most=10_000,
        values=f"int, `{AUTO_REPEATS}`",
    )
    precision_goal_pct: float = option(
        "with `repeats=auto`: half-width of the interval of each speed-up, in per cent of the speed-up",
        5.0,
        above=0,
        most=100,
    )
    repeats_max: int = option("with `repeats=auto`: most blocks; at least 5", 20, least=1, most=10_000)
    advise_minutes: float | None = option(
        "look for the best number of jobs and sharing mode for at most this many minutes: groups that can no longer be "
        "the answer are left out ([advice.md](advice.md)); set by `+experiment=advise`",
        None,
        above=0,
    )
    seed: int = option(f"seed for training and for the order; at most {MAX_SEED}", 0, least=0, most=MAX_SEED)
    order: Order = option("order of groups in a block: shuffled by the seed, or as listed", Order.random)
    baseline: Baseline = option(
        "serial baselines that you did not list; `auto`: for groups of several jobs, in a sweep also for groups of one "
        "job",
        Baseline.auto,
    )
    baseline_runs: int = option(
        "runs of each solo baseline in a block; comparisons use their mean "
        "([method.md](method.md#windows-and-baselines))",
        1,
        least=1,
        most=100,
    )
    pin_cpus: str = option(
        "`true`: give each job an equal share of the CPUs instead of all CPUs; `servers`: give an eighth of the cores, "
        "at least one, to the clients of [servers](inference.md#copies-of-a-server), and each job an equal share of "
        "the others",
        "false",
        values="`false`, `true`, `servers`",
    )
    foreign_load: ForeignLoad = option(
        "mark of rows whose jobs waited for CPUs that other programs used ([method.md](method.md#foreign-load))",
        ForeignLoad.invalid,
    )
    on_failure: OnFailure = option(
        "`stop`: start no further group after one that failed or timed out", OnFailure["continue"]
    )
    on_end: list[str] | None = option(
        "command that runs when the study has ended, without a shell, for at most 10 s: "
        "`on_end=[notify-send,SUMMARY]`; the word `SUMMARY` is replaced by one line about the study, which "
        "`$COLLOCATION_SUMMARY` has as well. Its failure is only noted",
        None,
    )
    memory: Memory = option(
        "`forecast`: skip groups whose jobs, measured alone, need more memory together than the device has "
        "([method.md](method.md#forecast-of-memory))",
        Memory.measure,
    )
    warm_start: bool = option(
        "fork jobs from a process that has imported their libraries ([warm_start.md](warm_start.md))", True
    )
    resume: str = option(
        "skip groups that have a result; `accept_environment` also accepts a result with other packages "
        "([sweeps.md](sweeps.md#resuming-an-interrupted-study))",
        "false",
        values="`false`, `true`, `accept_environment`",
    )
    only: Any = option(
        "run only these groups, with their jobs' baselines: `PLAN:3+7` as printed by the plan, or a list of names "
        "([sweeps.md](sweeps.md#some-groups-of-a-study))",
        None,
    )
    shard: int | None = option("run only this shard; the first is 1 ([scale.md](scale.md))", None)
    shard_of: ShardOf = option("size of a shard: a block, or one case of a block with its baselines", ShardOf.block)
    plan_file: str | None = option(
        "file by which workers check that they have the same plan; set by launchers ([scale.md](scale.md))",
        None,
        values="path",
    )
    wait: bool = option(
        "wait for a device in use instead of refusing to start ([sweeps.md](sweeps.md#waiting-for-a-device))", False
    )
    # A Slurm task without a limit gets 68 years, so there is no maximum.
    wait_limit_s: float = option("longest total wait; never longer than `time_limit_s`", 86400.0, above=0)
    time_limit_s: float | None = option(
        "seconds after which no group starts, including the wait for the device", None, above=0
    )
    dry_run: bool | str = option(
        "only print the plan, its duration and every command that would change a GPU; `json`: for programs "
        "([sweeps.md](sweeps.md#before-it-starts))",
        False,
        values="`true`, `false`, `json`",
    )
    reproduce: str | None = option(
        "run this run's group again with its recorded configuration ([sweeps.md](sweeps.md#reproducing-a-group))",
        None,
        values="MLflow run ID",
    )
    reproduce_strict: bool = option("refuse a reproduction that differs in anything recorded", False)


@dataclass
class SweepConfig:
    """The keys of a sweep, which `Config` lacks."""

    blocks: Any = option(
        "a union of grids, each with the same overrides as on the command line; for an experiment file "
        "([experiments.md](experiments.md#writing-an-experiment))",
        None,
        values="list",
    )


def register() -> None:
    """Register the nodes with Hydra under the names that YAML files extend; each only once, because it takes 3 ms."""
    store = ConfigStore.instance()
    if not _registered:
        store.store(name="sweep_schema", node={"blocks": None})
        store.store(name="config_schema", node=Config)
        for name, node in KINDS.items():
            store.store(group="schema", name=name, node=node)
            open_maps(store.repo["schema"][f"{name}.yaml"].node)  # in place: a copy is slow
        for name, settings in make_simulated_gpus().items():
            store.store(group="gpu", name=name, node=settings)
        _registered.append(Config)


_registered: list[type[Any]] = []
