"""The steps of a transition as records, and their file.

A step runs as soon as the steps in its `after` have ended. The kinds of steps:

- `repartition` destroys unused GPU instances and creates others, or switches MIG on or off;
- `create` starts a service on a GPU instance or undivided GPU; its throughput counts from the end of the step;
- `delete` stops a service; its throughput counts until the start of the step;
- `migrate` starts a service at one place, then stops it at another; at least one of them counts at any time.
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
        gpu: the GPU that changes, of a `migrate` the new one.
        after: ids of the steps that must end before.
        instance: the instance that starts, of a `delete` the one that stops.
        source_gpu, source: of a `migrate`, the GPU and instance that stops.
        destroyed, made: of a `repartition`; all are destroyed before others are made.
        mode: of a `repartition`, how the GPU is shared after it.
        begins_s, ends_s: earliest times by the duration of each kind; `None` without durations.
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
    """A transition, with all that its check and replay need.

    Attributes:
        today: the initial deployment, every GPU with its id; used spare GPUs are among them, empty.
        tomorrow: the requested deployment; the ids of its GPUs have no meaning.
        reached: the final deployment, with the ids of `today`.
        old_rates_per_s, new_rates_per_s: rates of services today and tomorrow. A service with both keeps at least the
            smaller one during the transition.
        spare, spare_used: GPUs of each model that may be used beyond the larger deployment, and those that are.
        durations_s: by kind of step; empty if unknown.
        makespan_s: `None` without durations.
        longest_chain: length of the longest chain of dependent steps.
        idle: GPU instances without a service at the start.
        set_aside: GPUs on which a step failed, which do not change further.
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
    """Read the transition in a file; ConfigError if it cannot be used."""
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
