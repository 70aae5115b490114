"""The command `python -m pipeline.report board`: several studies and GPUs in one table.

The command reads the `cases.json` of reports, or studies from stores. Each study has its own baselines, blocks and
verdicts.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from pipeline.base.domain.sharing_modes import MODES, SERIAL
from pipeline.base.system import entry_points, paths
from pipeline.base.system.command_parser import CommandParser
from pipeline.base.system.errors import ConfigError
from pipeline.base.system.words import align_table, format_count
from pipeline.report.evaluate.case_matching import MatchedCase
from pipeline.report.evaluate.metrics import choose_prefix
from pipeline.report.evaluate.selector import EvaluatedStudy
from pipeline.report.evaluate.statistics import format_interval
from pipeline.report.evaluate.study_board import (
    Agreement,
    Board,
    BoardColumn,
    Comparison,
    DeviceSummary,
    Outcome,
    from_json,
    make_board,
    summarize_devices,
)
from pipeline.report.evaluate.wording import join_words
from pipeline.report.figures.drawing import COLOURS, THEME
from pipeline.report.page.page import environment, strip_forbidden
from pipeline.report.page.table_format import (
    MISSING,
    Column,
    Table,
    format_estimate,
    list_columns,
    list_end_columns,
    make_table,
    round_value,
    to_csv,
)
from pipeline.report.publish import BOARD, CASES, MANIFEST, PAGE, check_folder, replace
from pipeline.report.read import rows
from pipeline.report.read.rows import find_stores

COMMAND = "board"
DEFAULT_FOLDER = Path("reports/board")
TEMPLATE = "board.html.jinja"
TITLE = "The best sharing mode of each case"
NOTE = (
    "Best: the fastest mode of a case; without a verdict, all candidates, the best median first. Speed-up: over "
    "serial, median over the blocks and 95 % t interval; a figure with a unit is another quantity. "
    "Energy: energy of the whole GPU per work unit, the same for one job at a time, and the ratio to one job at a time "
    "in the best step mode. Verdicts: same, if the columns agree on the best sharing mode; open, if a column has "
    "no verdict; differ, if the columns contradict each other. "
    "The verdicts of a column are those of its study; no figure combines columns."
)


def main(argv: Sequence[str]) -> int:
    """Write one board and print it; return the exit status."""
    options = _parser().parse_args(argv)
    check_folder(options.out, options.experiment)
    studies = [*_read_reports(options.reports), *_read_stores(options)]
    if not studies:
        raise ConfigError("the board has no studies; pass folders of reports, or experiments with --experiment")
    for (source, study), (other, other_study) in itertools.combinations(studies, 2):
        if study == other_study:
            raise ConfigError(
                f"{source} and {other} have the same figures for {study.experiment!r} on {study.device}; name only one"
            )
    board = make_board(make_columns(studies))
    if not board.lines:
        raise ConfigError("the studies of the board have serial groups only; choose studies with a sharing mode")
    contents = {BOARD: to_csv(make_board_table(board)), PAGE: render(board)}
    experiments = list(dict.fromkeys(column.measured.experiment for column in board.columns))
    metadata = {"simulated": any(column.measured.stamp for column in board.columns)}
    files = {name: text.encode("utf-8", "replace") for name, text in contents.items()}
    written = replace(options.out, experiments, metadata, files)
    sys.stdout.write(f"{format_lines(board)}\nboard: {written.page.absolute()}\n")
    return 0


def _read_reports(folders: Sequence[Path]) -> Iterator[tuple[str, DeviceSummary]]:
    for folder in folders:
        try:
            text = (folder / CASES).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            has_report = (folder / MANIFEST).is_file()
            remedy = "write the report again with this version" if has_report else "pass the folder of a report"
            problem = getattr(error, "strerror", None) or error
            raise ConfigError(f"cannot read {folder / CASES}: {problem}; {remedy}") from error
        try:
            for study in from_json(text):
                yield str(folder), study
        except ConfigError as error:
            raise ConfigError(f"cannot use {folder / CASES}: {error}; write this report again") from error


def _read_stores(options: argparse.Namespace) -> Iterator[tuple[str, DeviceSummary]]:
    stores = [*options.root, *options.uri] or [paths.DEFAULT_ROOT]
    different = {*(root.resolve() for root in options.root), *(uri.rstrip("/") for uri in options.uri)}
    is_twice = len(different) < len(options.root) + len(options.uri)
    if is_twice or len(set(options.experiment)) < len(options.experiment):
        raise ConfigError("an experiment or a store is named twice; name each experiment and each store once")
    places = [(store, name) for name in options.experiment for store in find_stores(stores, name)]
    for store, name in places:
        studies = rows.read_apart(store, name)
        if not any(study.rows for study in studies):
            raise ConfigError(f"experiment {name!r} in {store} has no group with a result; choose another experiment")
        for measured in map(EvaluatedStudy, studies):
            summaries = summarize_devices(measured.study, measured.cells, measured.comparisons, measured.winners)
            yield from ((str(store), summary) for summary in summaries)


def make_columns(studies: Sequence[tuple[str, DeviceSummary]]) -> list[BoardColumn]:
    """Make the columns; name each by its device and, if several have this device, by study, host or folder too."""
    all_names = [
        (study.device or "unknown device", study.experiment, study.host, Path(source).name or source)
        for source, study in studies
    ]
    return [
        BoardColumn(number=place + 1, name=_name(all_names, place), source=source, measured=study)
        for place, (source, study) in enumerate(studies)
    ]


def _name(all_names: Sequence[tuple[str, ...]], place: int) -> str:
    device, *distinctions = all_names[place]
    same = [names for other, names in enumerate(all_names) if other != place and names[0] == device]
    for position, word in enumerate(distinctions, 1):
        if all(names[position] != word for names in same):
            return f"{device}, {word}" if same else device
    return ", ".join(filter(None, (device, *distinctions[:2])))


def render(board: Board) -> str:
    """Render the HTML of the page, which loads no other files and runs no scripts."""
    places = range(len(board.columns))
    by_case = itertools.groupby(board.lines, lambda line: (line.label, line.consists))
    text = (
        environment()
        .get_template(TEMPLATE)
        .render(
            title=TITLE,
            colours=[(THEME[light], light, dark) for light, dark in COLOURS],
            stamps=stamps(board),
            agreed=describe_agreement(board),
            won=[describe_winners(board, place) for place in places],
            common=board.common,
            columns=board.columns,
            cases=[
                (case, [(line.degree, *board.judge(line), [_list_cell(line, n) for n in places]) for line in lines])
                for case, lines in by_case
            ],
            note=NOTE,
            described=[(column, _describe_column(column)) for column in board.columns],
        )
    )
    return strip_forbidden(text)


def describe_agreement(board: Board) -> str:
    """Return a sentence on the agreement of the columns."""
    compared = Counter(agreement for agreement, _ in map(board.judge, board.lines))
    del compared[Agreement.ALONE]
    if not compared:
        return "No case has verdicts in several columns."
    phrases = ((Agreement.SAME, "the same in"), (Agreement.OPEN, "open in"), (Agreement.DIFFER, "different in"))
    parts = [f"{words} {compared[agreement]}" for agreement, words in phrases if compared[agreement]]
    return f"Of {format_count(compared.total(), 'case')} in several columns, the best mode is {join_words(parts)}."


def describe_winners(board: Board, place: int) -> str:
    """Return a sentence on the best modes of a column."""
    column = board.columns[place]
    outcomes = [line.members[place] for line in board.lines if place in line.members]
    best = [outcome.best for outcome in outcomes if outcome.degree > 1 and len(outcome.kinds) > 1]
    wins = Counter(next(iter(kinds)) for kinds in best if len(kinds) == 1)
    heading = f"{column.mark} {column.name}" + (f" ({column.measured.stamp})" if column.measured.stamp else "")
    if not best:
        return f"{heading}: no case with several jobs has modes to compare."
    parts = [f"{mode} is best in {wins[mode]}" for mode in sorted(wins, key=lambda mode: (-wins[mode], mode))]
    parts += [f"there is no verdict in {len(best) - wins.total()}"] if len(best) > wins.total() else []
    return f"{heading}: of {format_count(len(best), 'case')} with several jobs, {join_words(parts)}."


def stamps(board: Board) -> list[str]:
    """Return the stamps of all columns, such as `simulated`."""
    return sorted({column.measured.stamp for column in board.columns if column.measured.stamp})


def format_lines(board: Board) -> str:
    """Return the board for a terminal: its columns, then one line for each case."""
    places = range(len(board.columns))
    heads = [f"{column.mark} {column.name}: {'; '.join(_describe_column(column))}" for column in board.columns]
    rows = [["case", "jobs", *(column.mark for column in board.columns), "verdicts"]]
    for line in board.lines:
        verdicts = ": ".join(filter(None, board.judge(line)))
        rows.append([line.label, str(line.degree), *(_brief(line, place) for place in places), verdicts])
    table = align_table(rows, {0, *range(2, len(board.columns) + 3)})
    winners = [describe_winners(board, place) for place in places]
    return "\n".join([*heads, "", *table, "", describe_agreement(board), *winners])


def _brief(line: MatchedCase[Outcome], number: int) -> str:
    """Return `MPS 6.80 (6.44 to 7.29)`; a `*` means that the settings differ."""
    if (outcome := line.members.get(number)) is None:
        return MISSING
    figure = f"{'/'.join(outcome.tied)} {_format_figure(outcome)}" if outcome.tied else ""
    text = figure or "; ".join(outcome.endings) or MISSING
    return f"{text} *" if line.differs[number] else text


class BoardRow(NamedTuple):
    """The outcome of one line of a board in one column, and the settings in which it differs from the first one."""

    line: MatchedCase[Outcome]
    column: BoardColumn
    outcome: Outcome
    differs: str
    agreement: Agreement
    reason: str


def _list_comparison_columns(title: str, quantity: str, *, is_best_solo: bool) -> list[Column[BoardRow]]:
    def find(row: BoardRow) -> Comparison | None:
        return row.outcome.find_comparison(quantity, is_best_solo=is_best_solo)

    return [Column(title, find, attrgetter("ratio.median")), Column(f"{title}: verdict", find, attrgetter("verdict"))]


_COLUMNS: tuple[Column[BoardRow], ...] = (
    *list_columns({"case": "line.label", "jobs": "line.degree", "mix": "line.consists"}),
    *list_columns({"verdicts": "agreement.value", "why": "reason"}),
    Column("column", lambda row: f"{row.column.mark} {row.column.name}"),
    *list_columns({"study": "column.measured.experiment", "device": "column.measured.device"}),
    *list_columns({"stamp": "column.measured.stamp", "GPUs": "column.measured.num_gpus"}),
    Column("best", lambda row: ", ".join(row.outcome.tied)),
    *list_columns({"measure": "outcome.measure"}),
    *list_end_columns("value", attrgetter("outcome.figure")),
    *list_columns({"blocks": "outcome.num_blocks"}),
    Column("enough for verdicts", lambda row: "yes" if row.outcome.is_enough else "no"),
    *list_end_columns("energy", attrgetter("outcome.energy"), "energy: low", "energy: high"),
    Column("energy of serial", attrgetter("outcome.energy_of_serial"), attrgetter("median")),
    *list_columns({"energy in": "outcome.energy_unit"}),
    *_list_comparison_columns("speed-up over the best step mode alone", "speed", is_best_solo=True),
    *_list_comparison_columns("energy over serial", "energy", is_best_solo=False),
    *_list_comparison_columns("energy over the best step mode alone", "energy", is_best_solo=True),
    Column("compared modes", lambda row: ", ".join(row.outcome.kinds)),
    Column("no figure", lambda row: "; ".join(row.outcome.endings)),
    *list_columns({"settings differ": "differs"}),
    Column("settings", lambda row: "; ".join(f"{key}: {value}" for key, value in row.outcome.settings.items())),
)
"""The columns of the file, with numbers in full."""


def make_board_table(board: Board) -> Table:
    """Return the board as a table with one row for each case and column."""
    board_rows = [
        BoardRow(line, board.columns[number], outcome, line.differs[number], *board.judge(line))
        for line in board.lines
        for number, outcome in line.members.items()
    ]
    stamp = f"Includes {join_words(stamp_words)} figures. " if (stamp_words := stamps(board)) else ""
    return make_table("board", TITLE, _COLUMNS, board_rows, f"{stamp}{NOTE}")


def _list_cell(line: MatchedCase[Outcome], place: int) -> tuple[list[str], list[str]]:
    """Return the colours of the best modes, and the lines of a cell of the page: modes and speed-up, then details."""
    if (outcome := line.members.get(place)) is None:
        return [], ["not measured"]
    title, _, unit = outcome.measure.partition(" (")
    count = [title if unit else "", format_count(outcome.num_blocks, "block")] if outcome.tied else []
    if len(outcome.tied) > 1:
        count.append("no verdict" if outcome.is_enough else "too few blocks or GPUs for a verdict")
    count += ["the only mode with a figure"] if len(outcome.kinds) == 1 else []
    best = f"{', '.join(outcome.tied)} {_format_figure(outcome)}" if outcome.tied else MISSING
    lines = [best, ", ".join(filter(None, count)), _describe_over_best_solo(outcome, "speed")]
    lines += [_describe_energy(outcome), _describe_over_best_solo(outcome, "energy")]
    colours = {mode.label: THEME[mode.colour] for mode in MODES.values()}
    swatches = [colours.get(outcome.kinds[mode], "") for mode in outcome.tied]
    return list(filter(None, swatches)), list(filter(None, [*lines, *outcome.endings, line.differs[place]]))


def _format_figure(outcome: Outcome) -> str:
    """Return `6.80 (6.44 to 7.29)`, followed by the unit unless the figure is a ratio."""
    unit = outcome.measure.partition(" (")[2].removesuffix(")")
    return MISSING if outcome.figure is None else f"{format_estimate(outcome.figure)} {unit}".rstrip()


def _describe_over_best_solo(outcome: Outcome, quantity: str) -> str:
    """Return `1.36 (1.34 to 1.38) x CUDA graph alone`; empty if several step modes were not measured alone."""
    comparison = outcome.find_comparison(quantity, is_best_solo=True)
    if comparison is None:
        return ""
    prefix = "energy " if quantity == "energy" else ""
    return f"{prefix}{comparison.ratio.median:.2f}{format_interval(comparison.ratio, '.2f')} x {comparison.against}"


def _describe_energy(outcome: Outcome) -> str:
    """Return `4.56 mJ/sample, 14.8 one at a time`; empty without energy."""
    if outcome.energy is None:
        return ""
    scale, prefix = choose_prefix([outcome.energy.median])
    text = f"{round_value(outcome.energy.median / scale)} {prefix}{outcome.energy_unit}"
    serial = None if SERIAL.label in outcome.tied[:1] else outcome.energy_of_serial
    return text if serial is None else f"{text}, {round_value(serial.median / scale)} one at a time"


def _describe_column(column: BoardColumn) -> list[str]:
    study = column.measured
    gpus, blocks = format_count(study.num_gpus, "GPU"), format_count(study.num_blocks, "block")
    stamp = f"{study.stamp}, no measurement of a real GPU" if study.stamp else ""
    details = filter(None, (stamp, f"experiment {study.experiment}", f"{gpus}, {blocks}", study.host))
    return [*details, *(f"{name} {value}" for name, value in study.facts.items()), f"from {column.source}"]


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
