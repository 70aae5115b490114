"""The GPUs of a solution matched with today's, so that most of what is there stays. Quick, and not proved."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from pipeline.planner.serving.solution import Filled
from pipeline.planner.serving.targets import Layout, Target, Today, num_kept


def matched(gpus: Sequence[Filled], there: Sequence[Today], layouts: Sequence[Layout]) -> list[Target]:
    """Match each GPU with the one of today's, and the layout, where most stays; today's first, in their order."""
    import numpy as np
    from scipy.optimize import linear_sum_assignment

    having: dict[int, set[int]] = defaultdict(set)
    for number, today in enumerate(there):
        for option in today.options.values():
            having[id(option)].add(number)
    choices: dict[tuple[int, int], Target] = {}
    kept = np.zeros((len(gpus), len(there)))
    for row, gpu in enumerate(gpus):
        own = [layout for layout in layouts if layout.counts == Counter(gpu.partition.slots)]
        for number in set().union(*(having[id(option)] for option in gpu.options)):
            each = [_arranged(gpu, layout, number, there[number]) for layout in own]
            choices[row, number] = max(each, key=lambda target: num_kept([target], there))
            kept[row, number] = num_kept([choices[row, number]], there)
    pairs = {int(row): int(number) for row, number in zip(*linear_sum_assignment(-kept), strict=True)}
    targets = []
    for row, gpu in enumerate(gpus):
        chosen = choices.get((row, pairs.get(row, -1)))
        if chosen is None:
            layout = next(each for each in layouts if each.counts == Counter(gpu.partition.slots))
            chosen = _arranged(gpu, layout, None, Today(None, {}))
        targets.append(chosen)
    return sorted(targets, key=lambda target: (target.today is None, target.today or 0))


def _arranged(gpu: Filled, layout: Layout, number: int | None, today: Today) -> Target:
    """Put the services of a GPU into the slots of a layout, first where they are today."""
    target = Target(layout, number, {})
    waiting = [option for option in gpu.options if option is not None]
    for slot in layout.slots:
        same = next((each for each in waiting if today.options.get(slot) is each), None)
        if same is not None:
            waiting.remove(same)
            target.taken[slot] = same
    for option in waiting:
        slot = next(slot for slot in layout.slots if slot[0] == option.kind and slot not in target.taken)
        target.taken[slot] = option
    return target
