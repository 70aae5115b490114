"""What is doubtful about the figures of a study: a slower host, groups bound by it, baselines that stood still."""

from __future__ import annotations

import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Sequence

from pipeline.base.normalise import BEYOND_IDEAL, SPEEDUP, is_beyond_ideal
from pipeline.base.records import DEVICE, Result
from pipeline.observe.host import BUSY_PROCESS_PCT, IDLE_GRACT_RATIO
from pipeline.report.evaluate.cells import Cell
from pipeline.report.evaluate.metrics import HOST_BOUND, HOST_LOOP
from pipeline.report.evaluate.wording import jobs_in_words, listed
from pipeline.report.read.records import Block, Row, Study

_NUMBER = re.compile(r"\d+(\.\d+)?")
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


def doubts(study: Study) -> list[str]:
    """Slower hosts, environments beside each other, flags of groups and baselines that stood still, a sentence each."""
    loops = host_loops(study)
    usual = statistics.median([loop_ms for _, loop_ms, _ in loops if loop_ms is not None] or [0.0])
    several = len(study.devices) > 1  # each of which has a block of this number
    said = [
        f"The host of block {block.number}{f' on {block.device}' if several else ''} was slower: "
        f"its loop took {loop_ms:.2f} ms, {loop_ms / usual:.2f} times the median of the blocks."
        for block, loop_ms, is_slow in loops
        if is_slow and loop_ms is not None
    ]
    still = [row for row in study.rows if row.is_sequential and row.result is Result.OK and row.stalled]
    said += _mixed_packages(study)
    said += _beyond_ideal(study)
    said += _flags(study)
    return said + [
        f"Nothing is compared with baseline {row.name} of block {row.block}: {row.stalled}." for row in still
    ]


def _mixed_packages(study: Study) -> list[str]:
    """What `resume=accept_environment` lets stand beside each other."""
    packages = {job.params.get("environment_digest", "") for row in study.rows for job in row.jobs}
    if len(packages) < 2 or not any(row.facts.get("accepts_environment") for row in study.rows):
        return []
    return [
        f"Rows of {len(packages)} environments stand beside each other: the study was resumed with "
        "resume=accept_environment, which takes results of other packages for the same."
    ]


def _beyond_ideal(study: Study) -> list[str]:
    """The groups that gain more than jobs could that do not disturb each other."""
    blocks: dict[str, list[str]] = defaultdict(list)
    for row in study.rows:
        if row.result is Result.OK and is_beyond_ideal(row.metrics, row.degree):
            blocks[row.name].append(f"{row.metrics[SPEEDUP]:.2f} in block {row.block}")
    return [f"{name}: {BEYOND_IDEAL} ({', '.join(found)})." for name, found in blocks.items()]


def _flags(study: Study) -> list[str]:
    """What is doubtful about groups, each kind of it once, whatever the numbers in it."""
    blocks = Counter(row.key for row in study.rows)
    flagged: dict[str, Counter[tuple[str, str]]] = defaultdict(Counter)
    texts: dict[str, list[str]] = defaultdict(list)
    for row in study.rows:
        if row.flag and not (row.is_sequential and row.flag == row.stalled):  # that is said of baselines anyway
            kind = _NUMBER.sub("", row.flag)
            texts[kind].append(row.flag)
            flagged[kind][row.key, row.name] += 1
    said = []
    for kind, groups in flagged.items():
        names = [
            name + (f" ({number} of {blocks[key]} blocks)" if number < blocks[key] else "")
            for (key, name), number in groups.items()
        ]
        more = [f"{len(names) - _MOST_NAMES} more"] if len(names) > _MOST_NAMES else []
        such = "such as " if len(set(texts[kind])) > 1 else ""
        said.append(f"{listed([*names[:_MOST_NAMES], *more])}: {such}{texts[kind][0]}.")
    return said


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
