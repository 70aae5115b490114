"""The progress of a transition after some of its steps; a replay resumes from it, or a new plan begins with it."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from pipeline.planner.deployment import Gpu, Instance
from pipeline.planner.transition.transition_plan import InitialState
from pipeline.planner.transition.transition_steps import IdleInstances, Slice, Step, Transition


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
        taken = {instance.start for instance in self.instances}
        return tuple(sorted((s for s in self.slices if s.start not in taken), key=lambda slice_: slice_.start))


def begin(transition: Transition) -> dict[str, GpuProgress]:
    """Return the state of every GPU before the first step, by id."""
    states = {}
    for gpu in transition.today.gpus:
        slices = {Slice(profile=str(i.profile), start=i.start) for i in gpu.instances if i.start is not None}
        slices |= {slice_ for idle in transition.idle if idle.gpu == gpu.id for slice_ in idle.slices}
        states[str(gpu.id)] = GpuProgress(gpu=gpu, mode=gpu.mode, slices=slices, instances=list(gpu.instances))
    return states


def apply_step(now: Mapping[str, GpuProgress], step: Step) -> None:
    """Apply a step that has ended."""
    gpu = now[step.gpu]
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
        now[step.source_gpu].instances.remove(step.source)


def advance(transition: Transition, done: Collection[str]) -> dict[str, GpuProgress]:
    """Return the state of every GPU after the completed steps."""
    now = begin(transition)
    for step in transition.steps:
        if step.id in done:
            apply_step(now, step)
    return now


def restart_from(now: Mapping[str, GpuProgress], set_aside: Collection[str]) -> InitialState:
    """Return the present state as the initial state of a new plan."""
    gpus = tuple(
        dataclasses.replace(state.gpu, mode=state.mode, instances=tuple(state.instances))  # type: ignore[arg-type]
        for state in now.values()
    )
    idle = tuple(IdleInstances(gpu=name, slices=state.idle) for name, state in now.items() if state.idle)
    return InitialState(gpus=gpus, idle=idle, set_aside=tuple(set_aside))
