"""The power of a GPU without jobs, and with jobs that wait."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from pipeline.base.domain.samples import Sample
from pipeline.observe import idle_power
from pipeline.observe.idle_power import IdlePower
from pipeline.observe.phases import Phases
from tests.support.idle_groups import MPS, make_groups
from tests.support.rows import FIELDS, S


class Gpu:
    """A GPU whose power falls to `power_w` in the first half of each time in which it does no work."""

    def __init__(self, monkeypatch) -> None:
        self.now_ns, self.samples, self.waited_s = 0, list[Sample](), list[float]()
        self.idle, self.phases = IdlePower(), Phases()
        monkeypatch.setattr(idle_power, "time", SimpleNamespace(monotonic_ns=lambda: self.now_ns))

    def measure(self, group, num_jobs: int, power_w: float, *, has_left: bool = False, has_gap: bool = False):
        def wait(seconds: float) -> bool:
            for quarter in range(int(4 * seconds)):
                self.now_ns += S // 4
                watts = 300.0 if quarter + 1 < 2 * seconds else power_w
                if not has_gap:
                    self.samples.append(Sample(source="nvml", t_ns=self.now_ns, values={"power_w": watts}))
            self.waited_s.append(seconds)
            return not has_left

        self.idle.measure(group, num_jobs, wait, self.samples, FIELDS, self.phases)
        return self.idle.get_w(group, num_jobs)


@pytest.fixture
def gpu(monkeypatch) -> Gpu:
    return Gpu(monkeypatch)


def test_the_second_half_counts_and_nothing_is_measured_twice(gpu, capsys):
    naive, mps, again = make_groups({}, {"sharing": MPS}, {"block": 2})
    assert gpu.measure(naive, 0, 69.0) == 69.0
    assert "measuring the power of the idle GPU for 10 s" in capsys.readouterr().err
    assert gpu.measure(naive, 2, 116.0) == 116.0
    assert gpu.measure(mps, 0, 1.0) == 69.0, "of the GPU, whatever the sharing mode"
    assert gpu.measure(mps, 2, 118.0) == 118.0
    assert gpu.measure(again, 2, 1.0) == 116.0
    assert gpu.waited_s == [10.0, 4.0, 4.0]
    gpu.phases.finish()
    assert {span.name for span in gpu.phases.spans} == {"idle"}


def test_a_measurement_that_a_job_left_is_repeated_and_one_without_readings_is_not(gpu):
    first, second = make_groups({}, {})
    assert gpu.measure(first, 2, 116.0, has_left=True) is None
    assert gpu.measure(second, 2, 116.0) == 116.0
    assert gpu.measure(first, 0, 69.0, has_gap=True) is None
    assert gpu.measure(second, 0, 69.0) is None
    assert gpu.waited_s == [4.0, 4.0, 10.0]
