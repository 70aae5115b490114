"""Slowdowns of pairs of workloads under MPS, predicted from their measurements beside stressors.

A workload suffers as much as it is sensitive, and as its partner presses (docs/planner.md):

    ln slowdown(A beside B) = 2.19 s(A) p(B)

- Sensitivity s(A): mean over the resources of ln(slowdown of A beside the full stressor).
- Pressure p(B): mean over the resources of ln(slowdown of the full stressor beside B).

The one constant was fitted on the 20 slowdowns of docs/results/sensitivity_pairs_h100.md. It was frozen on 2026-11-29,
before workloads outside these five were measured in a study, as was a second model, of one number: a CUDA graph beside
B takes 1.04 times as long as the full stressor of the memory takes beside B.

The range of a prediction is conformal: it would have contained nine of ten measured slowdowns of pairs of other
workloads.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

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
STRENGTH = 2.19
"""The constant of the model."""
MEMORY, MEMORY_STRENGTH = "memory_bandwidth", 1.04
"""The resource and the constant of the second model."""
COVERAGE = 0.9
"""The share of slowdowns that a range is to contain."""
_SIMULATED = "simulated_"
PairName = tuple[str, str]
"""The names of two workloads, sorted."""


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


@dataclass(frozen=True, slots=True)
class MeasuredPair:
    """A pair that was measured.

    Attributes:
        slowdowns: slowdown of each workload, in the order of the pair's name; empty if one of them is unknown.
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
        pairs: measured pairs, by mode and name.
        platforms: platforms of the measurements beside stressors (by one workload) and of pairs (by two).
        failures: reasons why groups with a stressor have no figures, by mode, workload and resource.
    """

    workloads: tuple[str, ...]
    vectors: Mapping[str, Mapping[str, Vectors]]
    pairs: Mapping[tuple[str, PairName], MeasuredPair]
    platforms: Mapping[tuple[str, ...], frozenset[Platform]]
    failures: Mapping[tuple[str, str, str], str]


def collect_inputs(study: Study, cells: Sequence[Cell]) -> PairInputs:
    """Collect the inputs; rows that are invalid or did not end `ok` have no figures."""
    pairs, effects = _find_pairs(cells), list_effects(study, cells)
    names = {effect.workload for effect in effects} | {name for _, pair in pairs for name in pair}
    return PairInputs(
        workloads=tuple(sorted(names, key=natural_key)),
        vectors=_collect_vectors(effects),
        pairs=pairs,
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


def _find_pairs(cells: Iterable[Cell]) -> dict[tuple[str, PairName], MeasuredPair]:
    pairs: dict[tuple[str, PairName], MeasuredPair] = {}
    for cell in cells:
        is_alone = not (cell.co_runners or cell.has_stressor or cell.sharing == SERIAL)
        if not (is_alone and cell.is_ranked and cell.case.is_mix and cell.degree == len(cell.case.workloads) == 2):
            continue
        slowdowns = {}
        for label in cell.case.workloads:
            if (slowdown := cell.estimate_quantity(name_workload_metric(SLOWDOWN, label))) is not None:
                slowdowns[name_workload(label, cell.case.setting)] = slowdown
        labels = [name_workload(label, cell.case.setting) for label in cell.case.workloads]
        first, second = sorted(labels, key=natural_key)
        pairs[cell.mode, (first, second)] = MeasuredPair(
            slowdowns=(slowdowns[first], slowdowns[second]) if len(slowdowns) == 2 else (),
            throughput=cell.estimates.get(SPEEDUP),
        )
    return pairs


def _find_platforms(study: Study) -> dict[tuple[str, ...], frozenset[Platform]]:
    platforms: dict[tuple[str, ...], set[Platform]] = defaultdict(set)
    for row in (row for row in study.rows if row.is_valid and not row.is_sequential):
        stressors = [job for job in (*row.jobs, *row.co_runner_jobs) if job.params.get("workload") == STRESSOR]
        labels = {job.label for job in row.jobs if job.params.get("workload") != STRESSOR}
        named = (name_workload(label, row.setting, row.co_runners) for label in labels)
        names = tuple(sorted(named, key=natural_key))
        if len(names) == (1 if stressors else 2):
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


class PairError(NamedTuple):
    """The relative errors of the predicted slowdowns of measured pairs, two for each pair."""

    median: float
    largest: float
    num_pairs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PairPrediction:
    """One pair of workloads in one mode.

    Attributes:
        slowdowns: predicted slowdown of each workload, in the order of `workloads`; empty without a prediction.
        by_memory: slowdown of each workload by the second model; empty without a measurement beside the memory.
        throughput: predicted throughput of both relative to serial.
        error: error of the predictions of this mode; `None` if no pair was measured.
        measured: measurement of the pair on the same GPU model and driver branch; `None` without one.
        reason: reason why there is no prediction.
    """

    workloads: PairName
    mode: str
    slowdowns: tuple[Predicted, ...] = ()
    by_memory: tuple[float, ...] = ()
    throughput: Predicted | None = None
    error: PairError | None = None
    measured: MeasuredPair | None = None
    reason: str = ""


def predict_pairs(
    inputs: PairInputs, gpu_model: str | None = None, driver_branch: int | None = None
) -> list[PairPrediction]:
    """Predict every pair of workloads in every mode, for a GPU model and driver branch; the default is any."""
    return [
        prediction for mode in inputs.vectors for prediction in _predict_mode(inputs, mode, gpu_model, driver_branch)
    ]


def _predict_mode(
    inputs: PairInputs, mode: str, gpu_model: str | None, driver_branch: int | None
) -> list[PairPrediction]:
    vectors = inputs.vectors[mode]
    all_resources = sorted({resource for members in vectors.values() for resource in members.sensitivity})
    resources = [resource for resource in all_resources if resource in RESOURCES] or all_resources
    pairs = list(itertools.combinations(inputs.workloads, 2))
    reasons = {
        pair: _explain_platform(pair, inputs.platforms, gpu_model, driver_branch)
        or _explain_unmeasured(pair, mode, inputs, resources)
        for pair in pairs
    }
    middles = {
        (first, second): tuple(
            predict_slowdown(vectors[victim], vectors[partner], resources)
            for victim, partner in ((first, second), (second, first))
        )
        for (first, second), reason in reasons.items()
        if not reason
    }
    measured = {
        pair: inputs.pairs[mode, pair]
        for pair in pairs
        if (mode, pair) in inputs.pairs and inputs.platforms.get(pair) == inputs.platforms.get(pair[:1])
    }
    ratios = {
        pair: [middle / slowdown.median for middle, slowdown in zip(middles[pair], known.slowdowns, strict=True)]
        for pair, known in measured.items()
        if known.slowdowns and pair in middles
    }
    error = _summarise([abs(ratio - 1) for of_pair in ratios.values() for ratio in of_pair])
    predictions = []
    for pair in pairs:
        measurement = measured.get(pair)
        if pair not in middles:
            predictions.append(PairPrediction(workloads=pair, mode=mode, reason=reasons[pair], measured=measurement))
            continue
        of_others = [abs(math.log(ratio)) for other in ratios if not {*other} & {*pair} for ratio in ratios[other]]
        slowdowns = tuple(_add_range(middle, of_others) for middle in middles[pair])
        partners = [vectors[name].pressure.get(MEMORY) for name in reversed(pair)]
        predictions.append(
            PairPrediction(
                workloads=pair,
                mode=mode,
                slowdowns=slowdowns,
                by_memory=tuple(MEMORY_STRENGTH * pressure.median for pressure in partners if pressure is not None),
                throughput=_add_speeds(slowdowns),
                error=error,
                measured=measurement,
            )
        )
    return predictions


def predict_slowdown(victim: Vectors, partner: Vectors, resources: Sequence[str]) -> float:
    """Return the slowdown of one workload beside another; both ran beside the full stressor of each resource."""
    sensitivity = statistics.mean(math.log(victim.sensitivity[resource][FULL].median) for resource in resources)
    pressure = statistics.mean(math.log(partner.pressure[resource].median) for resource in resources)
    return math.exp(STRENGTH * max(0.0, sensitivity) * max(0.0, pressure))


def _explain_platform(
    pair: PairName,
    platforms: Mapping[tuple[str, ...], frozenset[Platform]],
    gpu_model: str | None,
    driver_branch: int | None,
) -> str:
    """Explain why the GPUs of the measurements allow no prediction; return an empty text if they do."""
    first, second = (platforms.get((name,), frozenset()) for name in pair)
    for name, members in zip(pair, (first, second), strict=True):
        platform_names = " and ".join(sorted(platform.describe() for platform in members))
        if len(members) > 1:
            return f"{name} was measured on {platform_names}"
        for platform in members:
            if gpu_model not in (None, platform.model):
                return f"{name} was measured on {platform_names}, not on {gpu_model}"
            if driver_branch not in (None, platform.driver_branch):
                return f"{name} was measured on {platform_names}, not with driver {driver_branch}"
    if first and second and first != second:
        (platform,), (other,) = first, second
        return f"{pair[0]} was measured on {platform.describe()}, {pair[1]} on {other.describe()}"
    return ""


def _explain_unmeasured(pair: PairName, mode: str, inputs: PairInputs, resources: Sequence[str]) -> str:
    """Explain which measurement beside a full stressor is missing; return an empty text if none is."""
    vectors = inputs.vectors[mode]
    for name in pair:
        missing = [resource for resource in resources if name not in vectors or not vectors[name].has(resource)]
        failures = [failure for resource in missing if (failure := inputs.failures.get((mode, name, resource)))]
        if missing == list(resources):
            missing = ["stressors"]
        if missing:
            cause = f" ({failures[0]})" if failures else ""
            return f"{name} has no slowdown beside {', '.join(missing)} at dial {FULL:g}{cause}"
    return ""


def _add_range(middle: float, errors_of_others: Sequence[float]) -> Predicted:
    """Return a slowdown with its conformal range, from the errors (of the logarithm) of other workloads."""
    rank = math.ceil((len(errors_of_others) + 1) * COVERAGE)
    if rank > len(errors_of_others):
        return Predicted(middle, None, None)
    factor = math.exp(sorted(errors_of_others)[rank - 1])
    return Predicted(middle, middle / factor, middle * factor)


def _add_speeds(slowdowns: Sequence[Predicted]) -> Predicted:
    """Add the speeds of both workloads relative to alone; the slowest speeds belong to the highest slowdowns."""
    lows = [1 / slowdown.high for slowdown in slowdowns if slowdown.high is not None]
    highs = [1 / slowdown.low for slowdown in slowdowns if slowdown.low is not None]
    has_range = len(lows) == len(highs) == len(slowdowns)
    return Predicted(
        sum(1 / slowdown.middle for slowdown in slowdowns),
        low=sum(lows) if has_range else None,
        high=sum(highs) if has_range else None,
    )


def _summarise(errors: Sequence[float]) -> PairError | None:
    return PairError(statistics.median(errors), max(errors), len(errors) // 2) if errors else None
