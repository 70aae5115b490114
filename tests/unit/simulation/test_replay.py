"""The source that repeats a recording: its cycles, the counter of energy, and which instance gets what."""

from __future__ import annotations

import os
import subprocess
from array import array
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.simulation.machine import replay
from pipeline.simulation.machine.driver import Driver
from pipeline.simulation.machine.readings import Quantity
from pipeline.simulation.machine.replay import Recorded, Replay, Subject
from pipeline.simulation.machine.state import Gpu, GpuInstance, StateFile, start_ticks

SECOND, BEGIN = 1_000_000_000, 5_000_000_000
POWER, ENERGY, GRACT = Quantity.POWER, Quantity.ENERGY, Quantity.GRACT


def recorded(subject: Subject, quantity: Quantity, *values: float, first_s: int = 0) -> Recorded:
    """A series with a value each second."""
    t_ns = array("q", (second * SECOND for second in range(first_s, first_s + len(values))))
    return Recorded(subject, quantity, t_ns, array("d", values))


@pytest.fixture
def state_file(tmp_path: Path) -> StateFile:
    file = StateFile(tmp_path / "machine.json")
    file.create(["h100_80gb", "h100_80gb"])
    return file


def playing(state_file: StateFile, *series: Recorded, pid: int | None = None, energy_j: float = 0.0) -> Replay:
    """A replay of these series on the first GPU of the machine."""
    owner = os.getpid() if pid is None else pid
    path = state_file.path.with_name("recorded.json")
    path.write_text(replay.content(series))
    replay._load.cache_clear()
    began = start_ticks(owner)
    assert began is not None
    gpu = state_file.read().gpus[0].uuid
    return Replay(gpu=gpu, path=str(path), begin_ns=BEGIN, energy_j=energy_j, pid=owner, began=began)


def gpu_of(state_file: StateFile, *profile_ids: int) -> tuple[Gpu, list[GpuInstance]]:
    """The first GPU with these instances, and they in the order in which they were made."""
    driver = Driver(state_file)
    if profile_ids:
        driver.set_mig_mode(0, is_on=True)
    made = [driver.create_gpu_instance(0, profile_id) for profile_id in profile_ids]
    return state_file.read().gpus[0], made


def test_a_reading_is_the_latest_sample_and_the_recording_begins_anew_after_its_last_interval(state_file) -> None:
    source = playing(state_file, recorded(Subject(), POWER, 70.0, 300.0, 310.0))
    gpu, _ = gpu_of(state_file)

    def read(seconds: float) -> float | None:
        return source.read(POWER, gpu, None, BEGIN + round(seconds * SECOND))

    assert [read(at) for at in (0, 0.9, 1, 2, 2.9)] == [70, 70, 300, 310, 310]
    assert [read(at) for at in (3, 4.5, 5.9, 6, 3001)] == [70, 300, 310, 70, 300]
    assert read(-1) == 70, "asked about what was before its begin"
    assert source.read(GRACT, gpu, None, BEGIN) is None
    assert source.read(POWER, state_file.read().gpus[1], None, BEGIN) is None, "of the other GPU"


def test_energy_never_goes_back_and_grows_as_it_did(state_file) -> None:
    # Counted anew in the middle, as by a driver that was loaded again.
    series = recorded(Subject(), ENERGY, 1000.0, 1100.0, 3.0, 1300.0), recorded(Subject(), POWER, 9.0, first_s=3)
    source = playing(state_file, *series, energy_j=50.0)
    gpu, _ = gpu_of(state_file)
    at = [BEGIN + step * SECOND // 4 for step in range(65)]
    read = [source.read(ENERGY, gpu, None, t_ns) for t_ns in at]
    assert read[:5] == pytest.approx([50, 75, 100, 125, 150])
    assert read == sorted(read)
    of_a_cycle = 300 + 100  # and 1 s more at the mean rate
    assert read[16::16] == pytest.approx([50 + n * of_a_cycle for n in (1, 2, 3, 4)])


def test_each_instance_gets_what_the_same_one_of_its_profile_recorded(state_file) -> None:
    series = [recorded(Subject("1g.10gb", number), GRACT, value) for number, value in enumerate((0.1, 0.2))]
    source = playing(state_file, *series, recorded(Subject("3g.40gb"), GRACT, 0.9), recorded(Subject(), GRACT, 0.5))
    gpu, (large, *small) = gpu_of(state_file, 9, 19, 19, 19)
    in_order = sorted(small, key=lambda each: each.id)
    assert [source.read(GRACT, gpu, each, BEGIN) for each in in_order] == [0.1, 0.2, None]
    assert source.read(GRACT, gpu, large, BEGIN) == 0.9
    assert source.read(GRACT, gpu, None, BEGIN) == 0.5
    assert source.read(POWER, gpu, large, BEGIN) is None


def test_of_a_study_that_was_killed_nothing_is_played(state_file) -> None:
    with subprocess.Popen(["sleep", "60"]) as other:
        source = playing(state_file, recorded(Subject(), POWER, 70.0), pid=other.pid)
        gpu, _ = gpu_of(state_file)
        assert source.read(POWER, gpu, None, BEGIN) == 70
        other.kill()
    assert source.read(POWER, gpu, None, BEGIN) is None


def test_a_recording_of_one_sample_lasts(state_file) -> None:
    source = playing(state_file, recorded(Subject(), POWER, 70.0), recorded(Subject(), ENERGY, 5.0))
    gpu = replace(gpu_of(state_file)[0])
    assert {source.read(POWER, gpu, None, BEGIN + n * SECOND // 3) for n in range(9)} == {70}
    assert {source.read(ENERGY, gpu, None, BEGIN + n * SECOND // 3) for n in range(9)} == {0}
