"""The window of a group: when its jobs end, and which portion of their time is measured."""

from __future__ import annotations

import enum
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

TRIAL_S = 1.0
"""Time between the settling time and a window by need, in which the scatter of the jobs' speed is observed."""


class WindowKind(enum.StrEnum):
    """The rule that determines when jobs end and which portion of their time is measured.

    `steady`: jobs run until they are stopped. `interleaved`: the same, in slices: groups that differ only in their
    number of jobs share a launch and take turns. `work`: jobs exit on their own after their epochs. `logged`: jobs
    exit on their own, or are stopped after `seconds`, and are measured while all of them log rates.
    """

    STEADY = "steady"
    INTERLEAVED = "interleaved"
    WORK = "work"
    LOGGED = "logged"

    @property
    def is_steady(self) -> bool:
        """True if jobs run until they are stopped."""
        return self in (WindowKind.STEADY, WindowKind.INTERLEAVED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The window of throughput measurement (docs/method.md, "Windows and baselines"). Fields of other kinds are 0.

    Jobs that exit on their own have no number of epochs.

    Attributes:
        settle_s: time that is not measured at the beginning; of an interleaved window, at the beginning of each slice.
        most_s: longest length of a steady window by need, whose shortest length is `seconds`; 0 for a fixed length.
        slice_s: length of a slice; 0 if the speed of the jobs decides. `seconds` is the sum of the slices in a launch.
    """

    kind: WindowKind
    seconds: float = 0.0
    settle_s: float = 0.0
    most_s: float = 0.0
    epochs: int = 0
    slice_s: float = 0.0

    @property
    def text(self) -> str:
        """Text for users that distinguishes any two windows: `steady, 20 s after 2 s`, `work, 5 epochs`."""
        if self.kind is WindowKind.STEADY:
            return f"{self.kind.value}, {self.length_text} after {self.begin_s:.12g} s"
        if self.kind is WindowKind.INTERLEAVED:
            slices = f"{self.num_slices} x {self.slice_s:.12g} s"
            slices = slices if self.slice_s else f"{self.seconds:.12g} s in slices"
            return f"{self.kind.value}, {slices}, each after {self.settle_s:.12g} s"
        if self.kind is WindowKind.LOGGED:
            return f"{self.kind.value}, {self.seconds:.12g} s" if self.seconds else self.kind.value
        if not self.epochs:
            return f"{self.kind.value}, until the jobs end"
        return f"{self.kind.value}, {self.epochs} epoch{'' if self.epochs == 1 else 's'}"

    @property
    def stops_scripts(self) -> bool:
        """True if jobs that would end by themselves are stopped once they have printed their rates for `seconds`."""
        return self.kind is WindowKind.LOGGED and self.seconds > 0

    @property
    def has_makespan(self) -> bool:
        """True if the time from the begin to the end of the jobs is a result."""
        return self.kind is not WindowKind.INTERLEAVED and not self.stops_scripts

    @property
    def length_text(self) -> str:
        """Length of a steady window, as text: `20 s`, or `1 to 10 s` by need."""
        return f"{self.seconds:.12g} to {self.most_s:.12g} s" if self.most_s else f"{self.seconds:.12g} s"

    @property
    def begin_s(self) -> float:
        """Time from the start of all jobs to the steady window."""
        return self.settle_s + (TRIAL_S if self.most_s else 0.0)

    @property
    def longest_s(self) -> float:
        """The largest possible length of a steady window."""
        return self.most_s or self.seconds

    @property
    def longest_key(self) -> str:
        """The configuration key of this length."""
        return "window.most_s" if self.most_s else "window.seconds"

    @property
    def num_slices(self) -> int:
        """Number of slices of a group in one launch."""
        return max(1, round(self.seconds / self.slice_s)) if self.slice_s else 1


STRESSOR = "stressor"
"""Workload that loads one resource; `RESOURCE` and `DIAL` are its params. Without them, it takes turns."""
RESOURCE, DIAL = "resource", "dial"
IDLE = "idle"
"""The name of turns in which the stressor does nothing, in place of a resource."""
TURN_S, SETTLE_S = "turn_s", "turn_settle_s"
"""Params of a stressor that takes turns: the length of a turn, and the time at its beginning that is not measured."""
Place = tuple[str, float]
"""A resource and a dial."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRates:
    """The rates in all turns of one resource and dial in one launch.

    Attributes:
        num_turns: number of complete turns.
        rates: work per second of each job, by its index; without jobs whose rate is unknown.
    """

    resource: str
    dial: float
    num_turns: int
    rates: Mapping[int, float] = field(default_factory=dict)

    @property
    def place(self) -> Place:
        """The resource and the dial."""
        return self.resource, self.dial

    @property
    def is_idle(self) -> bool:
        return self.resource == IDLE


def format_turns(turns: Iterable[TurnRates]) -> str:
    """Format rates as JSON, with six digits."""
    return json.dumps(
        [
            [turn.resource, turn.dial, turn.num_turns, {i: float(f"{rate:.6g}") for i, rate in turn.rates.items()}]
            for turn in turns
        ],
        separators=(",", ":"),
    )


def parse_turns(text: str) -> list[TurnRates]:
    """Return the rates of a tag."""
    return [
        TurnRates(resource=resource, dial=dial, num_turns=num, rates={int(i): rate for i, rate in rates.items()})
        for resource, dial, num, rates in json.loads(text)
    ]
