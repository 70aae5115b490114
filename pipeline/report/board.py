"""The command `python -m pipeline.report board`: several studies and GPUs in one table.

It reads the `cases.json` of reports, or studies from stores. Each of them keeps its own baselines, blocks and verdicts.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from pipeline.base.system import entry_points, tracking_root
from pipeline.base.system.errors import CollocationError, ConfigError
from pipeline.record.store.results import list_experiments
from pipeline.record.store.store_access import open_named
from pipeline.report.evaluate import outcomes, verdicts
from pipeline.report.evaluate.board import Column, board_of
from pipeline.report.evaluate.cells import cells_of
from pipeline.report.evaluate.outcomes import Measured
from pipeline.report.page import board as page
from pipeline.report.page.table_format import to_csv
from pipeline.report.publish import BOARD, CASES, MANIFEST, PAGE, check_folder, replace
from pipeline.report.read import rows

COMMAND = "board"
DEFAULT_FOLDER = Path("reports/board")
_AGAIN = "write the report again with this version"


def main(argv: Sequence[str]) -> int:
    """Write one board and print it; returns the exit status: 2 for whatever it cannot be written for."""
    options = _parser().parse_args(argv)
    try:
        check_folder(options.out, options.experiment)
        found = [*_published(options.reports), *_stored(options)]
        if not found:
            raise ConfigError(
                "a board needs studies: name folders of reports, or experiments of stores with --experiment"
            )
        _refuse_equal(found)
        board = board_of(columns_of(found))
        if not board.lines:
            raise ConfigError("none of these studies ran jobs in a sharing mode, so there is no board of them")
        contents = {BOARD: to_csv(page.table(board)), PAGE: page.render(board)}
        experiments = list(dict.fromkeys(column.measured.experiment for column in board.columns))
        says = {"simulated": any(column.measured.stamp for column in board.columns)}
        files = {name: text.encode("utf-8", "replace") for name, text in contents.items()}
        written = replace(options.out, experiments, says, files)
    except CollocationError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    sys.stdout.write(f"{page.in_lines(board)}\nboard: {written.page.absolute()}\n")
    return 0


def _published(folders: Sequence[Path]) -> Iterator[tuple[str, Measured]]:
    """What reports say in their files, each with the folder that it is from."""
    seen: set[Path] = set()
    for folder in folders:
        if folder.resolve() in seen:
            raise ConfigError(f"{folder} is named twice, and its study would stand beside itself; name it once")
        seen.add(folder.resolve())
        try:
            text = (folder / CASES).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            has_report = (folder / MANIFEST).is_file()
            instead = _AGAIN if has_report else "name the folder of a report"
            why = getattr(error, "strerror", None) or error
            raise ConfigError(f"{folder}: {CASES} cannot be read: {why}; {instead}") from error
        try:
            for each in outcomes.from_json(text):
                yield str(folder), each
        except ConfigError as error:
            raise ConfigError(
                f"cannot use {folder / CASES}: {error}; write the report again with this version"
            ) from error


def _stored(options: argparse.Namespace) -> Iterator[tuple[str, Measured]]:
    """What studies in stores give: each experiment of each store is a study of its own."""
    stores = [*options.root, *options.uri] or [tracking_root.DEFAULT]
    different = {*(root.resolve() for root in options.root), *(uri.rstrip("/") for uri in options.uri)}
    is_twice = len(different) < len(options.root) + len(options.uri)
    if is_twice or len(set(options.experiment)) < len(options.experiment):
        raise ConfigError("a study is named twice, and would stand beside itself; name each experiment and store once")
    names = {store: list_experiments(open_named(store)) for store in stores} if options.experiment else {}
    for experiment in options.experiment:
        having = [store for store in stores if experiment in names[store]]
        if not having:
            there = sorted({repr(name) for found in names.values() for name in found if name != "Default"})
            raise ConfigError(
                f"there is no experiment {experiment!r} in {', '.join(map(str, stores))}; "
                f"there is: {', '.join(there) or 'none'}; choose with --experiment"
            )
        for store in having:
            yield from ((str(store), measured) for measured in _measured_in(store, experiment))


def _refuse_equal(found: Sequence[tuple[str, Measured]]) -> None:
    """Refuse a study beside its copy, or its report."""
    for (source, each), (other, its) in itertools.combinations(found, 2):
        if each == its:
            raise ConfigError(
                f"{source} and {other} have the same figures of {each.experiment!r} on {each.device}: "
                "a study would stand beside itself; name one of them"
            )


def _measured_in(store: Path | str, experiment: str) -> Iterator[Measured]:
    studies = rows.read_apart(store, experiment)
    if not any(study.rows for study in studies):
        raise ConfigError(f"there is no group with a result in experiment {experiment!r} of {store}; leave it out")
    for study in studies:
        cells = cells_of(study)
        found = verdicts.verdicts(cells)
        yield from outcomes.measured(study, cells, found, verdicts.winners(cells, found))


def columns_of(found: Sequence[tuple[str, Measured]]) -> list[Column]:
    """Columns called by the device and, of one device, by the first of study, host and folder that tells them apart."""
    of_each = [
        (each.device or "unknown device", each.experiment, each.host, Path(source).name or source)
        for source, each in found
    ]
    return [
        Column(number=place + 1, name=_name(of_each, place), source=source, measured=each)
        for place, (source, each) in enumerate(found)
    ]


def _name(of_each: Sequence[tuple[str, ...]], place: int) -> str:
    device, *others = of_each[place]
    same = [each for other, each in enumerate(of_each) if other != place and each[0] == device]
    for which, word in enumerate(others, 1):
        if all(each[which] != word for each in same):
            return f"{device}, {word}" if same else device
    return ", ".join(filter(None, (device, *others[:2])))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=entry_points.spell("report", COMMAND),
        description="Several studies and GPUs in one table: the best sharing mode of each case, its gain and energy, "
        "and whether the verdicts agree. Writes a page and board.csv.",
    )
    parser.add_argument("reports", nargs="*", type=Path, metavar="REPORT", help="folder of a report")
    parser.add_argument(
        "--experiment", nargs="+", default=[], metavar="NAME", help="studies in stores, as tracking.experiment"
    )
    root = f"folder of a local store; {tracking_root.DEFAULT}. Given again, its studies are columns of their own"
    parser.add_argument("--root", type=Path, action="append", default=[], help=root)
    parser.add_argument("--uri", action="append", default=[], help="tracking server, like --root")
    parser.add_argument("--out", type=Path, default=DEFAULT_FOLDER, metavar="DIR", help=f"default: {DEFAULT_FOLDER}")
    return parser
