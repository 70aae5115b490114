"""Phrases for the sentences of a report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pipeline.base.domain.records import Result
from pipeline.base.system.words import format_count
from pipeline.report.evaluate.cells import Case, Cell


class Words(NamedTuple):
    """The words for an outcome.

    Attributes:
        label: words for tables and figures.
        singular: words for one group in a sentence.
        plural: words for several groups in a sentence; empty if the sentence does not count them.
    """

    label: str
    singular: str
    plural: str


ENDINGS = {
    Result.WRONG_RESULTS: Words("wrong results", "computes wrong results", "computed wrong results"),
    Result.OOM: Words("oom", "out of memory", "ran out of memory"),
    Result.SKIPPED: Words("skipped", "skipped", "did not run"),
    Result.FAILED: Words("failed", "failed", "failed"),
    Result.TIMEOUT: Words("timeout", "ran out of time", "ran out of time"),
    Result.INTERRUPTED: Words("interrupted", "interrupted", ""),
}
"""Words for each result, in the order of sentences."""
INVALID = "invalid"


def jobs_in_words(case: Case, degree: int) -> str:
    """Return `7 resnet26_cifar10 bs128`, `one resnet26_cifar10 bs128`, `M+2S`."""
    if case.is_mix:
        return case.label
    return f"{'one' if degree == 1 else degree} {case.label}"


def describe_gpus(number: int) -> str:
    """Return ` on these 3 GPUs`; empty for one GPU."""
    return f" on these {number} GPUs" if number > 1 else ""


def finding_in_words(cell: Cell) -> str:
    """Return why a cell is not compared: `out of memory in 5 of 5 blocks: REASON`."""
    total = sum(cell.results.values())
    if cell.is_ranked and cell.num_saturated:
        return f"did not sustain its rate in {cell.num_saturated} of {format_count(total, 'block')}"
    if cell.is_wholly_invalid:
        return f"invalid in {cell.num_invalid} of {format_count(total, 'block')}: {cell.invalid[0]}"
    count = cell.results[cell.finding]
    words = ENDINGS[cell.finding].singular if cell.finding in ENDINGS else "no figure to compare"
    return f"{words} in {count} of {total} blocks" + (f": {cell.reason}" if cell.reason else "")


def absence_in_words(cell: Cell) -> str:
    """Return a label for a cell without figures: `oom`, `invalid`; empty if the cell may have figures."""
    if cell.is_wholly_invalid:
        return INVALID
    return ENDINGS[cell.finding].label if cell.finding in ENDINGS else ""


def marks_in_words(cells: Sequence[Cell], *, only_of_rows: bool = False) -> str:
    """Return ` (MPS: NOTE; serial: NOTE)` for the end of a sentence; empty without marks."""
    marks_of = [(cell.mode, cell.marks_of_rows if only_of_rows else cell.marks) for cell in cells]
    marks = [f"{mode}: {marks}" for mode, marks in marks_of if marks]
    return f" ({'; '.join(marks)})" if marks else ""


def join_words(modes: Sequence[str]) -> str:
    """Return `naive, MPS and serial`."""
    return modes[0] if len(modes) == 1 else ", ".join(modes[:-1]) + " and " + modes[-1]
