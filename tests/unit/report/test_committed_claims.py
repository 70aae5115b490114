"""The committed claims hold, and a change of any digit of a complete page, such as the README, is noticed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pipeline.base.system.paths import PROJECT_DIR
from pipeline.report import claims_command
from pipeline.report.page.claimed_words import find_difference, find_unclaimed
from pipeline.report.read.claims_file import Claims, find_files, read_claims

pytestmark = pytest.mark.covers("README.md", "docs")

_UNCHECKED = re.compile(r"^ *```.*?^ *```|`[^`]*`|\]\([^)]*\)|[A-Za-z]\w+", re.MULTILINE | re.DOTALL)
"""Code, addresses of links, and digits in names."""


QUICK = "docs/results/robroek_quick_h100.md"
"""A complete page whose numbers come from one bundle."""


@pytest.mark.parametrize("page", [pytest.param("", id="all", marks=pytest.mark.slow), QUICK])
def test_committed_claims_hold_and_notice_every_changed_digit(page: str) -> None:
    claims = read_claims(find_files(PROJECT_DIR))
    if page:
        of_page = tuple(one for one in claims.claims if one.page == page)
        claims = Claims(claims=of_page, complete_pages={page: claims.complete_pages[page]})
    checked = claims_command.check_claims(claims, PROJECT_DIR)
    lines = list(claims_command.list_checks(claims, checked, PROJECT_DIR))
    assert [f"{words}: {problem}" for words, problem in lines if problem] == []
    num_places = {}
    for name, scope in claims.complete_pages.items():
        page = (PROJECT_DIR / name).read_text(encoding="utf-8")
        of_page = [one for one in checked if one.claim.page == name]
        part = page.partition(scope.before)[0] if scope.before else page
        left_out = {place for match in _UNCHECKED.finditer(part) for place in range(*match.span())}
        places = [match.start() for match in re.finditer(r"\d", part) if match.start() not in left_out]
        num_places[name] = len(places)
        for place in places:
            changed = page[:place] + str((int(page[place]) + 1) % 10) + page[place + 1 :]
            is_noticed = any(find_difference(changed, one) for one in of_page)
            assert is_noticed or any(find_unclaimed(changed, scope, of_page)), changed[place - 40 : place + 20]
    assert num_places[QUICK] > 20
    assert page or (num_places["README.md"] > 100 and num_places["docs/artifact.md"] > 100)


def test_the_version_is_the_same_everywhere() -> None:
    version = re.search(r'^version = "(.*)"$', _read("pyproject.toml"), re.MULTILINE)
    assert version is not None
    assert re.search(rf"^version: {re.escape(version[1])}$", _read("CITATION.cff"), re.MULTILINE)
    released = re.search(rf"^## {re.escape(version[1])} \((.*)\)$", _read("CHANGELOG.md"), re.MULTILINE)
    assert released is not None and f'date-released: "{released[1]}"' in _read("CITATION.cff")


def _read(name: str) -> str:
    return (PROJECT_DIR / Path(name)).read_text(encoding="utf-8")
