"""The steps of a transition as records, their file, and the progress of a transition after some of its steps.

A step runs as soon as the steps in its `after` have ended. The kinds of steps:

- `repartition` destroys unused GPU instances and creates other GPU instances, or switches MIG on or off;
- `create` starts a service on a GPU instance or undivided GPU; its throughput counts from the end of the step;
- `delete` stops a service; its throughput counts until the start of the step;
- `migrate` starts a service on one instance, then stops it on another; at least one of the two counts at any time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from pipeline.base.domain.sharing_modes import PlannedAs
from pipeline.base.system import entry_points, json_decoder
from pipeline.base.system.errors import ConfigError
from pipeline.planner import deployment, input_files
from pipeline.planner.deployment import Deployment, Gpu, Instance

VERSION = 1
StepKind = Literal["repartition", "create", "delete", "migrate"]
KINDS: tuple[StepKind, ...] = get_args(StepKind)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """A GPU instance by profile and start, used or not."""

    profile: str
    start: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step.

    Attributes:
        gpu: id of the GPU that changes; the new GPU in a `migrate`.
        after: ids of the steps that must end before the step begins.
        instance: instance that starts; the instance that stops in a `delete`.
        source_gpu: id of the old GPU in a `migrate`.
        source: instance that stops in a `migrate`.
        destroyed: GPU instances that a `repartition` destroys, before it creates others.
        made: GPU instances that a `repartition` creates.
        mode: sharing mode of the GPU after a `repartition`.
        begins_s: earliest begin, from the durations of the kinds of steps; `None` without durations.
        ends_s: earliest end; `None` without durations.
    """

    id: str
    kind: StepKind
    gpu: str
    after: tuple[str, ...] = ()
    instance: Instance | None = None
    source_gpu: str | None = None
    source: Instance | None = None
    destroyed: tuple[Slice, ...] = ()
    made: tuple[Slice, ...] = ()
    mode: PlannedAs | None = None
    begins_s: float | None = None
    ends_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleInstances:
    """GPU instances without a service at the start."""

    gpu: str
    slices: tuple[Slice, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """A transition, with all data for its check and replay.

    Attributes:
        today: current deployment, every GPU with its id; it includes the used spare GPUs, which are empty.
        tomorrow: new deployment; the ids of its GPUs have no meaning.
        reached: final deployment, with the ids of `today`.
        old_rates_per_s: rates of the services in the current plan.
        new_rates_per_s: rates of the services in the new plan. A service with an old and a new rate keeps at least the
            smaller rate during the transition.
        spare: number of GPUs of each model that may be used beyond the larger deployment.
        spare_used: number of spare GPUs that are used.
        durations_s: duration of each kind of step; empty if unknown.
        makespan_s: end of the last step; `None` without durations.
        longest_chain: length of the longest chain of dependent steps.
        idle: GPU instances without a service at the start.
        set_aside: GPUs on which a step failed; they do not change further.
        is_simulated: whether a plan's figures come from a simulated GPU.
    """

    today: Deployment
    tomorrow: Deployment
    reached: Deployment
    old_rates_per_s: Mapping[str, float]
    new_rates_per_s: Mapping[str, float]
    steps: tuple[Step, ...]
    spare: int
    spare_used: int
    longest_chain: int
    durations_s: Mapping[str, float] = field(default_factory=dict)
    makespan_s: float | None = None
    idle: tuple[IdleInstances, ...] = ()
    set_aside: tuple[str, ...] = ()
    is_simulated: bool = False
    version: int = VERSION

    @property
    def requirements(self) -> dict[str, float]:
        """The throughput that each service must keep."""
        new = self.new_rates_per_s
        return {name: min(rate, new[name]) for name, rate in sorted(self.old_rates_per_s.items()) if name in new}


def read(path: Path) -> Transition:
    """Read the transition in a file; ConfigError if the file is invalid."""
    content = input_files.read_json(path)
    if (version := content.get("version")) != VERSION or "steps" not in content:
        command = f"`{entry_points.spell('planner', 'transition')}`"
        reason = f"version is {version!r}, not {VERSION}" if "steps" in content else "key 'steps' is missing"
        raise ConfigError(f"{path}: {reason}; make a transition with {command}")
    transition = input_files.decode(Transition, content, str(path))
    for key in ("today", "tomorrow", "reached"):
        deployment.check(getattr(transition, key), f"{path}: {key}")
    if unnamed := [gpu for gpu in transition.today.gpus if gpu.id is None]:
        raise ConfigError(f"{path}: today: a GPU of model {unnamed[0].model} has no id; plan the transition again")
    return transition


def write(transition: Transition, path: Path) -> None:
    """Write a transition; raise `ConfigError` if the file cannot be written."""
    input_files.write_json(path, json_decoder.encode(transition))


@dataclass(slots=True, kw_only=True)
class GpuProgress:
    """The present state of a GPU: sharing mode, GPU instances and services."""

    gpu: Gpu
    mode: str
    slices: set[Slice] = field(default_factory=set)
    instances: list[Instance] = field(default_factory=list)

    @property
    def idle(self) -> tuple[Slice, ...]:
        """The GPU instances without a service."""
        used = {instance.start for instance in self.instances}
        return tuple(sorted((s for s in self.slices if s.start not in used), key=lambda slice_: slice_.start))


def make_initial_progress(transition: Transition) -> dict[str, GpuProgress]:
    """Return the state of every GPU before the first step, by id."""
    states = {}
    for gpu in transition.today.gpus:
        slices = {Slice(profile=str(i.profile), start=i.start) for i in gpu.instances if i.start is not None}
        slices |= {slice_ for idle in transition.idle if idle.gpu == gpu.id for slice_ in idle.slices}
        states[str(gpu.id)] = GpuProgress(gpu=gpu, mode=gpu.mode, slices=slices, instances=list(gpu.instances))
    return states


def apply_step(progress: Mapping[str, GpuProgress], step: Step) -> None:
    """Apply a step that has ended."""
    gpu = progress[step.gpu]
    if step.kind == "repartition":
        gpu.slices = (gpu.slices - set(step.destroyed)) | set(step.made)
        gpu.mode = step.mode or gpu.mode
        return
    assert step.instance is not None
    if step.kind == "delete":
        gpu.instances.remove(step.instance)
        return
    gpu.instances.append(step.instance)
    if step.source is not None and step.source_gpu is not None:
        progress[step.source_gpu].instances.remove(step.source)


def advance_progress(transition: Transition, done: Collection[str]) -> dict[str, GpuProgress]:
    """Return the state of every GPU after the completed steps."""
    progress = make_initial_progress(transition)
    for step in transition.steps:
        if step.id in done:
            apply_step(progress, step)
    return progress


def restart(transition: Transition, progress: Mapping[str, GpuProgress], set_aside: Collection[str]) -> Transition:
    """Return a transition without steps from the present state, in which the GPUs `set_aside` do not change."""
    gpus = tuple(
        dataclasses.replace(state.gpu, mode=state.mode, instances=tuple(state.instances))  # type: ignore[arg-type]
        for state in progress.values()
    )
    idle = tuple(IdleInstances(gpu=name, slices=state.idle) for name, state in progress.items() if state.idle)
    return dataclasses.replace(
        transition, today=Deployment(gpus=gpus), steps=(), idle=idle, set_aside=tuple(set_aside), makespan_s=None
    )
