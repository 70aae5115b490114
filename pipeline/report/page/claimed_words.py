"""Search of a page for the words of its claims, and for numbers that stand in no claim."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pipeline.report.read.claims_file import PLACEHOLDER, Claim, CompletePage

_ANY_NUMBER = r"([^\s|][^|]{0,60}?)"
_FIRST_NUMBER = r"(-?\d[\d.,]*(?: \([^()|]*\))?)"
"""A number at the begin of a claim, where `_ANY_NUMBER` would begin up to 60 characters too early."""
_BEGIN, _END = r"(?<!\w)(?<!\d[.,])", r"(?!\w)(?![.,]\d)"
"""Bounds of the words of a claim, which do not begin or end within a number."""
_CODE = re.compile(r"^ *```.*?^ *```|`[^`]*`|\]\([^)]*\)|<!--.*?-->", re.MULTILINE | re.DOTALL)
_NUMBER = re.compile(r"(?<!\w)\d[\w.,]*")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_AROUND = 25


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedClaim:
    """A claim and the texts of its numbers by placeholder, or the reason why there are none."""

    claim: Claim
    numbers: Mapping[str, str]
    problem: str = ""

    @property
    def expected(self) -> str:
        """The words of the page, with the numbers of the bundle where they are known."""
        return PLACEHOLDER.sub(lambda match: self.numbers.get(match[1], match[0]), self.claim.text)


def find_difference(page: str, checked: CheckedClaim) -> str:
    """Return how a page differs from a claim, such as `page says 0.85, bundle gives 0.84`; empty if it does not."""
    if checked.problem:
        return checked.problem
    if _compile(checked.expected).search(page):
        return ""
    match = _compile(checked.claim.text).search(page)
    if match is None:
        return f"the page has no words {checked.expected!r}"
    numbers = [checked.numbers[name] for name in PLACEHOLDER.findall(checked.claim.text)]
    pairs = dict.fromkeys(zip(map(_join, match.groups()), numbers, strict=True))
    return "; ".join(f"page says {shown}, bundle gives {number}" for shown, number in pairs if shown != number)


def find_unclaimed(
    page: str, scope: CompletePage, claims: Iterable[CheckedClaim], sources: Mapping[str, str]
) -> Iterator[str]:
    """Yield the problems of a page: numbers in no claim, quotes that differ from the texts of their `sources`, ...

    Digits in names (ResNet50), code, addresses of links and comments are no measurements.
    """
    for source, quotes in scope.quoted.items():
        for words in quotes:
            if missing := sorted(_list_numbers(words) - _list_numbers(sources[source])):
                yield f"{source} has no {missing[0]}, so {words!r} is no quote of it"
    for reason in scope.unchecked:
        if not _compile(reason).search(page):
            yield f"the page does not say why some of its numbers are not checked: {reason!r}"
    for checked in claims:
        expected = _compile(checked.expected)
        page = (expected if expected.search(page) else _compile(checked.claim.text)).sub("\n", page)
    exempt = itertools.chain(*scope.quoted.values(), *scope.unchecked.values())
    for words in sorted(exempt, key=len, reverse=True):
        page, count = _compile(words).subn("\n", page)
        if not count:
            yield f"exempt words are not on the page: {words!r}"
    page = _CODE.sub("\n", page)
    for match in _NUMBER.finditer(page):
        around = page[max(0, match.start() - _AROUND) : match.end() + _AROUND]
        yield f"the number {match[0].strip('.,')} in {_join(around)!r} stands in no claim"


def _list_numbers(text: str) -> set[str]:
    return {number.strip(".") for number in re.findall(r"(?<!\w)\d[\w.]*", _THOUSANDS.sub("", text))}


def write_numbers(page: str, claims: Iterable[CheckedClaim]) -> str:
    """Return the page with the numbers of the bundles in the words of each claim."""
    for checked in claims:
        if not checked.problem and not _compile(checked.expected).search(page):
            numbers = [checked.numbers[name] for name in PLACEHOLDER.findall(checked.claim.text)]
            page = _compile(checked.claim.text).sub(functools.partial(_replace, numbers=numbers), page)
    return page


def _replace(match: re.Match[str], numbers: Sequence[str]) -> str:
    parts, position = [], match.start()
    for index, number in enumerate(numbers, 1):
        parts += [match.string[position : match.start(index)], number]
        position = match.end(index)
    return "".join([*parts, match.string[position : match.end()]])


@functools.cache
def _compile(text: str) -> re.Pattern[str]:
    """Compile words for a search that ignores where lines break; a placeholder matches any number."""
    literal = [r"\s+".join(map(re.escape, re.split(r"\s+", part))) for part in PLACEHOLDER.split(text)[::2]]
    if not literal[0] and len(literal) > 1:
        literal[:2] = [_FIRST_NUMBER + literal[1]]
    return re.compile(_BEGIN + _ANY_NUMBER.join(literal) + _END)


def _join(text: str) -> str:
    return " ".join(text.split())
