"""Some of the points at which a study can fail, in every run; all of them with `-m exhaustive`."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fail_everywhere import CHECKS, HOWS, SCENARIOS, Bench, fail_acceptance, fail_by_hand, fail_everywhere

pytestmark = pytest.mark.covers("pipeline/clean", "pipeline/study/executor.py")
CASES = [(scenario, how) for scenario in SCENARIOS for how in HOWS]
SOME = [number * len(HOWS) + number % len(HOWS) for number in range(len(SCENARIOS))]
"""Each scenario once, and each way to fail as often as the others."""


@pytest.fixture
def bench(template_store: Path) -> Iterator[Bench]:
    with tempfile.TemporaryDirectory(prefix="fail-") as folder:
        yield Bench(Path(folder), template_store)


@pytest.mark.slow
@pytest.mark.parametrize("case", SOME, ids=lambda number: "-".join(CASES[number]))
def test_a_study_that_fails_somewhere_leaves_nothing(bench, case):
    """Two points of a case; the first one is another one in each, so that together they cover the whole."""
    scenario, how = CASES[case]
    tally = fail_everywhere(bench, scenario, how, first=11 + 5 * (case % 6), stride=60, most=2)
    print(f"{scenario}, {how}: {tally.points} points")
    assert tally.problems == []
    assert tally.points >= 1


@pytest.mark.exhaustive
@pytest.mark.parametrize(("scenario", "how"), CASES)
def test_a_study_that_fails_anywhere_leaves_nothing(bench, scenario, how):
    tally = fail_everywhere(bench, scenario, how)
    print(f"{scenario}, {how}: {tally.points} points, {len(tally.left_to_clean)} of them left something to clean")
    assert tally.problems == []
    assert tally.points > 60


@pytest.mark.slow
def test_mig_by_hand_that_is_killed_somewhere_is_whole_when_it_is_run_again(bench):
    tally = fail_by_hand(bench, "sigkill", first=12, most=1)
    assert tally.problems == []
    assert tally.points == 2


@pytest.mark.exhaustive
@pytest.mark.parametrize("how", HOWS)
def test_mig_by_hand_that_fails_anywhere_is_whole_when_it_is_run_again(bench, how):
    tally = fail_by_hand(bench, how)
    print(f"by hand, {how}: {tally.points} points, {len(tally.left_to_clean)} of them left something to clean")
    assert tally.problems == []
    assert tally.points > 40


@pytest.fixture
def a30() -> Iterator[Bench]:
    with tempfile.TemporaryDirectory(prefix="fail-") as folder:
        yield Bench(Path(folder), model="a30_24gb")


@pytest.mark.slow
@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("check", CHECKS)
def test_an_acceptance_that_fails_somewhere_leaves_the_gpu_as_it_was(a30, check, how):
    tally = fail_acceptance(a30, [check], how, first=7 + 3 * HOWS.index(how), stride=61, most=4)
    print(f"{check}, {how}: {tally.points} points")
    assert tally.problems == []
    assert tally.points >= 1


@pytest.mark.exhaustive
@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("check", CHECKS)
def test_an_acceptance_that_fails_anywhere_leaves_the_gpu_as_it_was(a30, check, how):
    tally = fail_acceptance(a30, [check], how)
    print(f"{check}, {how}: {tally.points} points, {len(tally.left_to_clean)} of them left something to clean")
    assert tally.problems == []
    assert tally.points > 20
