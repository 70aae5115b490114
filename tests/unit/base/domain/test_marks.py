"""Marks of rows that have one reason become one mark."""

from __future__ import annotations

import pytest

from pipeline.base.domain.marks import merge, merge_notes


@pytest.mark.parametrize(
    ("texts", "merged"),
    [
        (["a", "b", "a"], {"a": 2, "b": 1}),
        (["made 13 steps", "made 9 steps", "made 11.5 steps"], {"made 9 to 13 steps": 3}),
        (["2 jobs, such as 0-a,", "2 jobs, such as 1-a,"], {"2 jobs, such as 0-a or 1-a,": 2}),
        (["job 0-a", "job 1-a", "job 2-a"], {"job 0-a or others": 3}),
        (["about 5 s are needed", "about 50.5 s are needed"], {"about 5 to 50.5 s are needed": 2}),
        (["below 4 (3 to 5)", "below 6 (2.5 to 7)"], {"below 4 to 6 (2.5 to 7)": 2}),
        (["resnet18 bs8", "resnet50 bs8"], {"resnet18 bs8": 1, "resnet50 bs8": 1}),
        (["v1.2.3 failed", "v1.2.4 failed"], {"v1.2.3 failed": 1, "v1.2.4 failed": 1}),
    ],
)
def test_texts_that_differ_only_in_numbers_are_merged(texts: list[str], merged: dict[str, int]) -> None:
    assert merge(texts) == merged


def test_each_reason_of_several_rows_is_one_note() -> None:
    notes = ["few 13 steps; raise it", "", "few 15 steps; raise it; late 3 s; raise it", "few 11 steps; raise it"]
    assert merge_notes(notes, "block") == ["few 11 to 15 steps (3 blocks)", "raise it", "late 3 s", "raise it"]
    assert merge_notes(["few 13 steps"] * 2, "block") == ["few 13 steps"]
