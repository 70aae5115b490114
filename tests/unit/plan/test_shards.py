"""A plan in shards, each of which one worker runs."""

from __future__ import annotations

import pytest

from pipeline.base.system.errors import ConfigError
from pipeline.observe.exporters.none import NoExporter
from pipeline.plan import config_reader, shards
from pipeline.study.study_request import StudyRequest
from tests.conftest import inventory_of


def test_the_shards_are_the_blocks_and_make_up_the_plan(make_plan) -> None:
    plan = make_plan(["repeats=3", "degree=2", "baseline=always"])
    found = shards.group_by_shard(plan.groups)
    assert list(found) == [1, 2, 3]
    assert [group for number in found for group in shards.select_shard(plan, number).groups] == list(plan.groups)
    third = shards.select_shard(plan, 3)
    assert (third.digest, third.num_planned) == (plan.digest, 6)
    assert {group.block for group in third.groups} == {3}
    assert shards.select_shard(plan, None) is plan


def test_a_shard_may_be_a_case_with_all_that_shares_its_baselines(make_plan) -> None:
    by_case = ["shard_of=case", "repeats=2"]
    sweep = [[*by_case, f"workload.batch_size={size}", f"degree={degree}"] for size in (8, 16) for degree in (1, 2)]
    plan = make_plan(*sweep)
    assert plan.shard_sizes == (3, 3, 3, 3)
    found = list(shards.group_by_shard(plan.groups).values())
    assert [{group.block for group in members} for members in found] == [{1}, {1}, {2}, {2}]
    programs = [{job.workload.digest for group in members for job in group.jobs} for members in found]
    assert all(len(each) == 1 for each in programs)
    assert programs[0] == programs[2] != programs[1] == programs[3]
    assert plan.digest != make_plan(*(each[1:] for each in sweep)).digest  # workers must agree on it


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
    study = [[*each, "degree=2", "shard_of=case"] for each in (of_mps, ["workload.batch_size=16"])]
    skipped = set()
    for number in (1, 2):
        configs = config_reader.read(compose(*([*each, f"shard={number}"] for each in study)))
        asked = StudyRequest(
            configs=configs, is_sweep=True, sender=None, simulated=None, exporter=NoExporter(), reproduction=None
        )
        skipped.add(
            frozenset(group.scenario for group in asked.plan(inventory_of(configs)).groups if group.skip_reason)
        )
    assert skipped == {frozenset(), frozenset({"mps"})}
