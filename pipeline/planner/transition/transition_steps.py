"""The steps of a transition as records, and their file.

A step runs as soon as the steps in its `after` have ended. The kinds of steps:

- `repartition` destroys unused GPU instances and creates other GPU instances, or switches MIG on or off;
- `create` starts a service on a GPU instance or undivided GPU; its throughput counts from the end of the step;
- `delete` stops a service; its throughput counts until the start of the step;
- `migrate` starts a service on one instance, then stops it on another; at least one of the two counts at any time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from pipeline.base.domain.sharing_modes import PlannedAs
from pipeline.base.system import entry_points, json_decoder
from pipeline.base.system.errors import ConfigError
from pipeline.planner import deployment, input_files
from pipeline.planner.deployment import Deployment, Instance

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
