"""Microbenchmarks, the tracking of particles, and stressors with their turns, in this process and on CPUs."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from importlib.util import find_spec
from typing import Any

import pytest
import torch

from pipeline.base.system.paths import PROJECT_DIR
from workloads import client, micro, particles, program, stressor, stressor_turns
from workloads.rates import operations, particle_tracking, stressor_loads, stressor_loop
from workloads.rates.options import IDLE, Micro, Operation, Particles, Stressor, StressorTurns, list_round
from workloads.rates.particle_tracking import Tracking
from workloads.rates.stressor_loop import DutyCycle

CPU = torch.device("cpu")
SIZE = operations.Size(elements=8192, rounds=1, rows=64, array_mib=1, transfer_mib=1)


class RecordingJob(client.NullJob):
    """Keeps what a job says."""

    def __init__(self) -> None:
        self.work: list[float] = []
        self.found_wrong: list[str] = []
        self.epochs = 0

    def step(self, samples, epoch=None, t_ns=None):
        self.work.append(samples)

    def wrong(self, what):
        self.found_wrong.append(what)

    def epoch(self, number, seconds, **metrics):
        self.epochs = number


@pytest.mark.parametrize("name", [name for name in Operation.__members__ if name != "launch"])
def test_what_is_right_counts_once_and_what_is_not_written_is_wrong(name):
    operation = operations.build(name, CPU, SIZE)
    operation.begin()
    operation.call()
    assert int(operation.count_wrong()) == 0
    assert int(operation.count_wrong()) > 4000, "nothing was computed since"


@pytest.mark.parametrize("name", ["fp32_cuda", "bf16_tensor", "triad"])
def test_a_wrong_value_among_right_ones_is_seen(name):
    operation = operations.build(name, CPU, SIZE)
    operation.begin()
    operation.call()
    result = operation._to if name == "triad" else operation._out
    result.view(-1)[-64:] += 20
    assert int(operation.count_wrong()) > 0


def test_a_launch_that_did_nothing_is_seen():
    operation = operations.build("launch", CPU, SIZE)
    operation.begin()
    operation.call()
    assert int(operation.count_wrong()) == 0
    operation._counter -= 1
    assert int(operation.count_wrong()) == 1


@pytest.mark.parametrize(("is_6d", "dtype"), [(False, torch.float64), (True, torch.float64), (True, torch.float32)])
def test_particles_keep_their_invariants_and_their_volume(is_6d, dtype):
    torch.manual_seed(0)
    particles = Tracking(300, 50, dtype, CPU, is_6d=is_6d)
    assert particles.difference() < 0.01
    particles.call()
    assert int(particles.count_wrong()) == 0
    particles._state[2, 7] *= 1.5
    assert int(particles.count_wrong()) == 1
    particles._done -= 1
    assert int(particles.count_wrong()) == 1 + len(particles._done)


def test_a_turn_is_symplectic():
    """Jacobian of a turn, J^T S J = S: what makes volumes stay."""
    lattice = particle_tracking.Lattice()

    def turn(start):
        state = start[:, None].clone()
        particle_tracking.track(state, lattice, 1, is_6d=True)
        return state[:, 0]

    start = torch.tensor([1e-3, -2e-3, 5e-4, 1e-3, 0.3, 0.02], dtype=torch.float64)
    columns = [(turn(start + d) - turn(start - d)) / 2e-6 for d in 1e-6 * torch.eye(6, dtype=torch.float64)]
    jacobian = torch.stack(columns, dim=1)
    form = torch.block_diag(*[torch.tensor([[0.0, 1.0], [-1.0, 0.0]], dtype=torch.float64)] * 3)
    assert torch.allclose(jacobian.T @ form @ jacobian, form, atol=1e-6)


def test_a_program_counts_its_work_and_reports_what_is_wrong(monkeypatch):
    argv = ["--operation", "fp16_tensor", "--rows", "64", "--steps", "4", "--calls", "3", "--epochs", "2"]
    job, args = RecordingJob(), program.parse(Micro, [*argv, "--device", "cpu"])
    micro.run(args, job)
    assert job.work == pytest.approx([3 * 2 * 64**3 / 1e12] * 8)
    assert (job.epochs, job.found_wrong) == (2, [])
    monkeypatch.setattr(operations.Product, "call", lambda self: None)
    micro.run(args, job)
    assert "results of fp16_tensor are wrong" in job.found_wrong[0]


def test_particles_that_the_cpu_tracks_elsewhere_are_wrong(monkeypatch):
    args = program.parse(Particles, ["--device", "cpu", "--particles", "50", "--steps", "2"])
    job = RecordingJob()
    particles.run(args, job)
    assert (sum(job.work), job.found_wrong) == (2 * 2 * 5 * 50, [])
    monkeypatch.setattr(Tracking, "call", lambda self: None)
    particles.run(args, job)
    assert "particles differ from the CPU's result by" in job.found_wrong[0]


def test_a_gpu_without_triton_is_refused_in_one_line(monkeypatch, capsys):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(program.UsageError, match="need Triton"):
        program.need_triton(torch.device("cuda"))
    program.need_triton(CPU)


_INTERPRETED = """
import torch
from workloads.rates import operations, particle_tracking, stressor_loads
cpu = torch.device("cpu")
for is_cached in (False, True):
    reading = stressor_loads.Reading(
        num_bytes=4 * 8192, num_programs=2, num_warps=4, rounds=5, block=1024, is_cached=is_cached
    )
    table = stressor_loads.TableReading(cpu, reading, 3)
    for first in (0, 6):  # 5 rounds of 6 programs end at block 30 of 8, that is 6
        assert table._first == first
        table.begin()
        assert int(table.count_wrong()) == 6
        table.call()
        assert int(table.count_wrong()) == 0
products = stressor_loads.BlockProducts(cpu, 3, torch.float16)  # the interpreter computes wrong products of bf16
products.begin()
assert int(products.count_wrong()) == 3 * 64
products.call()
assert int(products.count_wrong()) == 0
for precision in ("fp32", "fp64"):
    size = operations.Size(elements=4096, rounds=1, rows=64, array_mib=1, transfer_mib=1)
    chain = operations.MultiplyAdd(precision, cpu, size)
    chain._run_on_gpu()
    assert int(chain.count_wrong()) == 0
for is_6d in (False, True):
    particles = particle_tracking.Tracking(300, 10, torch.float64, cpu, is_6d=is_6d)
    particles._run_on_gpu()
    expected = particles._start.clone()
    particle_tracking.track(expected, particles._lattice, 10, is_6d=is_6d)
    assert torch.allclose(particles._state, expected, rtol=1e-9, atol=1e-15)
    assert particles._done.tolist() == [10, 10]
"""


@pytest.mark.skipif(find_spec("triton") is None, reason="Triton comes with torch for GPUs only")
def test_the_kernels_do_what_torch_does():

    environ = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join([str(PROJECT_DIR), *sys.path])}
    subprocess.run([sys.executable, "-c", _INTERPRETED], env=environ, check=True, cwd=PROJECT_DIR)


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
