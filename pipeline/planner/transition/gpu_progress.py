"""Where a transition stands after some of its steps: what a start in the middle, or a new plan, goes on from."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from pipeline.planner.deployment import Gpu, Instance
from pipeline.planner.transition.transition_plan import Begin
from pipeline.planner.transition.transition_steps import Idle, Slice, Step, Transition


@dataclass(slots=True, kw_only=True)
class Standing:
    """A GPU now: how it is shared, its GPU instances, and who runs."""

    gpu: Gpu
    mode: str
    slices: set[Slice] = field(default_factory=set)
    there: list[Instance] = field(default_factory=list)

    @property
    def idle(self) -> tuple[Slice, ...]:
        """The GPU instances that nobody is on."""
        taken = {instance.start for instance in self.there}
        return tuple(sorted((s for s in self.slices if s.start not in taken), key=lambda each: each.start))


def begin(transition: Transition) -> dict[str, Standing]:
    """Return every GPU before the first step, by its id."""
    found = {}
    for gpu in transition.today.gpus:
        slices = {Slice(profile=str(i.profile), start=i.start) for i in gpu.instances if i.start is not None}
        slices |= {each for idle in transition.idle if idle.gpu == gpu.id for each in idle.slices}
        found[str(gpu.id)] = Standing(gpu=gpu, mode=gpu.mode, slices=slices, there=list(gpu.instances))
    return found


def take(now: Mapping[str, Standing], step: Step) -> None:
    """Apply the changes of a step that has ended."""
    gpu = now[step.gpu]
    if step.kind == "repartition":
        gpu.slices = (gpu.slices - set(step.destroyed)) | set(step.made)
        gpu.mode = step.mode or gpu.mode
        return
    assert step.instance is not None
    if step.kind == "delete":
        gpu.there.remove(step.instance)
        return
    gpu.there.append(step.instance)
    if step.source is not None and step.source_gpu is not None:
        now[step.source_gpu].there.remove(step.source)


def after(transition: Transition, done: Collection[str]) -> dict[str, Standing]:
    """Return every GPU once some steps have ended, and all that they come after."""
    now = begin(transition)
    for step in transition.steps:
        if step.id in done:
            take(now, step)
    return now


def onward_from(now: Mapping[str, Standing], set_aside: Collection[str]) -> Begin:
    """Return the state that a new plan begins with."""
    gpus = tuple(
        dataclasses.replace(each.gpu, mode=each.mode, instances=tuple(each.there))  # type: ignore[arg-type]
        for each in now.values()
    )
    idle = tuple(Idle(gpu=name, slices=each.idle) for name, each in now.items() if each.idle)
    return Begin(gpus=gpus, idle=idle, set_aside=tuple(set_aside))
