"""The comparison of a study with its references: lines for a terminal, Markdown, a table for CSV, and JSON."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.base.system.words import align_table, format_count
from pipeline.report.evaluate.comparison import CaseChange, Change, Difference, StudyComparison
from pipeline.report.evaluate.contrasts import Quantity
from pipeline.report.evaluate.statistics import CONFIDENCE, DRIFT_BLOCKS, Estimate
from pipeline.report.page.table_format import MISSING, Table, Values, format_value, list_ends

FORMAT = 1
SIMULATED = "Both studies are simulated: no measurement of a real GPU."
NOTE = (
    "Medians over blocks. Ratio: speed of the newest study over that of the reference (above 1 is faster), or energy "
    f"over energy; {100 * CONFIDENCE:.0f} % interval of Welch's t test on logarithms. Verdicts are corrected over all "
    "rows; a verdict needs a ratio beyond the tolerance and p < 0.05 after the correction."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedStudy:
    """A compared study: its place, its experiment and its size."""

    source: str
    experiment: str
    devices: tuple[str, ...]
    num_blocks: int
    is_simulated: bool

    @property
    def words(self) -> str:
        """The study in words: `robroek_quick of study.tar.xz: NVIDIA H200, 5 blocks`."""
        simulated = ", simulated" if self.is_simulated else ""
        devices, blocks = " and ".join(self.devices), format_count(self.num_blocks, "block")
        return f"{self.experiment} of {self.source}: {devices}, {blocks}{simulated}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedReference:
    """A reference with its comparison; `packages` and `settings` are the other differences, in words."""

    study: ComparedStudy
    differences: tuple[Difference, ...]
    packages: str
    settings: tuple[str, ...]
    comparison: StudyComparison


def count_regressions(references: Sequence[ComparedReference]) -> int:
    """Return the number of cases that are slower, or fail, in the newest study."""
    return sum(change.change.is_regression for reference in references for change in reference.comparison.changes)


def format_lines(newest: ComparedStudy, references: Sequence[ComparedReference]) -> str:
    """Return the comparison for a terminal: for each reference the differences, then the cases."""
    parts = [_format_reference(newest, reference) for reference in references]
    return "\n\n".join([*parts, LEGEND, _summarize(references)])


def _format_reference(newest: ComparedStudy, reference: ComparedReference) -> str:
    lines = [f"before: {reference.study.words}", f"after:  {newest.words}"]
    lines += [SIMULATED] if newest.is_simulated else []
    lines += ["", "Differences:", *(f"  {line}" for line in _list_differences(reference))]
    for quantity in Quantity:
        changes = [change for change in reference.comparison.changes if change.quantity is quantity]
        if changes:
            lines += ["", *align_table([_heads(quantity), *map(_brief, changes)], _LEFT)]
    lines += ["", *absent] if (absent := _list_absent(reference.comparison)) else []
    return "\n".join(lines)


def _list_differences(reference: ComparedReference) -> list[str]:
    lines = [f"{fact.name}: {fact.before} before, {fact.after} after" for fact in reference.differences]
    lines += [f"packages: {reference.packages}"] if reference.packages else []
    lines += [f"settings: {words}" for words in reference.settings]
    return lines or ["none in the recorded machines, software and settings"]


def _list_absent(comparison: StudyComparison) -> list[str]:
    return [f"only before: {name}" for name in comparison.missing] + [
        f"only after: {name}" for name in comparison.added
    ]


def _heads(quantity: Quantity) -> list[str]:
    if quantity is Quantity.SPEED:
        return ["speed", "jobs", "mode", "measure", "before", "after", "ratio", "verdict", *_GAINS, "note"]
    return ["energy", "jobs", "mode", "measure", "before", "after", "ratio", "verdict", "note"]


_GAINS = ("over serial", "over best alone")
_LEFT = {0, 2, 3, 6, 7, 8, 9, 10}
"""Columns that are aligned to the left."""
LEGEND = (
    "ratio: after / before with its 95 % interval; for speed, above 1 is faster. drifts: the blocks scatter like those "
    f"of jobs that wait for the host, so {DRIFT_BLOCKS} blocks count as one. by ...: this ratio decides, because the "
    "drift cancels in it. N blocks: about as many in each study would give a verdict."
)


def _brief(change: CaseChange) -> list[str]:
    gains = (
        _arrow(change.before.over_serial, change.after.over_serial),
        _arrow(change.before.over_best_solo, change.after.over_best_solo),
    )
    return [
        change.label,
        str(change.degree),
        change.mode,
        _measure(change),
        _median(change.before.figure),
        _median(change.after.figure),
        MISSING if change.ratio is None else _format_ratio(change.ratio),
        change.change.value,
        *(gains if change.quantity is Quantity.SPEED else ()),
        "; ".join(_list_notes(change)),
    ]


def _measure(change: CaseChange) -> str:
    """Return the unit of a throughput, and the title and unit of another quantity."""
    if change.unit.endswith("/s"):
        return change.unit
    return f"{change.measure} ({change.unit})" if change.unit else change.measure or MISSING


def _list_notes(change: CaseChange) -> list[str]:
    notes = [change.note] if change.note else []
    if change.decided_by_ratio is not None:
        notes.append(f"by {change.decided_by}: {_format_ratio(change.decided_by_ratio)}")
    elif change.is_drifting:
        notes.append("drifts")
    return [*notes, f"{change.blocks_needed} blocks"] if change.blocks_needed is not None else notes


def _median(estimate: Estimate | None) -> str:
    return MISSING if estimate is None else format_value(estimate.median)


def _arrow(before: Estimate | None, after: Estimate | None) -> str:
    return "" if before is None and after is None else f"{_median(before)} -> {_median(after)}"


def _format_ratio(ratio: Estimate) -> str:
    if ratio.low is None or ratio.high is None:
        return f"{ratio.median:.3f}"
    return f"{ratio.median:.3f} ({ratio.low:.3f} to {ratio.high:.3f})"


def _summarize(references: Sequence[ComparedReference]) -> str:
    changes = [change for reference in references for change in reference.comparison.changes]
    sentences = []
    for quantity in Quantity:
        counts = Counter(change.change for change in changes if change.quantity is quantity)
        if counts:
            parts = ", ".join(f"{change.value} {counts[change]}" for change in Change if counts[change])
            sentences.append(f"{quantity.value}, {format_count(counts.total(), 'case')}: {parts}")
    worse = [change.name for change in changes if change.change.is_regression]
    sentences += [f"slower or failing: {'; '.join(dict.fromkeys(worse))}"] if worse else []
    return "\n".join(sentences)


def to_markdown(newest: ComparedStudy, references: Sequence[ComparedReference]) -> str:
    """Return the comparison as Markdown."""
    return "\n".join(_yield_markdown(newest, references)) + "\n"


def _yield_markdown(newest: ComparedStudy, references: Sequence[ComparedReference]) -> Iterator[str]:
    for reference in references:
        yield from (f"## {newest.experiment}: before and after", "")
        yield from (f"- before: {reference.study.words}", f"- after: {newest.words}", "")
        yield from ((f"**{SIMULATED}**", "") if newest.is_simulated else ())
        yield from ("Differences:", "", *(f"- {line}" for line in _list_differences(reference)), "")
        for quantity in Quantity:
            changes = [change for change in reference.comparison.changes if change.quantity is quantity]
            if changes:
                heads = _heads(quantity)
                yield from (_row(heads), "|---" * len(heads) + "|", *(_row(_brief(change)) for change in changes), "")
        yield from (f"- {line}" for line in _list_absent(reference.comparison))
        yield ""
    yield from (*_summarize(references).splitlines(), "", LEGEND)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def make_table(newest: ComparedStudy, references: Sequence[ComparedReference]) -> Table:
    """Return the comparison as a table with a row for each case, and with numbers in full."""
    rows = [
        (reference.study.source, *_list_change(change))
        for reference in references
        for change in reference.comparison.changes
    ]
    figures = ("figure", "low", "high", "blocks", "over serial", "over best step mode")
    columns = (
        *("reference", "case", "jobs", "mix", "mode", "quantity", "measure", "unit"),
        *(f"{side}: {figure}" for side in ("before", "after") for figure in figures),
        *("ratio", "ratio: low", "ratio: high", "decided by", "decided by: ratio", "decided by: low"),
        *("decided by: high", "drifts", "tolerance (%)", "p", "verdict", "blocks needed", "note", "settings differ"),
    )
    stamp = f"{SIMULATED} " if newest.is_simulated else ""
    return Table("comparison", f"{newest.experiment}: before and after", columns, tuple(rows), stamp + NOTE)


def _list_change(change: CaseChange) -> Values:
    figures: Values = ()
    for side in (change.before, change.after):
        gains = (gain.median if gain else None for gain in (side.over_serial, side.over_best_solo))
        figures += (*list_ends(side.figure), side.num_blocks, *gains)
    return (
        *(change.label, change.degree, change.consists or None, change.mode, change.quantity.value),
        *(change.measure or None, change.unit or None, *figures, *list_ends(change.ratio)),
        *(change.decided_by or None, *list_ends(change.decided_by_ratio), "yes" if change.is_drifting else "no"),
        *(100 * change.tolerance, change.p_adjusted, change.change.value, change.blocks_needed),
        *(change.note or None, change.differs or None),
    )


def to_json(newest: ComparedStudy, references: Sequence[ComparedReference]) -> str:
    """Return the comparison as JSON; `status` is the exit status of the command."""
    facts: dict[str, Any] = {
        "format": FORMAT,
        "status": int(count_regressions(references) > 0),
        "newest": dataclasses.asdict(newest),
        "references": [dataclasses.asdict(reference) for reference in references],
    }
    return json.dumps(facts, indent=1, ensure_ascii=False) + "\n"
