"""The graph of the steps of a transition, from an order of moves: dependencies and times.

A step waits only for the steps that it needs: the creation of its GPU instance, the end of the previous service on the
instance, the previous repartition of the GPU, and the creation of instances without which its service would have too
little throughput. The surplus of a service is an account: an instance that ends draws its throughput from the account,
and waits for the instances that paid in this throughput.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pipeline.base.domain.sharing_modes import PlannedAs
from pipeline.base.system.words import natural_key
from pipeline.planner.deployment import Gpu
from pipeline.planner.transition.search_state import Occupant, SearchState, Spot, configuration_of
from pipeline.planner.transition.transition_steps import Slice, Step, StepKind

_Place = tuple[int, int | None]


@dataclass(slots=True)
class _Node:
    """A step, and the numbers of the nodes that the step waits for; they are lower than the node's own number."""

    step: Step
    after: set[int]
    merged_into: int | None = None


class _Builder:
    """The state of all GPUs while the moves become steps."""

    def __init__(self, state: SearchState, gpus: Sequence[Gpu], idle: Mapping[int, Sequence[Spot]]) -> None:
        self.nodes: list[_Node] = []
        self._occupants, self._kinds, self._rooms = state.occupants, state.kinds, state.rooms
        self._ids = [str(gpu.id) for gpu in gpus]
        self._modes = [gpu.mode for gpu in gpus]
        self._spots: list[set[Spot]] = [set(idle.get(number, ())) for number in range(len(gpus))]
        self._places: dict[int, _Place] = {}
        self._maker: dict[int, int] = {}  # the node that placed an occupant
        self._repartition: dict[int, int] = {}  # the last repartition of a GPU
        self._left: dict[_Place, list[int]] = defaultdict(list)  # the nodes that vacated a start
        self._account: dict[str, list[tuple[int | None, float]]] = defaultdict(list)
        for gpu, present in enumerate(state.placed):
            for number, start in present.items():
                self._places[number] = (gpu, start)
                if start is not None:
                    self._spots[gpu].add(Spot(start, str(self._occupants[number].profile)))
        for service in {occupant.service for occupant in self._occupants}:
            self._account[service].append((None, max(state.surplus(service), 0.0)))

    def take(self, number: int) -> None:
        """End an instance."""
        occupant, (gpu, start) = self._occupants[number], self._places.pop(number)
        after = self._draw(occupant)
        if number in self._maker:
            after.add(self._maker.pop(number))
        node = self._add(after, "delete", gpu, instance=replace(occupant.instance, start=start))
        self._left[gpu, start].append(node)

    def put(self, gpu: int, placed: Sequence[tuple[int, int | None]], mode: PlannedAs) -> None:
        """Create instances on a GPU, or migrate instances to the GPU."""
        repartition = self._make_room(gpu, placed, mode)
        for number, start in placed:
            occupant = self._occupants[number]
            after = self._ready(gpu, start, occupant, repartition)
            new = replace(occupant.instance, start=start)
            if number in self._places:
                source_gpu, source_start = self._places[number]
                if number in self._maker:
                    after.add(self._maker[number])
                source, source_id = replace(occupant.instance, start=source_start), self._ids[source_gpu]
                node = self._add(after, "migrate", gpu, instance=new, source_gpu=source_id, source=source)
                self._left[source_gpu, source_start].append(node)
            else:
                node = self._add(after, "create", gpu, instance=new)
                self._account[occupant.service].append((node, occupant.worth))
            self._maker[number], self._places[number] = node, (gpu, start)

    def clear(self, untouchable: frozenset[int]) -> None:
        """Destroy the GPU instances without a service at the end."""
        for gpu, spots in enumerate(self._spots):
            if gpu not in untouchable and (idle := self._idle(gpu)):
                self._add_repartition(gpu, destroyed=idle, added=(), mode=self._modes[gpu])
                spots -= set(idle)

    def _ready(self, gpu: int, start: int | None, occupant: Occupant, repartition: int | None) -> set[int]:
        """Return the nodes that prepare a start: the repartition that creates it, or the nodes that vacate it."""
        if repartition is not None and (
            start is None or _slice(start, occupant.profile) in self.nodes[repartition].step.made
        ):
            return {repartition}
        if start is not None:
            return set(self._left.pop((gpu, start), ()))
        return {*self._left[gpu, None], *([self._repartition[gpu]] if gpu in self._repartition else [])}

    def _make_room(self, gpu: int, placed: Sequence[tuple[int, int | None]], mode: PlannedAs) -> int | None:
        if mode != "mig":
            if self._modes[gpu] == mode and not self._spots[gpu]:
                return None
            return self._add_repartition(gpu, destroyed=sorted(self._spots[gpu]), added=(), mode=mode)
        required = {Spot(int(start or 0), str(self._occupants[number].profile)) for number, start in placed}
        new = required - self._spots[gpu]
        if not new:
            return None
        idle, room = set(self._idle(gpu)) - required, self._rooms[self._kinds[gpu]]
        stays = self._spots[gpu] - idle
        spared: set[Spot] = set()
        for spot in sorted(idle):  # destroy only GPU instances that block new instances
            if all(spot.start != other.start for other in new) and room.is_legal(stays | spared | new | {spot}):
                spared.add(spot)
        return self._add_repartition(gpu, destroyed=sorted(idle - spared), added=sorted(new), mode=mode)

    def _idle(self, gpu: int) -> list[Spot]:
        used = {start for place_gpu, start in self._places.values() if place_gpu == gpu}
        return sorted(spot for spot in self._spots[gpu] if spot.start not in used)

    def _add_repartition(self, gpu: int, *, destroyed: Sequence[Spot], added: Sequence[Spot], mode: PlannedAs) -> int:
        after = {self._repartition[gpu]} if gpu in self._repartition else set()
        for spot in destroyed:
            after |= set(self._left.pop((gpu, spot.start), ()))
        if mode != self._modes[gpu]:
            for place in [place for place in self._left if place[0] == gpu]:
                after |= set(self._left.pop(place))
        gone, new = (tuple(_slice(*spot) for spot in spots) for spots in (destroyed, added))
        node = self._add(after, "repartition", gpu, destroyed=gone, made=new, mode=mode)
        self._repartition[gpu], self._modes[gpu] = node, mode
        self._spots[gpu] = (self._spots[gpu] - set(destroyed)) | set(added)
        return node

    def _add(self, after: set[int], kind: StepKind, gpu: int, **fields: Any) -> int:
        self.nodes.append(_Node(Step(id="", kind=kind, gpu=self._ids[gpu], **fields), after))
        return len(self.nodes) - 1

    def _draw(self, occupant: Occupant) -> set[int]:
        """Draw an instance's throughput from its service's account; return the nodes that must pay in first."""
        account, lacking, drawn = self._account[occupant.service], occupant.worth, set()

        def preference(deposit: tuple[int | None, float]) -> tuple[bool, bool, int]:
            node = deposit[0]
            if node is None:
                return False, False, 0
            paid_in = self.nodes[node].step.instance
            assert paid_in is not None
            return True, configuration_of(paid_in) != configuration_of(occupant.instance), node

        remaining: list[tuple[int | None, float]] = []
        for node, amount in sorted(account, key=preference):
            part = min(amount, lacking)
            lacking -= part
            if part > 0 and node is not None:
                drawn.add(node)
            if amount > part:
                remaining.append((node, amount - part))
        self._account[occupant.service] = remaining
        return drawn


def build_steps(
    solved: SearchState,
    start: SearchState,
    gpus: Sequence[Gpu],
    idle: Mapping[int, Sequence[Spot]],
    modes: Mapping[int, PlannedAs],
) -> list[Step]:
    """Return the steps from the start to a solved state; each step follows the steps that it waits for.

    `idle` are the GPU instances without a service at the start, by number of the GPU; `modes` are by target.
    """
    builder = _Builder(start, gpus, idle)
    for move in solved.moves:
        if move.gpu is None:
            builder.take(move.placed[0][0])
        else:
            target = solved.occupants[move.placed[0][0]].target
            is_divided = move.placed[0][1] is not None
            builder.put(move.gpu, move.placed, "mig" if is_divided or target is None else modes[target])
    builder.clear(start.untouchable)
    _merge(builder.nodes)
    return _number(builder.nodes)


def _merge(nodes: list[_Node]) -> None:
    """Merge creation and deletion of equal instances into a migration, if neither step has to wait longer."""
    before: list[set[int]] = []  # all direct and indirect predecessors
    for node in nodes:
        before.append(set(node.after).union(*(before[number] for number in node.after)))
    used: set[int] = set()
    for node in nodes:
        old = node.step.instance
        if node.step.kind != "delete" or old is None:
            continue
        for other in sorted(node.after - used):
            create = nodes[other].step
            is_equal = create.instance is not None and configuration_of(create.instance) == configuration_of(old)
            if create.kind == "create" and is_equal and node.after - {other} <= before[other]:
                node.merged_into = other
                nodes[other].step = replace(create, kind="migrate", source_gpu=node.step.gpu, source=old)
                used.add(other)
                break


def _number(nodes: Sequence[_Node]) -> list[Step]:
    numbers = [number for number, node in enumerate(nodes) if node.merged_into is None]
    ids = {number: f"s{position}" for position, number in enumerate(numbers, 1)}
    ids |= {number: ids[node.merged_into] for number, node in enumerate(nodes) if node.merged_into is not None}
    return [
        replace(
            nodes[number].step,
            id=ids[number],
            after=tuple(sorted({ids[other] for other in nodes[number].after}, key=natural_key)),
        )
        for number in numbers
    ]


def _slice(start: int, profile: str | None) -> Slice:
    return Slice(profile=str(profile), start=start)


def assign_times(steps: Sequence[Step], durations_s: Mapping[str, float]) -> tuple[Step, ...]:
    """Return the steps with their times; each step begins as early as possible."""
    ends: dict[str, float] = {}
    timed_steps = []
    for step in steps:
        begins = max((ends[other] for other in step.after), default=0.0)
        ends[step.id] = begins + durations_s[step.kind]
        timed_steps.append(replace(step, begins_s=begins, ends_s=ends[step.id]))
    return tuple(timed_steps)


def measure_longest_chain(steps: Sequence[Step]) -> int:
    """Return the length of the longest chain of dependent steps."""
    length: dict[str, int] = {}
    for step in steps:
        length[step.id] = 1 + max((length[other] for other in step.after), default=0)
    return max(length.values(), default=0)
