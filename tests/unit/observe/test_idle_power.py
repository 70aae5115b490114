"""The power of a GPU without jobs, and with jobs that wait."""

from __future__ import annotations

import dataclasses
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from listeners.nvml import NvmlListener
from pipeline.base.domain.samples import Sample
from pipeline.base.system.errors import ListenerError
from pipeline.observe import idle_power
from pipeline.observe.idle_power import IdlePower
from pipeline.observe.phases import Phases
from tests.conftest import GPU
from tests.support.idle_groups import MPS, make_groups
from tests.support.rows import FIELDS, S


class Gpu:
    """A GPU whose power falls to `power_w` in the first half of each time in which it does no work."""

    def __init__(self, monkeypatch) -> None:
        self.now_ns, self.samples, self.waited_s = 0, list[Sample](), list[float]()
        self.idle, self.phases = IdlePower(), Phases()
        self.power_w, self.has_readings, self.error = 0.0, True, None
        clock = SimpleNamespace(monotonic_ns=lambda: self.now_ns, sleep=self.wait)
        monkeypatch.setattr(idle_power, "time", clock)
        monkeypatch.setattr(NvmlListener, "observe", self.observe)

    @contextmanager
    def observe(self, watched, sink):
        assert watched.device is GPU and sink is self
        if self.error is not None:
            raise self.error
        yield

    def wait(self, seconds: float) -> None:
        for quarter in range(1, int(4 * seconds) + 1):
            self.now_ns += S // 4
            values = {"power_w": 300.0 if quarter < 2 * seconds else self.power_w}
            if self.has_readings:
                self.samples.append(Sample(source="nvml", t_ns=self.now_ns, values=values))
        self.waited_s.append(seconds)

    def measure_idle(self, group, power_w: float):
        self.power_w = power_w
        self.idle.measure_idle(group, Path(), self, self.phases)
        return self.idle.get_w(group, 0)

    def measure_waiting(self, group, power_w: float, *, has_left: bool = False):
        def wait(seconds: float) -> bool:
            self.wait(seconds)
            return not has_left

        self.power_w = power_w
        self.idle.measure_waiting(group, wait, self, FIELDS, self.phases)
        return self.idle.get_w(group, len(group.jobs))


@pytest.fixture
def gpu(monkeypatch) -> Gpu:
    return Gpu(monkeypatch)


def test_the_second_half_counts_and_nothing_is_measured_twice(gpu, capsys):
    naive, mps, again = make_groups({}, {"sharing": MPS}, {"block": 2})
    assert gpu.measure_idle(naive, 69.0) == 69.0
    assert "measuring the power of the idle GPU for 10 s" in capsys.readouterr().err
    assert gpu.measure_waiting(naive, 116.0) == 116.0
    assert gpu.measure_idle(mps, 1.0) == 69.0, "of the GPU, whatever the sharing mode"
    assert gpu.measure_waiting(mps, 118.0) == 118.0
    assert gpu.measure_waiting(again, 1.0) == 116.0
    assert gpu.waited_s == [10.0, 4.0, 4.0]
    gpu.phases.finish()
    assert {span.name for span in gpu.phases.spans} == {"idle"}


def test_a_measurement_that_a_job_left_is_repeated_and_one_without_readings_is_not(gpu):
    first, second = make_groups({}, {})
    assert gpu.measure_waiting(first, 116.0, has_left=True) is None
    assert gpu.measure_waiting(second, 116.0) == 116.0
    gpu.has_readings = False
    assert gpu.measure_idle(first, 69.0) is None
    assert gpu.measure_idle(second, 69.0) is None
    assert gpu.waited_s == [4.0, 4.0, 10.0]


def test_a_listener_that_fails_fails_in_its_group(gpu):
    (first,) = make_groups({})
    gpu.error = ListenerError("NVML does not answer")
    assert gpu.measure_idle(first, 69.0) is None and not gpu.waited_s
    gpu.error = None
    assert gpu.measure_idle(first, 69.0) == 69.0


def test_without_a_gpu_nothing_waits(gpu):
    (on_cpu,) = make_groups({"device": dataclasses.replace(GPU, kind="cpu")})
    assert gpu.measure_idle(on_cpu, 1.0) is gpu.measure_waiting(on_cpu, 1.0) is None
    assert gpu.waited_s == []
