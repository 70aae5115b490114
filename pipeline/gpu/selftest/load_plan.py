"""The loads of a self-test, from an idle to a full GPU, and the expected values of the counters. Pure.

A block of a kernel runs on one multiprocessor, and a GPU assigns blocks to idle multiprocessors first. Therefore the
number of blocks determines SMACT, blocks and threads determine occupancy, and a single block is sufficient for GRACT
and utilisation of 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

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
