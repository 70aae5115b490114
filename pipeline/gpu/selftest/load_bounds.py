"""The loads of a self-test, the expected values of the counters, and the bounds of possible readings. Pure.

A block of a kernel runs on one multiprocessor, and a GPU assigns blocks to idle multiprocessors first. Therefore the
number of blocks determines SMACT, blocks and threads determine occupancy, and a single block is sufficient for GRACT
and utilisation of 1.

The bounds are wide, so differences between the instants of samples cannot cause a finding. A finding means that a
counter measures something other than its name says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

from pipeline.base.system.words import format_count

WARP = 32
"""Number of threads of a warp. Counters count warps, so one thread has the same effect as 32."""

_WIDE = 512
"""Threads of a large block; a divisor of the maximum threads of every kind of multiprocessor (1024, 1536, 2048)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The place of kernels: a whole GPU, or one of its GPU instances.

    Attributes:
        gi_id: id of the GPU instance; `None` for the whole GPU.
        multiprocessors: multiprocessors that kernels can use; in a GPU instance, those of one compute instance.
        counted: multiprocessors of which the counters are shares; `None` if the driver does not report them.
        threads_each: maximum number of threads of one multiprocessor.
        compute_slices: compute slices of the GPU instance; `None` if the driver does not report them.
    """

    gi_id: int | None = None
    multiprocessors: int
    counted: int | None
    threads_each: int
    compute_slices: int | None = None

    @property
    def name(self) -> str:
        return "GPU" if self.gi_id is None else f"GI {self.gi_id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Kernels with `blocks` blocks of `threads` threads, one immediately after the other; idle if `blocks` is 0."""

    blocks: int = 0
    threads: int = 0

    def expected(self, place: Place) -> dict[str, float]:
        """Return the expected share, between 0 and 1, of each known counter while the load runs at a place."""
        if self.blocks == 0:
            return dict.fromkeys(QUANTITIES, 0.0)
        shares = {"gract_ratio": 1.0, "utilization_ratio": 1.0}
        if place.counted is None:
            return shares
        resident = min(self.blocks, place.multiprocessors * (place.threads_each // self.threads))
        return shares | {
            "smact_ratio": min(self.blocks, place.multiprocessors) / place.counted,
            "smocc_ratio": resident * self.threads / (place.counted * place.threads_each),
        }


QUANTITIES = ("gract_ratio", "smact_ratio", "smocc_ratio", "utilization_ratio")
"""The checked counters: shares between 0 and 1."""

IDLE = Load()


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Loads that run at the same time, one at each place."""

    name: str
    loads: tuple[tuple[Place, Load], ...]


def plan_steps(places: Sequence[Place]) -> tuple[Step, ...]:
    """Plan steps from idle to full on all places at once, then steps with one full instance while others are idle."""
    ladder: list[tuple[str, Callable[[Place], Load]]] = [
        ("idle", lambda place: IDLE),
        ("one block", lambda place: Load(blocks=1, threads=WARP)),
        ("a quarter", lambda place: Load(blocks=max(1, place.multiprocessors // 4), threads=WARP)),
        ("a half", lambda place: Load(blocks=max(1, place.multiprocessors // 2), threads=WARP)),
        ("a warp on each", lambda place: Load(blocks=place.multiprocessors, threads=WARP)),
        ("a block on each", lambda place: Load(blocks=place.multiprocessors, threads=_WIDE)),
        ("full", fill),
    ]
    steps = [Step(name=name, loads=tuple((place, load(place)) for place in places)) for name, load in ladder]
    if len(places) > 1:
        steps += [Step(name=f"only {full_one.name}", loads=_fill_one(full_one, places)) for full_one in places]
    return tuple(steps)


def fill(place: Place) -> Load:
    """Return the load with the maximum number of threads of a place."""
    return Load(blocks=place.multiprocessors * (place.threads_each // _WIDE), threads=_WIDE)


def _fill_one(one: Place, places: Iterable[Place]) -> tuple[tuple[Place, Load], ...]:
    return tuple((place, fill(place) if place is one else IDLE) for place in places)


RELATIVE, ABSOLUTE = 0.15, 0.05
"""Relative and absolute tolerance of a counter against its expected value; they add up. Chosen, not measured."""

ABOVE = 0.05
"""Tolerance of a counter above a counter that contains it, because they are read at different instants."""

OUTSIDE = 0.005
"""Tolerance of a share outside 0 to 1, because sources print three decimals and measure time with two clocks."""

MOVES = 0.002
"""Minimum change of a counter between an idle and a full place; a smaller change means that the counter is stuck."""

_NEAR_SHARE = 0.08
"""Maximum distance between a reading and another instance's share at which the reading counts as capped at it."""

_CONTAINED = (("smact_ratio", "gract_ratio"), ("smocc_ratio", "smact_ratio"))
_NAMES = {
    "gract_ratio": "GRACT",
    "smact_ratio": "SMACT",
    "smocc_ratio": "SM occupancy",
    "utilization_ratio": "utilisation",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The listeners' readings of one place during one step.

    Attributes:
        place: the loaded place; `None` for the whole GPU in MIG mode, for which no values are expected.
        load: the load of the place; `None` for the whole GPU in MIG mode.
        readings: mean of each quantity over the step, by listener and quantity: shares between 0 and 1.
        num_samples: number of samples of these means, by listener.
    """

    step: str
    place: Place | None = None
    load: Load | None = None
    readings: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    num_samples: Mapping[str, int] = field(default_factory=dict)

    @property
    def where(self) -> str:
        return "GPU" if self.place is None else self.place.name

    @property
    def expected(self) -> dict[str, float]:
        """Expected value by quantity; empty if no values are expected."""
        return {} if self.place is None or self.load is None else self.load.expected(self.place)

    def within(self, quantity: str) -> tuple[float, float] | None:
        """Return the lowest and the highest plausible share of a quantity; `None` if no value is expected."""
        if (value := self.expected.get(quantity)) is None:
            return None
        return max(0.0, value * (1 - RELATIVE) - ABSOLUTE), min(1.0, value * (1 + RELATIVE) + ABSOLUTE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One impossible reading: a quantity of a place, as a source reports it.

    Attributes:
        what: description of the reading in the first of `steps`.
        steps: steps with an impossible reading, the worst step first; empty if the finding applies to all steps.
        value: share that the source reports; `None` if the source does not report the quantity.
    """

    source: str
    quantity: str
    where: str
    what: str
    steps: tuple[str, ...] = ()
    value: float | None = None

    def __str__(self) -> str:
        suffix = f" and {format_count(len(self.steps) - 1, 'other step')}" if len(self.steps) > 1 else ""
        when = f" (step `{self.steps[0]}`{suffix})" if self.steps else ""
        return f"{self.source}, {self.where}: {self.what}{when}"

    def matches(self, row: Row) -> bool:
        """Return whether the row has this impossible reading."""
        return self.where == row.where and (not self.steps or row.step in self.steps)


def find_implausible(rows: Sequence[Row]) -> tuple[Finding, ...]:
    """Find all impossible readings; findings that apply to all steps come first."""
    general = [*_find_stuck(rows), *_find_missing(rows)]
    general_keys = {(finding.source, finding.quantity, finding.where) for finding in general}
    single: dict[tuple[str, str, str], list[_Weighted]] = {}
    for row in rows:
        for source in sorted(row.readings):
            for weight, finding in _find_impossible(row, source, rows):
                single.setdefault((source, finding.quantity, row.where), []).append((weight, finding))
    return (*general, *(_merge(findings) for key, findings in single.items() if key not in general_keys))


_Weighted = tuple[float, Finding]
"""A finding of one row with its weight; the heaviest becomes the text of the finding of all rows."""


def _merge(findings: Sequence[_Weighted]) -> Finding:
    _, worst = max(findings, key=lambda pair: pair[0])
    steps = dict.fromkeys([*worst.steps, *(step for _, finding in findings for step in finding.steps)])
    return replace(worst, steps=tuple(steps))


def _find_impossible(row: Row, source: str, rows: Sequence[Row]) -> Iterator[_Weighted]:
    """Yield the first fault of each quantity in one source's readings of a row."""
    values, faults = row.readings[source], dict[str, tuple[str, float]]()
    for quantity, value in values.items():
        if not -OUTSIDE <= value <= 1 + OUTSIDE:
            faults[quantity] = f"{_NAMES[quantity]} is {value:.3f}, outside 0 to 1", abs(value) + 1
    for inner, outer in _CONTAINED:
        if inner in values and outer in values and inner not in faults and values[inner] > values[outer] + ABOVE:
            text = f"{_NAMES[inner]} is {values[inner]:.3f}, above {_NAMES[outer]}, which is {values[outer]:.3f}"
            faults[inner] = text, 1 + values[inner] - values[outer]
    for quantity, value in values.items():
        limits = row.within(quantity)
        if quantity not in faults and limits is not None and not limits[0] <= value <= limits[1]:
            faults[quantity] = _explain_distance(row, quantity, value, rows)
    for quantity, (explanation, weight) in faults.items():
        place = {"source": source, "quantity": quantity, "where": row.where}
        yield weight, Finding(**place, what=explanation, value=values[quantity], steps=(row.step,))


def _explain_distance(row: Row, quantity: str, value: float, rows: Sequence[Row]) -> tuple[str, float]:
    assert row.place is not None and row.load is not None
    name, must = _NAMES[quantity], row.expected[quantity]
    if row.load.blocks == 0:
        return f"{name} is {value:.3f}, although nothing ran", value
    blocks = format_count(row.load.blocks, "block")
    running = f"{blocks} of {row.load.threads} threads ran on {row.place.multiprocessors} SMs"
    text = f"{name} is {value:.3f}, expected {must:.3f}: {running}"
    neighbour = None if quantity == "smocc_ratio" else _find_cap(row, value, rows)
    if neighbour is None:
        return text, abs(value - must)
    return f"{text}; capped at the share of {neighbour.name} with {neighbour.multiprocessors} SMs", 1.0


def _find_cap(row: Row, value: float, rows: Sequence[Row]) -> Place | None:
    place = row.place
    assert place is not None
    if place.gi_id is None or place.counted is None or row.expected["smact_ratio"] < 1:
        return None
    neighbours = {other_row.place for other_row in rows if other_row.place is not None and other_row.place != place}
    for other in sorted(neighbours, key=lambda candidate: candidate.multiprocessors, reverse=True):
        shares = [other.multiprocessors / place.counted]
        if other.compute_slices and place.compute_slices:
            shares.append(other.compute_slices / place.compute_slices)
        if any(share < 1 and abs(value - share) <= _NEAR_SHARE for share in shares):
            return other
    return None


def _find_stuck(rows: Sequence[Row]) -> Iterator[Finding]:
    for source, quantity in product(_list_sources(rows), QUANTITIES):
        for place in dict.fromkeys(row.where for row in rows):
            seen = [
                (row.expected[quantity], row.readings[source][quantity])
                for row in rows
                if row.where == place and quantity in row.expected and quantity in row.readings.get(source, {})
            ]
            must, values = [must for must, _ in seen], [value for _, value in seen]
            if seen and max(must) - min(must) > 1 / 2 and max(values) - min(values) < MOVES:
                explanation = (
                    f"{_NAMES[quantity]} is constant: {max(values):.3f} in {len(values)} steps, from idle to full"
                )
                yield Finding(source=source, quantity=quantity, where=place, value=max(values), what=explanation)


def _find_missing(rows: Sequence[Row]) -> Iterator[Finding]:
    """Find quantities that a source reports for some instances but not for others."""
    places = {row.place.name: row.place for row in rows if row.place is not None}
    for source, quantity in product(_list_sources(rows), QUANTITIES):
        covered = {row.where for row in rows if row.place is not None and quantity in row.readings.get(source, {})}
        for name in places if covered else ():
            if name not in covered:
                explanation = f"no {_NAMES[quantity]}, which the source reports for {', '.join(sorted(covered))}"
                yield Finding(source=source, quantity=quantity, where=name, what=explanation)


def _list_sources(rows: Iterable[Row]) -> dict[str, None]:
    return dict.fromkeys(sorted(source for row in rows for source in row.readings))
