"""Rates of the jobs of a group in the turns of a stressor, and their text in a tag.

A stressor that takes turns loads one resource after another at each of its dials. Other jobs run on, and are compared
with the idle turns of the same launch.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

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
