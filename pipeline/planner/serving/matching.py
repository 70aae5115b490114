"""A matching of a solution's GPUs with today's GPUs that keeps many instances; fast, but without a proof."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from pipeline.planner.serving.solution import FilledGpu
from pipeline.planner.serving.targets import CurrentGpu, Layout, Target, count_kept


def match_gpus(gpus: Sequence[FilledGpu], current: Sequence[CurrentGpu], layouts: Sequence[Layout]) -> list[Target]:
    """Match each GPU with the GPU of today and the layout that keep most instances; return today's GPUs first."""
    import numpy as np
    from scipy.optimize import linear_sum_assignment

    having: dict[int, set[int]] = defaultdict(set)
    for number, today in enumerate(current):
        for option in today.options.values():
            having[id(option)].add(number)
    choices: dict[tuple[int, int], Target] = {}
    num_kept = np.zeros((len(gpus), len(current)))
    for row, gpu in enumerate(gpus):
        fitting = [layout for layout in layouts if layout.counts == Counter(gpu.partition.slots)]
        for number in set().union(*(having[id(option)] for option in gpu.options)):
            targets_here = [_arrange(gpu, layout, number, current[number]) for layout in fitting]
            choices[row, number] = max(targets_here, key=lambda target: count_kept([target], current))
            num_kept[row, number] = count_kept([choices[row, number]], current)
    pairs = {int(row): int(number) for row, number in zip(*linear_sum_assignment(-num_kept), strict=True)}
    targets = []
    for row, gpu in enumerate(gpus):
        chosen = choices.get((row, pairs.get(row, -1)))
        if chosen is None:
            layout = next(candidate for candidate in layouts if candidate.counts == Counter(gpu.partition.slots))
            chosen = _arrange(gpu, layout, None, CurrentGpu(None, {}))
        targets.append(chosen)
    return sorted(targets, key=lambda target: (target.today is None, target.today or 0))


def _arrange(gpu: FilledGpu, layout: Layout, number: int | None, today: CurrentGpu) -> Target:
    target = Target(layout, number, {})
    waiting = [option for option in gpu.options if option is not None]
    for slot in layout.slots:
        same = next((option for option in waiting if today.options.get(slot) is option), None)
        if same is not None:
            waiting.remove(same)
            target.taken[slot] = same
    for option in waiting:
        slot = next(slot for slot in layout.slots if slot[0] == option.kind and slot not in target.taken)
        target.taken[slot] = option
    return target
