"""GPUs as they are today and as they are to be: which slot of which layout has which configuration of a problem."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pipeline.base.domain.mig_table import model_called
from pipeline.planner.deployment import Deployment, Gpu, Instance
from pipeline.planner.serving import planned
from pipeline.planner.serving.problem import WHOLE, KindIndex, Option, Partition, Problem
from pipeline.planner.serving.solution import Filled
from pipeline.prepare.mig import partitions

Slot = tuple[KindIndex, int | None]
"""Kind by position, and first memory slice; `None` for an undivided GPU."""


@dataclass(frozen=True, slots=True)
class Layout:
    """A maximal way to divide a GPU of a model, given by its position, with places."""

    model: int
    slots: tuple[Slot, ...]

    @property
    def counts(self) -> Counter[KindIndex]:
        """How many slots of each kind."""
        return Counter(kind for kind, _ in self.slots)


@dataclass(frozen=True, slots=True)
class Today:
    """A GPU of today: its model, `None` if that is not planned with, and the configurations that may stay."""

    model: int | None
    options: Mapping[Slot, Option]


@dataclass(slots=True)
class Target:
    """A GPU as it is to be: its position among today's, if it is one of these, and who is in which slot."""

    layout: Layout
    today: int | None
    taken: dict[Slot, Option]

    @property
    def filled(self) -> Filled:
        """The GPU as a part of a solution."""
        partition = Partition(model=self.layout.model, counts=dict(sorted(self.layout.counts.items())))
        return Filled(partition, tuple(self.taken.get(slot) for slot in sorted(self.layout.slots, key=_by_kind)))

    def deployed(self, problem: Problem, today: Deployment) -> Gpu:
        """The GPU as a part of a deployment."""
        placed = [
            planned.instance(option, problem.kinds[kind].profile or None, start)
            for (kind, start), option in self.taken.items()
        ]
        mode = planned.mode_of(next(iter(self.taken.values())).row)
        name = None if self.today is None else today.gpus[self.today].id
        return planned.gpu(problem.models[self.layout.model], placed, mode, name)


def layouts(problem: Problem) -> list[Layout]:
    """Every layout of each model."""
    found = []
    for number, model in enumerate(problem.models):
        kinds = {
            kind.profile: KindIndex(position) for position, kind in enumerate(problem.kinds) if kind.model == number
        }
        if WHOLE in kinds:
            found.append(Layout(number, ((kinds[WHOLE], None),)))
        pool = [partitions.resolve(model.mig, name) for name in kinds if name != WHOLE] if model.mig else []
        if model.mig is not None and pool:
            for placed in partitions.list_maximal_layouts(model.mig, pool):
                found.append(Layout(number, tuple((kinds[profile.name], start) for profile, start in placed)))
    return found


def staying(problem: Problem, gpu: Gpu) -> Today:
    """What of a GPU may stay: services that are still served, in configurations that may still be used."""
    name = model_called(gpu.model)
    model = next((number for number, each in enumerate(problem.models) if each.name == name), None)
    # Of several on an undivided GPU, none has it to itself as a plan would give it.
    if model is None or (gpu.mode != "mig" and len(gpu.instances) > 1):
        return Today(model, {})
    kinds = {kind.profile: KindIndex(position) for position, kind in enumerate(problem.kinds) if kind.model == model}
    options = {}
    for each in gpu.instances:
        kind = kinds.get(each.profile or WHOLE)
        option = None if kind is None else _same(problem, kind, each, gpu.mode)
        if kind is not None and option is not None:
            options[kind, each.start] = option
    return Today(model, options)


def num_kept(targets: Sequence[Target], there: Sequence[Today]) -> int:
    """How many instances stay where and as they are."""
    return sum(
        there[target.today].options.get(slot) is option
        for target in targets
        if target.today is not None
        for slot, option in target.taken.items()
    )


def _same(problem: Problem, kind: KindIndex, there: Instance, mode: str) -> Option | None:
    """The configuration that runs there, if it may still be used."""
    for own, service in zip(problem.admitted, problem.services, strict=True):
        if service.name == there.service:
            for option in own:
                row = option.row
                is_same = (row.processes, row.batch, row.share_percent) == (
                    there.processes,
                    there.batch,
                    there.share_pct,
                )
                if is_same and option.kind == kind and planned.mode_of(row) == mode:
                    return option
    return None


def _by_kind(slot: Slot) -> tuple[int, int]:
    return slot[0], slot[1] or 0
