"""The plan of a pack: its trials in order, each with its own folder, in one group."""

from __future__ import annotations

import dataclasses

import pytest

from pipeline.base.domain.window import WindowKind
from pipeline.base.system import user_command
from pipeline.base.system.errors import ConfigError
from tests.conftest import GPU

pytestmark = pytest.mark.covers("pipeline/plan/job_entries.py", "pipeline/plan/groups.py", "conf/experiment/pack.yaml")
TRIALS = ["--", "train.py", "--lr", "{0.1,0.01}", "--seed", "{1..3}"]


@pytest.fixture(autouse=True)
def scripts(tmp_path, monkeypatch):
    """A folder with scripts, from which the user calls."""
    for name in ("train.py", "eval.py"):
        (tmp_path / name).write_text(f"print({name!r})\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def plan_pack(make_plan):
    """The group of a pack."""

    def plan(*words: str, **options):
        (group,) = make_plan(user_command.make_overrides(["+experiment=pack", *words]), **options).groups
        return group

    return plan


def arguments(group):
    return [" ".join(job.workload.argv[2:]) for job in group.jobs]


def test_a_pack_is_one_group_with_a_job_for_each_trial(plan_pack):
    group = plan_pack("pack.most=4", *TRIALS)
    assert arguments(group) == [f"--lr {lr} --seed {seed}" for lr in ("0.1", "0.01") for seed in (1, 2, 3)]
    assert group.window.kind is WindowKind.WORK and all(job.workload.is_in_own_folder for job in group.jobs)
    assert group.short_name == "pack-naive-6x-train" and len({job.workload.digest for job in group.jobs}) == 6
    assert (group.most_at_once, group.pack.check_share) == (4, 0.05)
    assert dataclasses.replace(group, pack=None).most_at_once == 6


def test_the_plan_notes_the_trials(make_plan):
    plan = make_plan(user_command.make_overrides(["+experiment=pack", *TRIALS]))
    assert "6 trials, at most 6 at a time: --lr 0.1 --seed 1 ... --lr 0.01 --seed 3" in plan.notes


def test_the_lines_of_trials_leave_out_what_all_share(make_plan):
    words = ["train.py", "--model", "small", "--lr", "{0.1,0.2}", "data", "{a,b}", "--amp"]
    plan = make_plan(user_command.make_overrides(["+experiment=pack", "--", *words]))
    assert "4 trials, at most 4 at a time: --lr 0.1 a ... --lr 0.2 b" in plan.notes


def test_the_parts_of_a_pack_are_groups_of_a_shard_each(make_plan):
    words = [["+experiment=pack", f"pack.part={part}", *TRIALS] for part in ("1/2", "2/2")]
    groups = make_plan(*map(user_command.make_overrides, words)).groups
    first, second = sorted(groups, key=lambda group: group.pack.part)
    assert arguments(first) == ["--lr 0.1 --seed 1", "--lr 0.1 --seed 3", "--lr 0.01 --seed 2"]
    assert arguments(second) == ["--lr 0.1 --seed 2", "--lr 0.01 --seed 1", "--lr 0.01 --seed 3"]
    assert {first.shard, second.shard} == {1, 2}
    assert (first.short_name, second.short_name) == ("pack-naive-3x-train-1of2", "pack-naive-3x-train-2of2")


def test_mps_limits_the_trials_at_a_time_and_not_their_number(plan_pack):
    words = ["--", "train.py", "--seed", "{1..100}"]
    assert len(plan_pack("scenario=mps", *words, device=GPU).jobs) == 100
    facts = dataclasses.replace(GPU.facts, cuda_version="12.8")
    with pytest.raises(ConfigError, match="at most 48 clients"):
        plan_pack("scenario=mps", "pack.most=60", *words, device=dataclasses.replace(GPU, facts=facts))


def test_a_file_names_the_trials(plan_pack, scripts):
    (scripts / "trials.txt").write_text("python train.py --a 1\neval.py 'b c'\n\npython train.py --a 1\n")
    group = plan_pack("pack.trials=trials.txt")
    assert [job.name for job in group.jobs] == ["0-train", "1-eval", "2-train"]
    assert [job.workload.argv[2:] for job in group.jobs] == [("--a", "1"), ("b c",), ("--a", "1")]
    assert group.jobs[0].workload.digest == group.jobs[2].workload.digest


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--", "train.py"], "`train.py` is one trial; give values in braces"),
        (["scenario=mig", *TRIALS], "under scenario=naive or mps; remove mix, degree"),
        (["degree=2", *TRIALS], "remove mix, degree"),
        (["pack.trials=none.txt"], r"pack\.trials=none\.txt cannot be read: No such file or directory; check the path"),
        (["repeats=2", *TRIALS], r"pack\.trials=braces is one group, not 2; remove sweeps, repeats and baseline"),
        (["pack.part=3/2", *TRIALS], r"pack\.part=3/2 is no part of 6 trials; write I/N"),
        (["pack.part=a", *TRIALS], r"pack\.part=a is no part of 6 trials; write I/N"),
        (["pack.most=0", *TRIALS], r"pack\.most=0 must be at least 1"),
    ],
)
def test_a_pack_that_cannot_run_is_refused(plan_pack, words, why):
    with pytest.raises(ConfigError, match=why):
        plan_pack(*words)
