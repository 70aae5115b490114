"""What the figures are called that count work: in the unit of the workload, a plural such as `samples` or `requests`.

A workload may take any word as its unit; here alone a name is made of it, or a unit read from such a name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

SAMPLES = "samples"
"""The unit of a workload that names none."""
PARAM, GIVEN_RATE = "unit", "given_rate"
"""Params of a job's run: its unit, and that the user chose its rate."""

PATTERN = r"[A-Za-z]\w*"
_TOTAL = re.compile(rf"throughput_total_({PATTERN})_per_s", re.ASCII)
_RATE = re.compile(rf"throughput_(?!total_)({PATTERN})_per_s", re.ASCII)


def rate_of(unit: str) -> str:
    """How fast one job is."""
    return f"throughput_{unit}_per_s"


def total_of(unit: str) -> str:
    """How fast all jobs of a group are, which have this unit in common."""
    return f"throughput_total_{unit}_per_s"


def number_of(unit: str) -> str:
    """How much one job did."""
    return f"num_{unit}"


def energy_of(unit: str) -> str:
    """What one of it took, of the energy of the whole device."""
    return f"energy_per_{_one(unit)}_j"


def energy_above_idle_of(unit: str) -> str:
    """The same without what the device takes with nothing on it."""
    return f"energy_above_idle_per_{_one(unit)}_j"


def units_in(metrics: Iterable[str]) -> tuple[str, ...]:
    """The units in which a group, of these figures, has a total."""
    return tuple(found[1] for name in metrics if (found := _TOTAL.fullmatch(name)))


def shared(jobs: Sequence[Iterable[str]]) -> tuple[str, ...]:
    """The units in which every job, of these figures, has a rate."""
    of_each = [[found[1] for name in metrics if (found := _RATE.fullmatch(name))] for metrics in jobs]
    return tuple(unit for unit in of_each[0] if all(unit in mine for mine in of_each)) if of_each else ()


def second_units(unit: str, params: Mapping[str, str]) -> Iterator[tuple[str, float]]:
    """What else a job counts with each of its unit, and how many: `tokens_per_sequence=128` among its params."""
    ending = f"_per_{_one(unit)}"
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
    """`particle turns/s`."""
    return f"{in_words(unit)}/s"


def joules_per(unit: str) -> str:
    """`J/sample`."""
    return f"J/{one_in_words(unit)}"


def rate_in_words(rate: float) -> str:
    """A rate as people read it: 1841.7, 0.00516, 8.499e+10."""
    if rate < 10:
        return f"{rate:.3g}"
    return f"{rate:.1f}" if rate < 1e8 else f"{rate:.4g}"


def in_words(unit: str) -> str:
    """`particle turns`."""
    return unit.replace("_", " ")


def one_in_words(unit: str) -> str:
    """`particle turn`."""
    return in_words(_one(unit))


def _one(unit: str) -> str:
    return unit.removesuffix("es" if unit.endswith(("ches", "shes", "sses", "xes")) else "s")
