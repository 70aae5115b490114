"""Phrases for the sentences of a report, and sentences on doubts: host-bound groups, marks of rows and speed-ups."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from pipeline.base.domain.group_names import ENVIRONMENT
from pipeline.base.domain.normalisation import SLOWDOWN, SPEEDUP
from pipeline.base.domain.records import Result
from pipeline.base.system.words import format_count
from pipeline.observe.row_marks import BUSY_PROCESS_PCT, IDLE_GRACT_RATIO
from pipeline.report.evaluate.cells import Case, Cell
from pipeline.report.evaluate.metrics import HOST_BOUND
from pipeline.report.evaluate.statistics import MARGIN
from pipeline.report.read.study_records import Row, Study


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
_NUMBER = re.compile(r"\d+(\.\d+)?")
_KIND = re.compile(r"\d+(\.\d+)?( times)?( \([\d.]+ to [\d.]+\))?")
"""Pattern of a figure in a note, with its interval; notes that differ only in figures are of one kind."""
_MOST_NAMES = 4


def describe_jobs(case: Case, degree: int) -> str:
    """Return `7 resnet26_cifar10 bs128`, `one resnet26_cifar10 bs128`, `M+2S`."""
    if case.is_mix:
        return case.label
    return f"{'one' if degree == 1 else degree} {case.label}"


def describe_time(cell: Cell, cells: Iterable[Cell] = ()) -> str:
    """Return `take 0.56 of the time of one after another, each up to 1.11 times as long as alone`.

    Empty without a possible speed-up. Of `cells`, the one of the same case and mode with the fewest jobs is named if it
    gains as much.
    """
    gain, slowdown = cell.estimates.get(SPEEDUP), cell.estimates.get(SLOWDOWN)
    if gain is None or cell.degree == 1 or cell.has_stressor or cell.exceeds_ideal:
        return ""
    share, smaller = 1 / gain.median, find_equal_gain(cell, cells)
    parts = [f"{share:.2f} of the time of one after another" if share < 1 else f"{share:.2f} times as long as in turn"]
    parts += [] if slowdown is None else [f"each up to {slowdown.median:.2f} times as long as alone"]
    return f"take {', '.join(parts)}{'' if smaller is None else f'; {smaller.degree} gain as much'}"


def find_equal_gain(cell: Cell, cells: Iterable[Cell]) -> Cell | None:
    """Return the cell with the fewest jobs that has the same case and mode and gains as much; `None` without one."""
    gain = cell.estimates[SPEEDUP].median
    same = (other for other in cells if (other.case, other.mode) == (cell.case, cell.mode) and SPEEDUP in other.figures)
    smaller = [other for other in same if 1 < other.degree < cell.degree and not other.exceeds_ideal]
    enough = [other for other in smaller if other.estimates[SPEEDUP].median * (1 + MARGIN) > max(gain, 1 + MARGIN)]
    return min(enough, key=lambda other: other.degree, default=None)


def describe_gpus(number: int) -> str:
    """Return ` on these 3 GPUs`; empty for one GPU."""
    return f" on these {number} GPUs" if number > 1 else ""


def describe_finding(cell: Cell) -> str:
    """Return why a cell is not compared: `out of memory in 5 of 5 blocks: REASON`."""
    total = sum(cell.results.values())
    if cell.is_ranked and cell.num_saturated:
        return f"did not sustain its rate in {cell.num_saturated} of {format_count(total, 'block')}"
    if cell.is_wholly_invalid:
        return f"invalid in {cell.num_invalid} of {format_count(total, 'block')}: {cell.invalid[0]}"
    count = cell.results[cell.finding]
    words = ENDINGS[cell.finding].singular if cell.finding in ENDINGS else "no figure to compare"
    return f"{words} in {count} of {total} blocks" + (f": {cell.reason}" if cell.reason else "")


def describe_absence(cell: Cell) -> str:
    """Return a label for a cell without figures: `oom`, `invalid`; empty if the cell may have figures."""
    if cell.is_wholly_invalid:
        return INVALID
    return ENDINGS[cell.finding].label if cell.finding in ENDINGS else ""


def join_words(modes: Sequence[str]) -> str:
    """Return `naive, MPS and serial`."""
    return modes[0] if len(modes) == 1 else ", ".join(modes[:-1]) + " and " + modes[-1]


def list_doubts(study: Study, cells: Sequence[Cell]) -> list[str]:
    """Return a sentence for each doubt: mixed environments, marks of rows; a rehearsal has no figures to doubt."""
    if study.is_rehearsal:
        return []
    sentences = _mixed_packages(study)
    sentences += [f"{line}." for line in _gains(cells)]
    sentences += [f"{line}; invalid, so not compared." for line in _marks(study, lambda row: row.marks.invalid)]
    return sentences + [f"{line}." for line in _marks(study, lambda row: row.marks.note)]


def _mixed_packages(study: Study) -> list[str]:
    packages = {job.params.get(ENVIRONMENT, "") for row in study.rows for job in row.jobs}
    if len(packages) < 2 or not any(row.facts.get("accepts_environment") for row in study.rows):
        return []
    return [
        f"The study compares rows of {len(packages)} environments, because it was resumed with "
        "resume=accept_environment, which ignores differences in packages."
    ]


def _marks(study: Study, mark_of: Callable[[Row], str]) -> list[str]:
    blocks = Counter(row.key for row in study.rows)
    marked: dict[str, Counter[tuple[str, str]]] = defaultdict(Counter)
    texts: dict[str, list[str]] = defaultdict(list)
    for row in study.rows:
        if mark := mark_of(row):
            kind = _NUMBER.sub("", mark)
            texts[kind].append(mark)
            marked[kind][row.key, row.name] += 1
    names = {
        kind: [
            name + (f" ({number} of {blocks[key]} blocks)" if number < blocks[key] else "")
            for (key, name), number in groups.items()
        ]
        for kind, groups in marked.items()
    }
    return [_line(names[kind], texts[kind]) for kind in names]


def _gains(cells: Sequence[Cell]) -> list[str]:
    noted: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for cell in cells:
        for note in cell.notes_on_gain:
            noted[_KIND.sub("", note)].append((f"{describe_jobs(cell.case, cell.degree)} ({cell.mode})", note))
    return [_line(*map(list, zip(*members, strict=True))) for members in noted.values()]


def _line(names: Sequence[str], texts: Sequence[str]) -> str:
    """Return `A, B and 2 more: for example TEXT`."""
    omitted = [f"{len(names) - _MOST_NAMES} more"] if len(names) > _MOST_NAMES else []
    introduction = "for example " if len(set(texts)) > 1 else ""
    return f"{join_words([*names[:_MOST_NAMES], *omitted])}: {introduction}{texts[0]}"


def describe_host_bound(cells: Sequence[Cell]) -> str:
    """Name the groups in which at least half of the jobs were host-bound; empty if no group has this figure."""
    measured_cells = [cell for cell in cells if HOST_BOUND in cell.estimates and not cell.is_derived]
    bound: dict[str, list[str]] = defaultdict(list)
    for cell in measured_cells:
        if cell.estimates[HOST_BOUND].median >= 0.5:
            bound[describe_jobs(cell.case, cell.degree)].append(cell.mode)
    if not measured_cells:
        return ""
    means = (
        f"a process of the job kept a CPU core at least {BUSY_PROCESS_PCT:.0f} % busy while kernels ran for less than "
        f"{100 * IDLE_GRACT_RATIO:.0f} % of the time"
    )
    groups = join_words([f"{jobs} ({', '.join(modes)})" for jobs, modes in bound.items()] or ["no group"])
    return f"Host-bound ({means}): {groups}."
