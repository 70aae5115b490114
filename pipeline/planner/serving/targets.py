"""GPUs of today's plan and of a new plan: the configuration in each slot of a layout."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pipeline.base.domain.mig_table import find_model_name
from pipeline.planner.deployment import Deployment, Gpu
from pipeline.planner.profile_table import PLANNED_AS
from pipeline.planner.serving import solution_plan
from pipeline.planner.serving.problem import WHOLE, KindIndex, Option, Partition, Problem
from pipeline.planner.serving.solution import FilledGpu
from pipeline.prepare.mig import layouts

Slot = tuple[KindIndex, int | None]
"""The position of the kind, and the start; the start is `None` for an undivided GPU."""


@dataclass(frozen=True, slots=True)
class Layout:
    """A maximal partition of a GPU of a model, with starts."""

    model: int
    slots: tuple[Slot, ...]

    @property
    def counts(self) -> Counter[KindIndex]:
        """The number of slots of each kind."""
        return Counter(kind for kind, _ in self.slots)


@dataclass(frozen=True, slots=True)
class CurrentGpu:
    """A GPU of today's plan: its model (`None` outside the problem), and the configurations that may stay."""

    model: int | None
    options: Mapping[Slot, Option]


@dataclass(slots=True)
class Target:
    """A GPU of the new plan: its position among today's GPUs, if any, and the configurations in its slots."""

    layout: Layout
    today: int | None
    taken: dict[Slot, Option]

    @property
    def filled(self) -> FilledGpu:
        """The GPU in the form of a solution."""
        partition = Partition(model=self.layout.model, counts=dict(sorted(self.layout.counts.items())))
        by_kind = sorted(self.layout.slots, key=lambda slot: (slot[0], slot[1] or 0))
        return FilledGpu(partition, tuple(map(self.taken.get, by_kind)))

    def to_gpu(self, problem: Problem, today: Deployment) -> Gpu:
        """Return the GPU in the form of a deployment."""
        name = None if self.today is None else today.gpus[self.today].id
        taken = [(option, start) for (_, start), option in self.taken.items()]
        return solution_plan.build_gpu(problem, self.layout.model, taken, name)


def list_layouts(problem: Problem) -> list[Layout]:
    """Return all layouts of each model."""
    all_layouts = []
    for number, model in enumerate(problem.models):
        kinds = problem.kinds_of(number)
        if WHOLE in kinds:
            all_layouts.append(Layout(number, ((kinds[WHOLE], None),)))
        pool = [mig_profile for kind in kinds.values() if (mig_profile := problem.kinds[kind].mig_profile) is not None]
        if model.mig is not None and pool:
            for placed in layouts.list_maximal_layouts(model.mig, pool):
                all_layouts.append(Layout(number, tuple((kinds[profile.name], start) for profile, start in placed)))
    return all_layouts


def find_kept_options(problem: Problem, gpu: Gpu) -> CurrentGpu:
    """Return the instances of a GPU that may stay: services in the demand, with admitted configurations."""
    name = find_model_name(gpu.model)
    model = next((number for number, candidate in enumerate(problem.models) if candidate.name == name), None)
    # A plan puts one service on an undivided GPU, so several services on an undivided GPU cannot stay.
    if model is None or (gpu.mode != "mig" and len(gpu.instances) > 1):
        return CurrentGpu(model, {})
    kinds = problem.kinds_of(model)
    options = {}
    for instance in gpu.instances:
        place = (instance.service, kinds.get(instance.profile or WHOLE), gpu.mode)
        configuration = (instance.processes, instance.batch, instance.share_pct)
        for option in itertools.chain.from_iterable(problem.admitted):
            row = option.row
            if (row.workload, option.kind, PLANNED_AS[row.sharing_mode]) == place and (
                row.processes,
                row.batch,
                row.share_percent,
            ) == configuration:
                options[option.kind, instance.start] = option
                break
    return CurrentGpu(model, options)


def count_kept(targets: Sequence[Target], current: Sequence[CurrentGpu]) -> int:
    """Count the instances whose GPU, start and configuration stay the same."""
    return sum(
        current[target.today].options.get(slot) is option
        for target in targets
        if target.today is not None
        for slot, option in target.taken.items()
    )
