"""Plans: launches, shards, blocks of `repeats=auto`, and arrival sequences."""

from __future__ import annotations

import dataclasses
import json

import pytest

from pipeline.base.domain.precision_goal import PrecisionGoal
from pipeline.base.domain.records import Job
from pipeline.base.domain.window import WindowKind
from pipeline.base.system.errors import ConfigError
from pipeline.observe.exporters.none import NoExporter
from pipeline.plan import config_reader, plan_builder, plan_text, shards
from pipeline.plan.plan_builder import cut_plan, number_sequences
from pipeline.scale import worker_command
from pipeline.study.study_request import StudyRequest
from tests.conftest import inventory_of, sweep
from tests.support.rows import group

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
    plan = make_plan(*([*overrides, f"degree={degree}"] for overrides in sweep for degree in (2, 3)))
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


def test_the_shards_are_the_blocks_and_make_up_the_plan(make_plan) -> None:
    plan = make_plan(["repeats=3", "degree=2", "baseline=always"])
    groups_by_shard = shards.group_by_shard(plan.groups)
    assert list(groups_by_shard) == [1, 2, 3]
    assert [group for number in groups_by_shard for group in shards.select_shard(plan, number).groups] == list(
        plan.groups
    )
    third = shards.select_shard(plan, 3)
    assert (third.digest, third.num_planned) == (plan.digest, 6)
    assert {group.block for group in third.groups} == {3}
    assert shards.select_shard(plan, None) is plan


def test_a_shard_may_be_a_case_with_all_that_shares_its_baselines(make_plan) -> None:
    by_case = ["shard_of=case", "repeats=2"]
    sweep = [[*by_case, f"workload.batch_size={size}", f"degree={degree}"] for size in (8, 16) for degree in (1, 2)]
    plan = make_plan(*sweep)
    assert plan.shard_sizes == (3, 3, 3, 3)
    groups_of_shards = list(shards.group_by_shard(plan.groups).values())
    assert [{group.block for group in members} for members in groups_of_shards] == [{1}, {1}, {2}, {2}]
    programs = [{job.workload.digest for group in members for job in group.jobs} for members in groups_of_shards]
    assert all(len(digests) == 1 for digests in programs)
    assert programs[0] == programs[2] != programs[1] == programs[3]
    assert plan.digest != make_plan(*(overrides[1:] for overrides in sweep)).digest  # workers must agree on it


def test_shards_are_numbered_without_gaps_where_a_block_lacks_cases(make_plan) -> None:
    sizes = {8: 1, 16: 3, 32: 2}
    sweep = [["shard_of=case", f"workload.batch_size={size}", f"repeats={times}"] for size, times in sizes.items()]
    plan = make_plan(*sweep)
    assert list(shards.group_by_shard(plan.groups)) == [1, 2, 3, 4, 5, 6] and len(plan.shard_sizes) == 6
    assert [len({group.case for group in plan.groups if group.block == block}) for block in (1, 2, 3)] == [3, 2, 1]


def test_cases_are_numbered_in_the_order_of_the_plan(make_plan) -> None:
    sizes = [16, 8, 64, 32, 4]  # an order by digest would have to be this one of 120
    plan = make_plan(*(["shard_of=case", "order=listed", f"workload.batch_size={size}"] for size in sizes))
    cases = dict.fromkeys((group.case, int(dict(group.jobs[0].workload.params)["batch_size"])) for group in plan.groups)
    assert list(cases) == list(enumerate(sizes, start=1))


def test_mixes_that_share_a_program_are_one_case(make_plan) -> None:
    of_workloads = ["workload@sizes.S=tiny", "workload@sizes.M=robroek_small", "workload@sizes.L=robroek_medium"]
    mixes = [["shard_of=case", *of_workloads, f"mix=[{mix}]", "data.source=synthetic_device"] for mix in ("S,M", "M,L")]
    assert set(shards.group_by_shard(make_plan(*mixes).groups)) == {1}


@pytest.mark.parametrize("number", [0, 4, -1])
def test_a_shard_outside_the_plan_is_refused(make_plan, number) -> None:
    with pytest.raises(ConfigError, match=f"shard={number} does not exist in this plan; choose a shard from 1 to 3"):
        shards.select_shard(make_plan(["repeats=3"]), number)


def test_a_shard_of_groups_that_are_all_skipped_is_one_as_any_other(compose) -> None:
    of_mps = ["scenario=mps", "workload.batch_size=8"]  # which needs a GPU
    study = [[*overrides, "degree=2", "shard_of=case"] for overrides in (of_mps, ["workload.batch_size=16"])]
    skipped = set()
    for number in (1, 2):
        configs = config_reader.read(compose(*([*overrides, f"shard={number}"] for overrides in study)))
        request = StudyRequest(
            configs=configs, is_sweep=True, sender=None, simulated=None, exporter=NoExporter(), reproduction=None
        )
        skipped.add(
            frozenset(group.scenario for group in request.plan(inventory_of(configs)).groups if group.skip_reason)
        )
    assert skipped == {frozenset(), frozenset({"mps"})}


AUTO = ["repeats=auto", "repeats_max=7"]


def test_the_plan_has_the_most_blocks_and_says_when_the_study_stops(make_plan):
    plan = make_plan([*AUTO, "precision_goal_pct=2.5"], is_sweep=False)
    assert plan.goal == PrecisionGoal(pct=2.5, max_blocks=7)
    assert {group.block for group in plan.groups} == {1, 2, 3, 4, 5, 6, 7}
    (note,) = plan_text.list_notes(plan)
    assert note == (
        "note: repeats=auto: 5 to 7 blocks, until the interval of every speed-up over serial is at most 2.5 % wide to "
        "each side"
    )
    exported = json.loads(json.dumps(plan_text.export_plan(plan, {})))
    assert exported["precision_goal"] == {"pct": 2.5, "max_blocks": 7}
    fixed = make_plan(["repeats=7"], is_sweep=False)
    assert fixed.goal is None and fixed.digest == plan.digest
    assert plan_text.export_plan(fixed, {})["precision_goal"] is None and plan_text.list_notes(fixed) == []


@pytest.mark.sampled(1)
@pytest.mark.parametrize("shard_of", ["block", "case"])
def test_the_plan_of_the_blocks_that_ran_is_that_of_as_many_repeats(make_plan, shard_of):
    combinations = [[*o, f"shard_of={shard_of}"] for o in sweep(scenario=["naive", "mps"], degree=[1, 2])]
    cut = cut_plan(make_plan(*[[*o, *AUTO] for o in combinations]), lambda group: group.block <= 5)
    assert cut == make_plan(*[[*o, "repeats=5"] for o in combinations])


def test_an_interpolated_number_of_repeats_is_a_number(make_plan, monkeypatch):
    monkeypatch.setenv("REPEATS", "3")
    assert {group.block for group in make_plan(["repeats=${oc.env:REPEATS}"]).groups} == {1, 2, 3}


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["repeats=many"], "repeats=many must be a number or auto"),
        (["repeats=0"], "repeats=0 must be at least 1"),
        (["repeats=auto", "repeats_max=4"], "repeats_max=4 must be at least 5 with repeats=auto"),
        (["repeats_max=20000"], "repeats_max=20000 must be at most 10000"),
        (["repeats=auto", "precision_goal_pct=0"], "precision_goal_pct=0.0 must be greater than 0, and finite"),
        (["repeats=auto", "precision_goal_pct=101"], "precision_goal_pct=101.0 must be at most 100"),
        (["advise_minutes=0"], "advise_minutes=0.0 must be greater than 0"),
        (
            ["advise_minutes=1", "shard=2"],
            "advise_minutes compares all blocks .* so shard=2 is not possible; remove it",
        ),
        (["advise_minutes=1", "repeats=auto"], "so repeats=auto is not possible; remove it"),
        (["advise_minutes=1", "scenario=serial"], "advise_minutes needs groups with a speed-up"),
        (["repeats=auto", "shard=2"], "shard=2 conflicts with repeats=auto, .*; remove shard, or set repeats=NUMBER"),
        *(
            (["repeats=auto", *overrides], "repeats=auto needs a group with a speed-up, .*; set repeats=NUMBER")
            for overrides in (["baseline=never"], ["scenario=serial"], ["co_runners=1"], ["degree=1"])
        ),
        pytest.param(
            ["repeats=auto", "workload=infer_tiny", "workload.arrival=poisson", "workload.rate_per_s=9"],
            "repeats=auto needs a group with a speed-up",
            marks=pytest.mark.torch,
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_it_cannot_be_combined_with_is_refused_in_one_line(make_plan, overrides, message):
    with pytest.raises(ConfigError, match=message) as caught:
        make_plan(overrides, is_sweep=False)
    assert "\n" not in str(caught.value)


def test_all_parts_of_a_study_stop_by_the_same_rule(make_plan):
    with pytest.raises(ConfigError, match="repeats=3 conflicts with repeats=auto in the same study"):
        make_plan(["degree=2", "repeats=auto"], ["degree=3", "repeats=3"])
    # Groups without a speed-up run along, and have no say.
    assert make_plan(["degree=2", "repeats=auto"], ["co_runners=1", "repeats=auto"]).goal is not None


@pytest.mark.parametrize("launcher", ["gpus", "beside", "slurm"])
def test_launchers_that_run_blocks_on_several_gpus_are_refused(compose, launcher):
    configs = config_reader.read(compose(["repeats=auto"]))
    with pytest.raises(ConfigError, match=f"repeats=auto conflicts with hydra/launcher={launcher}, because"):
        worker_command.refuse_decided_keys(configs, launcher)


def number(names: str, block: int, co_runners: str = "") -> list[int]:
    jobs = group(*names, *co_runners).jobs
    return [
        job.arrivals
        for job in number_sequences([set_role(job, is_co_runner=job.index >= len(names)) for job in jobs], block)
    ]


def set_role(job: Job, *, is_co_runner: bool) -> Job:
    return dataclasses.replace(job, is_co_runner=is_co_runner)


def test_a_job_alone_has_the_first_sequence_and_of_several_copies_another_in_each_block() -> None:
    assert [number("a", block) for block in (1, 2, 3)] == [[0], [0], [0]]
    assert [number("aaa", block) for block in (1, 2, 3, 4)] == [[0, 1, 2], [1, 2, 0], [2, 0, 1], [0, 1, 2]]
    assert [number("aba", block) for block in (1, 2)] == [[0, 0, 1], [1, 0, 0]]


def test_co_runners_never_have_the_sequence_of_a_measured_copy() -> None:
    assert [number("aa", block, "aab") for block in (1, 2)] == [[0, 1, 2, 3, 0], [1, 0, 2, 3, 0]]
