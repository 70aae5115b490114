"""The committed claims hold, and a change of any digit of a page with results, such as the README, is noticed."""

from __future__ import annotations

import functools
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from pipeline.base.system.paths import PROJECT_DIR
from pipeline.report import claims_command
from pipeline.report.page.claims import CheckedClaim, Claims, find_files, read_claims

pytestmark = pytest.mark.covers("README.md", "docs")

_UNCHECKED = re.compile(
    r"<!-- made by .*?<!-- end -->|^ *```.*?^ *```|`[^`]*`|\]\([^)]*\)|<!--.*?-->|[A-Za-z]\w+", re.MULTILINE | re.DOTALL
)
"""Code, addresses of links, comments, and digits in names."""
PAGES = ("README.md", "docs/artifact.md", "docs/results/*.md", "docs/papers/*.md")
SIMULATIONS = "tests/unit/report/test_report_statistics.py"
SIMULATED = "docs/results/simulations.md"
"""A page whose numbers come from commands and single readings, as it says; no bundle has them."""
QUICK = "docs/results/robroek_quick_h100.md"
"""A page whose numbers come from one bundle."""


@functools.cache
def check(page: str) -> tuple[Claims, Sequence[CheckedClaim]]:
    """Return the claims of a page, or of all pages, with the numbers of their bundles."""
    claims = read_claims(find_files(PROJECT_DIR))
    if page:
        of_page = tuple(claim for claim in claims.claims if claim.page == page)
        claims = Claims(claims=of_page, complete_pages={page: claims.complete_pages[page]})
    return claims, claims_command.check_claims(claims, PROJECT_DIR)


def list_problems(page: str, folder: Path, only_page: str = "") -> list[str]:
    """Return what `make claims` says of a page, or of all pages, in a folder."""
    claims, checked = check(only_page)
    if page:
        checked = [claim for claim in checked if claim.claim.page == page]
        scope = {page: claims.complete_pages[page]}
        claims = Claims(claims=tuple(claim.claim for claim in checked), complete_pages=scope)
    return [f"{words}: {text}" for words, text in claims_command.list_checks(claims, checked, folder) if text]


def find_digits(page: str) -> list[int]:
    text = (PROJECT_DIR / page).read_text(encoding="utf-8")
    left_out = {place for match in _UNCHECKED.finditer(text) for place in range(*match.span())}
    return [match.start() for match in re.finditer(r"\d", text) if match.start() not in left_out]


def change_digit(page: str, place: int, chance: random.Random) -> str:
    text = (PROJECT_DIR / page).read_text(encoding="utf-8")
    return text[:place] + chance.choice([digit for digit in "0123456789" if digit != text[place]]) + text[place + 1 :]


@pytest.mark.parametrize("page", [pytest.param("", id="all", marks=pytest.mark.slow), QUICK])
def test_committed_claims_hold(page: str) -> None:
    assert list_problems(page, PROJECT_DIR, page) == []


@pytest.mark.slow
def test_every_page_with_results_is_complete() -> None:
    pages = {path.relative_to(PROJECT_DIR).as_posix() for pattern in PAGES for path in PROJECT_DIR.glob(pattern)}
    assert pages - {SIMULATED} <= read_claims(find_files(PROJECT_DIR)).complete_pages.keys()


@pytest.mark.parametrize(
    ("only_page", "num_digits", "seed"),
    [pytest.param("", 40, seed, marks=pytest.mark.slow) for seed in range(5)] + [(QUICK, 8, 0)],
)
def test_each_of_so_many_digits_changed_at_random_is_noticed(
    only_page: str, num_digits: int, seed: int, tmp_path: Path
) -> None:
    chance = random.Random(seed)
    claims, _ = check(only_page)
    sources = {source for scope in claims.complete_pages.values() for source in scope.quoted}
    for name in {*claims.complete_pages, *sources}:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(PROJECT_DIR / name, tmp_path / name)
    places = [(page, place) for page in claims.complete_pages for place in find_digits(page)]
    assert len(places) > (100 if only_page else 4000)
    for page, place in chance.sample(places, num_digits):
        changed = change_digit(page, place, chance)
        (tmp_path / page).write_text(changed, encoding="utf-8")
        assert list_problems(page, tmp_path, only_page), f"{page}: {changed[place - 40 : place + 20]!r}"
        shutil.copyfile(PROJECT_DIR / page, tmp_path / page)


@pytest.mark.slow
def test_the_figures_of_simulations_are_those_that_they_print() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-m", "", "-rP", "-n", "0", "-p", "no:randomly", SIMULATIONS]
    printed = subprocess.run(command, cwd=PROJECT_DIR, capture_output=True, text=True, check=True, timeout=300).stdout
    lines = _read("docs/results/verdicts_simulated.txt").splitlines()
    assert len(lines) > 20 and [line for line in lines if line not in printed.splitlines()] == []


def test_the_table_of_planned_gpus_is_what_the_planner_printed() -> None:
    methods = ("exact", "greedy", "tree", "genetic", "7x 1g.10gb", "whole GPUs")
    rows = []
    for printed in _read("docs/papers/mig_serving/planned.txt").split("$ ")[1:]:
        scenario, load = re.findall(r"scenario_(\d)\.yaml .* --load (\d)", printed)[0]
        gpus = {method: int(re.findall(rf"^{method} +(\d+)", printed, re.MULTILINE)[0]) for method in methods}
        fewer = round(100 * (1 - gpus["exact"] / gpus["whole GPUs"]))
        rows.append(",".join(map(str, (scenario, load, *gpus.values(), fewer))))
    assert len(rows) == 12 and rows == _read("docs/papers/mig_serving/gpus.csv").splitlines()[1:]


def test_the_version_is_the_same_everywhere() -> None:
    version = re.search(r'^version = "(.*)"$', _read("pyproject.toml"), re.MULTILINE)
    assert version is not None
    assert re.search(rf"^version: {re.escape(version[1])}$", _read("CITATION.cff"), re.MULTILINE)
    released = re.search(rf"^## {re.escape(version[1])} \((.*)\)$", _read("CHANGELOG.md"), re.MULTILINE)
    assert released is not None and f'date-released: "{released[1]}"' in _read("CITATION.cff")


def _read(name: str) -> str:
    return (PROJECT_DIR / Path(name)).read_text(encoding="utf-8")
