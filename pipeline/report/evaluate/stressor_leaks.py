"""Loads of stressors that ran alone, on their own resource and on others, by hardware counters."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pipeline.base.domain.normalisation import select_independent
from pipeline.base.domain.turns import IDLE, Place
from pipeline.base.system.grouping import group_by
from pipeline.report.evaluate.wording import join_words
from pipeline.report.read.stressor_counters import COUNTERS, Counter
from pipeline.report.read.study_records import StressorCounters, Study

LEAK = 0.1
"""Load of another resource, relative to a stressor of that resource or to its peak, above which a stressor leaks."""
COUNTER_OF = {counter.resource: counter for counter in reversed(COUNTERS) if counter.resource}
"""The counter of each resource that has one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StressorLoad:
    """The counters of a stressor that ran alone.

    Attributes:
        counters: medians over the blocks, by name of the quantity.
        is_weak: whether the stressor raises the counter of its resource by less than `LEAK` of the peak, for its dial.
        to_effect: loads of other resources, relative to the stressors of these resources at the same dial.
        to_peak: loads of resources whose stressor was not measured at this dial, relative to their peak.
    """

    device: str
    place: Place
    num_blocks: int
    counters: Mapping[str, float]
    is_weak: bool
    to_effect: Mapping[Counter, float]
    to_peak: Mapping[Counter, float]

    @property
    def is_checked(self) -> bool:
        return bool(self.to_effect or self.to_peak)

    @property
    def leaks(self) -> dict[Counter, float]:
        """The loads of other resources above `LEAK`."""
        return {counter: load for counter, load in {**self.to_effect, **self.to_peak}.items() if load > LEAK}


def list_loads(study: Study) -> list[StressorLoad]:
    """Return the loads of all stressors that ran alone, by device, resource and dial; idle turns first."""
    by_device = group_by(study.counters, lambda counters: counters.device)
    return [load for device, members in sorted(by_device.items()) for load in _list_loads(device, members)]


def describe_loads(study: Study) -> list[str]:
    """Return a sentence on the stressors that load other resources, and one on those that do not load their own."""
    sentences = []
    for device, loads in group_by(list_loads(study), lambda load: load.device).items():
        where = f" on {device}" if len(study.devices) > 1 else ""
        leaks: dict[str, dict[Counter, float]] = defaultdict(dict)
        for load in loads:
            for counter, ratio in load.leaks.items():
                largest = leaks[load.place[0]]
                largest[counter] = max(ratio, largest.get(counter, 0.0))
        if leaks:
            parts = [f"{resource} also loads {join_words(name_leaks(of))}" for resource, of in leaks.items()]
            sentences.append(
                f"By hardware counters{where}, {'; '.join(parts)}. 100 % is the effect of the stressor of that "
                "resource, or else the peak (stressors.csv)."
            )
        if weak := dict.fromkeys(load.place[0] for load in loads if load.is_weak):
            sentences.append(
                f"Stressors that raise their own counter by less than {100 * LEAK:g} % of its peak{where}: "
                f"{join_words(list(weak))} (stressors.csv)."
            )
    return sentences


def name_leaks(leaks: Mapping[Counter, float]) -> list[str]:
    """Return each leak as `DRAM (23 %)`."""
    return [f"{counter.title} ({100 * ratio:.0f} %)" for counter, ratio in leaks.items()]


def _list_loads(device: str, members: Sequence[StressorCounters]) -> Iterator[StressorLoad]:
    by_place = group_by(members, lambda counters: counters.place)
    medians = {place: _find_medians(of_place) for place, of_place in by_place.items()}
    idle = next((counters for (resource, _), counters in medians.items() if resource == IDLE), {})
    effects = {
        place: {name: mean - idle.get(name, 0.0) for name, mean in counters.items()}
        for place, counters in medians.items()
    }
    num_cpus = max((counters.num_cpus or 0 for counters in members), default=0)
    for place in sorted(medians, key=lambda place: (place[0] != IDLE, place)):
        resource, dial = place
        is_weak, to_effect, to_peak = False, {}, {}
        known = [counter for counter in COUNTERS if counter.field in medians[place] and counter.resource]
        for counter in known if resource != IDLE else ():
            effect, peak = effects[place][counter.field], _find_peak(counter, num_cpus)
            least = LEAK * dial * (peak or 0.0)
            stressor = effects.get((counter.resource, dial), {}).get(COUNTER_OF[counter.resource].field, 0.0)
            if counter == COUNTER_OF.get(resource):
                is_weak = effect < least
            elif stressor > least:  # a stressor that hardly loads its resource is no measure of it
                to_effect[counter] = effect / stressor
            elif peak is not None:
                to_peak[counter] = effect / peak
        yield StressorLoad(
            device=device,
            place=place,
            num_blocks=len({counters.block for counters in by_place[place]}),
            counters=medians[place],
            is_weak=is_weak,
            to_effect=to_effect,
            to_peak=to_peak,
        )


def _find_peak(counter: Counter, num_cpus: int) -> float | None:
    """Return the highest possible value of a counter; `None` if unknown, as of PCIe."""
    return (num_cpus or None) if counter.is_of_job else None if counter.unit else 1.0


def _find_medians(members: Sequence[StressorCounters]) -> dict[str, float]:
    by_counter: dict[str, dict[int, float]] = defaultdict(dict)
    for counters in members:
        for name, mean in counters.means.items():
            by_counter[name][counters.block] = mean
    gpus = {counters.block: counters.gpu_uuid for counters in members}
    return {name: statistics.median(select_independent(by_block, gpus)) for name, by_block in by_counter.items()}
