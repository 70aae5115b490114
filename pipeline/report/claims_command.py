"""The command `python -m pipeline.report claims`: the numbers of pages against the bundles that they come from."""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from pipeline.base.domain.normalisation import SPEEDUP
from pipeline.base.system import entry_points
from pipeline.base.system.command_parser import CommandParser
from pipeline.base.system.errors import CollocationError, ConfigError
from pipeline.base.system.words import format_count, group_by
from pipeline.record.store import bundle_reader
from pipeline.report.evaluate import paper
from pipeline.report.evaluate.selector import EvaluatedStudy, NoFigureError
from pipeline.report.page.claims import (
    FOLDER,
    PATTERN,
    CheckedClaim,
    Claim,
    Claims,
    Query,
    Show,
    find_difference,
    find_files,
    find_unclaimed,
    read_claims,
    write_numbers,
)
from pipeline.report.page.study_tables import make_tables
from pipeline.report.page.table_format import Table, round_value
from pipeline.report.read import rows
from pipeline.report.read.stressor_counters import add_counters

COMMAND = "claims"
_HOLDS, _FAILS = "holds", "does not hold"


def main(argv: Sequence[str]) -> int:
    """Print for each claim whether it holds; return 1 if one does not, 2 for a broken file of claims."""
    options = _parser().parse_args(argv)
    claims = read_claims(options.files or find_files(options.folder))
    if options.reproduced:
        lines = compare_reproduction(claims, options.folder, options.reproduced)
    else:
        checked = check_claims(claims, options.folder)
        if options.write:
            _write_pages(checked, options.folder)
        lines = list(list_checks(claims, checked, options.folder))
    num_failed = sum(bool(problem) for _, problem in lines)
    for words, problem in lines:
        sys.stdout.write(f"{_FAILS if problem else _HOLDS}: {words}{f' ({problem})' if problem else ''}\n")
    sys.stdout.write(f"{format_count(len(lines), 'check')}: {len(lines) - num_failed} hold, {num_failed} do not hold\n")
    return 1 if num_failed else 0


def _write_pages(checked: Sequence[CheckedClaim], folder: Path) -> None:
    for page, claims in group_by(checked, lambda one: one.claim.page).items():
        if (text := _read_page(folder / page)) is not None:
            (folder / page).write_text(write_numbers(text, claims), encoding="utf-8")


def check_claims(claims: Claims, folder: Path) -> list[CheckedClaim]:
    """Look up the numbers of all claims in their bundles; each bundle is read once."""
    return [_check(claim, folder) for claim in claims.claims]


def list_checks(claims: Claims, checked: Sequence[CheckedClaim], folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the words of each claim and of each complete page, with the problem; it is empty if there is none."""
    pages = {name: _read_page(folder / name) for name in (*(c.page for c in claims.claims), *claims.complete_pages)}
    for one in checked:
        page = pages[one.claim.page]
        yield f"{one.claim.page}: {one.expected}", "no such page" if page is None else find_difference(page, one)
    for name, scope in claims.complete_pages.items():
        page, of_page = pages[name], [one for one in checked if one.claim.page == name]
        sources = {source: _read_page(folder / source) or "" for source in scope.quoted}
        problems = ["no such page"] if page is None else [*find_unclaimed(page, scope, of_page, sources)]
        yield from ((f"{name}: every number is a claim", problem) for problem in problems or [""])


def compare_reproduction(claims: Claims, folder: Path, file: Path) -> list[tuple[str, str]]:
    """Compare the bundle of a reproduction with the claims about its experiment; return words and problem of each.

    Raises:
        ConfigError: a bundle cannot be read, or no claim about the experiment has a tolerance.
    """
    reproduced, checks = _evaluate(file), []
    for claim in claims.claims:
        for query in claim.numbers.values():
            if query.tolerance is None or query.show in (Show.TOLERANCE, Show.VERDICT):
                continue
            published = _evaluate(*(folder / name for name in query.bundle.split()))
            if published.study.experiment == reproduced.study.experiment:
                words, problem = _compare_figures(query, reproduced, published)
                checks.append((f"{claim.page}: {claim.text}: {words}", problem))
    if not checks:
        experiment = reproduced.study.experiment
        raise ConfigError(f"no claim about experiment {experiment!r} has a tolerance; name another bundle")
    return checks


def _compare_figures(query: Query, reproduced: EvaluatedStudy, published: EvaluatedStudy) -> tuple[str, str]:
    try:
        new, old = (query.find_estimate(study).median for study in (reproduced, published))
    except NoFigureError as error:
        return query.quantity, str(error)
    assert query.tolerance is not None
    words = f"{round_value(new)}, published {round_value(old)}, tolerance {100 * query.tolerance:g} %"
    if query.quantity == SPEEDUP:
        measured, cell = (query.find_cell(study.cells) for study in (reproduced, published))
        if cell.depends_on_host and not cell.shares_host(measured):
            return words, "a speed-up over serial holds for one host; remove the tolerance"
    return words, "" if abs(new - old) <= query.tolerance * abs(old) else "beyond the tolerance"


def _check(claim: Claim, folder: Path) -> CheckedClaim:
    numbers: dict[str, str] = {}
    problems: dict[str, None] = {}  # an unreadable bundle is one problem of all its numbers
    for name, query in claim.numbers.items():
        try:
            numbers[name] = _format(query, folder)
        except CollocationError as error:
            problems[str(error)] = None
        except (NoFigureError, ValueError) as error:  # the latter for a text in a combination
            problems[f"{name}: {error}"] = None
    return CheckedClaim(claim=claim, numbers=numbers, problem="; ".join(problems))


def _format(query: Query, folder: Path) -> str:
    if query.of:
        return query.format_combination([float(_format(part, folder)) for part in query.of])
    if query.table:
        return query.format_value(_make_tables(folder / query.bundle))
    return query.format_figure(_evaluate(*(folder / name for name in query.bundle.split())))


@functools.cache
def _make_tables(file: Path) -> list[Table]:
    measured = _evaluate(file)
    cells, verdicts = measured.cells, measured.comparisons
    return make_tables(add_counters(measured.study), cells, verdicts, (), paper.compare(cells, verdicts))


@functools.cache
def _evaluate(*files: Path) -> EvaluatedStudy:
    for file in files:
        if not file.is_file():
            raise ConfigError(f"{file} does not exist; export the study again")
    experiment, _ = bundle_reader.read_records(files[0].absolute())
    return EvaluatedStudy(rows.read(files, experiment, pools_hosts=len(files) > 1))


def _read_page(file: Path) -> str | None:
    return file.read_text(encoding="utf-8") if file.is_file() else None


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog=entry_points.spell("report", COMMAND),
        description="Check the measured numbers of pages against the bundles of their studies, evaluated as in a "
        "report. The exit status is 1 if a claim does not hold or has no figure.",
    )
    parser.add_argument(
        "files", nargs="*", type=Path, metavar="FILE", help=f"files of claims (default: {FOLDER / PATTERN})"
    )
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path(),
        metavar="DIR",
        help="folder of pages and bundles (default: the current one)",
    )
    reproduced_help = "compare the bundle of a reproduction with the claims about its experiment instead of pages"
    parser.add_argument("--reproduced", type=Path, metavar="BUNDLE", help=reproduced_help)
    parser.add_argument("--write", action="store_true", help="first write the numbers of the bundles to the pages")
    return parser
