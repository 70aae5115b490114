"""Pieces of the sentences of a report."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.report.statistics import Estimate
from pipeline.report.tables import Case, Cell
from pipeline.types import Result

_FINDINGS = {
    Result.OOM: "out of memory",
    Result.WRONG_RESULTS: "computes wrong results",
    Result.SKIPPED: "cannot be placed",
    Result.TIMEOUT: "ran out of time",
    Result.FAILED: "failed",
    Result.INTERRUPTED: "interrupted",
}


def jobs_in_words(case: Case, degree: int) -> str:
    """`7 resnet26_cifar10 bs128`, `one resnet26_cifar10 bs128`, `M+2S`."""
    if case.is_mix:
        return case.label
    return f"{'one' if degree == 1 else degree} {case.label}"


def times_in_words(ratio: Estimate) -> str:
    """`1.84 times (1.79 to 1.90)`; without the interval where there is none."""
    return f"{ratio.median:.2f} times{interval_in_words(ratio, '.2f')}"


def interval_in_words(estimate: Estimate, form: str) -> str:
    """` (1.79 to 1.90)`; empty where there is no interval, and where every block has the same value by definition."""
    if estimate.low is None or estimate.high is None or estimate.low == estimate.high:
        return ""
    return f" ({estimate.low:{form}} to {estimate.high:{form}})"


def finding_in_words(cell: Cell) -> str:
    """Why a cell is not ranked: `out of memory in 5 of 5 blocks: REASON`."""
    total = sum(cell.results.values())
    count = cell.results[cell.finding]
    words = _FINDINGS.get(cell.finding, "no figure to compare")
    return f"{words} in {count} of {total} blocks" + (f": {cell.reason}" if cell.reason else "")


def listed(modes: Sequence[str]) -> str:
    """`naive, MPS and serial`."""
    return modes[0] if len(modes) == 1 else ", ".join(modes[:-1]) + " and " + modes[-1]
