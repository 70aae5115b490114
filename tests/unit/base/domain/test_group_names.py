"""What groups of a study are called: one name each, by what tells them apart."""

from __future__ import annotations

import dataclasses

import pytest

from pipeline.base.domain import group_names
from pipeline.base.domain.group_names import GroupFacts, JobFacts

SETTINGS = {"device": "H100", "window": "work, until the jobs end", "seed": "0"}


def job(workload: str = "train", size: str | None = None, **params: str) -> JobFacts:
    options = {key.replace("_", "-").replace("flags-", "flags."): value for key, value in params.items()}
    return JobFacts(size=size, workload=workload, params=options, digest=repr((workload, sorted(options.items()))))


def group(
    *jobs: JobFacts, scenario: str = "naive", settings: dict[str, str] = SETTINGS, **options: object
) -> GroupFacts:
    return GroupFacts(scenario=scenario, jobs=jobs, options=options, settings=settings)


@pytest.mark.parametrize(
    ("groups", "names"),
    [
        pytest.param([group(job("tiny", model="x"))], ["naive-1x-tiny"], id="alone"),
        pytest.param(
            [group(job("tiny", batch="16")), group(*[job("tiny", batch="32")] * 2, scenario="serial")],
            ["naive-1x-tiny-batch=16", "serial-2x-tiny-batch=32"],
            id="options of the workload in which groups differ",
        ),
        pytest.param(
            [group(job("a", model="x")), group(job("b", model="y"))],
            ["naive-1x-a", "naive-1x-b"],
            id="workloads of other names need no more",
        ),
        pytest.param(
            [group(job(flags_lr="0.1", flags_amp="true", script="train.py"))],
            ["naive-1x-train-lr=0.1-amp"],
            id="flags always",
        ),
        pytest.param(
            [group(job(args="--lr 1 --bs 2")), group(job(args="--lr 1 --bs 3 data.txt")), group(job(args="-v --lr=1"))],
            ["naive-1x-train-bs=2", "naive-1x-train-bs=3_data.txt", "naive-1x-train-v"],
            id="arguments where they differ",
        ),
        pytest.param(
            [group(job(size="S", batch="1"), job(size="M")), group(job(size="S", batch="2"), job(size="M"))],
            ["naive-S[batch=1]+M", "naive-S[batch=2]+M"],
            id="a mix",
        ),
        pytest.param(
            [group(job(args="--lr 1"), job(args="--lr 2"), job("eval"))],
            ["naive-train[lr=1]+train[lr=2]+eval"],
            id="one script twice in a mix",
        ),
        pytest.param(
            [group(job("tiny", size="S")), group(job("other", size="S"))],
            ["naive-1x-S-workload=tiny", "naive-1x-S-workload=other"],
            id="one size for two workloads",
        ),
        pytest.param(
            [group(job(), scenario="mps", pinned_mem_limit="1G"), group(job(), scenario="mps", exclusive_process=True)],
            ["mps-1x-train-pinned_mem_limit=1G", "mps-1x-train-exclusive_process=true"],
            id="options of the mode",
        ),
        pytest.param(
            [group(job(), scenario="mig_mps", profile="auto", num_instances=n) for n in (2, 3)],
            ["mig_mps-1x-train-num_instances=2", "mig_mps-1x-train-num_instances=3"],
            id="an option that the label says mostly",
        ),
        pytest.param(
            [group(job(), settings=SETTINGS | {"window": f"steady, {n} s after 2 s"}) for n in (5, 20)]
            + [group(job("other"))],
            [*(f"naive-1x-train-window=steady_{n}_s_after_2_s" for n in (5, 20)), "naive-1x-other"],
            id="settings in which the same jobs differ",
        ),
        pytest.param(
            [group(job(), profiler=("nsys", ("options", ("-t", "cuda")))), group(job())],
            ["naive-1x-train-nsys", "naive-1x-train"],
            id="a profiler",
        ),
    ],
)  # fmt: skip
def test_a_name_says_what_tells_a_group_from_the_others(groups, names):
    assert group_names.name_groups(groups) == names


def test_groups_that_differ_in_nothing_that_is_said_have_names_of_their_own():
    one = job(environment_digest="a" * 64)
    other = dataclasses.replace(one, params={"environment-digest": "b" * 64}, digest="another")
    changed = dataclasses.replace(one, digest="third")
    first, second, again = group_names.name_groups([group(one), group(changed), group(one)])
    assert first != second and first == again and first.startswith("naive-1x-train-")
    assert (
        group_names.name_groups([group(one), group(other)])[0] != group_names.name_groups([group(one), group(other)])[1]
    )


def test_of_many_options_the_usual_values_go_without_saying():
    usual = {"source": "synthetic_device", "precision": "tf32", "recipe": "published", "tuning": "each_by_itself"}
    variants = [usual, *({key: "other"} for key in usual), {"recipe": "other", "tuning": "other"}]
    assert group_names.name_groups([group(job(**usual | variant)) for variant in variants]) == [
        "naive-1x-train",
        *(f"naive-1x-train-{key}=other" for key in usual),
        "naive-1x-train-recipe=other-tuning=other",
    ]


def test_a_long_name_is_cut_and_still_its_own():
    names = group_names.name_groups([group(job(args=f"--path {'x' * 300}{n}")) for n in (1, 2)])
    assert len(set(names)) == 2 and max(map(len, names)) < 200
