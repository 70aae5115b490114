"""When a study with repeats=auto ends, and the state of the GPU with which groups are recorded."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from pipeline.base.domain.machine_state import MachineState
from pipeline.base.domain.precision_goal import PrecisionGoal
from pipeline.base.domain.records import Result
from pipeline.base.system.errors import ConfigError
from pipeline.observe.study_progress import PastGroup, Progress
from pipeline.prepare.device import nvml
from pipeline.simulation.machine.state_file import Settings
from pipeline.simulation.nvml import library as simulated
from pipeline.study import executor
from pipeline.study.stopping_rule import StoppingRule
from tests.support.nvml_library import NvmlLibrary, installed
from tests.support.rows import group, make_row

pytestmark = pytest.mark.covers("pipeline/study")


NOISE = (1.0, 1.02, 0.98, 1.01, 0.99)


def make_groups(block):
    """A job alone and two together."""
    return [group("a", sequential=True, block=block), group("a", "a", block=block)]


def make_rows(num_blocks, noise=NOISE, result=Result.OK):
    rows = []
    for block in range(1, num_blocks + 1):
        for the_group, rate in zip(make_groups(block), (100.0, 60.0 * noise[block % len(noise)]), strict=True):
            ended = Result.OK if the_group.sequential else result
            rows.append(make_row(the_group, *[rate] * len(the_group.jobs), result=ended))
    return rows


def make_rule(pct, max_blocks=20):
    return StoppingRule("test", PrecisionGoal(pct=pct, max_blocks=max_blocks), num_compared=1)


def test_a_study_stops_at_five_blocks_at_the_earliest(capsys):
    rule = make_rule(50)
    assert not any(rule.stops_before(block, make_rows(block - 1)) for block in (1, 2, 3, 4, 5))
    assert rule.stops_before(6, make_rows(5)) and rule.stopped_after == 5
    assert (
        rule.describe_end(make_rows(5))
        == "stopped after 5 blocks: the goal is reached, 1 speed-up is known within 50 %"
    )
    assert capsys.readouterr().err == ""


def test_a_study_goes_on_until_its_intervals_are_narrow_enough(capsys):
    rule = make_rule(1.5)
    stopped = next(block for block in range(6, 21) if rule.stops_before(block, make_rows(block - 1)))
    assert rule.stopped_after == stopped - 1 == 8
    lines = capsys.readouterr().err.splitlines()
    assert (
        lines[0]
        == "0 of 1 speed-up is known within 1.5 %; the widest: 2 a, naive: 2 % after 5 blocks, about 7 are needed"
    )
    assert len(lines) == 3
    assert (rule.last_block, rule.is_least) == (8, False)


def test_a_speed_up_out_of_reach_is_named_once_and_at_the_end(capsys):
    rule = make_rule(0.2, max_blocks=7)
    assert not any(rule.stops_before(block, make_rows(block - 1)) for block in (6, 7))
    lines = capsys.readouterr().err.splitlines()
    assert [line for line in lines if line.startswith("out of reach")] == [
        "out of reach within repeats_max=7: 2 a, naive: 2 % after 5 blocks, about 244 are needed"
    ]
    end = rule.describe_end(make_rows(7))
    assert end.startswith("1 of 1 speed-up is not known within 0.2 %: 2 a, naive: 1.6 % after 7 blocks, about ")


def test_a_verdict_does_not_stop_a_study():
    """Twenty per cent faster without a doubt, but not known within the goal."""
    from pipeline.report.terminal_summary import summarize_study

    rows = make_rows(5)
    assert "naive: 1.20 x serial (1.18 to 1.22; 5 blocks)." in summarize_study("test", rows).sentences[0]
    assert not make_rule(0.5).stops_before(6, rows)


def test_a_study_without_any_speed_up_stops_and_says_so():
    rule = make_rule(5)
    assert rule.stops_before(6, make_rows(5, result=Result.FAILED))
    assert rule.describe_end(make_rows(5, result=Result.FAILED)) == "stopped after 5 blocks: no group has a speed-up"


def test_a_group_that_failed_in_every_block_holds_up_nothing_and_is_counted():
    rule = StoppingRule("test", PrecisionGoal(pct=50, max_blocks=20), num_compared=2)
    failed = [make_row(group("a", "a", "a", block=block), result=Result.FAILED, jobs=()) for block in range(1, 6)]
    rows = [*make_rows(5), *failed]
    assert rule.stops_before(6, rows)
    assert rule.describe_end(rows).endswith("1 speed-up is known within 50 %; 1 group without a speed-up")


def test_a_study_that_was_cut_short_says_nothing_about_its_goal():
    assert make_rule(5).describe_end(make_rows(3)) == ""


def test_blocks_and_time_at_the_goal_are_known_from_stored_blocks():
    past = [
        PastGroup(
            key=group.key,
            scenario=group.scenario,
            jobs=group.job_names,
            window="",
            kind="steady",
            device="",
            on_top_s=19,
        )
        for group in make_groups(1)
    ]
    ahead = [group for block in range(1, 21) for group in make_groups(block)]
    lines = list(make_rule(1.5).forecast(ahead, make_rows(5), past, only_known=True))
    source = "estimated from similar earlier groups"
    assert lines[1:] == [
        f"5 blocks: takes about 5 min, {source}",
        f"7 blocks (at the goal, with the scatter of the stored blocks): takes about 7 min, {source}",
        f"20 blocks: takes about 20 min, {source}",
    ]
    assert [line.partition(":")[0] for line in make_rule(5).forecast(ahead, [], past, only_known=True)] == [
        "5 blocks",
        "20 blocks",
    ]
    assert list(make_rule(5).forecast(ahead, [], [], only_known=True)) == []
    assert list(make_rule(50).forecast(ahead[10:], make_rows(5), past, only_known=True)) == [
        "the stored blocks reach the goal of 50 %"
    ]


def test_stored_blocks_of_another_gpu_are_refused_unless_they_are_enough():
    state = MachineState((("gpu_uuid", "GPU-other"),))
    rows_of_other_gpu = [dataclasses.replace(row, origin=state) for row in make_rows(5)]
    with pytest.raises(
        ConfigError, match="repeats=auto needs all blocks on one GPU, but the stored blocks are of GPU-other"
    ):
        make_rule(0.5).refuse_other_gpus(rows_of_other_gpu)
    make_rule(50).refuse_other_gpus(rows_of_other_gpu)
    make_rule(0.5).refuse_other_gpus(make_rows(5))


def test_the_time_left_is_that_of_the_expected_blocks():
    progress = Progress([group for block in range(1, 21) for group in make_groups(block)])
    progress.last_block, progress.is_least = 5, True
    assert progress.estimate_left_s() == (5 * 2 * 11, False)
    progress.last_block, progress.is_least = 7, False
    assert progress.estimate_left_s() == (7 * 2 * 11, False)
    assert progress.position(make_groups(1)[0]) == "[0/40] block 1 of at most 20"


@pytest.fixture
def library(tmp_path: Path) -> Iterator[NvmlLibrary]:
    with installed(NvmlLibrary(tmp_path)) as library:
        yield library


def refresh_device(planned: Any) -> tuple[dict[str, str], list[str]]:
    """The details of the device of a group that begins, and what is said."""
    messages: list[str] = []
    current = executor._refresh_device(planned, SimpleNamespace(warn_once=messages.append))  # type: ignore[arg-type]
    return current.device.facts.as_texts(), messages


def test_a_change_between_two_groups_is_recorded_and_said(library: NvmlLibrary) -> None:
    name = "nvmlDeviceGetEnforcedPowerLimit"
    library.functions[name] = partial(library._fill_numbers, simulated._NUMBERS[name])
    library.change(settings=Settings(power_limit_w=700))
    (device,) = nvml.list_devices()
    planned = group("a", device=device)
    assert refresh_device(planned) == (device.facts.as_texts(), [])
    library.change(settings=Settings(power_limit_w=500))
    details, (message,) = refresh_device(planned)
    assert details == device.facts.as_texts() | {"power_limit_w": "500"}
    assert message.startswith(
        f"the state of {device.name} has changed since the study began (power limit 500 W, was 700 W), "
    )


def test_a_gpu_that_does_not_answer_and_a_group_that_is_skipped_stay_as_planned(library: NvmlLibrary) -> None:
    (device,) = nvml.list_devices()
    planned = group("a", device=device)
    library.fail(nvmlDeviceGetEnforcedPowerLimit=pynvml.NVML_ERROR_GPU_IS_LOST)
    assert refresh_device(planned) == (device.facts.as_texts(), [])
    library.fail(nvmlDeviceGetEnforcedPowerLimit=pynvml.NVML_ERROR_NOT_SUPPORTED)
    assert refresh_device(dataclasses.replace(planned, skip_reason="no room")) == (device.facts.as_texts(), [])
    assert "power_limit_w" not in refresh_device(planned)[0]


def test_the_cpu_needs_no_driver() -> None:
    device = dataclasses.replace(group("a").device, kind="cpu", uuid="CPU-here")
    assert refresh_device(group("a", device=device)) == ({}, [])
