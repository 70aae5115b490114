"""Words for users."""

from __future__ import annotations

from pipeline.base.system.words import natural_key


def test_numbers_within_texts_are_in_their_order() -> None:
    names = ["a bs128", "a bs16", "a bs8", "a", "b 2.5", "b 2.25", "10", "9"]
    assert sorted(names, key=natural_key) == ["9", "10", "a", "a bs8", "a bs16", "a bs128", "b 2.5", "b 2.25"]
