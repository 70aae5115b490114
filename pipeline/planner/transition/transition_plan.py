"""The plan of a transition: the instances that stay, the order of changes, and the steps with their times."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pipeline.planner.deployment import Deployment, Gpu, Instance, Plan, total_per_s
from pipeline.planner.transition import exchange, gpu_matching, graph
from pipeline.planner.transition.gpu_identity import (
    assign_ids,
    get_kind,
    is_divisible,
    list_free_names,
    refuse_unknown,
    spell_out,
    update_figures,
)
from pipeline.planner.transition.rooms import Kind, Layouts, Spot, configuration_of
from pipeline.planner.transition.search_state import Occupant, SearchState
from pipeline.planner.transition.transition_steps import IdleInstances, Step, Transition

# Seeds of the searches; `None` is a search without randomness. After a success, to limit the time, another seed is
# tested only if the number of tested seeds, multiplied by the number of instances, is below `_TRIED_INSTANCES`.
_SEEDS = (None, 1, 2, 3, 4, 5)
_TRIED_INSTANCES = 900


class NoTransitionError(Exception):
    """No transition exists or was found; the message states reason and remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InitialState:
    """The state before the first step of a transition.

    Attributes:
        gpus: the GPUs, each with an id and with full names of its model and profiles.
        idle: GPU instances that no service uses.
        set_aside: ids of GPUs that must not change.
    """

    gpus: tuple[Gpu, ...]
    idle: tuple[IdleInstances, ...] = ()
    set_aside: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraints:
    """The constraints of a transition; the fields have the same meaning as in `Transition`."""

    old_rates_per_s: Mapping[str, float]
    new_rates_per_s: Mapping[str, float]
    spare: int
    durations_s: Mapping[str, float]
    is_simulated: bool = False

    @property
    def requirements(self) -> dict[str, float]:
        """The throughput that each service must keep."""
        new = self.new_rates_per_s
        return {name: min(rate, new[name]) for name, rate in sorted(self.old_rates_per_s.items()) if name in new}


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
    terms = Constraints(
        old_rates_per_s=old,
        new_rates_per_s=new,
        spare=spare,
        durations_s=durations_s,
        is_simulated=today.is_simulated or tomorrow.is_simulated,
    )
    return plan_onward(
        InitialState(gpus=update_figures(gpus, tomorrow_gpus)),
        tomorrow_gpus,
        terms,
        count_usable_gpus(gpus, tomorrow_gpus, spare),
    )


def count_usable_gpus(gpus: Sequence[Gpu], tomorrow: Sequence[Gpu], spare: int) -> dict[Kind, int]:
    """Count the usable GPUs of each kind: the GPUs of the larger deployment and the spare GPUs."""
    before, after = (Counter(get_kind(gpu) for gpu in deployed if gpu.instances) for deployed in (gpus, tomorrow))
    return {kind: count + spare for kind, count in (before | after).items()}


def plan_onward(
    begin: InitialState, tomorrow: tuple[Gpu, ...], terms: Constraints, most: Mapping[Kind, int]
) -> Transition:
    """Plan the transition from any state: the best result of several searches.

    Raises:
        NoTransitionError: no transition exists or was found.
    """
    _refuse_lack(begin.gpus, tomorrow, terms.requirements)
    gpus = (*begin.gpus, *_add_spare_gpus(begin.gpus, tomorrow, most))
    divisible = {get_kind(gpu): gpu for gpu in (*gpus, *tomorrow) if is_divisible(gpu)}
    rooms = {kind: Layouts(gpu) for kind, gpu in divisible.items()}
    idle = {
        number: [
            Spot(slice_.start, slice_.profile) for free in begin.idle if free.gpu == gpu.id for slice_ in free.slices
        ]
        for number, gpu in enumerate(gpus)
    }
    untouchable = _find_untouchable(gpus, begin.set_aside, most)
    modes = {number: gpu.mode for number, gpu in enumerate(tomorrow)}
    transitions: list[Transition] = []
    for is_kept in (True, False):
        start = _set_up(gpus, tomorrow, terms.requirements, rooms, untouchable, is_kept=is_kept)
        for number, seed in enumerate(_SEEDS):
            if transitions and number * len(start.occupants) >= _TRIED_INSTANCES:
                break
            solved = exchange.solve(start, seed)
            if solved is not None:
                steps = graph.build_steps(solved, start, gpus, idle, modes)
                transitions.append(_build_transition(begin, gpus, tomorrow, terms, steps, solved))
        if transitions:
            return min(
                transitions, key=lambda one: (one.makespan_s or one.longest_chain, len(one.steps), one.spare_used)
            )
    plural = "" if terms.spare == 1 else "s"
    raise NoTransitionError(
        f"no order of steps that keeps all rates was found with {terms.spare} spare GPU{plural} of each model; "
        "raise --spare"
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
    matches = gpu_matching.match_gpus(gpus, tomorrow, rooms, untouchable) if is_kept else []
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


def _build_transition(
    begin: InitialState,
    gpus: Sequence[Gpu],
    tomorrow: tuple[Gpu, ...],
    terms: Constraints,
    steps: Sequence[Step],
    solved: SearchState,
) -> Transition:
    used = {step.gpu for step in steps}
    known = {gpu.id for gpu in begin.gpus}
    in_use_or_known = tuple(gpu for gpu in gpus if gpu.id in known or gpu.id in used)
    reached = []
    for gpu, numbers, target in zip(gpus, solved.placed, solved.want, strict=True):
        instances = [
            dataclasses.replace(solved.occupants[number].instance, start=start) for number, start in numbers.items()
        ]
        instances.sort(key=lambda instance: (instance.start or 0, str(configuration_of(instance))))
        if instances:
            mode = gpu.mode if target is None else tomorrow[target].mode
            reached.append(dataclasses.replace(gpu, mode=mode, instances=tuple(instances)))
    timed = graph.assign_times(steps, terms.durations_s) if terms.durations_s else tuple(steps)
    in_use = Counter(get_kind(gpu) for gpu in in_use_or_known if gpu.instances or gpu.id in used)
    return Transition(
        today=Deployment(gpus=in_use_or_known),
        tomorrow=Deployment(gpus=tomorrow),
        reached=Deployment(gpus=tuple(reached)),
        old_rates_per_s=dict(terms.old_rates_per_s),
        new_rates_per_s=dict(terms.new_rates_per_s),
        steps=timed,
        spare=terms.spare,
        spare_used=(in_use - Counter(count_usable_gpus(begin.gpus, tomorrow, 0))).total(),
        longest_chain=graph.measure_longest_chain(steps),
        durations_s=dict(terms.durations_s),
        makespan_s=max((step.ends_s or 0.0 for step in timed), default=0.0) if terms.durations_s else None,
        idle=begin.idle,
        set_aside=begin.set_aside,
        is_simulated=terms.is_simulated,
    )


def _add_spare_gpus(gpus: Sequence[Gpu], tomorrow: Sequence[Gpu], most: Mapping[Kind, int]) -> Iterator[Gpu]:
    free, present = list_free_names(gpus), Counter(map(get_kind, gpus))
    first: dict[Kind, Gpu] = {}
    for gpu in (*tomorrow, *gpus):
        first.setdefault(get_kind(gpu), gpu)
    for kind, gpu in first.items():
        for _ in range(most.get(kind, 0) - present[kind]):
            yield Gpu(model=gpu.model, driver_branch=gpu.driver_branch, mode=gpu.mode, instances=(), id=next(free))


def _refuse_lack(gpus: Sequence[Gpu], tomorrow: Sequence[Gpu], requirements: Mapping[str, float]) -> None:
    """Raise NoTransitionError if the current or the new deployment does not meet the requirements."""
    for name, deployment in (("current", gpus), ("new", tomorrow)):
        total = total_per_s(deployment)
        for service, required in requirements.items():
            if total.get(service, 0.0) < required * (1 - 1e-9):
                raise NoTransitionError(
                    f"{service} must keep {required:g}/s, the smaller of its old and new rate, but the {name} "
                    f"deployment provides only {total.get(service, 0.0):g}/s; correct the rate or the plan"
                )
