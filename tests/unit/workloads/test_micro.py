"""The microbenchmarks and the tracking of particles, in this process and on CPUs."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest
import torch

from pipeline.base.system.paths import PROJECT_DIR
from workloads import client, micro, particles, program
from workloads.rates import operations, particle_tracking
from workloads.rates.options import Micro, Operation, Particles
from workloads.rates.particle_tracking import Tracking

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
