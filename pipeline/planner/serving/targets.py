"""GPUs as they are today and as they are to be: which slot of which layout has which configuration of a problem."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pipeline.base.domain.mig_table import model_called
from pipeline.planner.deployment import Deployment, Gpu
from pipeline.planner.profile_table import PLANNED_AS
from pipeline.planner.serving import solution_plan
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
        """The number of slots of each kind."""
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
        """Return the GPU as a part of a deployment."""
        name = None if self.today is None else today.gpus[self.today].id
        taken = [(option, start) for (_, start), option in self.taken.items()]
        return solution_plan.build_gpu(problem, self.layout.model, taken, name)


def layouts(problem: Problem) -> list[Layout]:
    """Return every layout of each model."""
    found = []
    for number, model in enumerate(problem.models):
        kinds = problem.kinds_of(number)
        if WHOLE in kinds:
            found.append(Layout(number, ((kinds[WHOLE], None),)))
        pool = [each for kind in kinds.values() if (each := problem.kinds[kind].mig_profile) is not None]
        if model.mig is not None and pool:
            for placed in partitions.maximal_layouts(model.mig, pool):
                found.append(Layout(number, tuple((kinds[profile.name], start) for profile, start in placed)))
    return found


def staying(problem: Problem, gpu: Gpu) -> Today:
    """Return what of a GPU may stay: services that are still served, in configurations that may still be used."""
    name = model_called(gpu.model)
    model = next((number for number, each in enumerate(problem.models) if each.name == name), None)
    # Of several on an undivided GPU, none has it to itself as a plan would give it.
    if model is None or (gpu.mode != "mig" and len(gpu.instances) > 1):
        return Today(model, {})
    kinds = problem.kinds_of(model)
    options = {}
    for instance in gpu.instances:
        there = (instance.service, kinds.get(instance.profile or WHOLE), gpu.mode)
        configuration = (instance.processes, instance.batch, instance.share_pct)
        for option in itertools.chain.from_iterable(problem.admitted):
            row = option.row
            if (row.workload, option.kind, PLANNED_AS[row.sharing_mode]) == there and (
                row.processes,
                row.batch,
                row.share_percent,
            ) == configuration:
                options[option.kind, instance.start] = option
                break
    return Today(model, options)


def num_kept(targets: Sequence[Target], there: Sequence[Today]) -> int:
    """Count the instances that stay where and as they are."""
    return sum(
        there[target.today].options.get(slot) is option
        for target in targets
        if target.today is not None
        for slot, option in target.taken.items()
    )


def _by_kind(slot: Slot) -> tuple[int, int]:
    return slot[0], slot[1] or 0
