"""Slowdowns of pairs of workloads, predicted from their measurements beside stressors.

The model of one mode, for workload A beside workload B (docs/planner.md):

- Sensitivity `s(A, r, d)`: slowdown of A beside the stressor of resource r at dial d. The speed of A, `1 / s`, is 1 at
  dial 0 and linear between the dials, because a stressor works for a share d of the time.
- Pressure `q(B, r)`: slowdown of the full stressor of r beside B. The equivalent dial of B is
  `d(B, r) = 2 (1 - 1 / q)`, between 0 and 1. It assumes that two full stressors of a resource halve each other's speed,
  and that the loss of one of them is proportional to the dial of the other.
- The loss of A on r is `s(A, r, d(B, r)) - 1`. The slowdown of A is 1 plus the largest loss (maximum model), or 1 plus
  the sum of its losses (additive model).
- The competing model needs the full stressor only. A uses r for a time `a = s (1 - 1 / q)` per time alone, because the
  stressor loses what A uses, and gets the share `w / (w + 1)` of r beside the stressor, with `w = a / (s - 1)`. Beside
  B, the time a becomes `a / (1 - p w_B / (w + w_B))`, where p is the share of time in which B uses r or waits for it.
  The largest loss counts.

The measured pairs choose the model, by the smallest median error. A measured pair is predicted by the model that all
other pairs choose. Without other pairs it is the maximum model: a common cause, such as time slices, shows beside
several stressors, and a sum counts it several times.
"""

from __future__ import annotations

import enum
import itertools
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
from pipeline.report.evaluate.statistics import MARGIN, Estimate
from pipeline.report.evaluate.stressors import (
    StressorEffect,
    list_effects,
    name_workload,
)
from pipeline.report.read.study_records import Row, Study

FULL = 1.0
"""The dial of a stressor that never pauses."""
_SIMULATED = "simulated_"
PairName = tuple[str, str]
"""The names of two workloads, sorted."""
_EVEN = 2.0  # slowdown of a full stressor beside an equal one
_LEAST = 1e-6  # instead of zero, by which the model of competing programs would divide
_NUM_ITERATIONS = 200
_MEDIAN = "median"
_ENDS = (_MEDIAN, "low", "high")
_Losses = tuple[Mapping[str, float], Mapping[str, float]]
"""The loss of each workload of a pair, by resource."""


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


class Model(enum.StrEnum):
    """The way in which the losses on all resources are combined; the first one is used without measured pairs."""

    MAXIMUM = "maximum"
    ADDITIVE = "additive"
    COMPETING = "competing"

    def combine(self, losses: Mapping[str, float]) -> float:
        """Return the slowdown for the losses on all resources."""
        return 1 + (sum(losses.values()) if self is Model.ADDITIVE else max(losses.values()))


class Predicted(NamedTuple):
    """A predicted figure, and its range with all inputs at the ends of their intervals; without intervals no range."""

    middle: float
    low: float | None
    high: float | None


class _Use(NamedTuple):
    """The use of a resource by a program: its time per time alone, and its weight against a full stressor."""

    busy: float
    weight: float


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
        throughput: predicted throughput of both relative to serial.
        resource: resource with the largest sum of both losses; empty if that is less than the margin.
        exceeded: workload and resource of each pressure above that of a full stressor; such a pressure counts as full.
        error: error of the predictions of this mode; `None` if no pair was measured.
        measured: measurement of the pair on the same GPU model and driver branch; `None` without one.
        reason: reason why there is no prediction.
    """

    workloads: PairName
    mode: str
    slowdowns: tuple[Predicted, ...] = ()
    throughput: Predicted | None = None
    resource: str = ""
    exceeded: tuple[tuple[str, str], ...] = ()
    model: Model | None = None
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
    resources = sorted({resource for members in vectors.values() for resource in members.sensitivity})
    reasons = {
        pair: _explain_platform(pair, inputs.platforms, gpu_model, driver_branch)
        or _explain_unmeasured(pair, mode, inputs, resources)
        for pair in itertools.combinations(inputs.workloads, 2)
    }
    losses = {
        pair: {
            model: {end: _find_losses(model, vectors[pair[0]], vectors[pair[1]], resources, end) for end in _ENDS}
            for model in Model
        }
        for pair, reason in reasons.items()
        if not reason
    }
    measured = {
        pair: inputs.pairs[mode, pair]
        for pair in reasons
        if (mode, pair) in inputs.pairs and inputs.platforms.get(pair) == inputs.platforms.get(pair[:1])
    }
    errors = {
        pair: {model: _list_errors(model, losses[pair][model], measurement.slowdowns) for model in Model}
        for pair, measurement in measured.items()
        if measurement.slowdowns and pair in losses
    }
    models = {pair: _choose_model([errors[other] for other in errors if other != pair]) for pair in losses}
    error = _summarise([errors[pair][models[pair]] for pair in errors])
    return [
        PairPrediction(
            workloads=pair,
            mode=mode,
            slowdowns=(slowdowns := _combine(models[pair], losses[pair][models[pair]])),
            throughput=_add_speeds(slowdowns),
            resource=_find_common(losses[pair][models[pair]]),
            exceeded=tuple(
                (name, resource)
                for name in pair
                for resource in resources
                if models[pair] is not Model.COMPETING and vectors[name].pressure[resource].median > _EVEN
            ),
            model=models[pair],
            error=error,
            measured=measured.get(pair),
        )
        if pair in losses
        else PairPrediction(workloads=pair, mode=mode, reason=reason, measured=measured.get(pair))
        for pair, reason in reasons.items()
    ]


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


def _find_losses(model: Model, first: Vectors, second: Vectors, resources: Sequence[str], end: str) -> _Losses | None:
    """Return the losses with all inputs at one end of their intervals; `None` if an input has no interval."""
    if model is Model.COMPETING:
        return _find_competing_losses(first, second, resources, end)
    losses: list[dict[str, float]] = []
    for victim, other in ((first, second), (second, first)):
        by_resource = {}
        for resource in resources:
            pressure = getattr(other.pressure[resource], end)
            curve = {dial: getattr(estimate, end) for dial, estimate in victim.sensitivity[resource].items()}
            if pressure is None or None in curve.values() or not all(slowdown > 0 for slowdown in curve.values()):
                return None
            by_resource[resource] = _interpolate(curve, _equate_dial(pressure)) - 1
        losses.append(by_resource)
    return losses[0], losses[1]


def _find_competing_losses(first: Vectors, second: Vectors, resources: Sequence[str], end: str) -> _Losses | None:
    losses: tuple[dict[str, float], dict[str, float]] = ({}, {})
    for resource in resources:
        uses = [_find_use(member, resource, end) for member in (first, second)]
        if uses[0] is None or uses[1] is None:
            return None
        losses[0][resource], losses[1][resource] = _compete(uses[0], uses[1])
    return losses


def _find_use(vectors: Vectors, resource: str, end: str) -> _Use | None:
    slowdown = getattr(vectors.sensitivity[resource][FULL], end)
    pressure = getattr(vectors.pressure[resource], end)
    if slowdown is None or pressure is None or not (slowdown > 0 and pressure > 0):
        return None
    busy = min(1.0, max(_LEAST, slowdown * (1 - 1 / pressure)))
    return _Use(busy, busy / max(_LEAST, slowdown - 1))


def _compete(first: _Use, second: _Use) -> tuple[float, float]:
    """Return the losses of two programs that share a resource in proportion to their weights while both need it."""
    losses = (0.0, 0.0)
    for _ in range(_NUM_ITERATIONS):
        present = [(use.busy + loss) / (1 + loss) for use, loss in zip((first, second), losses, strict=True)]
        part = second.weight / (first.weight + second.weight)
        new = (_delay(first, present[1] * part), _delay(second, present[0] * (1 - part)))
        losses = ((losses[0] + new[0]) / 2, (losses[1] + new[1]) / 2)
    return losses


def _delay(use: _Use, loss: float) -> float:
    return use.busy * loss / max(_LEAST, 1 - loss)


def _equate_dial(pressure: float) -> float:
    """Return the dial at which a stressor would slow the full stressor as much as a workload does."""
    return min(FULL, max(0.0, _EVEN * (1 - 1 / pressure))) if pressure > 0 else 0.0


def _interpolate(curve: Mapping[float, float], dial: float) -> float:
    import numpy as np

    points = sorted({0.0: 1.0, **{point: 1 / slowdown for point, slowdown in curve.items() if point > 0}}.items())
    dials, speeds = zip(*points, strict=True)
    return float(1 / np.interp(dial, dials, speeds))


def _combine(model: Model, losses: Mapping[str, _Losses | None]) -> tuple[Predicted, ...]:
    ends = [[model.combine(by_resource) for by_resource in part] for part in losses.values() if part is not None]
    has_range = len(ends) == len(losses)
    return tuple(
        Predicted(figures[0], *((min(figures), max(figures)) if has_range else (None, None)))  # the median is first
        for figures in zip(*ends, strict=True)
    )


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


def _find_common(losses: Mapping[str, _Losses | None]) -> str:
    medians = losses[_MEDIAN]
    assert medians is not None
    total = {resource: medians[0][resource] + medians[1][resource] for resource in medians[0]}
    largest = max(total, key=total.__getitem__)
    return largest if total[largest] > MARGIN else ""


def _list_errors(model: Model, losses: Mapping[str, _Losses | None], measured: Sequence[Estimate]) -> list[float]:
    pairs = zip(_combine(model, losses), measured, strict=True)
    return [abs(predicted.middle / slowdown.median - 1) for predicted, slowdown in pairs]


def _choose_model(errors: Sequence[Mapping[Model, Sequence[float]]]) -> Model:
    """Choose the model with the smaller median error on pairs."""
    if not errors:
        return Model.MAXIMUM
    return min(Model, key=lambda model: statistics.median(itertools.chain.from_iterable(e[model] for e in errors)))


def _summarise(errors: Sequence[Sequence[float]]) -> PairError | None:
    figures = list(itertools.chain.from_iterable(errors))
    return PairError(statistics.median(figures), max(figures), len(errors)) if figures else None
