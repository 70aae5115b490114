"""The arrival sequence of each job of a group."""

from __future__ import annotations

import dataclasses

from pipeline.base.domain.records import Job
from pipeline.plan.plan_builder import number_sequences
from tests.support.rows import group


def number(names: str, block: int, co_runners: str = "") -> list[int]:
    jobs = group(*names, *co_runners).jobs
    return [
        job.arrivals
        for job in number_sequences([with_role(job, is_co_runner=job.index >= len(names)) for job in jobs], block)
    ]


def with_role(job: Job, *, is_co_runner: bool) -> Job:
    return dataclasses.replace(job, is_co_runner=is_co_runner)


def test_a_job_alone_has_the_first_sequence_and_of_several_copies_another_in_each_block() -> None:
    assert [number("a", block) for block in (1, 2, 3)] == [[0], [0], [0]]
    assert [number("aaa", block) for block in (1, 2, 3, 4)] == [[0, 1, 2], [1, 2, 0], [2, 0, 1], [0, 1, 2]]
    assert [number("aba", block) for block in (1, 2)] == [[0, 0, 1], [1, 0, 0]]


def test_co_runners_never_have_the_sequence_of_a_measured_copy() -> None:
    assert [number("aa", block, "aab") for block in (1, 2)] == [[0, 1, 2, 3, 0], [1, 0, 2, 3, 0]]
