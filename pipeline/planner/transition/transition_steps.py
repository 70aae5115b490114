"""The steps of a transition as records, and their file.

Steps run as soon as those that they come `after` have ended, so several run at once. While a step runs,

- `repartition`: GPU instances without a service on them are destroyed and others made; or MIG is switched on or off;
- `create`: a service starts on a GPU instance that is there, or on an undivided GPU, and counts when the step ends;
- `delete`: it stops, and does not count from the moment at which the step begins;
- `migrate`: it starts at one place, then stops at another. At least one of the two counts.
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
    """A GPU instance, whoever is on it: its profile and first memory slice."""

    profile: str
    start: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step.

    Attributes:
        gpu: where something comes to be or ceases to be.
        after: the steps that must have ended before.
        instance: who starts, of a `delete` who stops.
        source_gpu: of a `migrate`, the GPU that is left.
        source: who stops there.
        destroyed, made: of a `repartition`; the first are destroyed before the others are made.
        mode: of a `repartition`, how the GPU is shared after it.
        begins_s, ends_s: if every step begins as soon as it may and takes the time that was given for its kind; `None`
            if none was given.
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
    """GPU instances that nobody is on at the start."""

    gpu: str
    slices: tuple[Slice, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """A transition, with all that is needed to check it and to carry it out.

    Attributes:
        today: what is there, every GPU with its id; spare GPUs that are used are among them, with nobody on them.
        tomorrow: what was asked for. Its GPUs are taken by model: their ids say nothing.
        reached: what is there in the end, with the ids of `today`.
        old_rates_per_s, new_rates_per_s: what each service must get today and tomorrow. On the way it keeps at least
            the smaller of the two, and nothing if it has only one of them.
        spare: GPUs of each model that could be used beyond what the larger deployment has.
        spare_used: those that are.
        durations_s: of each kind of step.
        makespan_s: from the first step to the last; `None` without durations.
        longest_chain: the most steps that come one after another.
        idle: GPU instances without a service at the start.
        set_aside: GPUs on which a step failed: they stay as they are.
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
    """Read the transition in a file; ConfigError if there is none that can be used."""
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
    """Write a transition; ConfigError if the file cannot be written."""
    input_files.write_json(path, json_decoder.encode(transition))
