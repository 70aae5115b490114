"""Units of the rate that a program logs: `tok/s`, `ms/step`, `ns/day`, or a prefix (`workload.metric_unit=k`)."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass

from pipeline.base.domain.work_units import format_singular

SCALES = {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
PREFIXES = SCALES | {"K": 1e3, "ki": 1024.0, "Ki": 1024.0, "Mi": 1024.0**2, "Gi": 1024.0**3, "Ti": 1024.0**4}
"""Prefixes of rates: those that a user sets, and those that programs write."""

_SPELLINGS = {
    "fs": (1e-15, "femtosecond femtoseconds"),
    "ps": (1e-12, "picosecond picoseconds"),
    "ns": (1e-9, "nsec nanosecond nanoseconds"),
    "us": (1e-6, "\u00b5s \u03bcs usec microsecond microseconds"),
    "ms": (1e-3, "msec msecs millisecond milliseconds"),
    "s": (1.0, "sec secs second seconds"),
    "min": (60.0, "mins minute minutes"),
    "h": (3600.0, "hr hrs hour hours"),
    "day": (86400.0, "days"),
}
TIMES = {name: unit for unit, (_, names) in _SPELLINGS.items() for name in (unit, *names.split())}
TIMES |= {name.capitalize(): unit for name, unit in TIMES.items() if len(name) > 2}
"""Names of units of time, each with its short form."""

_NOUNS = dict(
    re.findall(
        r"(\S+):(\w+)",
        """it:iterations iter:iterations iteration:iterations step:steps atom-step:atom_steps batche:batches tok:tokens
        token:tokens word:words char:characters sample:samples img:images image:images seq:sequences sequence:sequences
        frame:frames item:items row:rows req:requests request:requests op:operations px:pixels b:bits B:bytes
        byte:bytes bit:bits pixel:pixels example:examples flop:FLOP""",
    )
)
"""Work units of the nouns that programs write with a prefix: `kit/s`, `Mtok/s`, `GB/s`, `Matom-step/s`."""
_SAME_WORK = (
    frozenset({"iterations", "steps", "batches"}),
    frozenset({"samples", "images", "sequences", "examples", "frames"}),
    frozenset(_SPELLINGS),
)
"""Work units that stand for each other: one turn of a program's loop, one input of a model, simulated time."""

_UNIT = re.compile(r"(?:(\w*?)(?:^|_)per_)?([^\W\d]\w*)")
FORMS = "write k, M, G, T, per_min, per_h, per_day, or a unit such as s_per_step, ms_per_it or ns_per_day"
_SAY_WORK = "set workload.work_unit, such as steps"


class UnreadableError(ValueError):
    """A number or a unit that is unclear; the text is the reason, a semicolon and the remedy."""

    def __init__(self, why: str, remedy: str) -> None:
        super().__init__(f"{why}; {remedy}")


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricUnit:
    """The unit of a number that expresses a rate.

    Attributes:
        scale: units per second, or seconds, per unit of the number.
        prefix: the part of the scale that is a prefix, such as 1000 in `ktok/min`.
        is_time: whether the number is the time per work unit.
        work: the work unit, in plural; a unit of time if the work is simulated time; empty if unspecified.
    """

    scale: float = 1.0
    prefix: float = 1.0
    is_time: bool = False
    work: str = ""

    def rate(self, value: float) -> float:
        """Return the rate per second for a value; infinite for a time of 0."""
        scaled = value * self.scale
        if not self.is_time:
            return scaled
        return 1 / scaled if scaled else float("inf")

    def with_prefix(self, prefix: float) -> MetricUnit:
        """Return the unit with another prefix."""
        return dataclasses.replace(self, scale=self.scale / self.prefix * prefix, prefix=prefix)

    def counts(self, unit: str) -> bool:
        """Return whether the number expresses a rate of this work unit, or of another word for it."""
        names = {name_work(unit).lower(), self.work.lower()}
        return not self.work or len(names) == 1 or any(names <= same for same in _SAME_WORK)

    def count_in(self, work_unit: str) -> MetricUnit:
        """Return the unit for this work unit; if it is empty, simulated time is counted in ns, and other work as it is.

        Raises:
            UnreadableError: the number counts other work, or no work is specified.
        """
        if not (self.work or work_unit):
            raise UnreadableError("the number has no unit of work", _SAY_WORK)
        work_unit = work_unit or ("ns" if self.work in _SPELLINGS else self.work)
        if not self.counts(work_unit):
            remedy = f"set workload.work_unit={self.work}, or let the pattern match {work_unit} only"
            raise UnreadableError(f"the number counts {self.work}, not {work_unit}", remedy)
        if self.work not in _SPELLINGS:
            return dataclasses.replace(self, work=work_unit)
        ratio = _SPELLINGS[self.work][0] / _SPELLINGS[TIMES.get(work_unit, self.work)][0]
        return dataclasses.replace(self, scale=self.scale * ratio ** (-1 if self.is_time else 1), work=work_unit)


def relate(above: str, below: str, *, num: int = 1, work_unit: str = "") -> MetricUnit | None:
    """Return the unit `above/below`, such as `tok/s` or, with `num=100`, `s/100 it`; `None` if it contains no time.

    Of two times, as in `ns/day` and `days/ns`, the longer one passes, and the shorter one is simulated. `work_unit` is
    the work unit of the workload; if it is `GB`, `GB/s` has no prefix.
    """
    time, time_below = (_SPELLINGS[TIMES[name]][0] if name in TIMES else None for name in (above, below))
    if time is not None and (time_below is None or time > time_below):
        return MetricUnit(scale=time / num, is_time=True, work=name_work(below))
    if time_below is None or time == time_below:
        return None
    prefix, noun = (1.0, above) if time is not None else _split(above, work_unit)
    return MetricUnit(scale=1 / time_below, work=name_work(noun)).with_prefix(prefix)


def name_work(noun: str) -> str:
    """Return the work unit for a noun in a unit: `tokens` for `tok`, `widgets` for `widget`, `us` for `µs`."""
    if (known := TIMES.get(noun) or _find_noun(noun)) is not None:
        return known
    word = re.sub(r"\W", "_", noun.lower() if noun.istitle() else noun)
    if not word or word.endswith("s") or f"{word}s" in TIMES:  # `f/s` counts no femtoseconds
        return word
    return f"{word}es" if word.endswith(("tch", "sh", "x")) else f"{word}s"


def _find_noun(noun: str) -> str | None:
    forms = (noun, noun.lower(), noun.lower().removesuffix("s"))
    return next((_NOUNS[form] for form in forms if form in _NOUNS), None)


def parse(text: str) -> MetricUnit:
    """Parse a unit such as `k`, `per_min`, `ms_per_step` or `ns/day`; raise `ValueError` if it is unknown."""
    match = _UNIT.fullmatch(text.replace("/", "_per_"))
    above, below = (None, "") if match is None else match.groups()
    if above is None:
        above, below = (below, "s") if below in SCALES else ("", "")
    unit = relate(above, below)
    if unit is None:
        raise ValueError(FORMS)
    return unit


def _split(noun: str, work_unit: str) -> tuple[float, str]:
    """Split a noun into the factor of its prefix and the noun alone; the workload's work unit has no prefix."""
    if noun.lower() in (work_unit.lower(), format_singular(work_unit).lower()):
        return 1.0, noun
    for length in (2, 1):
        prefix, counted = noun[:length], noun[length:]
        if prefix in PREFIXES and (not counted or _find_noun(counted)):
            return PREFIXES[prefix], counted
    last_word = re.split(r"_|(?<=[a-z])(?=[A-Z])", noun)[-1]  # of `train_steps` or `RunningAvgSamples`
    return 1.0, last_word if _find_noun(last_word) and not _find_noun(noun) else noun
