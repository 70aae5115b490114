"""Slowdowns of workloads beside stressors (sensitivity), and of the stressors (pressure)."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pipeline.base.domain import work_units
from pipeline.base.domain.normalisation import SLOWDOWN
from pipeline.base.domain.sharing_modes import SERIAL, SharingMode
from pipeline.base.system.words import natural_key
from pipeline.report.evaluate.cells import Cell, label_cases
from pipeline.report.evaluate.quantities import name_workload_metric
from pipeline.report.evaluate.statistics import MARGIN, Estimate, times_in_words
from pipeline.report.read.study_records import JobRow, Study

STRESSOR = "stressor"
"""Workload that loads one resource; `RESOURCE` and `DIAL` are its params."""
RESOURCE, DIAL = "resource", "dial"


@dataclass(frozen=True, slots=True, kw_only=True)
class StressorEffect:
    """The slowdowns of a workload and of the stressor that ran beside it, each relative to the program alone.

    Attributes:
        workload: label of the workload.
        params: MLflow params of the workload's job.
        sensitivity: slowdown of the workload; `None` if unknown.
        pressure: slowdown of the stressor; `None` if unknown.
    """

    workload: str
    params: Mapping[str, str]
    mode: str
    sharing: SharingMode
    resource: str
    dial: float
    sensitivity: Estimate | None
    pressure: Estimate | None


def runs_stressor(cell: Cell) -> bool:
    """Return whether a job or a co-runner of a cell is a stressor."""
    is_beside = re.search(rf"\b{STRESSOR}\b", cell.co_runners) is not None
    return is_beside or any(params.get("workload") == STRESSOR for params in cell.case.params)


def list_effects(study: Study, cells: Sequence[Cell]) -> list[StressorEffect]:
    """Return the effects of all pairs of a workload and a stressor, by workload, mode, resource and dial."""
    effects = [*_list_mixes(cells), *_list_co_runners(study, cells)]
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
    """Return a clause on the highest slowdown of each workload in each mode."""
    return [
        f"{effect.workload} takes {times_in_words(effect.sensitivity)} its time alone beside its worst stressor "
        f"({effect.resource}, dial {effect.dial:g}, {effect.mode})"
        if effect.sensitivity.median > 1 + MARGIN
        else f"no stressor slows down {effect.workload} by more than {100 * MARGIN:g} % ({effect.mode})"
        for effect in find_strongest(effects)
        if effect.sensitivity is not None
    ]


def _list_mixes(cells: Sequence[Cell]) -> Iterator[StressorEffect]:
    for cell in (cell for cell in cells if cell.case.is_mix and cell.sharing != SERIAL and cell.is_ranked):
        programs = list(zip(cell.case.workloads, cell.case.params, strict=True))
        stressors = {label: params for label, params in programs if params.get("workload") == STRESSOR}
        measured = {label: params for label, params in programs if params.get("workload") != STRESSOR}
        if len(stressors) == len(measured) == 1:
            ((label, params),), ((stressor_label, stressor),) = measured.items(), stressors.items()
            yield _make_effect(
                cell,
                f"{label} [{cell.case.setting}]" if cell.case.setting else label,
                params,
                stressor,
                cell.values.get(name_workload_metric(SLOWDOWN, label), {}),
                cell.values.get(name_workload_metric(SLOWDOWN, stressor_label), {}),
            )


def _list_co_runners(study: Study, cells: Sequence[Cell]) -> Iterator[StressorEffect]:
    """Yield the effects on programs that cannot be stopped, beside which a stressor is a co-runner."""
    cases, alone = label_cases(study), _find_rates_alone(study)
    stressors: dict[object, dict[int, JobRow]] = defaultdict(dict)
    for row in study.rows:
        for job in row.co_runner_jobs:
            if job.params.get("workload") == STRESSOR and len(row.co_runner_jobs) == 1:
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
    )
