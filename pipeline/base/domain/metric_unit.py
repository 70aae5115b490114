"""Units of the rate that a program logs (`workload.metric_unit`): a rate with a prefix, or a time."""

from __future__ import annotations

import re
from dataclasses import dataclass

SCALES = {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
"""Prefixes of rates."""

SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
_TURNS = frozenset({"steps", "its", "iters", "iterations", "batches"})
"""Synonyms for one iteration of a program's loop."""

_RATE = re.compile(r"(?P<prefix>[kMGT])?_?(?:per_(?P<time>s|min|h))?")
_TIME = re.compile(r"(?P<time>ns|us|ms|s|min|h)_per_(?P<noun>[A-Za-z]\w*)", re.ASCII)
FORMS = "write k, M, G, T, per_min, per_h, or a time such as s_per_step or ms_per_it"


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricUnit:
    """The unit of a number that expresses a rate.

    Attributes:
        scale: units per second, or seconds, per unit of the number.
        is_time: whether the number is the time per work unit.
        work: the work unit of this time, in plural; empty if unspecified.
    """

    scale: float = 1.0
    is_time: bool = False
    work: str = ""

    def rate(self, value: float) -> float:
        """Return the rate per second for a value; infinite for a time of 0."""
        scaled = value * self.scale
        if not self.is_time:
            return scaled
        return 1 / scaled if scaled else float("inf")

    def counts(self, unit: str) -> bool:
        """Return whether the number expresses a rate of this work unit."""
        return not self.work or unit == self.work or {unit, self.work} <= _TURNS


def parse(text: str) -> MetricUnit:
    """Parse a unit such as `k`, `per_min` or `ms_per_step`; raise `ValueError` if it is unknown."""
    text = text.replace("/", "_per_")
    if (time := _TIME.fullmatch(text)) is not None:
        return MetricUnit(scale=SECONDS[time["time"]], is_time=True, work=_plural(time["noun"]))
    rate = _RATE.fullmatch(text)
    if rate is None or not text:
        raise ValueError(FORMS)
    return MetricUnit(scale=SCALES.get(rate["prefix"] or "", 1.0) / SECONDS[rate["time"] or "s"])


def _plural(noun: str) -> str:
    if noun.endswith("s"):
        return noun
    return f"{noun}es" if noun.endswith(("ch", "sh", "x")) else f"{noun}s"
