"""Doubts about the figures of a study: slower hosts, host-bound groups, and the marks of rows and speed-ups."""

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
from pipeline.report.evaluate.wording import jobs_in_words, join_words
from pipeline.report.read.study_records import Block, Row, Study

_NUMBER = re.compile(r"\d+(\.\d+)?")
_KIND = re.compile(r"\d+(\.\d+)?( times)?( \([\d.]+ to [\d.]+\))?")
"""Pattern of a figure in a note, with its interval; notes that differ only in figures are of one kind."""
_MOST_NAMES = 4
SLOW_HOST = 1.25
"""A block has a slower host if its loop on the host took more than this number times the median of the blocks."""


def time_host_loops(study: Study) -> list[tuple[Block, float | None, bool]]:
    """Return each block, the median of its host loops in ms, and whether its host was slower (`SLOW_HOST`)."""
    by_place: dict[tuple[int, str], list[float]] = defaultdict(list)
    for row in study.rows:
        if HOST_LOOP in row.metrics:
            by_place[row.block, dict(row.settings)[DEVICE]].append(row.metrics[HOST_LOOP])
    medians = {place: statistics.median(loops_ms) for place, loops_ms in by_place.items()}
    limit = SLOW_HOST * statistics.median(medians.values()) if medians else 0.0
    loops = [(block, medians.get((block.number, block.device))) for block in study.blocks]
    return [(block, loop_ms, loop_ms is not None and loop_ms > limit) for block, loop_ms in loops]


def list_doubts(study: Study, cells: Sequence[Cell]) -> list[str]:
    """Return a sentence for each doubt: slower hosts, mixed environments, marks of rows."""
    loops = time_host_loops(study)
    usual = statistics.median([loop_ms for _, loop_ms, _ in loops if loop_ms is not None] or [0.0])
    several = len(study.devices) > 1  # several devices may have a block with this number
    sentences = [
        f"The host of block {block.number}{f' on {block.device}' if several else ''} was slower: "
        f"the loop on the host took {loop_ms:.2f} ms, {loop_ms / usual:.2f} times the median of the blocks."
        for block, loop_ms, is_slow in loops
        if is_slow and loop_ms is not None
    ]
    sentences += _mixed_packages(study)
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
            noted[_KIND.sub("", note)].append((f"{jobs_in_words(cell.case, cell.degree)} ({cell.mode})", note))
    return [_line(*map(list, zip(*members, strict=True))) for members in noted.values()]


def _line(names: Sequence[str], texts: Sequence[str]) -> str:
    """Return `A, B and 2 more: for example TEXT`."""
    more = [f"{len(names) - _MOST_NAMES} more"] if len(names) > _MOST_NAMES else []
    such = "for example " if len(set(texts)) > 1 else ""
    return f"{join_words([*names[:_MOST_NAMES], *more])}: {such}{texts[0]}"


def describe_host_bound(cells: Sequence[Cell]) -> str:
    """Name the groups in which at least half of the jobs were host-bound; empty if no group has this figure."""
    known = [cell for cell in cells if HOST_BOUND in cell.estimates and not cell.is_derived]
    bound: dict[str, list[str]] = defaultdict(list)
    for cell in known:
        if cell.estimates[HOST_BOUND].median >= 0.5:
            bound[jobs_in_words(cell.case, cell.degree)].append(cell.mode)
    if not known:
        return ""
    means = (
        f"a process of the job kept a CPU core at least {BUSY_PROCESS_PCT:.0f} % busy while kernels ran for less than "
        f"{100 * IDLE_GRACT_RATIO:.0f} % of the time"
    )
    groups = join_words([f"{jobs} ({', '.join(modes)})" for jobs, modes in bound.items()] or ["no group"])
    return f"Host-bound ({means}): {groups}."
