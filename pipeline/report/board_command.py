"""The command `python -m pipeline.report board`: several studies and GPUs in one table.

The command reads the `cases.json` of reports, or studies from stores. Each study has its own baselines, blocks and
verdicts.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from pipeline.base.system import entry_points, paths
from pipeline.base.system.command_parser import CommandParser
from pipeline.base.system.errors import CollocationError, ConfigError
from pipeline.report.evaluate import outcomes, verdicts
from pipeline.report.evaluate.cells import make_cells
from pipeline.report.evaluate.outcomes import DeviceSummary
from pipeline.report.evaluate.study_board import Column, make_board
from pipeline.report.page import board_page as page
from pipeline.report.page.table_format import to_csv
from pipeline.report.publish import BOARD, CASES, MANIFEST, PAGE, check_folder, replace
from pipeline.report.read import rows
from pipeline.report.read.stores import find_stores

COMMAND = "board"
DEFAULT_FOLDER = Path("reports/board")


def main(argv: Sequence[str]) -> int:
    """Write one board and print it; return the exit status."""
    options = _parser().parse_args(argv)
    try:
        check_folder(options.out, options.experiment)
        studies = [*_read_reports(options.reports), *_read_stores(options)]
        if not studies:
            raise ConfigError("the board has no studies; pass folders of reports, or experiments with --experiment")
        _refuse_equal(studies)
        board = make_board(make_columns(studies))
        if not board.lines:
            raise ConfigError("the studies of the board have serial groups only; choose studies with a sharing mode")
        contents = {BOARD: to_csv(page.table(board)), PAGE: page.render(board)}
        experiments = list(dict.fromkeys(column.measured.experiment for column in board.columns))
        says = {"simulated": any(column.measured.stamp for column in board.columns)}
        files = {name: text.encode("utf-8", "replace") for name, text in contents.items()}
        written = replace(options.out, experiments, says, files)
    except CollocationError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    sys.stdout.write(f"{page.format_lines(board)}\nboard: {written.page.absolute()}\n")
    return 0


def _read_reports(folders: Sequence[Path]) -> Iterator[tuple[str, DeviceSummary]]:
    for folder in folders:
        try:
            text = (folder / CASES).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            has_report = (folder / MANIFEST).is_file()
            instead = "write the report again with this version" if has_report else "pass the folder of a report"
            why = getattr(error, "strerror", None) or error
            raise ConfigError(f"cannot read {folder / CASES}: {why}; {instead}") from error
        try:
            for study in outcomes.from_json(text):
                yield str(folder), study
        except ConfigError as error:
            raise ConfigError(f"cannot use {folder / CASES}: {error}; write this report again") from error


def _read_stores(options: argparse.Namespace) -> Iterator[tuple[str, DeviceSummary]]:
    stores = [*options.root, *options.uri] or [paths.DEFAULT_ROOT]
    different = {*(root.resolve() for root in options.root), *(uri.rstrip("/") for uri in options.uri)}
    is_twice = len(different) < len(options.root) + len(options.uri)
    if is_twice or len(set(options.experiment)) < len(options.experiment):
        raise ConfigError("an experiment or a store is named twice; name each experiment and each store once")
    for experiment in options.experiment:
        for store in find_stores(stores, experiment):
            yield from ((str(store), measured) for measured in _measured_in(store, experiment))


def _refuse_equal(studies: Sequence[tuple[str, DeviceSummary]]) -> None:
    for (source, study), (other, other_study) in itertools.combinations(studies, 2):
        if study == other_study:
            raise ConfigError(
                f"{source} and {other} have the same figures for {study.experiment!r} on {study.device}; name only one"
            )


def _measured_in(store: Path | str, experiment: str) -> Iterator[DeviceSummary]:
    studies = rows.read_apart(store, experiment)
    if not any(study.rows for study in studies):
        raise ConfigError(f"experiment {experiment!r} in {store} has no group with a result; choose another experiment")
    for study in studies:
        cells = make_cells(study)
        comparisons = verdicts.verdicts(cells)
        yield from outcomes.summarize_devices(study, cells, comparisons, verdicts.winners(cells, comparisons))


def make_columns(studies: Sequence[tuple[str, DeviceSummary]]) -> list[Column]:
    """Make the columns; name each by its device and, if several have this device, by study, host or folder too."""
    all_names = [
        (study.device or "unknown device", study.experiment, study.host, Path(source).name or source)
        for source, study in studies
    ]
    return [
        Column(number=place + 1, name=_name(all_names, place), source=source, measured=study)
        for place, (source, study) in enumerate(studies)
    ]


def _name(all_names: Sequence[tuple[str, ...]], place: int) -> str:
    device, *distinctions = all_names[place]
    same = [names for other, names in enumerate(all_names) if other != place and names[0] == device]
    for which, word in enumerate(distinctions, 1):
        if all(names[which] != word for names in same):
            return f"{device}, {word}" if same else device
    return ", ".join(filter(None, (device, *distinctions[:2])))


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog=entry_points.spell("report", COMMAND),
        description="Write one table of several studies and GPUs: the best sharing mode of each case, its speed-up and "
        "energy, and whether the verdicts agree. The command writes a page and board.csv.",
    )
    parser.add_argument("reports", nargs="*", type=Path, metavar="REPORT", help="folder of a report")
    parser.add_argument(
        "--experiment", nargs="+", default=[], metavar="NAME", help="studies in stores, by their tracking.experiment"
    )
    root = f"folder of a local store (default: {paths.DEFAULT_ROOT}); repeat the option to add a store"
    parser.add_argument("--root", type=Path, action="append", default=[], help=root)
    parser.add_argument(
        "--uri", action="append", default=[], help="URI of a tracking server; repeat the option to add a server"
    )
    parser.add_argument("--out", type=Path, default=DEFAULT_FOLDER, metavar="DIR", help=f"default: {DEFAULT_FOLDER}")
    return parser
