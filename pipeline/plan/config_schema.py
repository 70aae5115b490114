"""Structured configs that mirror `conf/`: types and defaults. docs/configuration.md explains each key.

Hydra reports a wrong key, type or choice, because each YAML of `conf/` extends a node of this module by its `NODE`. A
scenario, environment, profiler or exporter needs no node: the keys of its YAML are arguments of its class.
"""

from __future__ import annotations

import dataclasses
import enum
from dataclasses import dataclass, field
from typing import Any, ClassVar

import yaml
from hydra.core.config_store import ConfigStore
from omegaconf import MISSING

from pipeline.base.domain.records import EnvTool
from pipeline.base.domain.window import WindowKind
from pipeline.base.system import locks, paths
from pipeline.base.system.paths import config_folders
from pipeline.plan.option_loader import KINDS, list_classes, open_maps
from pipeline.plan.workload_config import WorkloadConfig

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


@dataclass
class ScenarioConfig:
    """A sharing mode. `_target_` is a `pipeline.base.domain.protocols.Sharing`; other keys are its arguments."""

    NODE: ClassVar[str] = "scenario"

    name: str = MISSING
    _target_: str = MISSING
    sequential: bool = False


@dataclass
class MpsConfig(ScenarioConfig):
    """MPS. Each option is one value for all jobs, or a list with one value per job."""

    NODE: ClassVar[str] = "mps"

    pinned_mem_limit: Any = None
    priority: Any = None
    program: str | None = None


@dataclass
class MpsPercentConfig(MpsConfig):
    """MPS with an active thread percentage for each job."""

    NODE: ClassVar[str] = "mps_percent"

    active_thread_pct: Any = None


@dataclass
class MpsStaticConfig(MpsConfig):
    """MPS with a static partition for each job; `chunks` is one number for all jobs, or a list with one per job."""

    NODE: ClassVar[str] = "mps_static"

    chunks: Any = None


@dataclass
class GreenConfig(ScenarioConfig):
    """One process with a green context for each job; `multiprocessors` is the number in each of them."""

    NODE: ClassVar[str] = "green"

    multiprocessors: int | None = None


@dataclass
class TimesliceConfig(ScenarioConfig):
    """Jobs side by side, with a chosen time slice."""

    NODE: ClassVar[str] = "timeslice"

    timeslice: str = "default"
    program: str | None = None


@dataclass
class MigConfig(ScenarioConfig):
    """MIG. The first key that is set counts: `profiles`, `profile`, `size_profile` (for a mix).

    With several `instances_per_job`, `profiles` lists one profile per instance, beginning with the first job's.
    """

    NODE: ClassVar[str] = "mig"

    profile: str = "auto"
    profiles: list[str] | None = None
    size_profile: dict[str, str] = field(default_factory=dict)
    program: str | None = None
    layout: str | None = None
    instances_per_job: int | None = None


@dataclass
class MigMpsConfig(ScenarioConfig):
    """MPS inside MIG. Options of MIG are per instance, options of MPS are per job."""

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
    """The device."""

    kind: GpuKind = GpuKind.auto
    device: str = AUTO_DEVICE
    other_gpus: int = 0
    models: int = 1
    admin: list[str] | None = field(default_factory=list)
    exclusive_process: bool = False
    tolerate: list[str] = field(default_factory=list)
    lock_dir: str = str(locks.DEFAULT_FOLDER)
    idle_power_s: float = 10.0
    waiting_power_s: float = 4.0
    model: str | None = None
    driver: str | None = None
    count: int = 1
    machine: str | None = None
    job_memory_mib: int = 512


@dataclass
class EnvConfig:
    """The source of a job's interpreter. `_target_` is a `protocols.Env`; other keys are its arguments."""

    NODE: ClassVar[str] = "env"

    _target_: str = MISSING


@dataclass
class ProfilerConfig:
    """A profiler in front of each job. `_target_` is a `pipeline.base.domain.protocols.Profiler`."""

    NODE: ClassVar[str] = "profiler"

    name: str = "none"
    _target_: str = "pipeline.launch.profilers.none.NoProfiler"
    program: str | None = None
    options: list[str] = field(default_factory=list)


@dataclass
class ExporterConfig:
    """An exporter of the running group. `_target_` is a `pipeline.base.domain.protocols.Exporter`."""

    NODE: ClassVar[str] = "exporter"

    name: str = "none"
    _target_: str = "pipeline.observe.exporters.none.NoExporter"


@dataclass
class PrometheusConfig(ExporterConfig):
    """An HTTP endpoint that Prometheus scrapes."""

    NODE: ClassVar[str] = "prometheus"

    port: int = 9411
    address: str = "127.0.0.1"


@dataclass
class VenvConfig(EnvConfig):
    """A virtual environment made by uv."""

    NODE: ClassVar[str] = "venv"

    file: str | None = None
    python: str | None = None
    cache_root: str | None = None


@dataclass
class CondaConfig(EnvConfig):
    """A conda environment, cached like a virtual one."""

    NODE: ClassVar[str] = "conda"

    file: str | None = None
    tool: EnvTool = EnvTool.rattler
    cache_root: str | None = None


@dataclass
class ExistingConfig(EnvConfig):
    """An existing environment or interpreter."""

    NODE: ClassVar[str] = "existing"

    prefix: str | None = None


@dataclass
class ContainerConfig(EnvConfig):
    """An image file, and the program that starts jobs in it."""

    NODE: ClassVar[str] = "container"

    image: str | None = None
    command: list[str] = MISSING
    bind: list[str] = MISSING
    python: str = "python3"


@dataclass
class TrackingConfig:
    """The store of the results."""

    uri: str | None = MISSING
    root: str = str(paths.DEFAULT_ROOT)
    experiment: str = paths.DEFAULT_EXPERIMENT
    series_points: int = 500


@dataclass
class WindowConfig:
    """The window in which throughput is measured."""

    kind: WindowKind = MISSING
    seconds: float = 20.0
    most_s: float | None = None
    settle_s: float = 2.0
    epochs: int = 5
    slice_s: float | None = None
    slice_settle_s: float = 0.1


@dataclass
class ListenerConfig:
    """One listener. `_target_` is a `pipeline.base.domain.protocols.Listener`; `required` is true, false or if_gpu."""

    _target_: str = MISSING
    interval_ms: int = 1000
    required: str = "true"
    options: dict[str, Any] = field(default_factory=dict)


@dataclass
class LimitsConfig:
    """Deadlines of one group, in seconds."""

    ready_s: float = 600.0
    group_s: float = 86400.0
    stop_s: float = 300.0


@dataclass
class DataConfig:
    """The source of training data, for every workload of the study."""

    source: str = "disk"
    root: str | None = None


@dataclass
class Config:
    """All settings of `python run.py`."""

    scenario: Any = MISSING
    workload: Any = MISSING
    sizes: dict[str, Any] = field(default_factory=dict)
    degree: int | None = None
    mix: list[Any] | None = None
    co_runners: Any = None
    gpu: GpuConfig = field(default_factory=GpuConfig)
    listeners: dict[str, ListenerConfig] = field(default_factory=dict)
    env: Any = MISSING
    profiler: Any = MISSING
    exporter: Any = MISSING
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    window: WindowConfig = field(default_factory=WindowConfig)
    limits: LimitsConfig = field(default_factory=LimitsConfig)
    data: DataConfig = field(default_factory=DataConfig)
    baseline: Baseline = Baseline.auto
    baseline_runs: int = 1
    order: Order = Order.random
    repeats: int | str = field(default=1, metadata={"words": (AUTO_REPEATS,)})
    precision_goal_pct: float = 5.0
    repeats_max: int = 20
    only: list[str] | None = None
    seed: int = 0
    pin_cpus: bool = False
    foreign_load: ForeignLoad = ForeignLoad.invalid
    memory: Memory = Memory.measure
    on_failure: OnFailure = OnFailure["continue"]
    on_end: list[str] | None = None
    warm_start: bool = True
    resume: str = "false"
    shard: int | None = None
    shard_of: ShardOf = ShardOf.block
    plan_file: str | None = None
    dry_run: bool | str = False
    time_limit_s: float | None = None
    wait: bool = False
    wait_limit_s: float = 86400.0
    reproduce: str | None = None
    reproduce_strict: bool = False


OF_A_SWEEP: dict[str, Any] = {"blocks": None}
"""Keys of a sweep, which `Config` lacks: `blocks`, a union of grids of overrides as on the command line."""

BASES: dict[str, type[Any]] = {
    "scenario": ScenarioConfig,
    "env": EnvConfig,
    "profiler": ProfilerConfig,
    "exporter": ExporterConfig,
}
"""Base node of each configuration group."""


def register() -> None:
    """Register the nodes with Hydra under the names that YAML files extend; each only once, because it takes 3 ms."""
    store = ConfigStore.instance()
    if Config not in _registered:
        store.store(name="sweep_schema", node=OF_A_SWEEP)
        store.store(name="config_schema", node=Config)
    nodes: list[Any] = [*KINDS.values(), *(node for base in BASES.values() for node in list_kinds(base))]
    for node in nodes:
        if node not in _registered:
            store.store(group="schema", name=node.NODE, node=node)
            open_maps(store.repo["schema"][f"{node.NODE}.yaml"].node)  # in place: a copy is slow
    _registered.update((Config, *nodes))


_registered = set[type[Any]]()


def list_keys(group: str, choice: str) -> set[str]:
    """Return the keys of a choice: those in its file and in the nodes it extends; none for an unknown choice."""
    files = [folder / group / f"{choice}.yaml" for folder in config_folders()]
    if (file := next((file for file in files if file.is_file()), None)) is None:
        return set()
    values = yaml.safe_load(file.read_text(encoding="utf-8")) or {}
    keys = set(values) - {"defaults"}
    for default in values.get("defaults", ()):
        extended = str(default).partition("@")[0]
        name = extended.removeprefix("/schema/")
        if name == extended:
            keys |= list_keys(group, extended)
        else:
            nodes = {node.NODE: node for base in BASES.values() for node in list_kinds(base)} | list_classes()
            keys |= {option.name for option in dataclasses.fields(nodes[name])} if name in nodes else set()
    return keys


def list_kinds(base: type[Any]) -> list[type[Any]]:
    """Return a node and its subclasses; for workloads, all classes named in configuration files."""
    if base is WorkloadConfig:
        return list(list_classes().values())
    return [base, *(kind for child in base.__subclasses__() for kind in list_kinds(child))]
