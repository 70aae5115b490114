"""Figures against the baseline, in whatever order a block runs, and what `resume` leaves to run."""

from __future__ import annotations

import dataclasses
import json
import struct

import pytest

from pipeline.base.domain.machine_state import MachineState
from pipeline.base.domain.normalisation import BIT_IDENTICAL
from pipeline.base.domain.records import DeviceFacts, Plan, Result
from pipeline.base.domain.tags import Tag
from pipeline.base.domain.window import WindowKind
from pipeline.base.system import host_info
from pipeline.base.system.errors import ConfigError
from pipeline.observe.baseline_comparison import Comparison, describe_loss_difference
from pipeline.observe.group_result import GroupResult
from pipeline.record import resume
from tests.support.rows import group, make_row
from tests.support.tracking_cases import SECOND, START, record


def test_figures_follow_when_the_baseline_runs_last():
    comparison = Comparison()
    pair = make_row(group("a", "a"), 60, 60)
    assert comparison.add(pair) == []
    changed = comparison.add(make_row(group("a", sequential=True), 100))
    by_name = {c.group.name: c.metrics["speedup_vs_serial_ratio"] for c in changed}
    assert by_name == {"naive-a+a": pytest.approx(1.2), "naive-a": pytest.approx(1.0)}
    assert comparison.get_latest(pair).metrics["speedup_vs_serial_ratio"] == pytest.approx(1.2)


def test_a_baseline_of_another_block_or_window_does_not_count():
    comparison = Comparison()
    comparison.add(make_row(group("a", sequential=True, block=2), 100))
    comparison.add(make_row(group("a", sequential=True, kind=WindowKind.WORK), 100))
    assert comparison.add(make_row(group("a", "a"), 60, 60)) == []


def test_a_failed_baseline_is_none():
    comparison = Comparison()
    comparison.add(make_row(group("a", sequential=True), 100, result=Result.FAILED))
    assert comparison.add(make_row(group("a", "a"), 60, 60)) == []


def add_losses(the_row: GroupResult, *losses: float) -> GroupResult:
    """The row with the first loss of each of its jobs."""
    bits = {index: struct.pack("f", loss).hex() for index, loss in enumerate(losses)}
    return dataclasses.replace(the_row, tags={Tag.FIRST_LOSS_BITS: json.dumps(bits)})


def test_losses_are_compared_bit_by_bit_with_the_runs_alone_of_all_blocks():
    comparison = Comparison()
    next_float = 2.0000002384185791
    alone, later = (group("a", sequential=True, block=block) for block in (1, 2))
    comparison.add(add_losses(make_row(alone, 100), 2.0))
    assert BIT_IDENTICAL not in comparison.get_latest(make_row(alone, 100)).metrics
    pair = add_losses(make_row(group("a", "a"), 60, 60), 2.0, next_float)
    comparison.add(pair)
    assert comparison.get_latest(pair).metrics[BIT_IDENTICAL] == 0.5
    comparison.add(add_losses(make_row(later, 100), next_float))
    assert comparison.get_latest(pair).metrics[BIT_IDENTICAL] == 0.5
    assert comparison.get_latest(make_row(alone, 100)).metrics[BIT_IDENTICAL] == 0
    same = add_losses(make_row(group("a", "a", block=2), 60, 60), next_float, next_float)
    comparison.add(same)
    assert comparison.get_latest(same).metrics[BIT_IDENTICAL] == 0.5


@pytest.mark.parametrize(("losses", "share"), [((2.0, 0.5), 1.0), ((2.0, 0.4), 0.0)])
def test_a_job_of_few_steps_is_compared_by_the_losses_that_it_has(losses: tuple[float, ...], share: float) -> None:
    comparison = Comparison()
    few = make_row(group("a"), 60)
    for the_row, of_job in ((make_row(group("a", sequential=True), 100), (2.0, 0.5, 0.25)), (few, losses)):
        bits = {"0": struct.pack(f"{len(of_job)}f", *of_job).hex()}
        comparison.add(dataclasses.replace(the_row, tags={Tag.FIRST_LOSS_BITS: json.dumps(bits)}))
    assert comparison.get_latest(few).metrics[BIT_IDENTICAL] == share


def test_rows_without_losses_say_nothing_about_bits():
    comparison = Comparison()
    pair = make_row(group("a", "a"), 60, 60)
    for added in (add_losses(make_row(group("a", sequential=True), 100), 2.0), pair):
        comparison.add(added)
    assert BIT_IDENTICAL not in comparison.get_latest(pair).metrics


HERE = "boot-now"


@pytest.fixture(autouse=True)
def boot(tmp_path, monkeypatch):
    """The boot of this machine is `HERE`."""
    monkeypatch.setattr(host_info, "BOOT_ID_FILE", tmp_path / "boot_id")
    (tmp_path / "boot_id").write_text(f"{HERE}\n")
    return tmp_path / "boot_id"


def make_stored_row(the_group, *rates, result="ok", boot=HERE, gpu=None, **facts):
    """A group in the store, with the samples/s of its jobs."""
    of_each = {index: {"throughput_samples_per_s": rate} for index, rate in enumerate(rates)}
    return record(
        (),
        digest=the_group.digest,
        result=Result(result),
        facts={"boot_id": boot} | facts,
        gpu_uuid=gpu or the_group.device.uuid,
        notes={"rates": json.dumps(of_each)},
        metrics={},
    )


@pytest.fixture
def plan() -> Plan:
    groups = [g for block in (1, 2) for g in (group("a", sequential=True, block=block), group("a", "a", block=block))]
    numbered = tuple(dataclasses.replace(g, number=n) for n, g in enumerate(groups, start=1))
    return Plan(
        experiment="test",
        groups=numbered,
        devices=(groups[0].device,),
        digest="d",
        any_gpu_digest="",
        shard_sizes=(len(numbered),),
    )


def list_remaining(plan, *finished):
    return [group.number for group in resume.select_remaining(plan, finished)[0]]


def test_finished_groups_are_not_run_again(plan):
    assert list_remaining(plan) == [1, 2, 3, 4]
    assert list_remaining(plan, make_stored_row(plan.groups[0]), make_stored_row(plan.groups[1])) == [3, 4]
    assert list_remaining(plan, make_stored_row(plan.groups[2])) == [1, 2, 4]


@pytest.mark.parametrize(
    ("result", "expected"), [("oom", [2, 3, 4]), ("failed", [1, 2, 3, 4]), ("interrupted", [1, 2, 3, 4])]
)
def test_findings_stay_and_failures_run_again(plan, result, expected):
    assert list_remaining(plan, make_stored_row(plan.groups[0], result=result)) == expected


def test_a_group_that_was_skipped_runs_once_nothing_stands_in_its_way(plan):
    skipped = make_stored_row(plan.groups[0], result="skipped")
    assert list_remaining(plan, skipped) == [1, 2, 3, 4]
    still = dataclasses.replace(plan.groups[0], skip_reason="no room")
    assert list_remaining(dataclasses.replace(plan, groups=(still, *plan.groups[1:])), skipped) == [2, 3, 4]


def test_a_block_that_was_begun_before_a_reboot_begins_again(plan):
    first = [make_stored_row(g, boot="boot-before") for g in plan.groups]
    assert list_remaining(plan, *first[:3]) == [3, 4]  # block 1 is complete, block 2 was cut
    assert list_remaining(plan, first[0]) == [1, 2, 3, 4]
    other_gpu = [make_stored_row(g, gpu="GPU-other") for g in plan.groups]
    assert list_remaining(plan, other_gpu[0]) == [1, 2, 3, 4]


STATE = {
    "driver_version": "580.159.04",
    "power_limit_w": "700",
    "ecc_mode": "enabled",
    "graphics_clock_setting_mhz": "1980",
    "memory_clock_setting_mhz": "2619",
}
CHANGES = [
    ("driver_version", "590.48.01", "driver 580.159.04, was 590.48.01"),
    ("power_limit_w", "500", "power limit 700 W, was 500 W"),
    ("ecc_mode", "disabled", "ECC mode enabled, was disabled"),
    ("graphics_clock_setting_mhz", "1410", "graphics clock setting 1980 MHz, was 1410 MHz"),
    ("memory_clock_setting_mhz", "1593", "memory clock setting 2619 MHz, was 1593 MHz"),
]


def set_state(plan, state):
    """The plan on a GPU in this state."""
    device = dataclasses.replace(plan.devices[0], facts=DeviceFacts(**state))
    groups = tuple(dataclasses.replace(g, device=device) for g in plan.groups)
    return dataclasses.replace(plan, devices=(device,), groups=groups)


@pytest.mark.parametrize(("fact", "before", "change"), CHANGES)
def test_a_block_that_was_begun_in_another_state_of_the_machine_begins_again(plan, fact, before, change):
    plan = set_state(plan, STATE)
    first = [make_stored_row(g, 100.0, 100.0, **STATE | {fact: before}) for g in plan.groups]
    assert list_remaining(plan, *first[:3]) == [3, 4]  # block 1 is complete, block 2 was cut
    again, _ = resume.select_remaining(plan, first[:3])
    (line,) = resume.describe_restarts(again, first[:3])
    assert line == f"resume: unfinished blocks start again without 1 earlier result ({change})"
    assert resume.describe_restarts(again, [make_stored_row(g, **STATE) for g in plan.groups]) == []
    assert list_remaining(plan, first[2], make_stored_row(plan.groups[3], **STATE)) == [1, 2, 3]


def test_what_is_not_known_of_a_state_is_no_change(plan):
    plan = set_state(plan, STATE)
    state_without_clocks = {name: value for name, value in STATE.items() if not name.endswith("clock_setting_mhz")}
    for facts in ({}, state_without_clocks, state_without_clocks | {"ecc_mode": ""}):
        assert list_remaining(plan, make_stored_row(plan.groups[0], **facts)) == [2, 3, 4]
    of_no_driver = set_state(plan, {})
    assert list_remaining(of_no_driver, make_stored_row(plan.groups[0], **STATE)) == [2, 3, 4]
    # Two states that contradict each other are two, whatever else is unknown.
    begun = [
        make_stored_row(plan.groups[2], **state_without_clocks),
        make_stored_row(plan.groups[3], **state_without_clocks | {"power_limit_w": "500"}),
    ]
    assert list_remaining(plan, *begun) == [1, 2, 4]


@pytest.mark.parametrize("baseline_first", [True, False])
@pytest.mark.parametrize("fact", [fact for fact, *_ in CHANGES])
def test_rows_are_compared_with_baselines_of_their_state_only(plan, fact, baseline_first):
    plan = set_state(plan, STATE)
    serial, pair = plan.groups[:2]
    old = dataclasses.replace(
        make_row(serial, 100), origin=MachineState.from_facts(make_stored_row(serial, **STATE | {fact: "x"}).facts)
    )
    new = make_row(pair, 60, 60)
    comparison = Comparison()
    changed = [
        c for group_result in ((old, new) if baseline_first else (new, old)) for c in comparison.add(group_result)
    ]
    assert [c.group.name for c in changed] == ["naive-a"]  # itself alone
    comparison.add(make_row(dataclasses.replace(serial, digest="again"), 50))
    assert comparison.get_latest(new).metrics["speedup_vs_serial_ratio"] == pytest.approx(2.4)


def test_a_row_after_a_change_in_the_middle_of_a_study_is_not_compared_with_those_before(plan):
    before, after = set_state(plan, STATE), set_state(plan, STATE | {"power_limit_w": "500"})
    comparison = Comparison()
    comparison.add(make_row(before.groups[0], 100))
    assert comparison.add(make_row(after.groups[1], 60, 60)) == []


def test_of_a_unit_that_was_begun_one_gpu_keeps_what_it_found_if_it_may_go_on(plan):
    own_gpu, other = plan.devices[0], dataclasses.replace(plan.devices[0], uuid="GPU-other")
    both = [own_gpu, other]
    begun = [make_stored_row(plan.groups[0]), make_stored_row(plan.groups[2], gpu="GPU-other")]
    groups, known = resume.select_remaining(plan, begun, gpus=both)
    assert [group.number for group in groups] == [2, 4]
    assert [row.gpu_uuid for row in known] == [own_gpu.uuid, other.uuid]
    one_unit = dataclasses.replace(plan, groups=tuple(dataclasses.replace(g, shard=1) for g in plan.groups))
    groups, known = resume.select_remaining(
        one_unit, [*begun, make_stored_row(plan.groups[3], gpu="GPU-other")], gpus=both
    )
    assert [group.number for group in groups] == [1, 2]  # the one that found more of it
    assert list_remaining(one_unit, *begun) == [2, 3, 4]
    before = [dataclasses.replace(attempt, facts=attempt.facts | {"boot_id": "boot-before"}) for attempt in begun]
    assert resume.select_remaining(plan, before, gpus=both) == (plan.groups, [])


def test_of_two_complete_attempts_the_newest_counts(plan):
    both = [plan.devices[0], dataclasses.replace(plan.devices[0], uuid="GPU-other")]
    old = [dataclasses.replace(make_stored_row(group), start_ns=START + SECOND) for group in plan.groups]
    new = [
        dataclasses.replace(make_stored_row(group, gpu="GPU-other"), start_ns=START + 2 * SECOND)
        for group in plan.groups
    ]
    for entries in (old + new, new + old):
        _, known = resume.select_remaining(plan, entries, gpus=both)
        assert {row.gpu_uuid for row in known} == {"GPU-other"}


def test_a_unit_goes_on_where_no_boot_is_known(plan, boot):
    boot.unlink()
    begun = make_stored_row(plan.groups[0], boot=None)
    assert [group.number for group in resume.select_remaining(plan, [begun])[0]] == [2, 3, 4]


def test_results_of_other_packages_count_where_they_are_accepted_and_those_of_the_same_come_first(plan):
    groups = tuple(dataclasses.replace(g, program_digest=f"program-{g.number}") for g in plan.groups)
    plan = dataclasses.replace(plan, groups=groups)
    before = [
        dataclasses.replace(
            make_stored_row(g, 1.0), digest=f"old-{g.number}", program_digest=g.program_digest, run_id="old"
        )
        for g in plan.groups
    ]
    exact = dataclasses.replace(make_stored_row(groups[0], 2.0), program_digest=groups[0].program_digest)
    assert list_remaining(plan, *before) == [1, 2, 3, 4]
    remaining_groups, known = resume.select_remaining(plan, [exact, *before[:3]], accept_environment=True)
    assert [g.number for g in remaining_groups] == [4]
    assert [row.jobs[0].metrics["throughput_samples_per_s"] for row in known] == [2.0, 1.0, 1.0]
    same = dataclasses.replace(plan, groups=(groups[0], dataclasses.replace(groups[1], program_digest="program-1")))
    with pytest.raises(ConfigError, match="differ only in their environment"):
        resume.select_remaining(same, [], accept_environment=True)


def test_a_finished_group_gets_its_figures_when_its_baseline_runs_after_the_resume(plan):
    _, (earlier,) = resume.select_remaining(plan, [make_stored_row(plan.groups[1], 60.0, 60.0)])
    comparison = Comparison()
    assert comparison.add(earlier) == []
    changed = {
        c.group.number: c.metrics["speedup_vs_serial_ratio"] for c in comparison.add(make_row(plan.groups[0], 100))
    }
    assert changed == {1: pytest.approx(1), 2: pytest.approx(1.2)}


def test_a_baseline_of_another_length_does_not_count():
    comparison = Comparison()
    short = dataclasses.replace(group("a").window, seconds=1)
    comparison.add(make_row(group("a", sequential=True, window=short), 100))
    assert comparison.add(make_row(group("a", "a"), 60, 60)) == []


def test_the_baseline_of_a_finished_block_serves_the_rest_of_it(plan):
    _, known = resume.select_remaining(plan, [make_stored_row(plan.groups[0], 100.0)])
    comparison = Comparison()
    for earlier in known:
        comparison.add(earlier)
    (changed,) = comparison.add(make_row(plan.groups[1], 60, 60))
    assert changed.metrics["speedup_vs_serial_ratio"] == pytest.approx(1.2)


def test_a_baseline_that_stood_still_is_none_after_a_resume_either(plan):
    flagged = {"collocation.invalid": "job 0-a made no step in the last 3 s of the window"}
    stood_still = dataclasses.replace(make_row(plan.groups[0], 100), tags=flagged)
    good = make_stored_row(plan.groups[0], 100.0)
    stored = dataclasses.replace(good, invalid=flagged["collocation.invalid"])
    for baseline in (stood_still, *resume.select_remaining(plan, [stored])[1]):
        comparison = Comparison()
        assert comparison.add(baseline) == []
        assert comparison.add(make_row(plan.groups[1], 60, 60)) == []


def make_learned_row(the_group, *losses) -> GroupResult:
    """A row whose jobs had these losses in their first steps."""
    values = {job.index: list(first_losses) for job, first_losses in zip(the_group.jobs, losses, strict=True)}
    tags = {"collocation.first_losses": json.dumps(values)}
    return dataclasses.replace(make_row(the_group, *[60.0] * len(losses)), tags=tags)


ALONE = (2.3, 2.2, 2.0, 1.9)


@pytest.mark.parametrize("baseline_first", [True, False])
def test_a_group_that_learns_otherwise_than_its_baseline_has_wrong_results(baseline_first):
    wrong = make_learned_row(group("a", "a"), ALONE, (2.3, 2.5, 2.0, 1.9))
    both = [make_learned_row(group("a", sequential=True), ALONE), wrong]
    comparison = Comparison()
    changed = [c for group_result in (both if baseline_first else both[::-1]) for c in comparison.add(group_result)]
    assert [(c.group.name, c.result) for c in changed if c.result is not Result.OK] == [("naive-a+a", "wrong_results")]
    final = comparison.get_latest(wrong)
    assert final.result is Result.WRONG_RESULTS
    assert final.reason == "the losses of job 1-a differ from its solo run: loss 2.5 instead of 2.2 in step 2"
    assert "speedup_vs_serial_ratio" not in final.metrics


@pytest.mark.parametrize(
    ("losses", "is_same"),
    [
        (ALONE, True),
        ((2.304, 2.23, 2.1, 1.8), True),
        ((2.31, 2.2, 2.0, 1.9), False),
        ((2.3, float("nan"), 2.0, 1.9), False),
        ((2.3,), True),
        ((), True),
    ],
)
def test_rounding_is_no_difference_and_what_is_missing_is_not_compared(losses, is_same):
    assert (describe_loss_difference(losses, ALONE) is None) == is_same


def test_other_answers_than_alone_are_wrong_results():
    def make_answered_row(the_group, *norms) -> GroupResult:
        outputs = json.dumps({index: [norm] for index, norm in enumerate(norms)})
        tags = {"collocation.first_outputs": outputs}
        return make_row(the_group, tags=tags)

    comparison = Comparison()
    comparison.add(make_answered_row(group("a", sequential=True), 2.0))
    right, wrong = make_answered_row(group("a", "a"), 2.0, 1.99), make_answered_row(group("a", "a", "a"), 2.0, 2.0, 1.9)
    comparison.add(right), comparison.add(wrong)
    assert comparison.get_latest(right).result is Result.OK
    assert comparison.get_latest(wrong).result is Result.WRONG_RESULTS
    assert (
        "the answers of job 2-a differ from its solo run: answer to request 1 has norm 1.9 instead of 2"
        in comparison.get_latest(wrong).reason
    )


def test_losses_outlive_a_resume(plan):
    losses = {0: list(ALONE)}, {0: list(ALONE), 1: [2.9]}
    stored = [
        dataclasses.replace(make_stored_row(planned_group), notes={"first_losses": json.dumps(of_jobs)})
        for planned_group, of_jobs in zip(plan.groups, losses, strict=False)
    ]
    _, known = resume.select_remaining(plan, stored)
    comparison = Comparison()
    changed = [c for group_result in known for c in comparison.add(group_result)]
    assert [(c.group.number, c.result) for c in changed] == [(2, Result.WRONG_RESULTS)]


def test_equal_jobs_of_a_serial_mix_stand_for_their_mean_until_one_has_run_alone():
    together = make_row(
        group("a", "a", "b", kind=WindowKind.WORK), 33, 33, 40, name="makespan_s", metrics={"makespan_s": 40}
    )
    in_turn = make_row(
        group("a", "a", "b", kind=WindowKind.WORK, sequential=True),
        10,
        12,
        20,
        name="makespan_s",
        metrics={"makespan_s": 42},
    )
    alone = make_row(
        group("a", kind=WindowKind.WORK, sequential=True), 15, name="makespan_s", metrics={"makespan_s": 15}
    )
    for rows in ((together, in_turn, alone), (alone, in_turn, together)):
        comparison = Comparison()
        for group_result in rows:
            comparison.add(group_result)
            if group_result is in_turn and rows[0] is together:
                assert comparison.get_latest(together).metrics["slowdown_worst_ratio"] == pytest.approx(33 / 11)
        assert comparison.get_latest(together).metrics["slowdown_worst_ratio"] == pytest.approx(33 / 15)
        assert comparison.get_latest(together).metrics["speedup_vs_serial_ratio"] == pytest.approx(42 / 40)


def test_a_job_that_never_ran_alone_is_compared_with_its_turns_in_mixes():
    comparison = Comparison()
    together = make_row(group("a", "b", kind=WindowKind.WORK), 30, 40, name="makespan_s", metrics={"makespan_s": 40})
    comparison.add(together)
    comparison.add(
        make_row(
            group("a", "a", "c", kind=WindowKind.WORK, sequential=True),
            10,
            14,
            20,
            name="makespan_s",
            metrics={"makespan_s": 50},
        )
    )
    comparison.add(
        make_row(
            group("b", "c", kind=WindowKind.WORK, sequential=True),
            20,
            20,
            name="makespan_s",
            metrics={"makespan_s": 40},
        )
    )
    assert comparison.get_latest(together).metrics["slowdown_worst_ratio"] == pytest.approx(30 / 12)
    comparison.add(
        make_row(
            group("a", "b", kind=WindowKind.WORK, sequential=True),
            15,
            16,
            name="makespan_s",
            metrics={"makespan_s": 35},
        )
    )
    assert comparison.get_latest(together).metrics["slowdown_worst_ratio"] == pytest.approx(40 / 16)


def test_a_mix_is_compared_with_its_own_order_where_that_ran():
    comparison = Comparison()
    together = make_row(group("a", "b", kind=WindowKind.WORK), 20, 20, name="makespan_s", metrics={"makespan_s": 20})
    comparison.add(together)
    comparison.add(
        make_row(
            group("b", "a", kind=WindowKind.WORK, sequential=True),
            10,
            20,
            name="makespan_s",
            metrics={"makespan_s": 30},
        )
    )
    assert comparison.get_latest(together).metrics["speedup_vs_serial_ratio"] == pytest.approx(30 / 20)
    comparison.add(
        make_row(
            group("a", "b", kind=WindowKind.WORK, sequential=True),
            11,
            21,
            name="makespan_s",
            metrics={"makespan_s": 32},
        )
    )
    assert comparison.get_latest(together).metrics["speedup_vs_serial_ratio"] == pytest.approx(32 / 20)
