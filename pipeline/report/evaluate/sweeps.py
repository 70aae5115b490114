"""Cells that differ in one swept parameter: batch size, sequence length, arrival rate, a flag, MIG profile, ..."""

from __future__ import annotations

import enum
import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pipeline.base.domain import service_figures, work_units
from pipeline.base.domain.group_names import list_program_params, spell_flags
from pipeline.base.system.words import natural_key
from pipeline.report.evaluate.cells import Case, Cell, list_cases
from pipeline.report.read import labels

FEWEST = 3
"""The least number of values for a line in a figure; tables show sweeps over two values."""

Items = tuple[tuple[str, str], ...]
Program = tuple[str, Mapping[str, str]]
"""The name of a workload and the params of its program."""


_REQUEST_PARAMS = frozenset(
    {
        *("arrival", service_figures.RATE, service_figures.CLIENTS, service_figures.CLIENTS_OF),
        *("batch_size", "serve", "max_batch", "max_delay_ms"),
        *(service_figures.OBJECTIVE, service_figures.OBJECTIVE_PERCENTILE, "step_mode", "precision", "threads"),
    }
)
"""The params of a service that do not define its model."""


class AxisKind(enum.Enum):
    """The kind of a swept parameter: any number, an arrival rate, the profiles of MIG, or the models of services."""

    NUMBERS = "numbers"
    RATES = "rates"
    PROFILES = "profiles"
    MODELS = "models"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """Cells that differ in one parameter.

    Attributes:
        axis: name of the parameter.
        what: name of the jobs, without the parameter.
        ticks, cells: labels and cells by place on the axis, in order.
        kind: kind of the axis; the places of a numeric axis are the values of the parameter.
    """

    axis: str
    what: str
    ticks: Mapping[float, str]
    cells: Mapping[float, Sequence[Cell]]
    kind: AxisKind = AxisKind.NUMBERS

    @property
    def is_numeric(self) -> bool:
        """True if the places are values of the parameter."""
        return self.kind in (AxisKind.NUMBERS, AxisKind.RATES)


def numbers(cells: Sequence[Cell], fewest: int, only: str | None = None) -> Iterator[Sweep]:
    """Yield a sweep for each numeric param (or only for `only`) with `fewest` values or more and all else equal."""
    programs = {
        case: tuple((params.get("workload", ""), spell_flags(list_program_params(params))) for params in case.params)
        for case in list_cases(cells)
    }
    by_place: dict[tuple[str, str, str, Items], dict[float, list[Cell]]] = defaultdict(lambda: defaultdict(list))
    for cell in cells:
        jobs = programs[cell.case]
        for name, key, value in _numbers(jobs):
            if only in (None, key):
                place = (name, key, _name_jobs(name, jobs), _list_other_params(cell.case, jobs, name, key))
                by_place[place][value].append(cell)
    swept = {place: by_value for place, by_value in by_place.items() if len(by_value) >= fewest}
    alike: dict[tuple[str, str, str], list[Items]] = defaultdict(list)
    for name, key, job_names, other_params in swept:
        alike[name, key, job_names].append(other_params)
    for (name, key, job_names), all_params in alike.items():
        words = labels.distinguish_params([dict(other_params) for other_params in all_params])
        for other_params, word in zip(all_params, words, strict=True):
            by_value = swept[name, key, job_names, other_params]
            yield Sweep(
                axis=key.lstrip("-").replace("_", " "),
                what=f"{job_names} {word}".strip(),
                ticks={value: f"{value:g}" for value in sorted(by_value)},
                cells=dict(sorted(by_value.items())),
                kind=AxisKind.RATES if key == service_figures.RATE else AxisKind.NUMBERS,
            )


def _numbers(jobs: Sequence[Program]) -> Iterator[tuple[str, str, float]]:
    for name in dict.fromkeys(name for name, _ in jobs):
        workload_params = [params for other, params in jobs if other == name]
        for key, text in workload_params[0].items():
            if all(params.get(key) == text for params in workload_params) and (value := parse_number(text)) is not None:
                yield name, key, value


def parse_number(text: str) -> float | None:
    """Return a param as a number; `None` unless it is a finite number."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _list_other_params(case: Case, jobs: Sequence[Program], name: str, key: str) -> Items:
    by_param: dict[str, list[str]] = defaultdict(list)
    for workload, params in jobs:
        for other, text in params.items():
            if (workload, other) != (name, key):
                by_param[f"{workload} {other}" if case.is_mix else other].append(text)
    words = {other: "+".join(sorted(texts)) for other, texts in by_param.items()}
    return tuple(sorted((words | ({"setting": case.setting} if case.setting else {})).items()))


def _name_jobs(name: str, jobs: Sequence[Program]) -> str:
    counts = Counter(workload for workload, _ in jobs)
    return " + ".join(
        f"{counts[workload]} {workload}" if counts[workload] > 1 else workload
        for workload in sorted(counts, key=lambda workload: (workload != name, workload))
    )


def profiles(cells: Sequence[Cell], fewest: int) -> Iterator[Sweep]:
    """Yield a sweep over MIG profiles for each case that ran with the same degree on `fewest` profiles or more."""
    by_case: dict[Case, dict[str, list[Cell]]] = defaultdict(lambda: defaultdict(list))
    for cell in cells:
        if len(set(cell.profiles)) == 1:
            by_case[cell.case][cell.profiles[0]].append(cell)
    for case, by_profile in by_case.items():
        degrees = [{cell.degree for cell in members} for members in by_profile.values()]
        if max(Counter(itertools.chain(*degrees)).values()) >= fewest:
            in_order = sorted(by_profile, key=labels.rank_profile)
            yield Sweep(
                axis="MIG profile",
                what=case.label,
                ticks={float(place): profile for place, profile in enumerate(in_order)},
                cells={float(place): by_profile[profile] for place, profile in enumerate(in_order)},
                kind=AxisKind.PROFILES,
            )


def models(cells: Sequence[Cell], fewest: int) -> Iterator[Sweep]:
    """Yield a sweep over `fewest` models of services or more that are asked in the same way."""
    alike: dict[tuple[str, Items], dict[str, list[Cell]]] = defaultdict(lambda: defaultdict(list))
    for cell in (cell for cell in cells if not cell.case.is_mix and cell.unit == work_units.REQUESTS):
        (params,) = cell.case.params
        request = [(key, value) for key, value in list_program_params(params).items() if key in _REQUEST_PARAMS]
        alike[cell.case.setting, tuple(sorted(request))][params["workload"]].append(cell)
    swept = {
        settings: by_name
        for (_, settings), by_name in alike.items()
        if len(by_name) >= fewest and all(len({cell.case for cell in members}) == 1 for members in by_name.values())
    }
    for settings, words in zip(swept, labels.distinguish_params([dict(settings) for settings in swept]), strict=True):
        names = sorted(swept[settings], key=natural_key)
        heads = {name.partition("_")[0] for name in names}
        prefix = f"{heads.pop()}_" if len(heads) == 1 else ""
        yield Sweep(
            axis="model",
            what=f"services {words}".strip(),
            ticks={float(place): name.removeprefix(prefix) for place, name in enumerate(names)},
            cells={float(place): swept[settings][name] for place, name in enumerate(names)},
            kind=AxisKind.MODELS,
        )
