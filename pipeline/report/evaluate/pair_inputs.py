"""The measurements from which pairs of workloads are predicted, and with which predictions are compared."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pipeline.base.domain.mig_table import find_model_name
from pipeline.base.domain.normalisation import SLOWDOWN, SPEEDUP
from pipeline.base.domain.sharing_modes import SERIAL
from pipeline.base.domain.turns import STRESSOR
from pipeline.base.system.words import natural_key
from pipeline.report.evaluate.cells import Cell
from pipeline.report.evaluate.quantities import name_workload_metric
from pipeline.report.evaluate.statistics import Estimate
from pipeline.report.evaluate.stressor_effects import (
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
