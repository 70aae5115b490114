"""Names of figures that count work, derived from the work unit of the workload, such as `samples` or `requests`.

A workload may use any word as its work unit; only this module converts between units and figure names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

SAMPLES, REQUESTS, STEPS = "samples", "requests", "steps"
"""The work units of a workload that names none, of services, and of a counter in a program's output."""
ARRIVALS = "arrival_sequence"
"""Param of a service at a given rate: the number of its arrival sequence, 0 for a job alone."""
PARAM, GIVEN_RATE = "work_unit", "given_rate"
"""Params of a job's run: its work unit, and whether the user set its rate."""

PATTERN = r"[A-Za-z]\w*"
_TOTAL = re.compile(rf"throughput_total_({PATTERN})_per_s", re.ASCII)
_RATE = re.compile(rf"throughput_(?!total_)({PATTERN})_per_s", re.ASCII)


def rate_of(unit: str) -> str:
    """Name the rate of one job."""
    return f"throughput_{unit}_per_s"


def total_of(unit: str) -> str:
    """Name the total rate of the jobs of a group that share this work unit."""
    return f"throughput_total_{unit}_per_s"


def number_of(unit: str) -> str:
    """Name the amount of work done by one job."""
    return f"num_{unit}"


def energy_of(unit: str) -> str:
    """Name the energy of the device per work unit."""
    return f"energy_per_{_drop_plural(unit)}_j"


def energy_above_idle_of(unit: str) -> str:
    """Name the energy per work unit above that of the device without jobs."""
    return f"energy_above_idle_per_{_drop_plural(unit)}_j"


def energy_above_waiting_of(unit: str) -> str:
    """Name the energy per work unit above that of the device while the jobs wait."""
    return f"energy_above_waiting_per_{_drop_plural(unit)}_j"


def find_units(metrics: Iterable[str]) -> tuple[str, ...]:
    """Return the work units in which a group with these figures has a total."""
    return tuple(match[1] for name in metrics if (match := _TOTAL.fullmatch(name)))


def find_common_units(jobs: Sequence[Iterable[str]]) -> tuple[str, ...]:
    """Return the work units in which all jobs with these figures have a rate."""
    by_job = [[match[1] for name in metrics if (match := _RATE.fullmatch(name))] for metrics in jobs]
    return tuple(unit for unit in by_job[0] if all(unit in units for units in by_job)) if by_job else ()


def list_second_units(unit: str, params: Mapping[str, str]) -> Iterator[tuple[str, float]]:
    """Yield further units and their number per work unit, from a job's params: `tokens_per_sequence=128`."""
    ending = f"_per_{_drop_plural(unit)}"
    for name, value in params.items():
        other = name.removesuffix(ending)
        if name.endswith(ending) and re.fullmatch(PATTERN, other, re.ASCII):
            try:
                number = float(value)
            except ValueError:
                continue
            if 0 < number < float("inf"):
                yield other, number


def per_second(unit: str) -> str:
    """Return `particle turns/s`."""
    return f"{format_unit(unit)}/s"


def joules_per(unit: str) -> str:
    """Return `J/sample`."""
    return f"J/{format_singular(unit)}"


def format_rate(rate: float) -> str:
    """Format a rate as text: 1841.7, 0.00516, 8.499e+10."""
    if rate < 10:
        return f"{rate:.3g}"
    return f"{rate:.1f}" if rate < 1e8 else f"{rate:.4g}"


def format_unit(unit: str) -> str:
    """Return `particle turns`."""
    return unit.replace("_", " ")


def format_singular(unit: str) -> str:
    """Return `particle turn`."""
    return format_unit(_drop_plural(unit))


def _drop_plural(unit: str) -> str:
    return unit.removesuffix("es" if unit.endswith(("ches", "shes", "sses", "xes")) else "s")
