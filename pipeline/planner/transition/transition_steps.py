"""The steps of a transition as records, and their file.

A step runs as soon as all steps in its `after` have ended, so several run at once. The kinds of steps:

- `repartition`: unused GPU instances are destroyed and others created, or MIG is switched on or off;
- `create`: a service starts on an existing GPU instance or undivided GPU, and counts from the end of the step;
- `delete`: a service stops, and does not count from the beginning of the step;
- `migrate`: a service starts at one place, then stops at another. At least one of the two counts.
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
    """A GPU instance, used or unused: its profile and first memory slice."""

    profile: str
    start: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step.

    Attributes:
        gpu: where something is created or removed.
        after: the steps that must end before.
        instance: the instance that starts or, in a `delete`, stops.
        source_gpu: the GPU that a `migrate` leaves.
        source: the instance that stops there.
        destroyed, made: in a `repartition`, the GPU instances to destroy first and then create.
        mode: in a `repartition`, how the GPU is shared afterwards.
        begins_s, ends_s: if every step begins as early as possible and takes the given duration of its kind; `None`
            without durations.
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
    """GPU instances without an occupant at the start."""

    gpu: str
    slices: tuple[Slice, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """A transition with everything needed to check and carry it out.

    Attributes:
        today: the current deployment, every GPU with its id, including the spare GPUs that are used, which are empty.
        tomorrow: the requested deployment. Its GPUs are matched by model: their ids are ignored.
        reached: the final deployment, with the ids of `today`.
        old_rates_per_s, new_rates_per_s: the rate of each service today and tomorrow. In between it keeps at least the
            smaller of the two, or nothing if it has only one.
        spare: GPUs of each model available beyond those of the larger deployment.
        spare_used: number of these that are used.
        durations_s: of each kind of step.
        makespan_s: from the begin of the first step to the end of the last; `None` without durations.
        longest_chain: length of the longest chain of dependent steps.
        idle: initial GPU instances without a service.
        set_aside: GPUs on which a step failed: they must not be changed.
        is_simulated: whether figures of one of the plans come from a simulated GPU.
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
    """Read a transition from a file; raise `ConfigError` if it is invalid."""
    content = input_files.read_json(path)
    if (version := content.get("version")) != VERSION or "steps" not in content:
        command = f"`{entry_points.spell('planner', 'transition')}`"
        seen = f"its version is {version!r}, not {VERSION}" if "steps" in content else "it has no steps"
        raise ConfigError(f"{path} is not a transition as {command} writes it: {seen}")
    transition = input_files.decode(Transition, content, str(path))
    for key in ("today", "tomorrow", "reached"):
        deployment.check(getattr(transition, key), f"{path}: {key}")
    if unnamed := [gpu for gpu in transition.today.gpus if gpu.id is None]:
        raise ConfigError(f"{path}: today: a GPU of model {unnamed[0].model} has no id")
    return transition


def write(transition: Transition, path: Path) -> None:
    """Write a transition; raise `ConfigError` if the file cannot be written."""
    input_files.write_json(path, json_decoder.encode(transition))
