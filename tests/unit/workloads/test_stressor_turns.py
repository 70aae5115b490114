"""The turns of a stressor: their order, their phases, and turns that are cut short."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from workloads import client, program
from workloads.rates import duty_cycle, turn_loop
from workloads.rates.options import IDLE, StressorTurns, list_round

MS = 1_000_000


class Clock:
    """A clock of a computer that only works and sleeps."""

    now_ns = 0

    def monotonic_ns(self) -> int:
        return self.now_ns

    def sleep(self, seconds: float) -> None:
        self.now_ns += round(seconds * 1e9)


class Calls:
    """A load whose calls take 1 ms."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.called_ns: list[int] = []
        self.num_wrong = 0

    def run_until(self, end_ns: int) -> int:
        for number in itertools.count(1):
            self.clock.now_ns += MS
            self.called_ns.append(self.clock.now_ns)
            if self.clock.now_ns >= end_ns:
                return number
        raise AssertionError

    def count_wrong(self) -> int:
        return self.num_wrong


class Phases(client.NullJob):
    """A job that is held once, at `held_at`, and stopped at `stop_at`, both counted in looks at the orchestrator."""

    def __init__(self, clock: Clock, block: int = 1, held_at: int = -1, stop_at: int = -1) -> None:
        self.clock, self.block, self.held_at, self.stop_at = clock, block, held_at, stop_at
        self.phases: list[tuple[str, int]] = []
        self.wrongs: list[str] = []
        self.num_looks = self.num_epochs = 0

    @property
    def stopping(self) -> bool:
        return 0 <= self.stop_at <= self.num_looks

    def phase(self, name: str) -> None:
        self.phases.append((name, self.clock.now_ns))

    def epoch(self, number: int, seconds: float, **metrics: float) -> None:
        self.num_epochs = number

    def wrong(self, what: str) -> None:
        self.wrongs.append(what)

    def until_stop(self, items: Iterable[Any], finish: Callable[[], object] | None = None) -> Iterator[Any]:
        for item in items:
            self.num_looks += 1
            if self.num_looks == self.held_at:
                assert finish is not None
                finish()
                self.held_ns += 30 * MS
                self.clock.now_ns += 30 * MS
            if self.stopping:
                return
            yield item


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for module in (duty_cycle, turn_loop):
        monkeypatch.setattr(module, "time", clock)
    return clock


def take_turns(clock: Clock, epochs: int = 2, **job: int) -> tuple[Phases, dict[str, Calls]]:
    words = ["--resources", "host_cores", "host_memory", "--dials", "0.5", "1", "--turn-s", "0.1"]
    words += ["--turn-settle-s", "0.02", "--lead-s", "0.3", "--device", "cpu", "--epochs", str(epochs)]
    phases, loads = Phases(clock, **job), {"host_cores": Calls(clock), "host_memory": Calls(clock)}
    turn_loop.measure(program.parse(StressorTurns, words), phases, loads)
    return phases, loads


def test_a_round_has_each_turn_once_and_idle_turns() -> None:
    turns = Counter(list_round(["a", "b", "c"], [0.33, 0.67, 1.0]))
    assert turns.pop(IDLE) == 3
    assert turns == Counter(itertools.product("abc", (0.33, 0.67, 1.0)))


def test_each_round_has_an_order_of_its_own_and_each_block_another_one(clock: Clock) -> None:
    phases, _ = take_turns(clock, epochs=4)
    names = [name for name, _ in phases.phases if name.startswith("turn ")]
    rounds = [names[first : first + 6] for first in range(0, 24, 6)]
    assert phases.num_epochs == len(rounds) == 4 and len({tuple(names) for names in rounds}) > 1
    turns = ["host_cores 0.5", "host_cores 1", "host_memory 0.5", "host_memory 1", "idle 0", "idle 0"]
    assert all(sorted(names) == [f"turn {turn}" for turn in turns] for names in rounds)
    again, other = take_turns(clock, epochs=4)[0], take_turns(clock, epochs=4, block=2)[0]
    assert [name for name, _ in again.phases] == [name for name, _ in phases.phases]
    assert [name for name, _ in other.phases] != [name for name, _ in phases.phases]


def test_the_calls_of_a_turn_lie_within_its_phase_and_take_the_share_of_its_dial(clock: Clock) -> None:
    phases, loads = take_turns(clock)
    spans = [(*first, then) for first, (_, then) in itertools.pairwise(phases.phases)]
    lead = next((then - begin) for name, begin, then in spans if name == "lead")
    assert lead == pytest.approx(300 * MS, abs=10 * MS)
    for name, begin, end in (span for span in spans if span[0].startswith("turn ")):
        assert end - begin == pytest.approx(100 * MS, abs=10 * MS)
        _, resource, dial = name.split()
        for other, load in loads.items():
            share = sum(begin < called <= end for called in load.called_ns) * MS / (end - begin)
            assert share == pytest.approx(float(dial) if other == resource else 0, abs=0.05), name


def test_a_hold_ends_the_turn_and_a_stop_all_turns(clock: Clock) -> None:
    held, _ = take_turns(clock, held_at=70)
    names = [name for name, _ in held.phases]
    at = names.index("held")
    (_, began), (_, ended), (_, resumed) = held.phases[at - 1 : at + 2]
    assert names[at - 1].startswith("turn ") and ended - began < 100 * MS and resumed - ended == 30 * MS
    assert sum(name.startswith("turn ") for name in names) == 12 and held.num_epochs == 2
    stopped, _ = take_turns(clock, stop_at=90)
    assert stopped.num_epochs == 0 and stopped.phases[-1][0] == "end"
    assert stopped.phases[-1][1] - stopped.phases[-2][1] < 100 * MS


def test_wrong_results_name_the_resource(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Calls, "count_wrong", lambda load: 3)
    phases, _ = take_turns(clock, epochs=1)
    assert phases.wrongs[0] == "3 results of the load on host_cores are wrong"


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--resources", "l3", "--dials", "1"], "invalid choice: 'l3'"),
        (["--resources", "l2", "--dials", "1"], "resources=l2 needs a GPU"),
        (["--resources", "host_cores", "host_cores", "--dials", "1"], "must name at least one, each once"),
        (["--resources", "host_cores", "--dials"], "must name at least one, each once"),
        (["--resources", "host_cores", "--dials", "0"], "dials=0 must be from 0.01 to 1"),
        (["--resources", "host_cores", "--dials", "1.5"], "dials=1.5 must be from 0.01 to 1"),
        (["--resources", "host_cores", "--dials", "1", "--turn-s", "0.3"], "must be at least twice turn_settle_s=0.2"),
    ],
)
def test_wrong_options_are_refused_by_hand(words: list[str], why: str) -> None:
    with pytest.raises(program.UsageError, match=why):
        program.parse(StressorTurns, [*words, "--device", "cpu"])
