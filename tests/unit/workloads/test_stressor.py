"""Stressors: their calls, the share of time in which they work, and their turns."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from tests.unit.workloads.test_micro import RecordingJob
from workloads import client, program, stressor, stressor_turns
from workloads.rates import stressor_loads, stressor_loop
from workloads.rates.options import IDLE, Stressor, StressorTurns, list_round
from workloads.rates.stressor_loop import DutyCycle

MS = 1_000_000


class Clock:
    """A clock of a computer that only works and sleeps; each sleep may be longer than requested."""

    now_ns = oversleep_ns = 0

    def monotonic_ns(self) -> int:
        return self.now_ns

    def sleep(self, seconds: float) -> None:
        self.now_ns += round(seconds * 1e9) + self.oversleep_ns


class Calls:
    """A load whose calls take a fixed time each."""

    def __init__(self, clock: Clock, call_ns: int = MS) -> None:
        self.clock, self.call_ns = clock, call_ns
        self.called_ns: list[int] = []
        self.num_wrong = 0

    def run_until(self, end_ns: int) -> int:
        for number in itertools.count(1):
            self.clock.now_ns += self.call_ns
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
    monkeypatch.setattr(stressor_loop, "time", clock)
    return clock


def take_turns(clock: Clock, epochs: int = 2, **job: int) -> tuple[Phases, dict[str, Calls]]:
    words = ["--resources", "host_cores", "host_memory", "--dials", "0.5", "1", "--turn-s", "0.1"]
    words += ["--turn-settle-s", "0.02", "--lead-s", "0.3", "--device", "cpu", "--epochs", str(epochs)]
    phases, loads = Phases(clock, **job), {"host_cores": Calls(clock), "host_memory": Calls(clock)}
    stressor_loop.measure(program.parse(StressorTurns, words), phases, loads)
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
    ("options", "words", "why"),
    [
        (StressorTurns, ["--resources", "l3", "--dials", "1"], "invalid choice: 'l3'"),
        (StressorTurns, ["--resources", "l2", "--dials", "1"], "resources=l2 needs a GPU"),
        (
            StressorTurns,
            ["--resources", "host_cores", "host_cores", "--dials", "1"],
            "must name at least one, each once",
        ),
        (StressorTurns, ["--resources", "host_cores", "--dials"], "must name at least one, each once"),
        (StressorTurns, ["--resources", "host_cores", "--dials", "0"], "dials=0 must be from 0.01 to 1"),
        (StressorTurns, ["--resources", "host_cores", "--dials", "1.5"], "dials=1.5 must be from 0.01 to 1"),
        (
            StressorTurns,
            ["--resources", "host_cores", "--dials", "1", "--turn-s", "0.3"],
            "must be at least twice turn_settle_s=0.2",
        ),
        (
            Stressor,
            ["--resource", "tensor_cores"],
            "resource=tensor_cores needs a GPU, but the job would run on the CPUs",
        ),
        (Stressor, ["--resource", "host_cores", "--dial", "1.5"], "dial=1.5 must be from 0 to 1"),
        (Stressor, ["--resource", "host_cores", "--dial", "-0.5"], "dial=-0.5 must not be negative"),
        (Stressor, ["--resource", "host_cores", "--dial", "nan"], "dial=nan must be finite"),
    ],
)
def test_wrong_options_are_refused_by_hand(options: type[Stressor | StressorTurns], words: list[str], why: str) -> None:
    with pytest.raises(program.UsageError, match=why):
        program.parse(options, [*words, "--device", "cpu"])


@pytest.mark.parametrize("dial", [0.0, 0.1, 0.33, 0.67, 1.0])
@pytest.mark.parametrize("call_ns", [MS // 10, 3 * MS, 12 * MS])
def test_a_stressor_works_for_the_share_of_its_dial_even_if_its_calls_are_slow(
    clock: Clock, dial: float, call_ns: int
) -> None:
    clock.oversleep_ns = MS // 10
    load = Calls(clock, call_ns)
    cycle = DutyCycle(load, dial)
    for _ in range(200):
        cycle.work()
        cycle.pause()
    assert len(load.called_ns) * call_ns / clock.now_ns == pytest.approx(dial, abs=0.003)


def test_a_dial_of_zero_does_nothing() -> None:
    load = Calls(Clock())
    cycle = DutyCycle(load, 0.0)
    assert [cycle.work(), cycle.work()] == [0, 0] and load.called_ns == []


@pytest.mark.parametrize(("resource", "threads"), [("host_cores", 2), ("host_memory", 3)])
def test_a_stressor_of_the_host_reports_its_calls(resource: str, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stressor_loads, "_FILE_BYTES", 4 << 20)
    argv = ["--resource", resource, "--dial", "0.5", "--calls", "40", "--epochs", "2", "--threads", str(threads)]
    job = RecordingJob()
    stressor.run(program.parse(Stressor, [*argv, "--device", "cpu"]), job)
    assert sum(job.work) >= 80 and min(job.work) >= threads
    assert (job.epochs, job.found_wrong) == (2, [])


def test_wrong_results_of_a_load_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stressor_loads.HostLoad, "count_wrong", lambda self: 3)
    argv = ["--resource", "host_cores", "--calls", "1", "--threads", "1", "--device", "cpu"]
    job = RecordingJob()
    stressor.run(program.parse(Stressor, argv), job)
    assert job.found_wrong == ["3 results of the load on host_cores are wrong"]


@pytest.mark.parametrize(("l2_mib", "table_kib"), [(50, 8192), (24, 4096), (4, 1024), (0.0625, 32), (0, 8192)], ids=str)
def test_the_table_of_l2_fits_into_a_quarter_of_it_and_has_a_block_at_least(l2_mib: float, table_kib: int) -> None:
    reading = stressor_loads.choose_reading("l2", int(l2_mib * 2**20))
    assert reading.num_bytes == table_kib << 10
    assert reading.num_bytes % (4 * reading.block) == 0
    assert stressor_loads.choose_reading("memory_bandwidth", int(l2_mib * 2**20)).num_bytes == 256 << 20


def test_a_stressor_in_turns_reports_the_calls_of_all_its_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stressor_loads, "_FILE_BYTES", 4 << 20)
    argv = ["--resources", "host_cores", "host_memory", "--dials", "1", "--turn-s", "0.05", "--turn-settle-s", "0.01"]
    argv += ["--lead-s", "0.01", "--threads", "2", "--device", "cpu", "--epochs", "2"]
    job = RecordingJob()
    stressor_turns.run(program.parse(StressorTurns, argv), job)
    assert (job.epochs, job.found_wrong) == (2, [])
    assert 0 in job.work and max(job.work) >= 2
