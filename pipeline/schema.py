"""Structured configs that mirror `conf/`: types, defaults and what each key means. Nothing else.

These dataclasses end at `plan.build`: no other module takes one. Hydra reports a wrong key, type or choice itself,
because every YAML of `conf/` extends its node here.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING

from pipeline.types import EnvTool, WindowKind


class Baseline(enum.Enum):
    """When serial baselines are added that nobody asked for: in a sweep (`auto`), always, or never."""

    auto = 0
    always = 1
    never = 2


class Order(enum.Enum):
    """Order of the groups within a block: shuffled by the seed, or as listed."""

    random = 0
    listed = 1


class GpuKind(enum.Enum):
    """`auto` takes an NVIDIA GPU if NVML answers, else the CPUs; `simulated` needs no hardware."""

    auto = 0
    nvidia = 1
    cpu = 2
    simulated = 3


class DataSource(enum.Enum):
    """`disk` reads the real data set; the synthetic ones make data of the same shape in the loader or on the device."""

    disk = 0
    synthetic_host = 1
    synthetic_device = 2


class Dataset(enum.Enum):
    """The data sets that `train_timm` knows."""

    digits = 0
    cifar10 = 1
    imagenet64 = 2
    imagenet = 3


class StepMode(enum.Enum):
    """How a training step is issued: operator by operator, compiled, or replayed as one CUDA graph."""

    eager = 0
    compile = 1
    cuda_graph = 2


class Precision(enum.Enum):
    """Arithmetic of the step: fp32 without TF32, fp32 with TF32, or autocast to bf16 or fp16."""

    fp32 = 0
    tf32 = 1
    bf16 = 2
    fp16 = 3


class Autotune(enum.Enum):
    """When cuDNN tries its algorithms: one job after another, while the other jobs do, or not at all."""

    in_turn = 0
    together = 1
    off = 2


@dataclass
class WorkloadConfig:
    """A program. Keys that a subclass adds become its command-line flags (`batch_size` -> `--batch-size`).

    A program that can be told to stop also gets `--seed`, `--device` and `--epochs` (0: until told to stop).

    Attributes:
        script: path of the script, from the working directory or from the project's own folder.
        args: further arguments, verbatim.
        runner: script of ours that starts the program and speaks the job protocol for it; `null` if it does itself.
        ends_by_itself: the program cannot be told to stop, so its group takes the `work` window.
        environ: further environment variables.
        preload: module that imports what the program imports, for a warm start; `null` starts each job from nothing.
        env_file: the file of this program's environment, instead of `env.file`.
    """

    name: str = MISSING
    script: str = MISSING
    args: list[str] = field(default_factory=list)
    runner: str | None = None
    ends_by_itself: bool = False
    environ: dict[str, str] = field(default_factory=dict)
    preload: str | None = None
    env_file: str | None = None


@dataclass
class TrainTimmConfig(WorkloadConfig):
    """Image classification with a model of timm (`workloads/train_timm.py`).

    Attributes:
        data_root: folder that holds the data sets; needed for `source: disk`, except for the digits.
        cache_root: where converted data sets go; the data set's own folder if not given.
        samples: training samples an epoch for synthetic data; the real data set's number if not given.
        loader_workers: data loader processes of each job.
        threads: CPU threads of each job's framework; the framework's own choice if not given.
        autotune: when cuDNN tries its algorithms. Under MPS, timings taken while others compute mislead it, and the
            jobs train at a third of their speed (docs/method.md).
        canary: check before the run that the job's products and convolutions come out right (docs/method.md).
        validate: measure the accuracy (after each epoch in a `work` window, once at the end of a `steady` one).
    """

    script: str = "workloads/train_timm.py"
    preload: str | None = "workloads.timm_imports"
    model: str = MISSING
    model_args: dict[str, Any] = field(default_factory=dict)
    dataset: Dataset = MISSING
    source: DataSource = DataSource.disk
    data_root: str | None = None
    cache_root: str | None = None
    image_px: int = MISSING
    num_classes: int = MISSING
    samples: int | None = None
    batch_size: int = MISSING
    learning_rate: float = 0.1
    step_mode: StepMode = StepMode.eager
    precision: Precision = Precision.fp32
    channels_last: bool = True
    loader_workers: int = 2
    threads: int | None = None
    autotune: Autotune = Autotune.in_turn
    warmup_steps: int = 10
    canary: bool = True
    validate: bool = False


@dataclass
class ScriptConfig(WorkloadConfig):
    """Any training script, unchanged. `script` is the user's; it is measured from its start to its exit."""

    name: str = "script"
    runner: str | None = "workloads/script.py"
    ends_by_itself: bool = True


@dataclass
class ScenarioConfig:
    """How the GPU is shared. `_target_` is a `pipeline.protocols.Sharing`; further keys are its arguments."""

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

    pinned_mem_limit: Any = None
    priority: Any = None
    program: str | None = None


@dataclass
class MpsPercentConfig(MpsConfig):
    """MPS with a cap on the multiprocessors of each job.

    Attributes:
        active_thread_pct: the cap in per cent; one number, or a list by position; equal shares if not given.
    """

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

    profile: str = "auto"
    profiles: list[str] | None = None
    size_profile: dict[str, str] = field(default_factory=dict)
    program: str | None = None


@dataclass
class MigMpsConfig(ScenarioConfig):
    """MPS inside MIG. The options of MPS are one value for all jobs, or a list by position of the job.

    Attributes:
        profiles: one an instance; decides if it is given.
        profile: one for all instances, by slices (`3g`) or in full, or `auto`: the largest that fits so often.
        num_instances: how many, if `profiles` is not given; never more than there are jobs.
        instance_of: position of the instance of each job; dealt in turn if not given.
        active_thread_pct: cap in per cent of the instance's multiprocessors; no cap if not given.
        pinned_mem_limit: device memory that a job may allocate, such as `10G`; no limit if not given.
        priority: 0 (normal) or 1 (below normal).
        mps_program: path of nvidia-cuda-mps-control; looked for on PATH if not given.
        program: path of nvidia-smi; looked for on PATH if not given.
    """

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
    """Where a job's interpreter comes from. `_target_` is a `pipeline.protocols.Env`, further keys its arguments.

    A kind needs no node of its own: without one, the keys of its YAML are taken as they are.
    """

    _target_: str = MISSING


@dataclass
class ProfilerConfig:
    """What is put before the command of each job. `_target_` is a `pipeline.protocols.Profiler`.

    Attributes:
        program: path of the profiler; looked for on PATH and where it is installed if not given.
        options: further arguments of the profiler, verbatim.
    """

    name: str = "none"
    _target_: str = "pipeline.profiler_none.NoProfiler"
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

    file: str | None = None
    python: str | None = None
    cache_root: str | None = None


@dataclass
class CondaConfig(EnvConfig):
    """A conda environment.

    Attributes:
        file: environment.yml, or an explicit lock, such as the project records.
        tool: what solves and installs; `rattler` needs no conda.
        cache_root: folder of the environments; one in the user's cache folder if not given.
    """

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
    """One listener. `_target_` is a `pipeline.protocols.Listener`; `required` is true, false or if_gpu."""

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

    scenario: ScenarioConfig = MISSING
    workload: Any = MISSING
    sizes: dict[str, Any] = field(default_factory=dict)
    degree: int = 2
    mix: list[str] | None = None
    gpu: GpuConfig = field(default_factory=GpuConfig)
    listeners: dict[str, ListenerConfig] = field(default_factory=dict)
    env: Any = MISSING
    profiler: ProfilerConfig = field(default_factory=ProfilerConfig)
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
    for name, node in (
        ("scenario", ScenarioConfig),
        ("mps", MpsConfig),
        ("mps_percent", MpsPercentConfig),
        ("mig", MigConfig),
        ("mig_mps", MigMpsConfig),
        ("workload", WorkloadConfig),
        ("train_timm", TrainTimmConfig),
        ("script", ScriptConfig),
        ("venv", VenvConfig),
        ("conda", CondaConfig),
    ):
        store.store(group="schema", name=name, node=node)
