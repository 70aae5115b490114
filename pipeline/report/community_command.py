"""The command `python -m pipeline.report community`: checks the entries of the public table and writes its page."""

from __future__ import annotations

import argparse
import html
import re
import sys
from collections.abc import Iterator, Sequence
from operator import attrgetter
from pathlib import Path

from pipeline.base.system import entry_points
from pipeline.base.system.command_parser import CommandParser
from pipeline.base.system.errors import ConfigError
from pipeline.base.system.words import format_count
from pipeline.report import entries
from pipeline.report.entries import Entry
from pipeline.report.evaluate.entry import CPU
from pipeline.report.evaluate.public_table import OVER_GRAPH, Find, PublicRow, find_surprises, make_rows
from pipeline.report.page.table_format import round_value

COMMAND = "community"
PAGE = Path("docs/community.md")
_BEGIN, _END = "<!-- The table is written by `make community`. -->\n", "<!-- Here it ends. -->"
_HEADS = ("workload", "mode", "copies", "over one CUDA graph", "over serial", "energy", "one alone", "machines")
_FIGURES: tuple[Find, ...] = (OVER_GRAPH, attrgetter("over_serial"), attrgetter("energy"))


def main(argv: Sequence[str]) -> int:
    """Check all entries, and write the page if all are accepted; return the exit status."""
    options = make_parser().parse_args(argv)
    root = options.root.absolute()
    accepted, num_refused = list[Entry](), 0
    for folder in entries.list_folders(root):
        try:
            entry = entries.read(root, folder)
            problems = [*entry.refusals, *_find_copies(entry, accepted)]
        except ConfigError as error:
            problems = [str(error)]
        name = folder.relative_to(root)
        if problems:
            num_refused += 1
            sys.stdout.write("".join(f"{name}: refused: {problem}\n" for problem in problems))
            continue
        accepted.append(entry)
        notes = "".join(f"; {note}" for note in entry.evaluation.notes)
        sys.stdout.write(f"{name}: {format_count(entry.evaluation.num_groups, 'group')}{notes}\n")
    rows = make_rows([entry.evaluation for entry in accepted])
    for number, entry in enumerate(accepted):
        for surprise in find_surprises(rows, number):
            sys.stdout.write(f"{entry.folder.relative_to(root)}: please explain: {surprise}\n")
    refused = f", {num_refused} refused" if num_refused else ""
    sys.stdout.write(f"{len(accepted)} {'entry' if len(accepted) == 1 else 'entries'} accepted{refused}\n")
    if num_refused:
        return 1
    return _write_page(root / PAGE, "\n".join(_list_lines(accepted, rows)), is_checked=options.check)


def _find_copies(entry: Entry, accepted: Sequence[Entry]) -> Iterator[str]:
    for other in accepted:
        same = attrgetter("evaluation.start", "evaluation.gpus")
        if same(other) == same(entry):
            yield f"it has the measurements of {other.folder.name}"


def _write_page(page: Path, table: str, *, is_checked: bool) -> int:
    before = page.read_text(encoding="utf-8")
    head, begin, rest = before.partition(_BEGIN)
    _, end, tail = rest.partition(_END)
    if not end:
        raise ConfigError(f"{page} lacks the lines {_BEGIN.strip()} and {_END}; restore the page")
    text = f"{head}{begin}{table}\n\n{end}{tail}"
    if is_checked and text != before:
        sys.stdout.write(f"{page} is not up to date; run make community, and commit the page\n")
        return 1
    page.write_text(text, encoding="utf-8")
    return 0


def _list_lines(accepted: Sequence[Entry], rows: Sequence[PublicRow]) -> Iterator[str]:
    devices = sorted({row.device for row in rows}, key=lambda device: (device.startswith(f"{CPU}:"), device))
    for device in devices:
        yield f"\n## {_escape(device)}\n"
        if device.startswith(f"{CPU}:"):
            yield "Measured on a CPU: about that machine, not about a GPU.\n"
        heads = "".join(f'<th scope="col">{head}</th>' for head in _HEADS)
        yield f'<div class="public-table"><table class="public">\n<thead><tr>{heads}</tr></thead>\n<tbody>'
        yield from (_make_line(row, accepted) for row in rows if row.device == device)
        yield "</tbody>\n</table></div>"
    yield "\n## Promises of MIG\n"
    boards = [entry for entry in accepted if entry.evaluation.promises]
    for entry in boards:
        verdicts = ", ".join(f"{name} {verdict}" for name, verdict in entry.evaluation.promises.items())
        by = f", by {entry.file.contact}" if entry.file.contact else ""
        yield f"- {_escape(f'{entry.evaluation.device}, driver {entry.evaluation.driver}{by}: {verdicts}')}"
    if not boards:
        yield "None has been tried on a real board yet. [Acceptance](acceptance.md) takes 30 minutes on one."


def _make_line(row: PublicRow, accepted: Sequence[Entry]) -> str:
    words = f"{row.device} {row.label} {row.mode} {row.degree}"
    place = re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-")
    entries_of_row = [accepted[number] for number in row.members]
    rates = row.list_medians(attrgetter("alone"))
    unit = next(iter(row.members.values())).unit
    alone = " to ".join(dict.fromkeys(round_value(find(rates)) for find in (min, max))) if rates else ""
    links = ", ".join(f'<a href="{_find_report(entry)}">{entry.evaluation.date}</a>' for entry in entries_of_row)
    cells = [
        f'<a href="#{place}">{_escape(row.label)}</a>',
        _escape(row.mode),
        str(row.degree),
        *(row.describe(find) for find in _FIGURES),
        _escape(f"{alone} {unit}/s") if alone else "",
        f"{len(row.machines)}: {links}",
    ]
    return f'<tr id="{place}">{"".join(f"<td>{cell}</td>" for cell in cells)}</tr>'


def _find_report(entry: Entry) -> str:
    """Return the place of an entry's report in the site."""
    if entry.file.bundle in entries.BUNDLES:
        return f"{'/'.join(entry.folder.parts[-3:])}/index.html"
    return f"results/{entry.bundle.name.removesuffix('.tar.xz')}/index.html"


def _escape(text: str) -> str:
    """Escape a text for HTML within Markdown."""
    return re.sub(r"[\\`*_\[\]{}|]", lambda match: f"&#{ord(match[0])};", html.escape(text))


def make_parser(*_: str) -> argparse.ArgumentParser:
    """Return the parser of the command."""
    parser = CommandParser(
        prog=entry_points.spell("report", COMMAND),
        description=f"Evaluate each entry in {entries.FOLDER}/ of a clone, and write the table in {PAGE}.",
    )
    parser.add_argument("--root", type=Path, default=Path(), metavar="CLONE", help="the clone (default: .)")
    parser.add_argument("--check", action="store_true", help="change nothing; fail if the page is not up to date")
    return parser
