"""Doubts about the figures of a study: a slower host, groups bound by it, the marks of rows and of gains."""

from __future__ import annotations

import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

from pipeline.base.domain.group_names import ENVIRONMENT
from pipeline.base.domain.records import DEVICE
from pipeline.observe.host_load import BUSY_PROCESS_PCT, IDLE_GRACT_RATIO
from pipeline.report.evaluate.cells import Cell
from pipeline.report.evaluate.metrics import HOST_BOUND, HOST_LOOP
from pipeline.report.evaluate.wording import jobs_in_words, listed
from pipeline.report.read.records import Block, Row, Study

_NUMBER = re.compile(r"\d+(\.\d+)?")
_KIND = re.compile(r"\d+(\.\d+)?( times)?( \([\d.]+ to [\d.]+\))?")
"""A figure in a note, with its interval: notes that differ in these alone are of one kind."""
_MOST_NAMES = 4
SLOW_HOST = 1.25
"""A block is flagged whose loop on the host took more than so many times the median of the blocks."""


def host_loops(study: Study) -> list[tuple[Block, float | None, bool]]:
    """Each block, the median of its groups' loop on the host in ms, and whether it was much slower than the others."""
    found: dict[tuple[str, ...], list[float]] = defaultdict(list)
    for row in study.rows:
        if HOST_LOOP in row.metrics:
            found[_place(row)].append(row.metrics[HOST_LOOP])
    medians = {place: statistics.median(loops_ms) for place, loops_ms in found.items()}
    limit = SLOW_HOST * statistics.median(medians.values()) if medians else 0.0
    of_blocks = [(block, medians.get(_place(block))) for block in study.blocks]
    return [(block, loop_ms, loop_ms is not None and loop_ms > limit) for block, loop_ms in of_blocks]


def doubts(study: Study, cells: Sequence[Cell]) -> list[str]:
    """What a reader must know of the figures, a sentence each: slower hosts, mixed environments, and marks of rows."""
    loops = host_loops(study)
    usual = statistics.median([loop_ms for _, loop_ms, _ in loops if loop_ms is not None] or [0.0])
    several = len(study.devices) > 1  # each of which has a block of this number
    said = [
        f"The host of block {block.number}{f' on {block.device}' if several else ''} was slower: "
        f"its loop took {loop_ms:.2f} ms, {loop_ms / usual:.2f} times the median of the blocks."
        for block, loop_ms, is_slow in loops
        if is_slow and loop_ms is not None
    ]
    said += _mixed_packages(study)
    said += [f"{line}." for line in _gains(cells)]
    said += [
        f"{line}; invalid, so it is compared with nothing." for line in _marks(study, lambda row: row.marks.invalid)
    ]
    return said + [f"{line}." for line in _marks(study, lambda row: row.marks.note)]


def _mixed_packages(study: Study) -> list[str]:
    """What `resume=accept_environment` lets stand beside each other."""
    packages = {job.params.get(ENVIRONMENT, "") for row in study.rows for job in row.jobs}
    if len(packages) < 2 or not any(row.facts.get("accepts_environment") for row in study.rows):
        return []
    return [
        f"Rows of {len(packages)} environments stand beside each other: the study was resumed with "
        "resume=accept_environment, which takes results of other packages for the same."
    ]


def _marks(study: Study, mark_of: Callable[[Row], str]) -> list[str]:
    """A mark of the rows, each kind of it once, whatever the numbers in it, with the groups that have it."""
    blocks = Counter(row.key for row in study.rows)
    marked: dict[str, Counter[tuple[str, str]]] = defaultdict(Counter)
    texts: dict[str, list[str]] = defaultdict(list)
    for row in study.rows:
        if mark := mark_of(row):
            kind = _NUMBER.sub("", mark)
            texts[kind].append(mark)
            marked[kind][row.key, row.name] += 1
    lines = []
    for kind, groups in marked.items():
        names = [
            name + (f" ({number} of {blocks[key]} blocks)" if number < blocks[key] else "")
            for (key, name), number in groups.items()
        ]
        lines.append(_line(names, texts[kind]))
    return lines


def _gains(cells: Sequence[Cell]) -> list[str]:
    """Return what the intervals of gains say, each kind of it once, with the jobs that have it."""
    noted: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for cell in cells:
        for note in cell.notes_on_gain:
            noted[_KIND.sub("", note)].append((f"{jobs_in_words(cell.case, cell.degree)} ({cell.mode})", note))
    return [_line(*map(list, zip(*members, strict=True))) for members in noted.values()]


def _line(names: Sequence[str], texts: Sequence[str]) -> str:
    """Return names with what is said of each of them, whatever the numbers in it: `A, B and 2 more: such as TEXT`."""
    more = [f"{len(names) - _MOST_NAMES} more"] if len(names) > _MOST_NAMES else []
    such = "such as " if len(set(texts)) > 1 else ""
    return f"{listed([*names[:_MOST_NAMES], *more])}: {such}{texts[0]}"


def bound_by_host(cells: Sequence[Cell]) -> str:
    """In words, the groups of which half of the jobs and more were bound by the host; empty where that is not known."""
    known = [cell for cell in cells if HOST_BOUND in cell.estimates and not cell.is_derived]
    bound: dict[str, list[str]] = defaultdict(list)
    for cell in known:
        if cell.estimates[HOST_BOUND].median >= 0.5:
            bound[jobs_in_words(cell.case, cell.degree)].append(cell.mode)
    if not known:
        return ""
    means = (
        f"a process of the job kept a core {BUSY_PROCESS_PCT:.0f} % busy while kernels ran for less than "
        f"{100 * IDLE_GRACT_RATIO:.0f} % of the time"
    )
    groups = listed([f"{jobs} ({', '.join(modes)})" for jobs, modes in bound.items()] or ["no group"])
    return f"Bound by the host ({means}): {groups}."


def _place(where: Row | Block) -> tuple[str, ...]:
    if isinstance(where, Row):
        return (str(where.block), dict(where.settings)[DEVICE])
    return (str(where.number), where.device)
