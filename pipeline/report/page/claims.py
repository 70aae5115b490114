"""Claims: words of a page with measured numbers, and the figure of a bundle behind each number.

`docs/results/claims.yaml` explains the files of claims.
"""

from __future__ import annotations

import enum
import functools
import itertools
import re
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from pipeline.base.system.errors import ConfigError
from pipeline.base.system.json_decoder import JsonValueError, decode
from pipeline.report.evaluate.selector import EvaluatedStudy, NoFigureError, Selector
from pipeline.report.evaluate.statistics import Estimate, half_width
from pipeline.report.page.table_format import Table

FOLDER, PATTERN = Path("docs/results"), "*claims*.yaml"
_PLACEHOLDER = re.compile(r"\{(\w+)\}")
_ANY_NUMBER = r"([^\s|][^|]{0,60}?)"
_FIRST_NUMBER = r"(-?\d[\d.,]*(?: \([^()|]*\))?)"
"""A number at the begin of a claim, where `_ANY_NUMBER` would begin up to 60 characters too early."""
_BEGIN, _END = r"(?<!\w)(?<!\d[.,])", r"(?!\w)(?![.,]\d)"
"""Bounds of the words of a claim, which do not begin or end within a number."""
_CODE = re.compile(
    r"<!-- made by .*?<!-- end -->|^ *```.*?^ *```|`[^`]*`|\]\([^)]*\)|<!--.*?-->", re.MULTILINE | re.DOTALL
)
_NUMBER = re.compile(r"(?<!\w)\d[\w.,]*")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_AROUND = 25
_COMBINATIONS: dict[str, Callable[[Sequence[float]], float]] = {
    "least": min,
    "most": max,
    "mean": statistics.fmean,
    "median": statistics.median,
    "ratio": lambda figures: figures[0] / figures[1],
    "difference": lambda figures: figures[0] - figures[1],
    "distance": lambda figures: abs(figures[0] / figures[1] - 1),
    "above_1": lambda figures: sum(figure > 1 for figure in figures),
}
"""Quantities of the figures of several queries."""


class Show(enum.StrEnum):
    """The part of an estimate or comparison that a placeholder shows."""

    MEDIAN = "median"
    LOW = "low"
    HIGH = "high"
    INTERVAL = "interval"
    ESTIMATE = "estimate"
    HALF_WIDTH = "half_width"
    BLOCKS = "blocks"
    VERDICT = "verdict"
    P_EQUAL = "p_equal"
    TOLERANCE = "tolerance"
    RECORDED = "recorded"


@dataclass(frozen=True, slots=True, kw_only=True)
class Query(Selector):
    """The figure behind a placeholder, and the form in which it is shown.

    Attributes:
        bundle: file, relative to the folder of the project; several, with spaces between them, are pooled.
        table: table of the report; the figure stands in its column `quantity`, in the row that has the texts `row`.
        of: queries whose figures are combined as `quantity` says (least, most, mean, ...).
        scale: factor by which the figure is multiplied before it is formatted.
        format: Python's format specification of a number (`.2f`), or of a recorded text.
        marks: words of each mark that the figure has; the page mentions what they say.
        tolerance: largest relative difference of a reproduction on the same GPU model; `None` for no reproduction.
    """

    bundle: str = ""
    of: tuple[Query, ...] = ()
    table: str = ""
    row: tuple[str, ...] = ()
    show: Show = Show.MEDIAN
    scale: float = 1.0
    format: str = ""
    marks: tuple[str, ...] = ()
    tolerance: float | None = None

    def format_figure(self, measured: EvaluatedStudy) -> str:
        """Return the text that stands for the query on its page.

        Raises:
            NoFigureError: the study has no such figure, or its marks are not those of the query.
        """
        if self.show is Show.TOLERANCE:
            return self._format_number(self.tolerance or 0.0)
        if self.show is Show.RECORDED:
            return format(self.find_recorded(measured.study), self.format)
        if self.show is Show.VERDICT:
            text = self.find_verdict(measured.comparisons).decision.value
        elif self.show is Show.P_EQUAL:
            p_equal = self.test_cases(measured.cells).p_equal
            text = self._format_number(float("nan") if p_equal is None else p_equal)
        else:
            text = self.format_estimate(self.find_estimate(measured))
        marks = self.list_marks(measured)
        for mark in marks:
            if not any(words in mark for words in self.marks):
                raise NoFigureError(f"the figure is marked: {mark}")
        for words in self.marks:
            if not any(words in mark for mark in marks):
                raise NoFigureError(f"the figure is not marked {words!r}")
        return text

    def format_combination(self, figures: Sequence[float]) -> str:
        """Return the text of a combination of figures; raise `NoFigureError` if there is no such one."""
        try:
            return self._format_number(_COMBINATIONS[self.quantity](figures))
        except (LookupError, ArithmeticError) as error:
            names = ", ".join(_COMBINATIONS)
            raise NoFigureError(f"{self.quantity} does not combine {len(figures)} figures; use {names}") from error

    def format_value(self, tables: Sequence[Table]) -> str:
        """Return the text of a value of a table; the columns after an estimate have the ends of its interval.

        Raises:
            NoFigureError: no row of the table, or several, have the texts `row` and a value of the quantity.
        """
        hits = [
            (*row, None, None)[table.columns.index(self.quantity) :][:3]
            for table in tables
            if table.name == self.table and self.quantity in table.columns
            for row in table.rows
            if not Counter(self.row) - Counter(map(str, row))
        ]
        if len(hits) != 1 or hits[0][0] is None:
            columns = {table.name: table.columns for table in tables}
            raise NoFigureError(f"{len(hits)} rows of {self.table} have {self.row}, {self.quantity}; tables: {columns}")
        median, *ends = hits[0]
        if not isinstance(median, int | float):
            return str(median)
        low, high = (value if isinstance(value, int | float) else None for value in ends)
        return self.format_estimate(Estimate(median=median, low=low, high=high, n=1))

    def format_estimate(self, estimate: Estimate) -> str:
        """Return the part of an estimate that is shown; raise `NoFigureError` if the estimate has no interval."""
        if self.show is Show.BLOCKS:
            return str(estimate.n)
        median = self._format_number(estimate.median)
        if self.show is Show.MEDIAN:
            return median
        if estimate.low is None or estimate.high is None:
            raise NoFigureError(f"{self.quantity} has no interval ({estimate.n} blocks)")
        low, high = self._format_number(estimate.low), self._format_number(estimate.high)
        shown = {
            Show.LOW: low,
            Show.HIGH: high,
            Show.INTERVAL: f"{low} to {high}",
            Show.ESTIMATE: f"{median} ({low} to {high})",
            Show.HALF_WIDTH: self._format_number(half_width(estimate) or 0.0),
        }
        return shown[self.show]

    def _format_number(self, number: float) -> str:
        return format(number * self.scale, self.format or ".2f")

    def list_problems(self) -> Iterator[str]:
        """Yield the mistakes of the query, each after the name of the query."""
        try:
            format(1.0, self.format)
        except ValueError:
            yield f".format {self.format!r} formats no number; use one such as .2f"
        if not self.bundle and not self.of:
            yield " has no bundle; add bundle: FILE"
        if self.show is Show.TOLERANCE and self.tolerance is None:
            yield " shows a tolerance but has none; add tolerance: 0.05"
        if self.show is Show.P_EQUAL and not (self.over and self.margin):
            yield " shows a p value of equality; add over: CASE and margin: 0.01"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Words of a page with placeholders for numbers.

    Attributes:
        page: file, relative to the folder of the project.
        numbers: the query of each placeholder.
    """

    page: str
    text: str
    numbers: Mapping[str, Query]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletePage:
    """A page on which every number must stand in a claim or be exempt.

    Attributes:
        quoted: words with numbers that another file has too, by this file, relative to the folder of the project.
        unchecked: words with numbers that nothing can check, by the words of the page that say so.
    """

    quoted: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    unchecked: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claims:
    """The content of one or several files of claims."""

    claims: tuple[Claim, ...] = ()
    complete_pages: Mapping[str, CompletePage] = field(default_factory=dict)


def find_files(folder: Path) -> list[Path]:
    """Return the files of claims in a clone of the project; raise `ConfigError` if there is none."""
    if files := sorted((folder / FOLDER).glob(PATTERN)):
        return files
    raise ConfigError(
        f"{folder.absolute()} has no {FOLDER / PATTERN}; change to the folder of a clone, or name a file of claims"
    )


def read_claims(files: Sequence[Path]) -> Claims:
    """Read files of claims as one.

    Raises:
        ConfigError: a file cannot be read or is invalid, or two files describe the same complete page.
    """
    contents = [_read(file) for file in files]
    pages: dict[str, CompletePage] = {}
    for file, content in zip(files, contents, strict=True):
        if twice := pages.keys() & content.complete_pages.keys():
            raise ConfigError(f"{file} describes the complete page {min(twice)} a second time; remove one of the two")
        pages |= content.complete_pages
    return Claims(claims=tuple(claim for content in contents for claim in content.claims), complete_pages=pages)


def _read(file: Path) -> Claims:
    import yaml

    try:
        content = decode(Claims, _fill_in_defaults(yaml.safe_load(file.read_text(encoding="utf-8"))))
        for problem in _list_problems(content):
            raise ConfigError(f"{file}: {problem}")
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}; name a file of claims") from error
    except JsonValueError as error:
        raise ConfigError(f"{file}: {error}; correct this value") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} is not valid YAML: {' '.join(str(error).split())}; correct it") from error
    return content


def _fill_in_defaults(raw: Any) -> Any:
    """Copy the keys of a query that stand beside `numbers` to every query of the claim."""
    if not isinstance(raw, dict) or not isinstance(raw.get("claims"), list):
        return raw
    keys = {query_field.name for query_field in fields(Query)}
    claims = []
    for claim in raw["claims"]:
        if isinstance(claim, dict) and isinstance(numbers := claim.get("numbers"), dict):
            shared = {key: claim[key] for key in claim if key in keys}
            filled = {name: _fill_in_query(query, shared) for name, query in numbers.items()}
            claim = {**{key: claim[key] for key in claim if key not in keys}, "numbers": filled}
        claims.append(claim)
    return {**raw, "claims": claims}


def _fill_in_query(query: Any, shared: Mapping[str, Any]) -> Any:
    """Copy shared keys to a query; of a combination, the parts are exact, with a scale of their own or none."""
    if not isinstance(query, dict):
        return query
    query = {**shared, **query}
    if isinstance(query.get("of"), list):
        parts = [_fill_in_query(part, {**shared, "of": [], "show": "median", "scale": 1.0}) for part in query["of"]]
        query["of"] = [{**part, "format": ".15g"} if isinstance(part, dict) else part for part in parts]
    return query


def _list_problems(content: Claims) -> Iterator[str]:
    for number, claim in enumerate(content.claims):
        names, place = _PLACEHOLDER.findall(claim.text), f"claims[{number}]"
        if not names:
            yield f"{place}.text has no {{placeholder}}; put one where a measured number stands"
        if differing := sorted({*names} ^ claim.numbers.keys()):
            yield f"{place} has {differing[0]} either in text or in numbers only; add it to the other one"
        for name, query in claim.numbers.items():
            yield from (f"{place}.numbers.{name}{problem}" for problem in query.list_problems())


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedClaim:
    """A claim and the texts of its numbers by placeholder, or the reason why there are none."""

    claim: Claim
    numbers: Mapping[str, str]
    problem: str = ""

    @property
    def expected(self) -> str:
        """The words of the page, with the numbers of the bundle where they are known."""
        return _PLACEHOLDER.sub(lambda match: self.numbers.get(match[1], match[0]), self.claim.text)


def find_difference(page: str, checked: CheckedClaim) -> str:
    """Return how a page differs from a claim, such as `page says 0.85, bundle gives 0.84`; empty if it does not."""
    if checked.problem:
        return checked.problem
    if _compile(checked.expected).search(page):
        return ""
    match = _compile(checked.claim.text).search(page)
    if match is None:
        return f"the page has no words {checked.expected!r}"
    numbers = [checked.numbers[name] for name in _PLACEHOLDER.findall(checked.claim.text)]
    pairs = dict.fromkeys(zip(map(_join, match.groups()), numbers, strict=True))
    return "; ".join(f"page says {shown}, bundle gives {number}" for shown, number in pairs if shown != number)


def find_unclaimed(
    page: str, scope: CompletePage, claims: Iterable[CheckedClaim], sources: Mapping[str, str]
) -> Iterator[str]:
    """Yield the problems of a page: numbers in no claim, quotes that differ from the texts of their `sources`, ...

    Digits in names (ResNet50), code, addresses of links and comments are no measurements, and a test compares the
    text between `<!-- made by PROGRAM -->` and `<!-- end -->` with what the program prints.
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
            numbers = [checked.numbers[name] for name in _PLACEHOLDER.findall(checked.claim.text)]
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
    literal = [r"\s+".join(map(re.escape, re.split(r"\s+", part))) for part in _PLACEHOLDER.split(text)[::2]]
    if not literal[0] and len(literal) > 1:
        literal[:2] = [_FIRST_NUMBER + literal[1]]
    return re.compile(_BEGIN + _ANY_NUMBER.join(literal) + _END)


def _join(text: str) -> str:
    return " ".join(text.split())
