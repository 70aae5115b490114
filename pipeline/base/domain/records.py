"""The records passed through the pipeline. They are data without actions; no slow modules are imported.

Clocks: every `*_ns` is CLOCK_MONOTONIC in nanoseconds (one clock for all processes of a machine) unless its name
contains `wall`; wall-clock times are labels, never subtracted from each other.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path

from pipeline.base.domain.precision_goal import PrecisionGoal
from pipeline.base.domain.sharing_modes import is_program
from pipeline.base.domain.window import Window
from pipeline.base.domain.workload import Container, Workload
from pipeline.base.system.factory import Spec
from pipeline.base.system.option_fields import MAX_S, option

_NO_PROFILER = Spec(target="pipeline.launch.profilers.none.NoProfiler")


class Result(enum.StrEnum):
    """The outcome of a group or a job. Every planned group has exactly one."""

    OK = "ok"
    OOM = "oom"
    FAILED = "failed"
    TIMEOUT = "timeout"
    WRONG_RESULTS = "wrong_results"
    SKIPPED = "skipped"
    INTERRUPTED = "interrupted"

    @property
    def is_finding(self) -> bool:
        """True for an outcome that counts as measured; `resume` does not run the group again.

        A skipped group runs again as soon as the plan allows it.
        """
        return self in (Result.OK, Result.OOM, Result.WRONG_RESULTS, Result.SKIPPED)

    @property
    def mlflow_status(self) -> str:
        """The status of the MLflow run; a skipped group did not fail, because no job ran."""
        if self is Result.INTERRUPTED:
            return "KILLED"
        return "FINISHED" if self in (Result.OK, Result.SKIPPED) else "FAILED"


class Required(enum.StrEnum):
    """The condition under which a listener that cannot start is an error."""

    YES = "true"
    NO = "false"
    IF_GPU = "if_gpu"


class CpuPinning(enum.StrEnum):
    """The CPUs of each job: all, an equal share, or an equal share of those that the clients of servers do not get."""

    NONE = "false"
    JOBS = "true"
    SERVERS = "servers"

    def __bool__(self) -> bool:
        return self is not CpuPinning.NONE


class Resume(enum.StrEnum):
    """The stored results that a study reuses: none, all, or also results with other packages."""

    NO = "false"
    YES = "true"
    ACCEPT_ENVIRONMENT = "accept_environment"


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerSpec:
    """One configured listener."""

    name: str
    build: Spec
    interval_ms: int
    required: Required


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfilerSpec:
    """The profiler that is started before each job; none by default."""

    name: str = "none"
    build: Spec = _NO_PROFILER

    @property
    def is_none(self) -> bool:
        return self.name == "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Commands:
    """The commands that change settings of the device, each as a list of words, in execution order.

    A value known only during execution, such as the id of an instance, is a word in angle brackets.
    """

    do: tuple[tuple[str, ...], ...] = ()
    undo: tuple[tuple[str, ...], ...] = ()

    def around(self, inner: Commands) -> Commands:
        return Commands(do=self.do + inner.do, undo=inner.undo + self.undo)


@dataclass(unsafe_hash=True, kw_only=True)
class Limits:
    """Deadlines of one group, in seconds; not frozen, because OmegaConf makes frozen classes read-only."""

    ready_s: float = option("time from starting processes until all jobs are ready", 600.0, above=0, most=MAX_S)
    group_s: float = option("time from start to end of the work, in a `work` window", 86400.0, above=0, most=MAX_S)
    stop_s: float = option(
        "time in which a job must end after `stop`, including its final validation", 300.0, above=0, most=MAX_S
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One job of a group: a process, or a tenant of a process that hosts several jobs (`Slot.host`).

    Attributes:
        size: name of the job's size in a mix, if any.
        is_co_runner: whether the job is a co-runner, which starts before the measured jobs and stops after them.
        arrivals: number of the arrival sequence of a service; the same workload alone has sequence 0.
    """

    index: int
    workload: Workload
    size: str | None = None
    is_co_runner: bool = False
    arrivals: int = 0

    @property
    def name(self) -> str:
        """Name of the job, unique within the group."""
        size = "" if self.size in (None, self.workload.name) else f"{self.size}-"
        return f"{self.index}-{size}{self.workload.name}"


_FIRST_WITH_GPM = (9, 0)  # Source: DCGM API reference, Profiling: Hopper and newer read GPM


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFacts:
    """Facts that a driver reports about a GPU and its settings; `None` for what it does not report."""

    cuda_version: str | None = None
    pci_bus_id: str | None = None
    compute_capability: tuple[int, int] | None = None
    multiprocessors: int | None = None
    persistence_mode: str | None = None
    compute_mode: str | None = None
    mig_mode_current: str | None = None
    mig_mode_pending: str | None = None
    driver_version: str | None = None
    power_limit_w: str | None = None
    ecc_mode: str | None = None
    graphics_clock_setting_mhz: str | None = None
    memory_clock_setting_mhz: str | None = None

    @property
    def driver_branch(self) -> int | None:
        """The branch of the driver, such as 580."""
        return None if self.driver_version is None else int(self.driver_version.partition(".")[0])

    def as_texts(self) -> dict[str, str]:
        """Return the known facts by name, as stored and compared."""
        facts = ((fact.name, getattr(self, fact.name)) for fact in fields(self))
        return {
            name: ".".join(map(str, value)) if isinstance(value, tuple) else str(value)
            for name, value in facts
            if value is not None
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A device for jobs: an NVIDIA GPU or MIG device, real or simulated, or the CPUs of this machine.

    Attributes:
        kind: `nvidia`, `simulated` or `cpu`.
        uuid: UUID of the GPU or of the MIG device (`MIG-...`), or `CPU-<host name>`.
        index: index of the GPU.
        memory_mib: memory of the device; `None` for the CPU.
        facts: facts that the driver reports; none if the device was not read.
        programs: absolute paths, by name, of the only programs that may run for a simulated GPU.
        parent: UUID of the GPU of a MIG device; `gi_id` and `ci_id` are the ids of its GPU and compute instance.
    """

    kind: str
    uuid: str
    name: str
    index: int | None = None
    memory_mib: int | None = None
    mig_enabled: bool = False
    facts: DeviceFacts = DeviceFacts()
    programs: tuple[tuple[str, str], ...] = ()
    parent: str | None = None
    gi_id: int | None = None
    ci_id: int | None = None

    @property
    def gpu_uuid(self) -> str:
        """The UUID of the physical GPU, for sensors and administrators."""
        return self.parent or self.uuid

    @property
    def is_gpu(self) -> bool:
        return self.kind != "cpu"

    @property
    def is_simulated(self) -> bool:
        return self.kind == "simulated"

    @property
    def has_gpm(self) -> bool | None:
        """True if the GPU's generation has the GPM counters of NVML; `None` if the generation is unknown."""
        capability = self.facts.compute_capability
        return None if capability is None else capability >= _FIRST_WITH_GPM

    @property
    def was_read(self) -> bool:
        """True if the driver has reported facts; otherwise the capabilities are unknown."""
        return self.facts != DeviceFacts()


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSettings:
    """The user's permissions and settings for the device (docs/configuration.md).

    `exclusive_process` is never set for a group whose jobs run one after another.

    Attributes:
        idle_power_s, waiting_power_s: length of the measurement of idle power without jobs, and while jobs wait.
        num_other_gpus: number of other GPUs of the host that the study uses at the same time.
    """

    admin: tuple[str, ...] | None
    lock_dir: Path
    tolerate: tuple[str, ...]
    exclusive_process: bool
    job_memory_mib: int
    num_other_gpus: int = 0
    idle_power_s: float = 0.0
    waiting_power_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HostProgram:
    """A program that runs several jobs in one process (`workloads/tenants.py`).

    Attributes:
        script: absolute path of the program.
        options: settings of the sharing mode for the program, as JSON values.
    """

    script: str
    options: tuple[tuple[str, object], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """The slot of one job: the devices that the job can use, and the instance that listeners sample for it.

    Attributes:
        visible_devices: value of CUDA_VISIBLE_DEVICES, as UUIDs separated by commas; empty on the CPU.
        environ: further variables for the job.
        gi_id, ci_id: GPU instance and compute instance of a MIG device; `None` without MIG or with several devices.
        facts: further facts of this placement, for the record.
        host: program that runs the jobs of all slots with this program in one process; `None`: the job is a process.
    """

    visible_devices: str
    environ: tuple[tuple[str, str], ...] = ()
    gpu_uuid: str | None = None
    gi_id: int | None = None
    ci_id: int | None = None
    facts: tuple[tuple[str, str], ...] = ()
    host: HostProgram | None = None

    @classmethod
    def from_device(cls, device: Device) -> Slot:
        """Return the slot of an undivided GPU or a MIG device."""
        return cls(visible_devices=device.uuid, gpu_uuid=device.gpu_uuid, gi_id=device.gi_id, ci_id=device.ci_id)

    @property
    def device_uuids(self) -> tuple[str, ...]:
        """The UUIDs of the job's devices."""
        return tuple(filter(None, self.visible_devices.split(",")))

    @property
    def placement(self) -> dict[str, str]:
        """The placement of the job, as stored and reported; without missing values."""
        facts = {"device": self.visible_devices, "gi_id": self.gi_id, "ci_id": self.ci_id} | dict(self.facts)
        return {key: str(value) for key, value in facts.items() if value not in (None, "")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpreter:
    """The Python interpreter of a job and its exact packages.

    Attributes:
        python: path of the interpreter; in a container, its name or path there.
        container: the container in which it runs, if any.
        environ: further variables for the job.
        lock: lines of a text from which the same environment can be rebuilt (docs/environments.md).
        lock_digest: digest of the packages, regardless of their source; provisional while `to_build` is set.
        to_build: description of the environment that must be built before a job can run; `None` if it is ready.
        requested: packages that the environment's file requests; after the build, the lock has the packages.
        why_not_built: reason why the environment could not be built, if this is an outcome of the study, not an error.
    """

    python: Path
    container: Container | None = None
    environ: tuple[tuple[str, str], ...] = ()
    lock: tuple[str, ...] = ()
    lock_digest: str = ""
    to_build: str | None = None
    requested: tuple[str, ...] = ()
    why_not_built: str | None = None


DEVICE = "device"
"""The setting with the GPU model on which a group runs."""
OTHER_GPUS = "other GPUs"
"""The setting with the number of other busy GPUs of the host; empty if there are none."""
CO_RUNNERS = "co-runners"
"""The setting with the co-runners; empty if there are none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackSettings:
    """The settings of a group whose jobs are trials.

    Attributes:
        most: largest number of trials at a time.
        check_share: share of the time in which one trial runs alone, for comparison.
        first: number of trials with which it begins.
        is_fixed: whether this number stays, without comparing it with others.
        part: `1/2` for the first of two parts, each of which runs on a GPU of its own; empty for all trials.
    """

    most: int
    check_share: float
    first: int = 1
    is_fixed: bool = False
    part: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Jobs that run together once, co-runners last. The unit of execution, of an MLflow parent run and of `resume`.

    Attributes:
        number: position in the plan, from 1.
        block: number of the block, from 1; each block has every group of the study once, and solo baselines once or
            several times (`baseline_runs`).
        run: number of the run in its block, from 1.
        shard: number of the group's shard, from 1.
        launch: digest that the groups of one launch share; empty if the group has a launch to itself.
        case: number of the case, from 1 and equal in every block, if a shard is one case of a block; else 0.
        sequential: whether the jobs run one after another (the serial baseline of a mix).
        key: digest of workloads, sharing mode, options and settings, which is equal for this group in every block.
        digest: digest of the key, the block and the run.
        any_gpu_digest: `digest` without the GPU model.
        program_digest: `digest` without the packages.
        skip_reason: reason why this group is recorded as `skipped` instead of run.
        config_text: function that returns the composed configuration as YAML, for the record.
        settings_digest: digest of the settings and the packages.
        is_load_noted: whether a row whose jobs waited for CPUs in use by other programs stays valid and gets a note.
        layout: result of `Sharing.check` at planning, which only the sharing mode reads; `None` if it plans nothing.
        short_name: the name without what is equal in all groups of the study; `display_name` falls back to the name.
        selector: the value of `only` that selects this group, equal in every block: `PLAN:NUMBER`.
        pack: settings of a pack, whose jobs are trials that come and go; `None` for jobs that start together.
    """

    number: int
    name: str
    experiment: str
    scenario: str
    sharing: Spec
    jobs: tuple[Job, ...]
    window: Window
    limits: Limits
    block: int
    run: int = 1
    seed: int
    sequential: bool
    device: Device
    listeners: tuple[ListenerSpec, ...]
    pin_cpus: CpuPinning
    digest: str
    gpu: GpuSettings
    config_text: Callable[[], str] = field(compare=False)
    skip_reason: str | None = None
    profiler: ProfilerSpec = ProfilerSpec()
    settings_digest: str = ""
    is_load_noted: bool = False
    key: str = ""
    any_gpu_digest: str = ""
    program_digest: str = ""
    shard: int = 0
    case: int = 0
    launch: str = ""
    layout: object = field(default=None, compare=False)
    short_name: str = ""
    selector: str = ""
    pack: PackSettings | None = None

    @property
    def most_at_once(self) -> int:
        """The largest number of jobs that run at the same time."""
        number = 1 if self.sequential else len(self.jobs)
        return number if self.pack is None else min(number, self.pack.most)

    @property
    def display_name(self) -> str:
        """The name on the terminal and in plans."""
        return self.short_name or self.name

    @property
    def group_number(self) -> str:
        """The number of the group in its study, equal in every block; empty for a group outside a plan."""
        return self.selector.partition(":")[2]

    @property
    def job_names(self) -> str:
        """Names of the jobs: by their sizes in a mix, else by their workloads, as in `tiny+tiny`."""
        return "+".join(job.size or job.workload.name for job in self.measured)

    @property
    def degree(self) -> int:
        """The number of jobs without co-runners, as in the key, the param and the column of a report."""
        return len(self.measured)

    @property
    def shared_settings(self) -> dict[str, str]:
        """The settings that the group's baseline, which has no co-runners, must share."""
        return {key: value for key, value in self.settings.items() if key != CO_RUNNERS}

    @property
    def measured(self) -> tuple[Job, ...]:
        """The jobs that are not co-runners."""
        return tuple(job for job in self.jobs if not job.is_co_runner) if self.has_co_runners else self.jobs

    @property
    def has_co_runners(self) -> bool:
        return bool(self.jobs) and self.jobs[-1].is_co_runner

    @property
    def is_of_different_programs(self) -> bool:
        """True if the jobs are different programs that exit on their own, each with its own outcome."""
        return len({job.workload.digest for job in self.jobs}) > 1 and all(
            job.workload.ends_by_itself for job in self.jobs
        )

    @property
    def settings(self) -> dict[str, str]:
        """The settings, as text, that groups of one study share, regardless of their jobs and sharing mode.

        Together with jobs, sharing mode and options, the settings distinguish groups. Every group has every setting, so
        any two groups can be compared.
        """
        simulated = self.device.is_simulated
        return {
            DEVICE: f"simulated {self.device.name}" if simulated else self.device.name,
            "window": self.window.text,
            "seed": str(self.seed),
            "pinned CPUs": str(self.pin_cpus),
            OTHER_GPUS: str(self.gpu.num_other_gpus or ""),
            CO_RUNNERS: self._co_runner_text,
            # On a simulated GPU, the declared memory decides which groups run out of memory.
            "memory of a job": f"{self.gpu.job_memory_mib} MiB" if simulated else "",
        }

    @property
    def _co_runner_text(self) -> str:
        """Co-runners as `6x tiny`; programs that no measured job runs are followed by a few digits of their digest."""
        if not self.has_co_runners:
            return ""
        measured = {_identify_program(job.workload) for job in self.measured}
        names = Counter(
            job.workload.name
            if _identify_program(job.workload) in measured
            else f"{job.workload.name} {job.workload.program_digest[:6]}"
            for job in self.jobs
            if job.is_co_runner
        )
        return ", ".join(f"{number}x {name}" for name, number in names.items())

    @property
    def options(self) -> dict[str, object]:
        """The options of the sharing mode that the user set, without its name, and of the profiler.

        The location of a class or program is excluded; its arguments are included.
        """
        options = {key: value for key, value in self.sharing.options if value is not None and not is_program(key)}
        if self.gpu.exclusive_process:
            options["exclusive_process"] = True
        if not self.profiler.is_none:
            arguments = [(key, value) for key, value in self.profiler.build.options if value and not is_program(key)]
            options["profiler"] = (self.profiler.name, *arguments)
        return options


def _identify_program(workload: Workload) -> tuple[object, ...]:
    """Return the attributes that identify a program's computation, regardless of its number of epochs."""
    return (workload.name, *(param for param in workload.params if param[0] != "epochs"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A complete study or one shard of it: all groups in their order, and facts about them.

    Attributes:
        digest: digest of all groups of the complete study.
        any_gpu_digest: `digest` without the GPU models, which is equal for the plans of one study on several models.
        shard_sizes: number of groups in each shard of the complete study.
        goal: the precision goal with `repeats=auto`: later blocks run only until it is reached.
    """

    experiment: str
    groups: tuple[Group, ...]
    devices: tuple[Device, ...]
    digest: str
    any_gpu_digest: str
    shard_sizes: tuple[int, ...]
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    goal: PrecisionGoal | None = None

    @property
    def num_planned(self) -> int:
        """The number of groups of the complete study."""
        return sum(self.shard_sizes)
