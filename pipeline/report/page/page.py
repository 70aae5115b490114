"""The page of a report: one HTML file that contains no scripts and needs no other files."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from pipeline.base.domain.precision_goal import MIN_BLOCKS
from pipeline.base.domain.window import WindowKind
from pipeline.base.system.words import announce, format_count, group_by
from pipeline.report.evaluate import contrasts, paper, verdicts
from pipeline.report.evaluate.cells import Cell, make_cells
from pipeline.report.evaluate.contrasts import Contrast
from pipeline.report.evaluate.paper import Agreement
from pipeline.report.evaluate.statistics import MARGIN_IN_WORDS, MIN_FOR_INTERVAL
from pipeline.report.evaluate.stressors import describe_loads
from pipeline.report.evaluate.verdicts import Winner
from pipeline.report.evaluate.wording import list_doubts
from pipeline.report.figures import catalogue
from pipeline.report.figures.drawing import COLOURS, STAMP, THEME, Drawn, Part, clean_text
from pipeline.report.page.grid import grids
from pipeline.report.page.key_findings import (
    count_unranked,
    describe_missing,
    describe_setup,
    select_leading_numbers,
    summarize,
    write_answer,
)
from pipeline.report.page.study_tables import COMPARISONS, make_comparison_table, make_tables
from pipeline.report.page.table_format import MISSING, Table, Values, format_value
from pipeline.report.read.group_series import GroupSeries
from pipeline.report.read.rows import FACTS
from pipeline.report.read.study_records import Study

if TYPE_CHECKING:
    import jinja2


TEMPLATE = "page.html.jinja"
_PX = 1.75
"""Pixels per point of a figure with the width of the column."""
_OPEN_TABLES = (
    "frameworks",
    "objective",
    "beside",
    "sensitivity",
    "pairs",
    "scaling",
    "co-runners",
    "other-gpus",
    "endings",
)
"""Tables that answer the question of a study; the page folds the others."""
_MOST_ROWS = 12
"""The highest number of rows of a table that the page does not fold."""
_COLOR = re.compile("|".join(THEME))
_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff\ufffe\uffff]")
"""Characters that are not allowed in HTML or not encodable in UTF-8."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """The content of a report; figures are in the order of sections."""

    study: Study
    cells: Sequence[Cell]
    verdicts: Sequence[Contrast]
    winners: Sequence[Winner]
    tables: Sequence[Table]
    figures: Sequence[Drawn]


@announce("evaluating the study")
def make_content(study: Study, timeline: GroupSeries | None = None, *, has_columns: bool = False) -> Content:
    """Evaluate and draw a study, and the samples of one group over time.

    `has_columns` draws the figures for a column of a paper too, which takes as long again.
    """
    cells = make_cells(study)
    comparisons = contrasts.compare_modes(cells)
    best = verdicts.winners(cells, comparisons)
    tables = make_tables(study, cells, comparisons, best, paper.compare(cells, comparisons))
    figures = catalogue.draw_figures(study, cells, timeline, has_columns=has_columns)
    return Content(study=study, cells=cells, verdicts=comparisons, winners=best, tables=tables, figures=figures)


def render(content: Content) -> str:
    """Render the HTML of the page. Equal content gives equal text."""
    study, ordinary = content.study, [cell for cell in content.cells if not cell.has_stressor]
    in_words = [] if study.is_rehearsal else verdicts.describe_cases(content.cells, content.verdicts, content.winners)
    sections: dict[str, list[tuple[Drawn, str]]] = {}
    # A picture without a figure tells nothing on the first screen.
    num_opening = 1 if any(cell.values for cell in content.cells) and not study.is_rehearsal else 0
    for figure in content.figures[num_opening:]:
        sections.setdefault(figure.sketch.section, []).append((figure, inline_figure(figure)))
    text = (
        environment()
        .get_template(TEMPLATE)
        .render(
            title=clean_text(study.experiment, 120),
            colours=[(THEME[light], light, dark) for light, dark in COLOURS],
            swatches={cell.mode: THEME[cell.sharing.colour] for cell in content.cells},
            stamp=STAMP if study.is_simulated else "",
            setup=describe_setup(study),
            numbers=select_leading_numbers(study, content.cells, content.verdicts),
            next_step=_describe_next_step(content),
            summary=summarize(study, content.cells, content.winners),
            answer=[*write_answer(study, content.cells, content.winners), *in_words],
            opening=[(figure, inline_figure(figure)) for figure in content.figures[:num_opening]],
            missing=[*describe_missing(study), *describe_loads(study), *list_doubts(study, content.cells)],
            not_ranked=count_unranked(content.cells),
            grids=grids(study, ordinary, content.verdicts, content.winners),
            theme=THEME,
            comparisons=make_comparison_table(content.verdicts),
            comparisons_in_words=_count_comparisons(content.verdicts),
            sections=sections,
            tables=[t for t in content.tables if not (t.is_for_machines or t.about)],
            papers=[split_by_agreement(t) for t in content.tables if t.about],
            machine_tables=[t for t in content.tables if t.is_for_machines and t.name != COMPARISONS],
            methods=list_methods(study),
            provenance=list_provenance(study),
            shown=format_value,
            open_tables=_OPEN_TABLES,
            most_rows=_MOST_ROWS,
            format_p=format_p,
            slug=slug,
            by_case=group_by_case,
        )
    )
    return strip_forbidden(text)


def _describe_next_step(content: Content) -> str:
    has_goal = "precision_goal_pct" in content.study.facts  # repeats=auto counts its blocks by itself
    if content.study.is_rehearsal or has_goal or not verdicts.has_too_few_blocks(content.winners):
        return ""
    options = f"repeats={MIN_BLOCKS} resume=true"
    return f"{verdicts.BLOCKS_IN_WORDS}; to settle what is open, add {options} to the command of the study"


def _count_comparisons(verdicts: Sequence[Contrast]) -> str:
    number = sum(verdict.ratio is not None for verdict in verdicts)
    comparisons = "One comparison" if number == 1 else f"All {number} comparisons"
    missing = len(verdicts) - number
    return f"{comparisons}, and {format_count(missing, 'group')} without a figure" if missing else comparisons


def environment() -> jinja2.Environment:
    """Make the renderer of the templates of this folder."""
    import jinja2

    return jinja2.Environment(
        loader=jinja2.PackageLoader("pipeline.report.page", "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def strip_forbidden(text: str) -> str:
    """Replace each character that is not allowed on a page by a blank."""
    return _FORBIDDEN.sub(" ", text)


def format_p(p: float | None) -> str:
    """Format a p value for readers."""
    if p is None:
        return MISSING
    return "< 0.0001" if p < 1e-4 else f"{p:.2g}"


def slug(text: str) -> str:
    """Convert text to a valid `id` or class."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "x"


def group_by_case(table: Table) -> list[tuple[str | None, list[Values]]]:
    """Group the rows of a table by case; a table without cases is one group with the key `None`."""
    if table.columns[0] != "case":
        return [(None, list(table.rows))]
    return [(str(case), list(rows)) for case, rows in itertools.groupby(table.rows, key=lambda row: row[0])]


def inline_figure(figure: Drawn) -> str:
    """Return a figure as SVG for a page: without header, with unique ids, with the colours of the page's theme.

    Panels become separate SVGs, which the page places in rows, or below each other on a narrow screen.
    """
    root = ElementTree.fromstring(figure.svg)  # noqa: S314  written by matplotlib
    prefix = slug(figure.name)
    for parent in list(root.iter()):
        for child in [child for child in parent if _plain(child.tag) in ("metadata", "style")]:
            parent.remove(child)
    for element in root.iter():
        element.tag = _plain(element.tag)  # the elements of an <svg> need no namespaces in HTML
        element.attrib = {_plain(key): _for_page(_plain(key), value, prefix) for key, value in element.items()}
    del root.attrib["width"], root.attrib["height"]
    for layer in root.findall("g"):  # remove the background, which would cover the page's scroll shadows
        for ground in [child for child in layer if child.get("id") == f"{prefix}-patch_1"]:
            layer.remove(ground)
    says = {"role": "img", "aria-labelledby": f"{prefix}-title"}
    if not figure.parts:
        root.attrib |= says
        return ElementTree.tostring(root, encoding="unicode")
    panels = ElementTree.Element("div", {"class": "panels", **says})
    shared = ElementTree.SubElement(panels, "svg", {"class": "shared"})  # definitions that the parts refer to
    shared.extend(root.findall("defs"))
    groups = {group.get("id", ""): group for group in root.iter("g")}
    for _, parts in itertools.groupby(figure.parts, key=lambda part: part.row):
        row_parts = list(parts)
        row = ElementTree.SubElement(panels, "div", {"class": "row" if len(row_parts) > 1 else "line"})
        for part in row_parts:
            row.append(_make_svg(part, groups[f"{prefix}-{part.name}"], sum(other.width for other in row_parts)))
    return ElementTree.tostring(panels, encoding="unicode")


def _make_svg(part: Part, group: ElementTree.Element, row_width: float) -> ElementTree.Element:
    view = f"{part.x:.1f} {part.y:.1f} {part.width:.1f} {part.height:.1f}"
    width = f"flex: {part.width / row_width:.4f} 1 0" if part.width < row_width else f"width: {part.width * _PX:.0f}px"
    svg = ElementTree.Element("svg", {"viewBox": view, "style": width})
    svg.append(group)
    return svg


def _plain(name: str) -> str:
    return name.rpartition("}")[2]


def _for_page(name: str, value: str, prefix: str) -> str:
    if name == "id":
        return f"{prefix}-{value}"
    if name == "href":
        return f"#{prefix}-{value.removeprefix('#')}"
    return _COLOR.sub(lambda colour: f"var(--{THEME[colour[0]]})", value.replace("url(#", f"url(#{prefix}-"))


_SUM = "The speed-up is the sum, over all jobs, of throughput divided by throughput alone."
_WINDOWS = {
    WindowKind.STEADY: "Steady window: jobs run until they are stopped, and are measured while all of them run after "
    f"their warm-up. {_SUM}",
    WindowKind.INTERLEAVED: "Interleaved window: jobs run until they are stopped, and are measured in slices, in which "
    f"groups that differ only in their number of jobs take turns. {_SUM}",
    WindowKind.WORK: "Work window: every job does a fixed number of epochs. The speed-up is serial total time divided "
    "by total time.",
    WindowKind.LOGGED: "Logged window: jobs end by themselves, and print or log their speed. It is measured while all "
    f"jobs log it, so without start-up. {_SUM}",
}


def list_methods(study: Study) -> list[tuple[str, str]]:
    """Return headings and texts on the sharing modes of a study and on the evaluation of its runs."""
    modes = sorted({row.sharing for row in study.rows if row.sharing.description}, key=lambda mode: mode.order)
    descriptions = "; ".join(f"{mode.label}: {mode.description}" for mode in modes)
    of_the_gpu = ("gract_", "smact_", "power_", "energy_")
    has_gpu_figures = any(name.startswith(of_the_gpu) for row in study.rows for name in row.metrics)
    utilisation = (
        "GRACT: share of time with a resident kernel. SMACT: share of multiprocessors with a resident warp. Power, "
        "energy and clocks are those of the whole GPU, also under MIG."
    )
    return [
        *([("Sharing modes", f"{descriptions}.")] if descriptions else []),
        (
            "Baseline",
            "Every speed is compared with the serial baseline of the same block: the same jobs, one at a time, on the "
            "same GPU since the same boot, with the same driver, power limit, ECC mode and clock settings. The "
            "baseline of n copies is n times one solo run. Several solo runs in a block count as one, with the means "
            "of their figures. Mixes with fixed work have a separate serial run.",
        ),
        ("Windows", " ".join(_WINDOWS[kind] for kind in WindowKind if any(row.window is kind for row in study.rows))),
        (
            "Repeats",
            "A block is one repeat: every group of the study once, in random order, with its own baselines. Figures "
            f"are medians over the blocks. With {MIN_FOR_INTERVAL} blocks or more they have 95 % t intervals, which "
            "use logarithms if a quantity scatters by factors. Peaks have their lowest and highest block instead.",
        ),
        (
            "Verdicts",
            "Modes are compared by the paired log-ratio of their speeds, and of their energies for the same work, in "
            "the same block; also with one job at a time in the best step mode. A verdict needs at least "
            f"{MIN_BLOCKS} blocks, a median ratio beyond {MARGIN_IN_WORDS}, and a p value of the paired t test below "
            "0.05 after correction for all claims of the table (Holm, with Shaffer's improvement). Equality within "
            f"{MARGIN_IN_WORDS} is tested by two one-sided tests, whose p values are in the same correction. Otherwise "
            "there is no verdict. Intervals are not corrected, so an interval may exclude 1 without a verdict.",
        ),
        (
            "What is not ranked",
            "Groups that ran out of memory, were skipped, failed or computed wrong results are shown with this outcome "
            "instead of a rank. A quantity that was not measured is missing, not zero.",
        ),
        *([("Utilisation", utilisation)] if has_gpu_figures else []),
    ]


def list_provenance(study: Study) -> list[tuple[str, tuple[str, ...]]]:
    """Return the names and values of all facts on machines, software and settings."""
    rows = study.rows
    settings = {"; ".join(f"{name}: {value}" for name, value in row.settings if value) for row in rows}
    results = Counter(row.result.value for row in rows)
    simulated = " (simulated)" if study.is_simulated else ""
    facts: list[tuple[str, tuple[str, ...]]] = [
        ("experiment", (study.experiment,)),
        ("devices", tuple(device + simulated for device in study.devices)),
        ("GPU", tuple(sorted({row.gpu_uuid for row in rows if row.gpu_uuid}))),
        ("windows and settings", tuple(sorted(settings))),
        ("blocks", (f"{len(study.blocks)}, {study.num_complete_blocks} complete",) if study.blocks else ()),
        ("groups", (f"{len(rows)}" + (f" of {study.num_planned} planned" if study.num_planned else ""),)),
        ("results", (", ".join(f"{result} {number}" for result, number in sorted(results.items())),)),
        ("measured", _when(study)),
    ]
    names = [*FACTS, *sorted(study.facts.keys() - FACTS.keys())]
    facts += [(FACTS.get(name, name.replace("_", " ")), study.facts.get(name, ())) for name in names]
    return [(name, values) for name, values in facts if any(values)]


def _when(study: Study) -> tuple[str, ...]:
    if not study.rows:
        return ()
    ends = (min(row.start_ms for row in study.rows), max(row.end_ms or row.start_ms for row in study.rows))
    first, last = (datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M") for ms in ends)
    return (f"{first} to {last} UTC",)


_IN_FILES_ONLY = ("low", "high", "mind")
_AGREEMENT, _DIFFERENCE, _MIND = "agreement", "by how much", "mind"


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingsTable:
    """Findings of a publication, and a sentence on the differences that many of them share."""

    table: Table
    differs: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """The findings of a publication.

    Attributes:
        same: findings that were measured at the settings of the publication.
        other: findings that were measured at other settings.
        num_absent: number of findings that were not measured.
    """

    name: str
    about: str
    same: FindingsTable
    other: FindingsTable
    num_absent: int


def split_by_agreement(table: Table) -> Publication:
    """Split the findings of a publication: measured at its settings, at other settings, or not measured."""
    agreement = table.columns.index(_AGREEMENT)
    rows = group_by(table.rows, lambda row: str(row[agreement]))
    absent, other = rows.pop(Agreement.NOT_MEASURED.value, []), rows.pop(Agreement.OTHER_SETTINGS.value, [])
    same = [row for row in table.rows if str(row[agreement]) in rows]
    differs = _describe_parts(_parts(table, same, _MIND))
    return Publication(
        name=table.name,
        about=table.about,
        same=FindingsTable(table=_drop_columns(table, same, _IN_FILES_ONLY), differs=differs),
        other=_merge_settings(table, other),
        num_absent=len(absent),
    )


def _merge_settings(table: Table, rows: Sequence[Values]) -> FindingsTable:
    """Move the differences in settings that all rows of a case share from the rows to the sentence above them."""
    case, difference = table.columns.index("case"), table.columns.index(_DIFFERENCE)
    settings: dict[Values, set[str]] = {row: set(_split(row[difference])) for row in rows}
    cases = group_by(rows, lambda row: row[case])
    case_parts = [
        part
        for part in _parts(table, rows, _DIFFERENCE)
        if all(len({part in settings[row] for row in members}) == 1 for members in cases.values())
    ]
    settings_of_row = {
        row: "; ".join(part for part in _split(row[difference]) if part not in case_parts) for row in rows
    }
    brief = [
        tuple(settings_of_row[row] or None if place == difference else value for place, value in enumerate(row))
        for row in rows
    ]
    hidden = [*_IN_FILES_ONLY, _AGREEMENT, *([] if any(settings_of_row.values()) else [_DIFFERENCE])]
    shown = _drop_columns(table, brief, hidden)
    columns = tuple("other settings" if head == _DIFFERENCE else head for head in shown.columns)
    differs = _describe_parts([*_parts(table, rows, _MIND), *case_parts])
    return FindingsTable(table=dataclasses.replace(shown, columns=columns), differs=differs)


def _parts(table: Table, rows: Sequence[Values], column: str) -> list[str]:
    place = table.columns.index(column)
    return list(dict.fromkeys(part for row in rows for part in _split(row[place])))


def _split(value: object) -> list[str]:
    return [part for part in str(value or "").split("; ") if part]


def _describe_parts(parts: Sequence[str]) -> str:
    return f"Differences from the paper: {'; '.join(parts)}." if parts else ""


def _drop_columns(table: Table, rows: Sequence[Values], hidden: Sequence[str]) -> Table:
    is_visible = [head not in hidden for head in table.columns]
    columns = tuple(itertools.compress(table.columns, is_visible))
    return dataclasses.replace(
        table, columns=columns, rows=tuple(tuple(itertools.compress(row, is_visible)) for row in rows)
    )
