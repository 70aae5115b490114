"""Structured configs that mirror `conf/`: types, defaults and what each key means. Nothing else.

Hydra reports a wrong key, type or choice itself, because a YAML of `conf/` extends its node here, by the node's `NODE`.
A scenario, environment or profiler may do without one: the keys of its YAML are then the arguments of its class.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any, ClassVar

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING

from pipeline.base.records import EnvTool, WindowKind
from pipeline.plan.workloads import DataSource, WorkloadConfig

Baseline = enum.Enum("Baseline", "auto always never", start=0)
"""When serial baselines are added that nobody asked for: in a sweep (`auto`), always, or never."""

Order = enum.Enum("Order", "random listed", start=0)
"""Order of the groups within a block: shuffled by the seed, or as listed."""

GpuKind = enum.Enum("GpuKind", "auto nvidia cpu simulated", start=0)
"""`auto` takes an NVIDIA GPU if NVML answers, else the CPUs; `simulated` needs no hardware."""


@dataclass
class ScenarioConfig:
    """How the GPU is shared. `_target_` is a `pipeline.base.protocols.Sharing`; further keys are its arguments."""

    NODE: ClassVar[str] = "scenario"

    name: str = MISSING
    _target_: str = MISSING
    sequential: bool = False


@dataclass
class MpsConfig(ScenarioConfig):
    """MPS. Each option is one value for all jobs, or a list by position of the job.

    Attributes:
        pinned_mem_limit: device memory that a job may allocate, such as `10G`; no limit if not given.
        priority: 0 (normal) or 1 (below normal).
        program: path of nvidia-cuda-mps-control; looked for on PATH if not given.
    """

    NODE: ClassVar[str] = "mps"

    pinned_mem_limit: Any = None
    priority: Any = None
    program: str | None = None


@dataclass
class MpsPercentConfig(MpsConfig):
    """MPS with a cap on the multiprocessors of each job.

    Attributes:
        active_thread_pct: the cap in per cent; one number, or a list by position; equal shares if not given.
    """

    NODE: ClassVar[str] = "mps_percent"

    active_thread_pct: Any = None


@dataclass
class MigConfig(ScenarioConfig):
    """MIG. `profiles` decides if given, then `profile`, then `size_profile` for a mix.

    Attributes:
        profile: one for all jobs, by slices (`2g`) or in full (`2g.10gb`), or `auto`.
        profiles: one a job, by position.
        size_profile: by mix letter.
        program: path of nvidia-smi; looked for on PATH if not given.
    """

    NODE: ClassVar[str] = "mig"

    profile: str = "auto"
    profiles: list[str] | None = None
    size_profile: dict[str, str] = field(default_factory=dict)
    program: str | None = None


@dataclass
class MigMpsConfig(ScenarioConfig):
    """MPS inside MIG. Options of the same name are those of MIG, of an instance, and those of MPS, of a job.

    Attributes:
        profile: `auto` is the largest of which that many fit.
        num_instances: how many, if `profiles` is not given; never more than there are jobs.
        instance_of: position of the instance of each job; dealt in turn if not given.
        active_thread_pct: of the instance's multiprocessors; no cap if not given.
        mps_program: path of nvidia-cuda-mps-control; looked for on PATH if not given.
    """

    NODE: ClassVar[str] = "mig_mps"

    profiles: list[str] | None = None
    profile: str = "auto"
    num_instances: int = 2
    instance_of: list[int] | None = None
    active_thread_pct: Any = None
    pinned_mem_limit: Any = None
    priority: Any = None
    mps_program: str | None = None
    program: str | None = None


@dataclass
class GpuConfig:
    """Which device.

    Attributes:
        device: index or UUID of the GPU.
        admin: prefix of the commands that change the GPU's settings; `null` forbids them.
        exclusive_process: let only the MPS server compute on the GPU, for the time of a group under MPS.
        tolerate: names of programs of others that may stay on the GPU (a desktop's Xorg, say).
        lock_dir: where the lock of each device lies, and the journal of what must be undone on it; the same for every
            user of the machine, who all may write there. Not /tmp, which a restart empties: an Ampere GPU keeps MIG
            mode over it, and nobody would know any more that it is to be switched off.
        model: the simulated GPU, as `a100_40gb`; only for `kind: simulated`.
        count: how many GPUs of its model a simulated machine has.
        machine: file of a simulated machine to keep: made if it is not there, used again as it is by the next start.
            `null`: a machine of the study's own.
        job_memory_mib: what each job holds on a simulated GPU, in MiB.
    """

    kind: GpuKind = GpuKind.auto
    device: str = "0"
    admin: list[str] | None = field(default_factory=list)
    exclusive_process: bool = False
    tolerate: list[str] = field(default_factory=list)
    lock_dir: str = "/var/tmp"  # noqa: S108  one place for all users, whatever TMPDIR says
    model: str | None = None
    count: int = 1
    machine: str | None = None
    job_memory_mib: int = 512


@dataclass
class EnvConfig:
    """Where a job's interpreter comes from. `_target_` is a `protocols.Env`, further keys its arguments."""

    NODE: ClassVar[str] = "env"

    _target_: str = MISSING


@dataclass
class ProfilerConfig:
    """What is put before the command of each job. `_target_` is a `pipeline.base.protocols.Profiler`.

    Attributes:
        program: path of the profiler; looked for on PATH and where it is installed if not given.
        options: further arguments of the profiler, verbatim.
    """

    NODE: ClassVar[str] = "profiler"

    name: str = "none"
    _target_: str = "pipeline.launch.profilers.none.NoProfiler"
    program: str | None = None
    options: list[str] = field(default_factory=list)


@dataclass
class VenvConfig(EnvConfig):
    """A virtual environment made by uv.

    Attributes:
        file: requirements.txt, pyproject.toml, uv.lock, pylock.toml, or a lock that the project recorded.
        python: version (`3.12`) or path of its interpreter; if not given, the lock's or the orchestrator's own version.
        cache_root: folder of the environments; one in the user's cache folder if not given.
    """

    NODE: ClassVar[str] = "venv"

    file: str | None = None
    python: str | None = None
    cache_root: str | None = None


@dataclass
class CondaConfig(EnvConfig):
    """A conda environment, cached like a virtual one.

    Attributes:
        file: environment.yml, or an explicit lock, such as the project records.
        tool: what solves and installs; `rattler` needs no conda.
    """

    NODE: ClassVar[str] = "conda"

    file: str | None = None
    tool: EnvTool = EnvTool.rattler
    cache_root: str | None = None


@dataclass
class TrackingConfig:
    """Where results go.

    Attributes:
        uri: tracking server, or `null` for the sqlite store in `root`.
        root: folder of the store, its artifacts and the spool.
        experiment: MLflow experiment.
        series_points: samples a series that MLflow's charts get; every sample is in `samples.parquet`.
    """

    uri: str | None = MISSING
    root: str = "mlruns"
    experiment: str = "collocation"
    series_points: int = 500


@dataclass
class WindowConfig:
    """When throughput is measured.

    Attributes:
        seconds: length of the steady window.
        settle_s: time between the start of all jobs and the steady window.
        epochs: what each job does in a `work` window.
    """

    kind: WindowKind = MISSING
    seconds: float = 20.0
    settle_s: float = 2.0
    epochs: int = 5


@dataclass
class ListenerConfig:
    """One listener. `_target_` is a `pipeline.base.protocols.Listener`; `required` is true, false or if_gpu."""

    _target_: str = MISSING
    interval_ms: int = 1000
    required: str = "true"
    options: dict[str, Any] = field(default_factory=dict)


@dataclass
class LimitsConfig:
    """Deadlines of one group, in seconds.

    Attributes:
        ready_s: from the start of the processes until all jobs are ready.
        group_s: from the start of the work until its end, in a `work` window.
        stop_s: that a job has to end after it was told to (a final validation included), before it is ended.
    """

    ready_s: float = 600.0
    group_s: float = 86400.0
    stop_s: float = 300.0


@dataclass
class DataConfig:
    """Shorthand for every workload of the study: where training data comes from."""

    source: DataSource = DataSource.disk
    root: str | None = None


@dataclass
class Config:
    """Everything that `python run.py` takes.

    Attributes:
        scenario, env, profiler: a `ScenarioConfig`, `EnvConfig`, `ProfilerConfig`, or of a YAML that extends no node.
        workload: a `WorkloadConfig`.
        degree: how many copies of `workload` run together.
        mix: instead of `degree`: names from `sizes`, one job each.
        repeats: complete blocks of the study, each with its own baseline.
        resume: leave out the groups that the store already holds a result of.
        time_limit_s: no group starts after this many seconds.
        warm_start: fork jobs from a process that has already imported their libraries (docs/warm_start.md).
        pin_cpus: give each job an equal share of the CPUs instead of all of them.
        reproduce: MLflow run, of a group or a job, whose group is run again as it was (docs/sweeps.md).
        reproduce_strict: refuse a reproduction that differs from the original in anything that is recorded.
    """

    scenario: Any = MISSING
    workload: Any = MISSING
    sizes: dict[str, Any] = field(default_factory=dict)
    degree: int = 2
    mix: list[str] | None = None
    gpu: GpuConfig = field(default_factory=GpuConfig)
    listeners: dict[str, ListenerConfig] = field(default_factory=dict)
    env: Any = MISSING
    profiler: Any = MISSING
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    window: WindowConfig = field(default_factory=WindowConfig)
    limits: LimitsConfig = field(default_factory=LimitsConfig)
    data: DataConfig = field(default_factory=DataConfig)
    baseline: Baseline = Baseline.auto
    order: Order = Order.random
    repeats: int = 1
    seed: int = 0
    pin_cpus: bool = False
    warm_start: bool = True
    resume: bool = False
    dry_run: bool = False
    time_limit_s: float | None = None
    reproduce: str | None = None
    reproduce_strict: bool = False


def register() -> None:
    """Make the nodes known to Hydra, under the names that the YAML files extend."""
    store = ConfigStore.instance()
    store.store(name="config_schema", node=Config)
    for base in (ScenarioConfig, WorkloadConfig, EnvConfig, ProfilerConfig):
        for node in kinds(base):
            store.store(group="schema", name=node.NODE, node=node)


def kinds(base: type[Any]) -> list[type[Any]]:
    """The node and all that extend it."""
    return [base, *(kind for child in base.__subclasses__() for kind in kinds(child))]
