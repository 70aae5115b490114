"""Groups that share a launch."""

from __future__ import annotations

import pytest

from pipeline.base.domain.window import WindowKind
from pipeline.plan import plan_builder

INTERLEAVED = ["window=interleaved", "data.source=synthetic_device"]


def list_launches(plan) -> list[list[str]]:
    return [
        [group.name.partition("-window")[0] for group in members]
        for members in plan_builder.split_by_launch(plan.groups)
    ]


def test_groups_that_differ_in_their_number_of_jobs_share_a_launch(make_plan) -> None:
    sweep = [[*INTERLEAVED, "order=listed", f"degree={degree}"] for degree in (1, 2, 3)]
    plan = make_plan(*sweep)
    # One job without MPS is launched by itself: it is the baseline.
    assert list_launches(plan) == [["serial-1x-tiny"], ["naive-3x-tiny", "naive-2x-tiny"]]
    assert {group.window.text for group in plan.groups} == {"interleaved, 4 s in slices, each after 0.1 s"}


def test_each_block_has_launches_of_its_own_in_an_order_of_its_own(make_plan) -> None:
    plan = make_plan(*([*INTERLEAVED, f"degree={degree}", "repeats=6"] for degree in (1, 2, 3)))
    by_launch = plan_builder.split_by_launch(plan.groups)
    assert len(by_launch) == 12 and all(len({group.block for group in members}) == 1 for members in by_launch)
    assert all(len({group.launch for group in members}) == 1 for members in by_launch)
    assert len({group.launch for group in plan.groups}) == 12
    assert {len(by_launch[number][0].jobs) for number in range(0, 12, 2)} == {1, 3}


def test_launches_of_one_program_follow_each_other(make_plan) -> None:
    cases = [[f"workload.batch_size={size}", f"degree={degree}"] for size in (4, 8, 16, 32) for degree in (1, 2)]
    plan = make_plan(*([*INTERLEAVED, "repeats=4", *case] for case in cases))
    programs = [members[0].jobs[0].workload.digest for members in plan_builder.split_by_launch(plan.groups)]
    assert programs[0::2] == programs[1::2] and len(programs) == 32
    assert len({tuple(programs[begin : begin + 8]) for begin in range(0, 32, 8)}) > 1


def test_other_workloads_and_settings_are_launched_apart(make_plan) -> None:
    sweep = [[*INTERLEAVED, f"workload.batch_size={size}", f"seed={seed}"] for size in (8, 16) for seed in (0, 1)]
    plan = make_plan(*([*each, f"degree={degree}"] for each in sweep for degree in (2, 3)))
    assert [len(members) for members in plan_builder.split_by_launch(plan.groups)].count(2) == 4


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (["data.source=disk", "workload.loader_workers=2"], "workload tiny: its data loader"),
        (["pin_cpus=true"], "pin_cpus=true"),
        (["co_runners=1"], "co-runners"),
        (["mix=[S,S]", "workload@sizes.S=tiny", "degree=null"], "mix"),
    ],
)
def test_what_cannot_be_interleaved_has_a_launch_of_its_own_and_the_plan_says_so(make_plan, overrides, reason) -> None:
    plan = make_plan([*INTERLEAVED, "degree=2", *overrides])
    assert {group.window.kind for group in plan.groups} == {WindowKind.STEADY}
    assert {group.launch for group in plan.groups} == {""}
    note = next(note for note in plan.notes if "launch" in note)
    assert reason in note and note.endswith("(steady, 4 s after 1 s)")


def test_jobs_with_a_loader_can_be_held_if_they_load_themselves(make_plan) -> None:
    plan = make_plan(["window=interleaved", "data.source=disk", "workload.loader_workers=0", "degree=2"])
    assert {group.window.kind for group in plan.groups} == {WindowKind.INTERLEAVED}
