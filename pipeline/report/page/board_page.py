"""A board as an HTML page, as a CSV table, and as lines for a terminal."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

from pipeline.base.domain.sharing_modes import MODES, SERIAL
from pipeline.base.system.words import align_table, format_count
from pipeline.report.evaluate.metrics import choose_prefix
from pipeline.report.evaluate.outcomes import Comparison, Outcome
from pipeline.report.evaluate.statistics import interval_in_words
from pipeline.report.evaluate.study_board import Agreement, Board, Column, Entry, Line
from pipeline.report.evaluate.wording import join_words
from pipeline.report.figures.drawing import COLOURS, THEME
from pipeline.report.page.page import environment, strip_forbidden
from pipeline.report.page.table_format import MISSING, Table, Values, format_estimate, list_ends

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


def render(board: Board) -> str:
    """Render the HTML of the page, which loads no other files and runs no scripts."""
    text = (
        environment()
        .get_template(TEMPLATE)
        .render(
            title=TITLE,
            colours=[(THEME[light], light, dark) for light, dark in COLOURS],
            stamps=stamps(board),
            agreed=describe_agreement(board),
            won=describe_winners(board),
            common=board.common,
            columns=board.columns,
            cases=[
                (case, [(line, _cells(line, len(board.columns))) for line in lines])
                for case, lines in itertools.groupby(board.lines, lambda line: (line.label, line.consists))
            ],
            note=NOTE,
            described=[(column, _describe_column(column)) for column in board.columns],
        )
    )
    return strip_forbidden(text)


def describe_agreement(board: Board) -> str:
    """Return a sentence on the agreement of the columns."""
    compared: Counter[Agreement] = Counter(
        line.agreement for line in board.lines if line.agreement is not Agreement.ALONE
    )
    if not compared:
        return "No case has verdicts in several columns."
    in_words = ((Agreement.SAME, "the same in"), (Agreement.OPEN, "open in"), (Agreement.DIFFER, "different in"))
    parts = [f"{words} {compared[agreement]}" for agreement, words in in_words if compared[agreement]]
    return f"Of {format_count(compared.total(), 'case')} in several columns, the best mode is {join_words(parts)}."


def describe_winners(board: Board) -> list[str]:
    """Return a sentence on the best modes of each column."""
    return [_describe_column_winners(place, board) for place in range(len(board.columns))]


def _describe_column_winners(place: int, board: Board) -> str:
    column = board.columns[place]
    outcomes = [line.entries[place].outcome for line in board.lines if place in line.entries]
    together = [outcome for outcome in outcomes if outcome.degree > 1 and len(outcome.kinds) > 1]
    best = [{outcome.kinds[mode] for mode in outcome.tied} for outcome in together]
    wins = Counter(next(iter(kinds)) for kinds in best if len(kinds) == 1)
    which = f"{column.mark} {column.name}" + (f" ({column.measured.stamp})" if column.measured.stamp else "")
    if not together:
        return f"{which}: no case with several jobs has modes to compare."
    parts = [f"{mode} is best in {wins[mode]}" for mode in sorted(wins, key=lambda mode: (-wins[mode], mode))]
    undecided = len(together) - wins.total()
    parts += [f"there is no verdict in {undecided}"] if undecided else []
    return f"{which}: of {format_count(len(together), 'case')} with several jobs, {join_words(parts)}."


def stamps(board: Board) -> list[str]:
    """Return the stamps of all columns, such as `simulated`."""
    return sorted({column.measured.stamp for column in board.columns if column.measured.stamp})


def format_lines(board: Board) -> str:
    """Return the board for a terminal: its columns, then one line for each case."""
    heads = [f"{column.mark} {column.name}: {'; '.join(_describe_column(column))}" for column in board.columns]
    rows = [["case", "jobs", *(column.mark for column in board.columns), "verdicts"]]
    for line in board.lines:
        cells = [_brief(line.entries.get(number)) for number in range(len(board.columns))]
        agreement = f"{line.agreement.value}: {line.why}" if line.why else line.agreement.value
        rows.append([line.label, str(line.degree), *cells, agreement])
    left_aligned = {0, *range(2, len(board.columns) + 3)}
    return "\n".join(
        [*heads, "", *align_table(rows, left_aligned), "", describe_agreement(board), *describe_winners(board)]
    )


def _brief(entry: Entry | None) -> str:
    """Return `MPS 6.80 (6.44 to 7.29)`; a `*` means that the settings differ."""
    if entry is None:
        return MISSING
    outcome = entry.outcome
    text = f"{'/'.join(outcome.tied)} {_gain(outcome)}" if outcome.tied else "; ".join(outcome.endings) or MISSING
    return f"{text} *" if entry.differs else text


def table(board: Board) -> Table:
    """Return the board as a table with one row for each case and column, and with numbers in full."""
    rows: list[Values] = []
    for line in board.lines:
        line_values = (line.label, line.degree, line.consists or None, line.agreement.value, line.why or None)
        for number, entry in line.entries.items():
            column, study = board.columns[number], board.columns[number].measured
            facts = (study.experiment, study.device, study.stamp or None, study.num_gpus)
            column_values = (f"{column.mark} {column.name}", *facts)
            rows.append((*line_values, *column_values, *_list_entry(entry)))
    line_heads = ("case", "jobs", "mix", "verdicts", "why")
    column_heads = ("column", "study", "device", "stamp", "GPUs")
    heads = ("best", "measure", "value", "low", "high", "blocks", "enough for verdicts")
    energy_heads = ("energy", "energy: low", "energy: high", "energy of serial", "energy in")
    ratios = ("speed-up over the best step mode alone", "energy over serial", "energy over the best step mode alone")
    ratio_heads = [head for ratio in ratios for head in (ratio, f"{ratio}: verdict")]
    last = ("compared modes", "no figure", "settings differ", "settings")
    stamp = f"Includes {join_words(stamp_words)} figures. " if (stamp_words := stamps(board)) else ""
    columns = (*line_heads, *column_heads, *heads, *energy_heads, *ratio_heads, *last)
    return Table("board", TITLE, columns, tuple(rows), f"{stamp}{NOTE}")


def _list_entry(entry: Entry) -> Values:
    outcome = entry.outcome
    settings = "; ".join(f"{key}: {value}" for key, value in outcome.settings.items())
    energy = outcome.energy_of_serial
    return (
        *(", ".join(outcome.tied) or None, outcome.measure or None, *list_ends(outcome.figure)),
        *(outcome.num_blocks, "yes" if outcome.is_enough else "no"),
        *(*list_ends(outcome.energy), None if energy is None else energy.median, outcome.energy_unit or None),
        *_list_comparison(outcome.find_comparison("speed", is_best_solo=True)),
        *_list_comparison(outcome.find_comparison("energy", is_best_solo=False)),
        *_list_comparison(outcome.find_comparison("energy", is_best_solo=True)),
        *(", ".join(outcome.kinds) or None, "; ".join(outcome.endings) or None, entry.differs or None, settings),
    )


def _list_comparison(comparison: Comparison | None) -> Values:
    return (None, None) if comparison is None else (comparison.ratio.median, comparison.verdict)


def _cells(line: Line, num_columns: int) -> list[dict[str, Any] | None]:
    return [_cell(line.entries[number]) if number in line.entries else None for number in range(num_columns)]


def _cell(entry: Entry) -> dict[str, Any]:
    outcome, (energy, serial) = entry.outcome, _energy(entry.outcome)
    colours = {mode.label: THEME[mode.colour] for mode in MODES.values()}
    title, unit = _measure(outcome)
    blocks = format_count(outcome.num_blocks, "block") if outcome.tied else ""
    notes = list(outcome.endings)
    if len(outcome.kinds) == 1:
        notes.insert(0, "the only mode with a figure")
    if len(outcome.tied) > 1:
        notes.insert(0, "no verdict" if outcome.is_enough else "too few blocks or GPUs for a verdict")
    return {
        "tied": [(mode, colours.get(outcome.kinds[mode], "")) for mode in outcome.tied],
        "notes": notes,
        "differs": entry.differs,
        "gain": _gain(outcome),
        "over_best": _over_best_solo(outcome, "speed"),
        "energy_over_best": _over_best_solo(outcome, "energy"),
        "blocks": f"{title}, {blocks}" if unit else blocks,
        "energy": energy,
        "serial": serial,
    }


def _gain(outcome: Outcome) -> str:
    """Return `6.80 (6.44 to 7.29)`, followed by the unit unless the figure is a ratio."""
    _, unit = _measure(outcome)
    return MISSING if outcome.figure is None else f"{format_estimate(outcome.figure)} {unit}".rstrip()


def _over_best_solo(outcome: Outcome, quantity: str) -> str:
    """Return `1.36 (1.34 to 1.38) x CUDA graph alone`; empty if several step modes were not measured alone."""
    comparison = outcome.find_comparison(quantity, is_best_solo=True)
    if comparison is None:
        return ""
    return f"{comparison.ratio.median:.2f}{interval_in_words(comparison.ratio, '.2f')} x {comparison.against}"


def _measure(outcome: Outcome) -> tuple[str, str]:
    title, _, unit = outcome.measure.partition(" (")
    return title, unit.removesuffix(")")


def _energy(outcome: Outcome) -> tuple[str, str]:
    """Return `4.56 mJ/sample` and, for comparison, `14.8 one at a time`."""
    if outcome.energy is None:
        return MISSING, ""
    median, serial = outcome.energy.median, outcome.energy_of_serial
    scale, prefix = choose_prefix([median])
    is_compared = serial is not None and SERIAL.label not in outcome.tied[:1]
    beside = f"{_short(serial.median / scale)} one at a time" if serial is not None and is_compared else ""
    return f"{_short(median / scale)} {prefix}{outcome.energy_unit}", beside


def _short(value: float) -> str:
    """Round to three digits; numbers of 1000 or more, which would get an exponent, to a whole number."""
    return f"{value:.3g}" if abs(value) < 999.5 else f"{value:.0f}"


def _describe_column(column: Column) -> list[str]:
    study = column.measured
    gpus, blocks = format_count(study.num_gpus, "GPU"), format_count(study.num_blocks, "block")
    stamp = f"{study.stamp}, no measurement of a real GPU" if study.stamp else ""
    about = filter(None, (stamp, f"experiment {study.experiment}", f"{gpus}, {blocks}", study.host))
    return [*about, *(f"{name} {value}" for name, value in study.facts.items()), f"from {column.source}"]
