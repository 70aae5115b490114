"""Files of claims: words of a page with measured numbers, and the figure of a bundle behind each number.

`docs/results/claims.yaml` explains the format.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from pipeline.base.system.errors import ConfigError
from pipeline.base.system.json_decoder import JsonValueError, decode

FOLDER, PATTERN = Path("docs/results"), "*claims*.yaml"
PLACEHOLDER = re.compile(r"\{(\w+)\}")


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
class Query:
    """The figure behind a placeholder: of a cell, of a comparison (with `against`), or of the study (without `case`).

    Attributes:
        bundle: file, relative to the folder of the project; several, with spaces between them, are pooled.
        over: another case of the study with this number of jobs and mode; the figure is the ratio in the same blocks.
        margin: relative difference within which the two cases are tested to be equal.
        jobs: number of jobs of the cell.
        block: the only block that counts; `None` for all blocks.
        table: table of the report; the figure stands in its column `quantity`, in the row that has the texts `row`.
        of: queries whose figures are combined as `quantity` says (least, most, mean, ...).
        scale: factor by which the figure is multiplied before it is formatted.
        format: Python's format specification of a number (`.2f`), or of a recorded text.
        marks: words of each mark that the figure has; the page mentions what they say.
        tolerance: largest relative difference of a reproduction on the same GPU model; `None` for no reproduction.
    """

    quantity: str
    bundle: str = ""
    of: tuple[Query, ...] = ()
    table: str = ""
    row: tuple[str, ...] = ()
    case: str = ""
    jobs: int = 1
    block: int | None = None
    mode: str = ""
    against: str = ""
    over: str = ""
    margin: float | None = None
    show: Show = Show.MEDIAN
    scale: float = 1.0
    format: str = ""
    marks: tuple[str, ...] = ()
    tolerance: float | None = None


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
    """Return the files of claims in a clone of the project.

    Raises:
        ConfigError: there is none.
    """
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
    """Copy shared keys to a query; the parts of a combination are neither rounded nor scaled."""
    if not isinstance(query, dict):
        return query
    query = {**shared, **query}
    if isinstance(query.get("of"), list):
        exact = {**shared, "of": [], "show": "median", "format": ".15g", "scale": 1.0}
        query["of"] = [_fill_in_query(part, exact) for part in query["of"]]
    return query


def _list_problems(content: Claims) -> Iterator[str]:
    for number, claim in enumerate(content.claims):
        names, where = PLACEHOLDER.findall(claim.text), f"claims[{number}]"
        if not names:
            yield f"{where}.text has no {{placeholder}}; put one where a measured number stands"
        if differing := sorted({*names} ^ claim.numbers.keys()):
            yield f"{where} has {differing[0]} either in text or in numbers only; add it to the other one"
        for name, query in claim.numbers.items():
            try:
                format(1.0, query.format)
            except ValueError:
                yield f"{where}.numbers.{name}.format {query.format!r} formats no number; use one such as .2f"
            if not query.bundle and not query.of:
                yield f"{where}.numbers.{name} has no bundle; add bundle: FILE"
            if query.show is Show.TOLERANCE and query.tolerance is None:
                yield f"{where}.numbers.{name} shows a tolerance but has none; add tolerance: 0.05"
            if query.show is Show.P_EQUAL and not (query.over and query.margin):
                yield f"{where}.numbers.{name} shows a p value of equality; add over: CASE and margin: 0.01"
