"""The proof that a transition is legal and keeps all services served, in every order of its steps.

The proof shares no code with the planning of transitions: it restates the rules of layouts, and uses only the instances
and steps of the plan. The graph must order steps that touch the same instance or partition; then every GPU passes
through the same states in every order, and checking one order suffices. The least throughput of a service is the least
sum over all sets of steps that are closed under predecessors, which is the optimum of a linear programme whose vertices
are these sets.
Source: Picard, Maximal closure of a graph, Management Science 22 (1976).
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter

from pipeline.planner.deployment import Gpu, Instance
from pipeline.planner.transition.transition_steps import Slice, Step, Transition
from pipeline.prepare.mig import profiles
from pipeline.prepare.mig.profiles import MigGpu

_ROUNDING = 1e-6
_HALVES_TOGETHER = 510  # the driver branch from which a GPU can hold 4g and 3g. Source: NVIDIA MIG User Guide


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """The faults of a transition, as sentences, and the least throughput of each service with a requirement."""

    broken: tuple[str, ...]
    lowest_per_s: Mapping[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class _State:
    """The state of a GPU between two steps."""

    gpu: Gpu
    mode: str
    slices: list[Slice]
    instances: list[Instance]


def check(transition: Transition) -> Proof:
    """Check a transition and return its faults."""
    broken = list(_graph_faults(transition.steps))
    if broken:
        return Proof(broken=tuple(broken))
    states = {str(gpu.id): _set_up(gpu, transition) for gpu in transition.today.gpus}
    order = list(_order(transition.steps))
    steps = {step.id: step for step in transition.steps}
    for step in order:
        try:
            _take(states, steps[step], transition.set_aside)
        except ValueError as error:
            return Proof(broken=(f"step {step}: {error}",))
    before = _find_predecessors(transition.steps, order)
    broken += _find_unordered(transition.steps, before)
    broken += _end_faults(states, transition)
    broken += _find_surplus_gpus(transition)
    lowest = {}
    old, new = transition.old_rates_per_s, transition.new_rates_per_s
    for service in sorted(old.keys() & new.keys()):
        required = min(old[service], new[service])
        lowest[service] = _find_lowest(service, transition, before)
        if lowest[service] < required - _ROUNDING * max(required, 1.0):
            broken.append(f"{service} must keep {required:g}/s, but an order of the steps leaves {lowest[service]:g}/s")
    return Proof(broken=tuple(broken), lowest_per_s=lowest)


def _graph_faults(steps: Sequence[Step]) -> Iterable[str]:
    twice = [name for name, count in Counter(step.id for step in steps).items() if count > 1]
    if twice:
        yield f"{len(twice)} step ids occur twice, such as {twice[0]}"
        return
    names = {step.id for step in steps}
    for step in steps:
        if unknown := set(step.after) - names:
            yield f"step {step.id} waits for {min(unknown)}, which is not a step"
            return
    try:
        list(_order(steps))
    except CycleError:
        yield "steps wait for each other in a cycle"
        return
    ends = {step.id: step.ends_s for step in steps}
    for step in steps:
        for other in step.after:
            if step.begins_s is not None and (ends[other] or 0.0) > step.begins_s + _ROUNDING:
                yield f"step {step.id} begins before {other} has ended"


def _order(steps: Sequence[Step]) -> Iterable[str]:
    return TopologicalSorter({step.id: step.after for step in steps}).static_order()


def _find_predecessors(steps: Sequence[Step], order: Sequence[str]) -> dict[str, int]:
    """Return all predecessors of each step, as a bit mask of positions in the order."""
    position = {name: number for number, name in enumerate(order)}
    after = {step.id: step.after for step in steps}
    predecessors: dict[str, int] = {}
    for name in order:
        bits = 0
        for other in after[name]:
            bits |= predecessors[other] | 1 << position[other]
        predecessors[name] = bits
    return predecessors


def _set_up(gpu: Gpu, transition: Transition) -> _State:
    slices = [Slice(profile=str(i.profile), start=i.start) for i in gpu.instances if i.start is not None]
    slices += [slice_ for idle in transition.idle if idle.gpu == gpu.id for slice_ in idle.slices]
    return _State(gpu, gpu.mode, slices, list(gpu.instances))


def _take(states: Mapping[str, _State], step: Step, set_aside: Sequence[str]) -> None:
    """Apply one step; ValueError if the step is impossible."""
    for name in {step.gpu, step.source_gpu} - {None}:
        if name not in states:
            raise ValueError(f"GPU {name} does not exist")
        if name in set_aside:
            raise ValueError(f"GPU {name} is set aside")
    state = states[step.gpu]
    if step.kind == "repartition":
        _repartition(state, step)
        return
    if step.instance is None or (step.kind == "migrate") != (step.source is not None and step.source_gpu is not None):
        raise ValueError(
            "instance, source or source_gpu is missing, or is set although this kind of step does not have it"
        )
    if step.kind == "delete":
        _leave(state, step.instance)
        return
    _arrive(state, step.instance)
    if step.source is not None and step.source_gpu is not None:
        if step.source.service != step.instance.service:
            raise ValueError("the service changes during the migration")
        _leave(states[step.source_gpu], step.source)


def _repartition(state: _State, step: Step) -> None:
    used = {instance.start for instance in state.instances}
    for slice_ in step.destroyed:
        if slice_ not in state.slices or slice_.start in used:
            raise ValueError(f"{slice_.profile} at {slice_.start} of GPU {step.gpu} is missing or in use")
        state.slices.remove(slice_)
    if step.mode != state.mode:
        if state.instances or (state.slices and step.mode != "mig"):
            raise ValueError(f"GPU {step.gpu} is in use and cannot change its mode to {step.mode}")
        state.mode = str(step.mode)
    state.slices += step.made
    if step.made and state.mode != "mig":
        raise ValueError(f"GPU {step.gpu} is not in MIG mode")
    if state.mode == "mig" and (reason := _fault_of(state)) is not None:
        raise ValueError(f"GPU {step.gpu}: {reason}")


def _fault_of(state: _State) -> str | None:
    model = profiles.load_model(state.gpu.model, state.gpu.driver_branch)
    table = {profile.name: profile for profile in model.profiles}
    occupied: set[int] = set()
    for slice_ in state.slices:
        if slice_.profile not in table:
            return f"{model.name} has no profile {slice_.profile}"
        profile = table[slice_.profile]
        new = set(range(slice_.start, slice_.start + profile.memory_slices))
        if slice_.start not in profile.starts or new & occupied:
            return f"{slice_.profile} does not fit at {slice_.start}"
        occupied |= new
    names = Counter(slice_.profile for slice_ in state.slices)
    if sum(table[name].compute_slices * count for name, count in names.items()) > model.compute_slices:
        return "the instances need more compute slices than the GPU has"
    if any(count > table[name].max_instances for name, count in names.items()):
        return "a profile has more instances than the driver allows"
    return _special_fault(model, names)


def _special_fault(model: MigGpu, names: Counter[str]) -> str | None:
    if sum(count for name, count in names.items() if "+me" in name) > 1:
        return "two instances have the media engines"
    if any("+me.all" in name for name in names) and any("-me" not in name and "+me.all" not in name for name in names):
        return "one instance has all media engines, but another instance needs media engines"
    branch = model.driver_branch
    sizes = {profile.size for profile in model.profiles if names[profile.name]}
    if branch is not None and branch < _HALVES_TOGETHER and {(4, 4), (3, 4)} <= sizes:
        return f"a driver of branch {branch} does not allow 4g next to 3g"
    return None


def _arrive(state: _State, instance: Instance) -> None:
    origin = f"{instance.service} at {instance.start} of GPU {state.gpu.id}"
    if instance.start is None:
        if state.mode == "mig":
            raise ValueError(f"{origin}: the GPU is partitioned")
    elif Slice(profile=str(instance.profile), start=instance.start) not in state.slices:
        raise ValueError(f"{origin}: GPU instance {instance.profile} does not exist")
    elif any(other.start == instance.start for other in state.instances):
        raise ValueError(f"{origin}: the instance is in use")
    state.instances.append(instance)


def _leave(state: _State, instance: Instance) -> None:
    if instance not in state.instances:
        raise ValueError(f"{instance.service} is not at {instance.start} of GPU {state.gpu.id}")
    state.instances.remove(instance)


def _find_unordered(steps: Sequence[Step], before: Mapping[str, int]) -> Iterable[str]:
    """Find pairs of steps that touch the same instance or partition without an order between them."""
    touching: dict[tuple[str, object], list[tuple[Step, str]]] = defaultdict(list)
    for step in steps:
        if step.kind == "repartition":
            touching[step.gpu, "partition"].append((step, "partition"))
            for first_slice in {start.start for start in (*step.destroyed, *step.made)}:
                touching[step.gpu, first_slice].append((step, "partition"))
            touching[step.gpu, None].append((step, "partition"))
            continue
        assert step.instance is not None
        touching[step.gpu, step.instance.start].append((step, "leave" if step.kind == "delete" else "arrive"))
        if step.source is not None and step.source_gpu is not None:
            touching[step.source_gpu, step.source.start].append((step, "leave"))
    position = {name: number for number, name in enumerate(before)}
    for (gpu, start), touches in touching.items():
        for (one, role), (other, other_role) in itertools.combinations(touches, 2):
            # On an undivided GPU, several services may start or end at the same time.
            if (start is None and role == other_role != "partition") or one.id == other.id:
                continue
            if not (before[one.id] >> position[other.id] & 1 or before[other.id] >> position[one.id] & 1):
                yield f"steps {one.id} and {other.id} both touch {start} of GPU {gpu} without an order"


def _end_faults(states: Mapping[str, _State], transition: Transition) -> Iterable[str]:
    ends = [state for name, state in states.items() if name not in transition.set_aside]
    if idle := [
        state.gpu.id for state in ends if len(state.slices) > len([i for i in state.instances if i.start is not None])
    ]:
        yield f"GPU {idle[0]} ends with GPU instances that have no service"
    reached = Counter(_shape(state.gpu, state.mode, state.instances) for state in ends if state.instances)
    aside = Counter(_shape(s.gpu, s.mode, s.instances) for name, s in states.items() if name in transition.set_aside)
    required = Counter(_shape(gpu, gpu.mode, gpu.instances) for gpu in transition.tomorrow.gpus if gpu.instances)
    if reached - required:
        yield f"a GPU ends with a configuration that the new deployment lacks: {next(iter(reached - required))}"
    if required - reached - aside:
        yield f"no GPU ends with a configuration of the new deployment: {next(iter(required - reached - aside))}"
    stated = {str(gpu.id): Counter(gpu.instances) for gpu in transition.reached.gpus}
    present = {name: Counter(state.instances) for name, state in states.items() if state.instances}
    if stated != present:
        yield "the steps do not result in the deployment under the key reached"


def _shape(gpu: Gpu, mode: str, instances: Iterable[Instance]) -> tuple[object, ...]:
    """Return the configuration of a GPU without its id and the starts of its instances."""
    rows = sorted(str((i.profile, i.service, i.processes, i.batch, i.share_pct)) for i in instances)
    return gpu.model, gpu.driver_branch, mode, tuple(rows)


def _find_surplus_gpus(transition: Transition) -> Iterable[str]:
    touched = {step.gpu for step in transition.steps}
    used, occupied, required = (
        Counter((gpu.model, gpu.driver_branch) for gpu in gpus)
        for gpus in (
            [gpu for gpu in transition.today.gpus if gpu.instances or gpu.id in touched],
            [gpu for gpu in transition.today.gpus if gpu.instances],
            [gpu for gpu in transition.tomorrow.gpus if gpu.instances],
        )
    )
    for model, count in used.items():
        allowed = max(occupied[model], required[model]) + transition.spare
        if count > allowed:
            yield f"{count} GPUs of model {model[0]} are used, but only {allowed} are allowed"


def _find_lowest(service: str, transition: Transition, before: Mapping[str, int]) -> float:
    changes = {
        step.id: change
        for step in transition.steps
        if step.instance is not None and step.instance.service == service and (change := _change(step)) != 0
    }
    at_first = sum(
        instance.throughput_per_s or 0.0
        for gpu in transition.today.gpus
        for instance in gpu.instances
        if instance.service == service
    )
    if not any(change < 0 for change in changes.values()):
        return at_first
    return at_first + _least_closed_sum(changes, before)


def _change(step: Step) -> float:
    """Return the throughput that a step adds to its service."""
    assert step.instance is not None
    new = step.instance.throughput_per_s or 0.0
    if step.kind == "delete":
        return -new
    return new - (step.source.throughput_per_s or 0.0) if step.source is not None else new


def _least_closed_sum(changes: Mapping[str, float], before: Mapping[str, int]) -> float:
    import numpy as np
    from scipy.optimize import linprog

    names = list(changes)
    position = {name: number for number, name in enumerate(before)}
    rows = [
        (number, other)
        for number, name in enumerate(names)
        for other, earlier in enumerate(names)
        if before[name] >> position[earlier] & 1
    ]
    limits = np.zeros((len(rows), len(names)))
    for row, (number, other) in enumerate(rows):
        limits[row, number], limits[row, other] = 1.0, -1.0  # a set with a step includes its predecessors
    optimum = linprog(
        list(changes.values()), A_ub=limits if rows else None, b_ub=np.zeros(len(rows)) if rows else None, bounds=(0, 1)
    )
    if not optimum.success:
        raise RuntimeError(f"the linear programme of the proof was not solved: {optimum.message}")
    return float(optimum.fun)
