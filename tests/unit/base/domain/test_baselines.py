"""Which runs of a job alone it is compared with."""

from __future__ import annotations

from pipeline.base.domain.baselines import Baselines


def baselines_of(*groups: tuple[str, str]) -> Baselines[str, str]:
    """Of groups of jobs in turn: each by its name and the letters of its jobs, each job as `<group>-<position>`."""
    baselines: Baselines[str, str] = Baselines()
    for name, jobs in groups:
        baselines.add(name, tuple(jobs), [f"{name}-{position}" for position in range(len(jobs))])
    return baselines


def test_a_run_of_its_own_comes_before_turns_in_the_same_mix_and_those_before_turns_in_any() -> None:
    groups = [("any", "bac"), ("other", "ab"), ("same", "ba"), ("own", "a"), ("again", "a")]
    growing = [baselines_of(*groups[:number]) for number in range(len(groups) + 1)]
    assert [baselines.find_runs_alone("a", ("b", "a")) for baselines in growing] == [
        [],
        ["any-1"],
        ["other-0"],
        ["same-1"],
        ["own-0"],
        ["own-0", "again-0"],
    ]
    assert [step.find_serial_group(("b", "a")) for step in growing] == [None, None, "other", "same", "same", "same"]
    assert growing[-1].find_runs_alone("d", ("a", "d")) == []


def test_several_turns_of_a_job_in_a_mix_all_count() -> None:
    assert baselines_of(("mix", "aba")).find_runs_alone("a", ("a", "a", "b")) == ["mix-0", "mix-2"]
    assert baselines_of(("one", "ab"), ("two", "ca")).find_runs_alone("a", ("a", "d")) == ["one-0", "two-1"]
