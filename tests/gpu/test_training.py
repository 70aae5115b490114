"""Training on a real GPU: when a step is complete, and that each way to run it learns the same."""

from __future__ import annotations

import time

import pytest
import torch

from tests.support.training import train
from workloads.training.training_steps import StepClock

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]


def test_on_a_gpu_a_step_is_stamped_when_it_is_complete():
    stamps: list[int] = []
    clock = StepClock(lambda samples, epoch, t_ns: stamps.append(t_ns), runs_ahead=True)
    matrix = torch.randn(8192, 8192, device="cuda")
    begin = time.monotonic_ns()
    for _ in range(5):
        for _ in range(5):
            matrix = matrix @ matrix * 1e-3
        clock.note_issued(1, 1)
    num_before_drain = len(stamps)
    clock.drain()
    torch.cuda.synchronize()
    assert (num_before_drain, len(stamps)) == (3, 5)
    assert (time.monotonic_ns() - stamps[-1]) < 0.05 * (stamps[-1] - begin)


@pytest.mark.parametrize("mode", ["cuda_graph", "compile"])
def test_on_a_gpu_every_step_mode_loses_the_same(mode):
    eager = train("--device", "cuda", "--learning-rate", "0.01")
    for steps in ("0", "5"):
        other = train("--device", "cuda", "--learning-rate", "0.01", "--step-mode", mode, "--warmup-steps", steps)
        assert other.losses == pytest.approx(eager.losses, rel=1e-3)
        assert other.metrics["memory_allocated_peak_mib"][0] > 0
