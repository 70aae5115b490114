"""The plan of a transition: the instances that stay, the order of changes, and the steps with their times."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from pipeline.base.domain import mig_table
from pipeline.base.system.errors import ConfigError
from pipeline.base.system.words import format_count
from pipeline.planner.deployment import Deployment, Gpu, Instance, Plan, mig_gpu, total_per_s
from pipeline.planner.transition import exchange, graph
from pipeline.planner.transition.search_state import Kind, Layouts, Occupant, SearchState, Spot, configuration_of
from pipeline.planner.transition.transition_steps import Step, Transition
from pipeline.prepare.mig import layouts

# Seeds of the searches; `None` is a search without randomness. After a success, to limit the time, another seed is
# tested only if the number of tested seeds, multiplied by the number of instances, is below `_TRIED_INSTANCES`.
_SEEDS = (None, 1, 2, 3, 4, 5)
_TRIED_INSTANCES = 900


def spell_out(gpus: Sequence[Gpu]) -> tuple[Gpu, ...]:
    """Return the GPUs with the full names of models and profiles."""
    return tuple(
        replace(
            gpu,
            model=mig_table.find_model_name(gpu.model) if is_divisible(gpu) else gpu.model,
            instances=tuple(
                replace(instance, profile=instance.profile and layouts.resolve(mig_gpu(gpu), instance.profile).name)
                for instance in gpu.instances
            ),
        )
        for gpu in gpus
    )


def is_divisible(gpu: Gpu) -> bool:
    """Return whether the GPU's model supports MIG."""
    return mig_table.find_model_name(gpu.model) in mig_table.models()


def assign_ids(gpus: Sequence[Gpu]) -> tuple[Gpu, ...]:
    """Assign the first unused numbers to GPUs without an id."""
    free = list_free_names(gpus)
    return tuple(gpu if gpu.id is not None else replace(gpu, id=next(free)) for gpu in gpus)


def list_free_names(gpus: Sequence[Gpu]) -> Iterator[str]:
    """Return the numbers from 0 that are not used as ids."""
    used = {gpu.id for gpu in gpus}
    return (name for name in map(str, itertools.count()) if name not in used)


def update_figures(gpus: Sequence[Gpu], tomorrow: Sequence[Gpu]) -> tuple[Gpu, ...]:
    """Replace the figures of current instances by the figures of equal instances in the new plan."""
    figures: dict[object, Instance] = {}
    for gpu in tomorrow:
        for instance in gpu.instances:
            key = _figure_key(gpu, instance)
            figures[key] = min(figures.get(key, instance), instance, key=lambda same: same.throughput_per_s or 0.0)

    def later(gpu: Gpu, instance: Instance) -> Instance:
        later_instance = figures.get(_figure_key(gpu, instance))
        return instance if later_instance is None else replace(later_instance, start=instance.start)

    return tuple(replace(gpu, instances=tuple(later(gpu, instance) for instance in gpu.instances)) for gpu in gpus)


def _figure_key(gpu: Gpu, instance: Instance) -> tuple[object, ...]:
    """Return the key of equal figures: the instance, and without MIG all instances on its GPU."""
    neighbours = () if gpu.mode == "mig" else sorted(str(configuration_of(neighbour)) for neighbour in gpu.instances)
    return get_kind(gpu), gpu.mode, configuration_of(instance), tuple(neighbours)


def refuse_unknown(name: str, plan: Plan) -> None:
    """Raise ConfigError if an instance has no throughput, or its service has no rate."""
    services = {service.name for service in plan.services}
    for number, gpu in enumerate(plan.deployment.gpus):
        for position, instance in enumerate(gpu.instances):
            origin = f"{name}: gpus[{number}].instances[{position}]"
            if instance.throughput_per_s is None:
                raise ConfigError(f"{origin}: throughput_per_s of {instance.service} is missing; add it")
            if instance.service not in services:
                raise ConfigError(
                    f"{origin}: service {instance.service} has no rate; list the service with its rate under services"
                )


def get_kind(gpu: Gpu) -> Kind:
    """Return the kind of a GPU."""
    return Kind(gpu.model, gpu.driver_branch)


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """A current GPU that becomes a target GPU.

    Attributes:
        gpu: position of the GPU in the current deployment.
        target: position of the target GPU in the new deployment.
        stays: positions of each instance that stays, in the current and the target GPU.
        instances: instances of the target GPU, at their starts on the current GPU.
    """

    gpu: int
    target: int
    stays: tuple[tuple[int, int], ...]
    instances: tuple[Instance, ...]


def match_gpus(
    today: Sequence[Gpu], tomorrow: Sequence[Gpu], rooms: Mapping[Kind, Layouts], untouchable: frozenset[int]
) -> list[Match]:
    """Return pairs of GPUs with instances that stay, maximising the total number of memory slices that stay."""
    import numpy as np
    from scipy.optimize import linear_sum_assignment

    pairs = {}
    targets_of = defaultdict(set)  # by configuration
    for number, target in enumerate(tomorrow):
        for instance in target.instances:
            targets_of[configuration_of(instance)].add(number)
    weights = np.zeros((len(today), len(tomorrow)))
    for number, gpu in enumerate(today):
        for other in sorted(set().union(*(targets_of[configuration_of(instance)] for instance in gpu.instances))):
            pair = _match_pair(number, gpu, other, tomorrow[other], rooms)
            if pair is None or (number in untouchable and len(pair.stays) < len(pair.instances)):
                continue
            pairs[number, other] = pair
            weights[number, other] = _weight(gpu, pair, rooms)
    rows, columns = linear_sum_assignment(weights, maximize=True)
    return [pairs[pair] for pair in zip(rows.tolist(), columns.tolist(), strict=True) if pair in pairs]


def _match_pair(number: int, gpu: Gpu, other: int, target: Gpu, rooms: Mapping[Kind, Layouts]) -> Match | None:
    if (get_kind(gpu), gpu.mode) != (get_kind(target), target.mode):
        return None
    if gpu.mode != "mig":
        # Figures hold for all instances together, because instances on an undivided GPU slow each other down.
        present, coming = (
            sorted((str(configuration_of(instance)), number) for number, instance in enumerate(side.instances))
            for side in (gpu, target)
        )
        if [name for name, _ in present] != [name for name, _ in coming]:
            return None
        stays = tuple((old, new) for (_, old), (_, new) in zip(present, coming, strict=True))
        return Match(gpu=number, target=other, stays=stays, instances=_keep_instances(gpu, target.instances, stays))
    room = rooms[get_kind(gpu)]
    for stays in _enumerate_kept(gpu.instances, target.instances):
        starts = _choose_starts(gpu, target, stays, room)
        if starts is not None:
            instances = tuple(replace(i, start=start) for i, start in zip(target.instances, starts, strict=True))
            return Match(gpu=number, target=other, stays=stays, instances=_keep_instances(gpu, instances, stays))
    return None


def _keep_instances(gpu: Gpu, instances: Sequence[Instance], stays: Sequence[tuple[int, int]]) -> tuple[Instance, ...]:
    staying = {new: gpu.instances[old] for old, new in stays}
    return tuple(staying.get(number, instance) for number, instance in enumerate(instances))


def _enumerate_kept(present: Sequence[Instance], planned: Sequence[Instance]) -> Iterator[tuple[tuple[int, int], ...]]:
    """Yield sets of instances to keep, as pairs of positions, the most pairs first."""
    by_configuration: dict[object, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    for side, instances in enumerate((present, planned)):
        for position, instance in enumerate(instances):
            by_configuration[configuration_of(instance)][side].append(position)
    common = [sides for sides in by_configuration.values() if sides[0] and sides[1]]
    counts = itertools.product(*(range(min(map(len, sides)), -1, -1) for sides in common))
    for count in sorted(counts, key=sum, reverse=True):
        if sum(count) == 0:
            return
        combinations = [
            list(itertools.combinations(old, number)) for (old, _), number in zip(common, count, strict=True)
        ]
        for olds in itertools.product(*combinations):
            yield tuple(
                pair
                for old, (_, new) in zip(olds, common, strict=True)
                for pair in zip(old, new[: len(old)], strict=True)
            )


def _choose_starts(gpu: Gpu, target: Gpu, stays: Sequence[tuple[int, int]], room: Layouts) -> tuple[int, ...] | None:
    """Return the start of each new instance: the current start if it stays, else the planned or a free start."""
    fixed_starts = {new: gpu.instances[old].start or 0 for old, new in stays}
    as_planned = [fixed_starts.get(number, instance.start or 0) for number, instance in enumerate(target.instances)]
    spots = [Spot(start, str(i.profile)) for start, i in zip(as_planned, target.instances, strict=True)]
    if len({spot.start for spot in spots}) == len(spots) and room.is_legal(spots):
        return tuple(as_planned)
    free = [number for number in range(len(target.instances)) if number not in fixed_starts]
    fixed = [spots[number] for number in fixed_starts]
    placed = room.place(fixed, [str(target.instances[number].profile) for number in free])
    if placed is None:
        return None
    new = dict(zip(free, placed, strict=True))
    return tuple(fixed_starts.get(number, new.get(number, -1)) for number in range(len(target.instances)))


def _weight(gpu: Gpu, pair: Match, rooms: Mapping[Kind, Layouts]) -> float:
    """Return the memory slices that stay; among equal pairs, prefer the pair with fewer other instances."""
    if gpu.mode != "mig":
        return 100.0
    room = rooms[get_kind(gpu)]
    stays = sum(room.slices(str(gpu.instances[old].profile)) for old, _ in pair.stays)
    return stays + 0.01 * len(pair.stays) / max(len(gpu.instances), len(pair.instances))


class NoTransitionError(Exception):
    """No transition exists or was found; the message states reason and remedy."""


def plan_transition(today: Plan, tomorrow: Plan, spare: int, durations_s: Mapping[str, float]) -> Transition:
    """Plan the transition between two plans.

    Raises:
        ConfigError: an instance has no throughput, or a service no rate.
        NoTransitionError: no transition exists or was found.
    """
    gpus = assign_ids(spell_out(today.deployment.gpus))
    tomorrow_gpus = tuple(gpu for gpu in spell_out(tomorrow.deployment.gpus) if gpu.instances)
    for name, plan in (("today", today), ("tomorrow", tomorrow)):
        refuse_unknown(name, plan)
    old, new = ({service.name: service.rate_per_s for service in plan.services} for plan in (today, tomorrow))
    start = Transition(
        today=Deployment(gpus=update_figures(gpus, tomorrow_gpus)),
        tomorrow=Deployment(gpus=tomorrow_gpus),
        reached=Deployment(gpus=()),
        old_rates_per_s=old,
        new_rates_per_s=new,
        steps=(),
        spare=spare,
        spare_used=0,
        longest_chain=0,
        durations_s=durations_s,
        is_simulated=today.is_simulated or tomorrow.is_simulated,
    )
    return find_steps(start, count_usable_gpus(gpus, tomorrow_gpus, spare))


def count_usable_gpus(gpus: Sequence[Gpu], tomorrow: Sequence[Gpu], spare: int) -> dict[Kind, int]:
    """Count the usable GPUs of each kind: the GPUs of the larger deployment and the spare GPUs."""
    before, after = (Counter(get_kind(gpu) for gpu in deployed if gpu.instances) for deployed in (gpus, tomorrow))
    return {kind: count + spare for kind, count in (before | after).items()}


def find_steps(start: Transition, most: Mapping[Kind, int]) -> Transition:
    """Find the steps from today's deployment of a transition without steps: the best result of several searches.

    Raises:
        NoTransitionError: no transition exists or was found.
    """
    today, tomorrow = start.today.gpus, start.tomorrow.gpus
    _refuse_lack(start)
    gpus = (*today, *_add_spare_gpus(today, tomorrow, most))
    divisible = {get_kind(gpu): gpu for gpu in (*gpus, *tomorrow) if is_divisible(gpu)}
    rooms = {kind: Layouts(gpu) for kind, gpu in divisible.items()}
    idle = {
        number: [
            Spot(slice_.start, slice_.profile) for free in start.idle if free.gpu == gpu.id for slice_ in free.slices
        ]
        for number, gpu in enumerate(gpus)
    }
    untouchable = _find_untouchable(gpus, start.set_aside, most)
    modes = {number: gpu.mode for number, gpu in enumerate(tomorrow)}
    transitions: list[Transition] = []
    for is_kept in (True, False):
        state = _set_up(gpus, tomorrow, start.requirements, rooms, untouchable, is_kept=is_kept)
        for number, seed in enumerate(_SEEDS):
            if transitions and number * len(state.occupants) >= _TRIED_INSTANCES:
                break
            solved = exchange.find_order(state, seed)
            if solved is not None:
                steps = graph.build_steps(solved, state, gpus, idle, modes)
                transitions.append(_complete(start, gpus, steps, solved))
        if transitions:
            return min(
                transitions, key=lambda one: (one.makespan_s or one.longest_chain, len(one.steps), one.spare_used)
            )
    raise NoTransitionError(
        f"no order of steps that keeps all rates was found with {format_count(start.spare, 'spare GPU')} of each "
        "model; raise --spare"
    )


def _find_untouchable(gpus: Sequence[Gpu], set_aside: Sequence[str], most: Mapping[Kind, int]) -> frozenset[int]:
    """Return GPUs that must not change: GPUs set aside, and empty GPUs beyond the usable number."""
    count = Counter(get_kind(gpu) for gpu in gpus if gpu.instances)
    untouchable = set()
    for number, gpu in enumerate(gpus):
        if gpu.id in set_aside:
            untouchable.add(number)
        elif not gpu.instances:
            count[get_kind(gpu)] += 1
            if count[get_kind(gpu)] > most.get(get_kind(gpu), 0):
                untouchable.add(number)
    return frozenset(untouchable)


def _set_up(
    gpus: Sequence[Gpu],
    tomorrow: Sequence[Gpu],
    requirements: Mapping[str, float],
    rooms: Mapping[Kind, Layouts],
    untouchable: frozenset[int],
    *,
    is_kept: bool,
) -> SearchState:
    matches = match_gpus(gpus, tomorrow, rooms, untouchable) if is_kept else []
    becomes = {match.gpu: match for match in matches}
    starts = {match.target: match.instances for match in matches}
    numbers: Iterator[int] = itertools.count()
    occupants: list[Occupant] = []

    def new(kind: Kind, target: int | None, instance: Instance) -> int:
        worth = instance.throughput_per_s
        assert worth is not None
        occupants.append(Occupant(number=next(numbers), kind=kind, target=target, instance=instance, worth=worth))
        return occupants[-1].number

    targets = {
        number: tuple(new(get_kind(gpu), number, instance) for instance in starts.get(number, gpu.instances))
        for number, gpu in enumerate(tomorrow)
    }
    placed: list[dict[int, int | None]] = []
    for number, gpu in enumerate(gpus):
        match = becomes.get(number)
        stays = dict(match.stays) if match is not None else {}
        placed.append({})
        for position, instance in enumerate(gpu.instances):
            target = match.target if match is not None and position in stays else None
            occupant = targets[target][stays[position]] if target is not None else new(get_kind(gpu), None, instance)
            placed[-1][occupant] = instance.start
    state = SearchState(
        occupants=occupants,
        kinds=[get_kind(gpu) for gpu in gpus],
        requirements=requirements,
        rooms=rooms,
        untouchable=untouchable,
        targets=targets,
        placed=placed,
        want=[becomes[number].target if number in becomes else None for number in range(len(gpus))],
        unassigned=set(targets) - {match.target for match in matches},
    )
    state.begin()
    return state


def _complete(start: Transition, gpus: Sequence[Gpu], steps: Sequence[Step], solved: SearchState) -> Transition:
    """Return the transition with its steps, their times and the reached deployment."""
    tomorrow = start.tomorrow.gpus
    used = {step.gpu for step in steps}
    names = {gpu.id for gpu in start.today.gpus}
    in_use_or_known = tuple(gpu for gpu in gpus if gpu.id in names or gpu.id in used)
    reached = []
    for gpu, numbers, target in zip(gpus, solved.placed, solved.want, strict=True):
        instances = [replace(solved.occupants[number].instance, start=start) for number, start in numbers.items()]
        instances.sort(key=lambda instance: (instance.start or 0, str(configuration_of(instance))))
        if instances:
            mode = gpu.mode if target is None else tomorrow[target].mode
            reached.append(replace(gpu, mode=mode, instances=tuple(instances)))
    timed = graph.assign_times(steps, start.durations_s) if start.durations_s else tuple(steps)
    in_use = Counter(get_kind(gpu) for gpu in in_use_or_known if gpu.instances or gpu.id in used)
    return replace(
        start,
        today=Deployment(gpus=in_use_or_known),
        reached=Deployment(gpus=tuple(reached)),
        steps=timed,
        spare_used=(in_use - Counter(count_usable_gpus(start.today.gpus, tomorrow, 0))).total(),
        longest_chain=graph.measure_longest_chain(steps),
        makespan_s=max((step.ends_s or 0.0 for step in timed), default=0.0) if start.durations_s else None,
    )


def _add_spare_gpus(gpus: Sequence[Gpu], tomorrow: Sequence[Gpu], most: Mapping[Kind, int]) -> Iterator[Gpu]:
    free, present = list_free_names(gpus), Counter(map(get_kind, gpus))
    first: dict[Kind, Gpu] = {}
    for gpu in (*tomorrow, *gpus):
        first.setdefault(get_kind(gpu), gpu)
    for kind, gpu in first.items():
        for _ in range(most.get(kind, 0) - present[kind]):
            yield Gpu(model=gpu.model, driver_branch=gpu.driver_branch, mode=gpu.mode, instances=(), id=next(free))


def _refuse_lack(start: Transition) -> None:
    """Raise NoTransitionError if the current or the new deployment does not meet the requirements."""
    for name, deployment in (("current", start.today), ("new", start.tomorrow)):
        total = total_per_s(deployment.gpus)
        for service, required in start.requirements.items():
            if total.get(service, 0.0) < required * (1 - 1e-9):
                raise NoTransitionError(
                    f"{service} must keep {required:g}/s, the smaller of its old and new rate, but the {name} "
                    f"deployment provides only {total.get(service, 0.0):g}/s; correct the rate or the plan"
                )
