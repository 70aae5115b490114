"""Slowdowns of workloads that run together under MPS, predicted from their measurements beside stressors.

A workload waits the longer, the more sensitive it is, and the harder its partners press (docs/planner.md):

    slowdown(A beside B, C, ...) = 1 + 1.36 s(A) (p(B) + p(C) + ...)

- Sensitivity s(A): slowdown of A beside the full stressors, minus 1; geometric mean over the resources.
- Pressure p(B): slowdown of the full stressors beside B, minus 1; geometric mean over the resources.

Measured pairs correct the sensitivities and pressures of their workloads. The one constant was fitted on the 40
slowdowns of pairs of docs/results/sensitivity_ten_h200.md.

The range of a prediction is conformal: it would have contained nine of ten measured slowdowns of pairs of other
workloads.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from pipeline.base.domain.mig_table import find_model_name
from pipeline.base.domain.normalisation import SLOWDOWN, SPEEDUP
from pipeline.base.domain.sharing_modes import SERIAL
from pipeline.base.domain.window import STRESSOR
from pipeline.base.system.words import natural_key
from pipeline.report.evaluate.cells import Cell
from pipeline.report.evaluate.quantities import name_workload_metric
from pipeline.report.evaluate.statistics import Estimate
from pipeline.report.evaluate.stressors import (
    StressorEffect,
    list_effects,
    name_workload,
)
from pipeline.report.read.study_records import Row, Study

FULL = 1.0
"""The dial of a stressor that never pauses."""
RESOURCES = ("issue_fp32", "tensor_cores", "l2", "memory_bandwidth")
"""The resources of the model. Where none of them was measured, as in a rehearsal, all that were measured count."""
STRENGTH = 1.36
"""The constant of the model."""
COVERAGE = 0.9
"""The share of slowdowns that a range is to contain."""
# Scatter of ln s and ln p from stressors, and of ln slowdown that the model leaves at best: docs/results.
_SCATTER_OF_LOADS, _SCATTER_OF_SLOWDOWNS = 0.25, 0.04
# Smaller losses of speed say more about the scatter of a measurement than about a load.
_LEAST_LOSS = 0.1
_SIMULATED = "simulated_"
Name = TypeVar("Name", bound=Hashable)
GroupName = tuple[str, ...]
"""The names of two or three workloads, sorted."""


class Platform(NamedTuple):
    """A GPU model, `simulated_NAME` for a simulated one, and the first number of its driver's version."""

    model: str
    driver_branch: int | None

    def describe(self) -> str:
        """Return the platform in words."""
        return self.model if self.driver_branch is None else f"{self.model} with driver {self.driver_branch}"


@dataclass(slots=True)
class Vectors:
    """One workload beside the stressors in one mode.

    Attributes:
        sensitivity: slowdown of the workload, by resource and dial.
        pressure: slowdown of the full stressor beside the workload, by resource.
    """

    sensitivity: dict[str, dict[float, Estimate]] = field(default_factory=lambda: defaultdict(dict))
    pressure: dict[str, Estimate] = field(default_factory=dict)

    def has(self, resource: str) -> bool:
        """Return whether the workload ran beside the full stressor of a resource, and both slowdowns are known."""
        return FULL in self.sensitivity.get(resource, {}) and resource in self.pressure


class Load(NamedTuple):
    """The sensitivity and the pressure of a workload; both are 0 for a workload that does not use the GPU."""

    sensitivity: float
    pressure: float


@dataclass(frozen=True, slots=True)
class MeasuredGroup:
    """A pair or three workloads that were measured.

    Attributes:
        slowdowns: slowdown of each workload, in the order of the group's name; empty if one of them is unknown.
        throughput: speed-up over serial.
    """

    slowdowns: tuple[Estimate, ...]
    throughput: Estimate | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PairInputs:
    """The inputs of predictions from one study.

    Attributes:
        workloads: names of the workloads that ran beside a stressor or in a pair.
        vectors: measurements beside stressors, by mode and workload.
        groups: measured pairs and groups of three, by mode and name.
        platforms: platforms of the measurements beside stressors (by one workload) and of groups (by several).
        failures: reasons why groups with a stressor have no figures, by mode, workload and resource.
    """

    workloads: tuple[str, ...]
    vectors: Mapping[str, Mapping[str, Vectors]]
    groups: Mapping[tuple[str, GroupName], MeasuredGroup]
    platforms: Mapping[tuple[str, ...], frozenset[Platform]]
    failures: Mapping[tuple[str, str, str], str]


def collect_inputs(study: Study, cells: Sequence[Cell]) -> PairInputs:
    """Collect the inputs; rows that are invalid or did not end `ok` have no figures."""
    groups, effects = _find_groups(cells), list_effects(study, cells)
    names = {effect.workload for effect in effects} | {name for _, group in groups for name in group}
    return PairInputs(
        workloads=tuple(sorted(names, key=natural_key)),
        vectors=_collect_vectors(effects),
        groups=groups,
        platforms=_find_platforms(study),
        failures={(e.mode, e.workload, e.resource): e.reason for e in effects if e.reason is not None},
    )


def name_model(name: str, *, is_simulated: bool) -> str:
    """Return the name of a GPU model as in a profile, or as on a command line: `simulated_NAME` for a simulated one."""
    return f"{_SIMULATED if is_simulated else ''}{find_model_name(name.removeprefix(_SIMULATED))}"


def normalise_model(name: str) -> str:
    """Return the model name for a name, an alias or a driver's name; `simulated_` at the beginning stays."""
    return name_model(name, is_simulated=name.startswith(_SIMULATED))


def _collect_vectors(effects: Iterable[StressorEffect]) -> dict[str, dict[str, Vectors]]:
    modes: dict[str, dict[str, Vectors]] = defaultdict(lambda: defaultdict(Vectors))
    for effect in effects:
        vectors = modes[effect.mode][effect.workload]
        if effect.sensitivity is not None and effect.sensitivity.median > 0:
            vectors.sensitivity[effect.resource][effect.dial] = effect.sensitivity
        if effect.pressure is not None and effect.pressure.median > 0 and effect.dial == FULL:
            vectors.pressure[effect.resource] = effect.pressure
    return modes


def _find_groups(cells: Iterable[Cell]) -> dict[tuple[str, GroupName], MeasuredGroup]:
    groups: dict[tuple[str, GroupName], MeasuredGroup] = {}
    for cell in cells:
        is_alone = not (cell.co_runners or cell.has_stressor or cell.sharing == SERIAL)
        num_workloads = len(cell.case.workloads)
        if not (is_alone and cell.is_ranked and cell.case.is_mix and cell.degree == num_workloads in (2, 3)):
            continue
        slowdowns = {}
        for label in cell.case.workloads:
            if (slowdown := cell.estimate_quantity(name_workload_metric(SLOWDOWN, label))) is not None:
                slowdowns[name_workload(label, cell.case.setting)] = slowdown
        labels = [name_workload(label, cell.case.setting) for label in cell.case.workloads]
        name = tuple(sorted(labels, key=natural_key))
        groups[cell.mode, name] = MeasuredGroup(
            slowdowns=tuple(slowdowns[label] for label in name) if len(slowdowns) == num_workloads else (),
            throughput=cell.estimates.get(SPEEDUP),
        )
    return groups


def _find_platforms(study: Study) -> dict[tuple[str, ...], frozenset[Platform]]:
    platforms: dict[tuple[str, ...], set[Platform]] = defaultdict(set)
    for row in (row for row in study.rows if row.is_valid and not row.is_sequential):
        stressors = [job for job in (*row.jobs, *row.co_runner_jobs) if job.params.get("workload") == STRESSOR]
        labels = {job.label for job in row.jobs if job.params.get("workload") != STRESSOR}
        named = (name_workload(label, row.setting, row.co_runners) for label in labels)
        names = tuple(sorted(named, key=natural_key))
        if len(names) == 1 if stressors else len(names) in (2, 3):
            platforms[names].add(_find_platform(row))
    return {names: frozenset(members) for names, members in platforms.items()}


def _find_platform(row: Row) -> Platform:
    branch = row.facts.get("driver_version", "").split(".")[0]
    return Platform(name_model(row.device, is_simulated=row.is_simulated), int(branch) if branch.isdecimal() else None)


class Predicted(NamedTuple):
    """A predicted figure and its range; without enough measured pairs of other workloads there is no range."""

    middle: float
    low: float | None
    high: float | None


class GroupError(NamedTuple):
    """The relative errors of the predicted slowdowns of measured groups, one for each workload of a group."""

    median: float
    largest: float
    num_groups: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """One pair in one mode, or one group of three that was measured.

    Attributes:
        slowdowns: predicted slowdown of each workload, in the order of `workloads`; empty without a prediction.
        by_stressors: the same without the measured pairs.
        throughput: predicted throughput of all relative to serial.
        error: error of the predictions of this mode and number of workloads; `None` if no such group was measured.
        measured: measurement of the group on the same GPU model and driver branch; `None` without one. A prediction
            does not use it.
        reason: reason why there is no prediction.
    """

    workloads: GroupName
    mode: str
    slowdowns: tuple[Predicted, ...] = ()
    by_stressors: tuple[float, ...] = ()
    throughput: Predicted | None = None
    error: GroupError | None = None
    measured: MeasuredGroup | None = None
    reason: str = ""

    @property
    def is_pair(self) -> bool:
        return len(self.workloads) == 2


def predict_groups(
    inputs: PairInputs, gpu_model: str | None = None, driver_branch: int | None = None
) -> list[Prediction]:
    """Predict every pair and measured group of three in every mode, for one GPU model and driver branch or any."""
    return [
        prediction for mode in inputs.vectors for prediction in _predict_mode(inputs, mode, gpu_model, driver_branch)
    ]


def _predict_mode(inputs: PairInputs, mode: str, gpu_model: str | None, driver_branch: int | None) -> list[Prediction]:
    resources, loads = list_resources(inputs.vectors[mode]), measure_loads(inputs, mode)
    measured = {
        name: group
        for (of_mode, name), group in inputs.groups.items()
        if of_mode == mode and inputs.platforms.get(name) == inputs.platforms.get(name[:1])
    }
    names: list[GroupName] = [
        *itertools.combinations(inputs.workloads, 2),
        *(name for name in measured if len(name) == 3),
    ]
    reasons = {
        name: _explain_platform(name, inputs.platforms, gpu_model, driver_branch)
        or _explain_unmeasured(name, mode, inputs, resources)
        for name in names
    }
    slowdowns = {
        name: [slowdown.median for slowdown in group.slowdowns]
        for name, group in measured.items()
        if group.slowdowns and not reasons[name]
    }
    of_size: dict[int, dict[GroupName, list[float]]] = {
        size: {name: known for name, known in slowdowns.items() if len(name) == size} for size in (2, 3)
    }
    pairs = of_size[2]
    corrected = correct_loads(loads, pairs)
    middles: dict[GroupName, list[float]] = {
        name: predict_slowdowns(name, corrected) for name in names if not reasons[name]
    }
    for name in pairs:  # the measurement of a pair is left out of its own prediction
        other_pairs = {other: known for other, known in pairs.items() if other != name}
        middles[name] = predict_slowdowns(name, correct_loads(loads, other_pairs))
    by_stressors = {name: predict_slowdowns(name, loads) for name in middles}
    error_of_size = {size: _summarise(_list_errors(middles, alike), len(alike)) for size, alike in of_size.items()}
    predictions = []
    for name in names:
        if name not in middles:
            predictions.append(Prediction(workloads=name, mode=mode, reason=reasons[name], measured=measured.get(name)))
            continue
        partners = {member for other in pairs if other != name for member in other}
        source = middles if partners.issuperset(name) else by_stressors
        unrelated = {other: known for other, known in of_size[len(name)].items() if not {*other} & {*name}}
        errors = _list_errors(source, unrelated)
        predicted = tuple(_add_range(middle, errors) for middle in middles[name])
        predictions.append(
            Prediction(
                workloads=name,
                mode=mode,
                slowdowns=predicted,
                by_stressors=tuple(by_stressors[name]),
                throughput=_add_speeds(predicted),
                error=error_of_size[len(name)],
                measured=measured.get(name),
            )
        )
    return predictions


def measure_loads(inputs: PairInputs, mode: str) -> dict[str, Load]:
    """Return the load of each workload that ran beside the full stressor of each resource in a mode."""
    vectors = inputs.vectors.get(mode, {})
    resources = list_resources(vectors)
    return {
        name: measure_load(members, resources)
        for name, members in vectors.items()
        if all(members.has(resource) for resource in resources)
    }


def list_resources(vectors: Mapping[str, Vectors]) -> list[str]:
    """Return the resources of the model, or all resources of a study without any of them."""
    measured = sorted({resource for members in vectors.values() for resource in members.sensitivity})
    return [resource for resource in measured if resource in RESOURCES] or measured


def measure_load(vectors: Vectors, resources: Sequence[str]) -> Load:
    """Return the load of a workload that ran beside the full stressor of each resource."""
    sensitivity = statistics.mean(math.log(vectors.sensitivity[resource][FULL].median) for resource in resources)
    pressure = statistics.mean(math.log(vectors.pressure[resource].median) for resource in resources)
    return Load(max(0.0, math.expm1(sensitivity)), max(0.0, math.expm1(pressure)))


def predict_slowdowns(names: Sequence[Name], loads: Mapping[Name, Load], strength: float = STRENGTH) -> list[float]:
    """Return the slowdown of each workload of a group; a name may occur several times."""
    total = sum(loads[name].pressure for name in names)
    return [1 + strength * loads[name].sensitivity * (total - loads[name].pressure) for name in names]


def correct_loads(loads: Mapping[str, Load], pairs: Mapping[GroupName, Sequence[float]]) -> Mapping[str, Load]:
    """Return loads that agree best with their measurements beside stressors and with measured slowdowns of pairs.

    ln(slowdown - 1) is a sum of ln s and ln p, so this is a linear least-squares problem in their corrections.
    """
    import numpy as np

    place = {name: number for number, name in enumerate(loads)}
    lines, values = [np.eye(2 * len(loads)) / _SCATTER_OF_LOADS], [np.zeros(2 * len(loads))]
    for pair, slowdowns in pairs.items():
        of_pair = zip(pair, pair[::-1], slowdowns, predict_slowdowns(pair, loads), strict=True)
        for victim, partner, slowdown, predicted in of_pair:
            if min(slowdown, predicted) - 1 < _LEAST_LOSS:
                continue
            weight = (slowdown - 1) / slowdown / _SCATTER_OF_SLOWDOWNS
            line = np.zeros(2 * len(loads))
            line[[place[victim], len(loads) + place[partner]]] = weight
            lines.append(line[None])
            values.append(np.array([weight * math.log((slowdown - 1) / (predicted - 1))]))
    if len(lines) == 1:
        return loads
    corrections, *_ = np.linalg.lstsq(np.concatenate(lines), np.concatenate(values))
    factors = np.exp(corrections).reshape(2, -1).T
    return {name: Load(*map(float, np.multiply(load, factors[place[name]]))) for name, load in loads.items()}


def _list_errors(
    predicted: Mapping[GroupName, Sequence[float]], measured: Mapping[GroupName, Sequence[float]]
) -> list[float]:
    """Return ln(prediction / measurement) of each slowdown of the measured groups."""
    return [
        math.log(middle / slowdown)
        for name, slowdowns in measured.items()
        for middle, slowdown in zip(predicted[name], slowdowns, strict=True)
    ]


def _explain_platform(
    group: GroupName,
    platforms: Mapping[tuple[str, ...], frozenset[Platform]],
    gpu_model: str | None,
    driver_branch: int | None,
) -> str:
    """Explain why the GPUs of the measurements allow no prediction; return an empty text if they do."""
    measured = {name: platforms.get((name,), frozenset()) for name in group}
    for name, members in measured.items():
        platform_names = " and ".join(sorted(platform.describe() for platform in members))
        if len(members) > 1:
            return f"{name} was measured on {platform_names}"
        for platform in members:
            if gpu_model not in (None, platform.model):
                return f"{name} was measured on {platform_names}, not on {gpu_model}"
            if driver_branch not in (None, platform.driver_branch):
                return f"{name} was measured on {platform_names}, not with driver {driver_branch}"
    for (name, members), (other, other_members) in itertools.combinations(measured.items(), 2):
        if members and other_members and members != other_members:
            (platform,), (other_platform,) = members, other_members
            return f"{name} was measured on {platform.describe()}, {other} on {other_platform.describe()}"
    return ""


def _explain_unmeasured(group: GroupName, mode: str, inputs: PairInputs, resources: Sequence[str]) -> str:
    """Explain which measurement beside a full stressor is missing; return an empty text if none is."""
    vectors = inputs.vectors[mode]
    for name in group:
        missing = [resource for resource in resources if name not in vectors or not vectors[name].has(resource)]
        failures = [failure for resource in missing if (failure := inputs.failures.get((mode, name, resource)))]
        if missing == list(resources):
            missing = ["stressors"]
        if missing:
            cause = f" ({failures[0]})" if failures else ""
            return f"{name} has no slowdown beside {', '.join(missing)} at dial {FULL:g}{cause}"
    return ""


def _add_range(middle: float, errors_of_others: Sequence[float]) -> Predicted:
    """Return a slowdown with its conformal range, from the errors of other workloads."""
    rank = math.ceil((len(errors_of_others) + 1) * COVERAGE)
    if rank > len(errors_of_others):
        return Predicted(middle, None, None)
    factor = math.exp(sorted(map(abs, errors_of_others))[rank - 1])
    return Predicted(middle, middle / factor, middle * factor)


def _add_speeds(slowdowns: Sequence[Predicted]) -> Predicted:
    """Add the speeds of all workloads relative to alone; the slowest speeds belong to the highest slowdowns."""
    lows = [1 / slowdown.high for slowdown in slowdowns if slowdown.high is not None]
    highs = [1 / slowdown.low for slowdown in slowdowns if slowdown.low is not None]
    has_range = len(lows) == len(highs) == len(slowdowns)
    return Predicted(
        sum(1 / slowdown.middle for slowdown in slowdowns),
        low=sum(lows) if has_range else None,
        high=sum(highs) if has_range else None,
    )


def _summarise(errors: Sequence[float], num_groups: int) -> GroupError | None:
    ratios = [abs(math.expm1(error)) for error in errors]
    return GroupError(statistics.median(ratios), max(ratios), num_groups) if ratios else None
