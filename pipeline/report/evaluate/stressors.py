"""Stressors: slowdowns of workloads beside them (sensitivity), their own (pressure), and their loads alone.

A stressor that takes turns gives the slowdowns of all its resources in one launch: relative to the idle turns of this
launch, and to the turns of the same stressor alone. A stressor of one resource is compared like any pair of jobs.
Hardware counters show what a stressor alone loads, on its own resource and on others.
"""

from __future__ import annotations

import itertools
import json
import math
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pipeline.base.domain import work_units
from pipeline.base.domain.normalisation import SLOWDOWN, select_independent
from pipeline.base.domain.sharing_modes import SERIAL, SharingMode
from pipeline.base.domain.tags import PREFIX, Tag
from pipeline.base.domain.window import DIAL, IDLE, RESOURCE, STRESSOR, TURN_S, Place, parse_turns
from pipeline.base.system.words import format_count, group_by, natural_key
from pipeline.report.evaluate.cells import Cell, label_cases
from pipeline.report.evaluate.quantities import name_workload_metric
from pipeline.report.evaluate.statistics import MARGIN, Estimate, format_times
from pipeline.report.evaluate.wording import join_words
from pipeline.report.read.stressor_counters import COUNTERS, Counter
from pipeline.report.read.study_records import JobRow, StressorCounters, Study

_RESOURCES, _DIALS = "resources", "dials"
_TURNS = Tag.TURNS.removeprefix(PREFIX)
LEAK = 0.1
"""Load of another resource, relative to a stressor of that resource or to its peak, above which a stressor leaks."""
COUNTER_OF = {counter.resource: counter for counter in reversed(COUNTERS) if counter.resource}
"""The counter of each resource that has one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StressorEffect:
    """The slowdowns of a workload and of the stressor that ran beside it, each relative to the program alone.

    Attributes:
        workload: label of the workload.
        params: MLflow params of the workload's job.
        sensitivity: slowdown of the workload; `None` if unknown.
        pressure: slowdown of the stressor; `None` if unknown.
        reason: why the group has no figures, empty if unknown; `None` if it has figures.
    """

    workload: str
    params: Mapping[str, str]
    mode: str
    sharing: SharingMode
    resource: str
    dial: float
    sensitivity: Estimate | None
    pressure: Estimate | None
    reason: str | None = None


def list_resources(params: Mapping[str, str]) -> list[str]:
    """Return the resources that a stressor with these params loads."""
    return [params[RESOURCE]] if RESOURCE in params else list(json.loads(params[_RESOURCES]))


def list_effects(study: Study, cells: Sequence[Cell]) -> list[StressorEffect]:
    """Return the effects of all pairs of a workload and a stressor, by workload, mode, resource and dial."""
    effects = [
        *_list_turns(study, cells),
        *_list_mixes(cells),
        *_list_co_runners(study, cells),
        *_list_without_figures(cells),
    ]
    return sorted(
        effects,
        key=lambda effect: (
            natural_key(effect.workload),
            effect.sharing.order,
            natural_key(effect.mode),
            effect.resource,
            effect.dial,
        ),
    )


def find_strongest(effects: Sequence[StressorEffect]) -> list[StressorEffect]:
    """Return the effect with the highest slowdown of each workload in each mode, the highest first."""
    by_place: dict[tuple[str, str], tuple[float, StressorEffect]] = {}
    for effect in effects:
        place, slowdown = (effect.workload, effect.mode), effect.sensitivity
        if slowdown is not None and (place not in by_place or slowdown.median > by_place[place][0]):
            by_place[place] = slowdown.median, effect
    return [effect for _, effect in sorted(by_place.values(), key=lambda entry: -entry[0])]


def describe_effects(effects: Sequence[StressorEffect]) -> list[str]:
    """Return a clause on the highest slowdown of each workload in each mode, and on what it rests."""
    clauses = []
    for effect in find_strongest(effects):
        of_place = [one for one in effects if (one.workload, one.mode) == (effect.workload, effect.mode)]
        figures = [one.sensitivity for one in of_place if one.sensitivity is not None]
        details = [] if len(figures) == len(of_place) else [f"{len(figures)} of {len(of_place)} loads have a figure"]
        if any(slowdown.low is None for slowdown in figures):
            details.append(f"{format_count(min(slowdown.n for slowdown in figures), 'block')}, no interval")
        assert effect.sensitivity is not None
        if effect.sensitivity.median > 1 + MARGIN:
            place = "; ".join([f"{effect.resource}, dial {effect.dial:g}, {effect.mode}", *details])
            times = format_times(effect.sensitivity)
            clauses.append(f"{effect.workload} takes {times} its time alone beside its worst stressor ({place})")
        else:
            highest = max((slowdown.high for slowdown in figures if slowdown.high is not None), default=math.inf)
            begin = "no stressor slows" if not details and highest <= 1 + MARGIN else "no stressor was seen to slow"
            place = "; ".join([effect.mode, *details])
            clauses.append(f"{begin} down {effect.workload} by more than {100 * MARGIN:g} % ({place})")
    return clauses


def _list_turns(study: Study, cells: Sequence[Cell]) -> Iterator[StressorEffect]:
    """Yield the effects of stressors that take turns. The slowdown of several copies is that of the slowest one."""
    cases, alone = label_cases(study), _find_turns_alone(study)
    sensitivities: dict[object, dict[Place, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    pressures: dict[object, dict[Place, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    for row in (row for row in study.rows if row.is_valid and not row.is_sequential and _TURNS in row.facts):
        turns = parse_turns(row.facts[_TURNS])
        (stressor,) = (job for job in (*row.jobs, *row.co_runner_jobs) if TURN_S in job.params)
        measured = [job for job in row.jobs if job is not stressor and not job.is_rate_given]
        idle = next((turn.rates for turn in turns if turn.is_idle), {})
        key = cases[row.run_id], row.degree, row.mode
        for turn in (turn for turn in turns if not turn.is_idle):
            sensitivity, pressure = sensitivities[key][turn.place], pressures[key][turn.place]
            speeds = [_divide(turn.rates, idle, job.index) for job in measured]
            if speeds and all(speeds):
                sensitivity[row.block] = 1 / min(filter(None, speeds))
            rates_alone = alone.get((row.block, stressor.digest), {}).get(turn.place, {})
            if speed := _divide({0: turn.rates.get(stressor.index, 0.0)}, rates_alone, 0):
                pressure[row.block] = 1 / speed
    for cell in cells:
        for place, sensitivity in sensitivities.get((cell.case, cell.degree, cell.mode), {}).items():
            programs = zip(cell.case.workloads, cell.case.params, strict=True)
            measured_programs = [(label, params) for label, params in programs if params.get("workload") != STRESSOR]
            if len(measured_programs) == 1 and cell.is_ranked:
                ((label, params),) = measured_programs
                pressure = pressures[cell.case, cell.degree, cell.mode][place]
                stressor_params = {RESOURCE: place[0], DIAL: str(place[1])}
                yield _make_effect(cell, _name(cell, label), params, stressor_params, sensitivity, pressure)


def _find_turns_alone(study: Study) -> dict[tuple[int, str], dict[Place, Mapping[int, float]]]:
    """Return the rates of each stressor alone, by block and workload digest, and by resource and dial."""
    rows = (row for row in study.rows if row.is_sequential and row.is_valid and row.degree == 1)
    return {
        (row.block, row.jobs[0].digest): {turn.place: turn.rates for turn in parse_turns(row.facts[_TURNS])}
        for row in rows
        if _TURNS in row.facts
    }


def _divide(rates: Mapping[int, float], baselines: Mapping[int, float], index: int) -> float | None:
    """Return the speed of a job relative to a baseline; `None` if either is unknown or zero."""
    rate, baseline = rates.get(index), baselines.get(index)
    return rate / baseline if rate and baseline else None


def _list_mixes(cells: Sequence[Cell]) -> Iterator[StressorEffect]:
    for cell in (cell for cell in cells if cell.case.is_mix and cell.sharing != SERIAL and cell.is_ranked):
        programs = list(zip(cell.case.workloads, cell.case.params, strict=True))
        stressors = {label: params for label, params in programs if params.get("workload") == STRESSOR}
        measured = {label: params for label, params in programs if params.get("workload") != STRESSOR}
        if len(stressors) == len(measured) == 1 and all(RESOURCE in params for params in stressors.values()):
            ((label, params),), ((stressor_label, stressor),) = measured.items(), stressors.items()
            yield _make_effect(
                cell,
                _name(cell, label),
                params,
                stressor,
                cell.values.get(name_workload_metric(SLOWDOWN, label), {}),
                cell.values.get(name_workload_metric(SLOWDOWN, stressor_label), {}),
            )


def _list_without_figures(cells: Sequence[Cell]) -> Iterator[StressorEffect]:
    """Yield the effects that pairs would have shown whose groups failed or are invalid."""
    for cell in (cell for cell in cells if cell.case.is_mix and cell.sharing != SERIAL and not cell.is_ranked):
        programs = list(zip(cell.case.workloads, cell.case.params, strict=True))
        for stressor in (params for _, params in programs if params.get("workload") == STRESSOR):
            for label, params in ((label, params) for label, params in programs if params.get("workload") != STRESSOR):
                for resource, dial in itertools.product(list_resources(stressor), _list_dials(stressor)):
                    place = {RESOURCE: resource, DIAL: str(dial)}
                    yield _make_effect(cell, _name(cell, label), params, place, {}, {})


def _list_dials(params: Mapping[str, str]) -> list[float]:
    return [float(params[DIAL])] if DIAL in params else list(json.loads(params[_DIALS]))


def name_workload(label: str, setting: str, co_runners: str = "") -> str:
    """Return the label of a workload with its setting; a setting that names co-runners is left out."""
    return f"{label} [{setting}]" if setting and not co_runners else label


def _name(cell: Cell, label: str) -> str:
    return name_workload(label, cell.case.setting, cell.co_runners)


def _list_co_runners(study: Study, cells: Sequence[Cell]) -> Iterator[StressorEffect]:
    """Yield the effects on programs that cannot be stopped, beside which a stressor is a co-runner."""
    cases, alone = label_cases(study), _find_rates_alone(study)
    stressors: dict[object, dict[int, JobRow]] = defaultdict(dict)
    for row in study.rows:
        for job in row.co_runner_jobs:
            if job.params.get("workload") == STRESSOR and RESOURCE in job.params and len(row.co_runner_jobs) == 1:
                stressors[cases[row.run_id], row.degree, row.mode][row.block] = job
    for cell in cells:
        by_block = stressors.get((cell.case, cell.degree, cell.mode), {})
        if by_block and not cell.case.is_mix and cell.is_ranked:
            pressure = {
                block: alone[block, job.digest] / rate
                for block, job in by_block.items()
                if (rate := _find_rate(job)) and (block, job.digest) in alone and block in cell.values.get(SLOWDOWN, {})
            }
            stressor = next(iter(by_block.values())).params
            label, params, slowdown = cell.case.workloads[0], cell.case.params[0], cell.values.get(SLOWDOWN, {})
            yield _make_effect(cell, label, params, stressor, slowdown, pressure)


def _find_rates_alone(study: Study) -> dict[tuple[int, str], float]:
    """Return the rate of each job that ran alone, by block and workload digest; of several windows, the last."""
    rows = (row for row in study.rows if row.is_sequential and row.is_valid and row.degree == 1)
    return {(row.block, row.jobs[0].digest): rate for row in rows if (rate := _find_rate(row.jobs[0]))}


def _find_rate(job: JobRow) -> float | None:
    return job.metrics.get(work_units.rate_of(job.unit))


def _make_effect(
    cell: Cell,
    workload: str,
    params: Mapping[str, str],
    stressor: Mapping[str, str],
    slowdown: Mapping[int, float],
    pressure: Mapping[int, float],
) -> StressorEffect:
    return StressorEffect(
        workload=workload,
        params=params,
        mode=cell.mode,
        sharing=cell.sharing,
        resource=stressor[RESOURCE],
        dial=float(stressor[DIAL]),
        sensitivity=cell.estimate(slowdown) if slowdown else None,
        pressure=cell.estimate(pressure) if pressure else None,
        reason=None if cell.is_ranked else cell.marks_of_rows or cell.reason,
    )


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
        suffix = f" on {device}" if len(study.devices) > 1 else ""
        leaks: dict[str, dict[Counter, float]] = defaultdict(dict)
        for load in loads:
            for counter, ratio in load.leaks.items():
                largest = leaks[load.place[0]]
                largest[counter] = max(ratio, largest.get(counter, 0.0))
        if leaks:
            parts = [f"{resource} also loads {join_words(name_leaks(of))}" for resource, of in leaks.items()]
            sentences.append(
                f"By hardware counters{suffix}, {'; '.join(parts)}. 100 % is the effect of the stressor of that "
                "resource, or else the peak (stressors.csv)."
            )
        if weak := dict.fromkeys(load.place[0] for load in loads if load.is_weak):
            sentences.append(
                f"Stressors that raise their own counter by less than {100 * LEAK:g} % of its peak{suffix}: "
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
        measured_counters = [counter for counter in COUNTERS if counter.field in medians[place] and counter.resource]
        for counter in measured_counters if resource != IDLE else ():
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
