"""The command `python -m pipeline.report claims`: the numbers of pages against the bundles that they come from."""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from pipeline.base.system import entry_points
from pipeline.base.system.errors import CollocationError, ConfigError
from pipeline.base.system.words import format_count
from pipeline.record.store.results import list_experiments
from pipeline.record.store.store_access import open_named
from pipeline.report.evaluate.claimed_figures import EvaluatedStudy, NoFigureError, evaluate_study, format_figure
from pipeline.report.page.claimed_words import CheckedClaim, find_difference, find_unclaimed, write_numbers
from pipeline.report.read import rows
from pipeline.report.read.claims_file import FOLDER, PATTERN, Claim, Claims, find_files, read_claims

COMMAND = "claims"
_HOLDS, _FAILS = "holds", "does not hold"


def main(argv: Sequence[str]) -> int:
    """Print for each claim whether it holds; return 1 if one does not, 2 for a broken file of claims."""
    options = _parser().parse_args(argv)
    try:
        claims = read_claims(options.files or find_files(options.folder))
    except CollocationError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    checked = check_claims(claims, options.folder)
    if options.write:
        for page in dict.fromkeys(claim.page for claim in claims.claims):
            if (file := options.folder / page).is_file():
                text = file.read_text(encoding="utf-8")
                file.write_text(
                    write_numbers(text, [one for one in checked if one.claim.page == page]), encoding="utf-8"
                )
    lines = list(list_findings(claims, checked, options.folder))
    num_failed = sum(bool(problem) for _, problem in lines)
    for words, problem in lines:
        sys.stdout.write(f"{_FAILS if problem else _HOLDS}: {words}{f' ({problem})' if problem else ''}\n")
    sys.stdout.write(f"{format_count(len(lines), 'check')}: {len(lines) - num_failed} hold, {num_failed} do not hold\n")
    return 1 if num_failed else 0


def check_claims(claims: Claims, folder: Path) -> list[CheckedClaim]:
    """Look up the numbers of all claims in their bundles; each bundle is read once."""
    return [_check(claim, folder) for claim in claims.claims]


def list_findings(claims: Claims, checked: Sequence[CheckedClaim], folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the words of each claim and of each complete page, with the problem; it is empty if there is none."""
    pages = {name: _read_page(folder / name) for name in (*(c.page for c in claims.claims), *claims.complete_pages)}
    for one in checked:
        page = pages[one.claim.page]
        yield f"{one.claim.page}: {one.expected}", "no such page" if page is None else find_difference(page, one)
    for name, scope in claims.complete_pages.items():
        page, of_page = pages[name], [one for one in checked if one.claim.page == name]
        problems = ["no such page"] if page is None else [*find_unclaimed(page, scope, of_page)]
        yield from ((f"{name}: every number is a claim", problem) for problem in problems or [""])


def _check(claim: Claim, folder: Path) -> CheckedClaim:
    numbers, problems = {}, []
    try:
        measured = _evaluate(folder / claim.bundle)
        for name, query in claim.numbers.items():
            try:
                numbers[name] = format_figure(query, measured)
            except NoFigureError as error:
                problems.append(f"{name}: {error}")
    except CollocationError as error:
        problems.append(f"no figure from {claim.bundle}: {error}")
    return CheckedClaim(claim=claim, numbers=numbers, problem="; ".join(problems))


@functools.cache
def _evaluate(bundle: Path) -> EvaluatedStudy:
    experiments = [name for name in list_experiments(open_named(bundle)) if name != "Default"]
    if len(experiments) != 1:
        raise ConfigError(f"{bundle} has {len(experiments)} experiments instead of one; name a bundle of one study")
    return evaluate_study(rows.read([bundle], experiments[0], pools_hosts=False))


def _read_page(file: Path) -> str | None:
    return file.read_text(encoding="utf-8") if file.is_file() else None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
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
    parser.add_argument("--write", action="store_true", help="first write the numbers of the bundles to the pages")
    return parser
