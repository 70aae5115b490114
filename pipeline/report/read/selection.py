"""Which of an experiment's rows may stand beside each other: one plan, and within a block one GPU and one boot."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pipeline.base.records import Result
from pipeline.report.read import labels
from pipeline.report.read.records import Block, Row

_UNKNOWN = "not recorded"


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The rows that count, and how many do not, by reason."""

    rows: tuple[Row, ...]
    blocks: tuple[Block, ...]
    left_out: Mapping[str, int]


def choose(rows: Sequence[Row]) -> Selection:
    """The rows of the newest plan, one a group and block."""
    left_out: Counter[str] = Counter()
    blocks: dict[tuple[int, str], list[Row]] = defaultdict(list)
    expected: dict[str, set[str]] = defaultdict(set)
    for row in _of_the_newest_plan(_unprofiled(rows, left_out), left_out):
        device = row.settings[0][1]
        blocks[row.block, device].append(row)
        expected[device].add(row.key)
    chosen: list[Row] = []
    found: list[Block] = []
    for (number, device), members in sorted(blocks.items()):
        (gpu_uuid, boot_id), kept = _of_one_boot(members, expected[device], left_out)
        chosen += kept
        findings = {row.key for row in kept if row.result.is_finding}
        block = Block(
            number=number,
            device=device,
            gpu_uuid=gpu_uuid,
            boot_id=boot_id,
            num_groups=len(kept),
            num_expected=len(expected[device]),
            num_missing=len(expected[device] - findings),
        )
        found.append(block)
    return Selection(rows=tuple(chosen), blocks=tuple(found), left_out=dict(left_out))


def _unprofiled(rows: Sequence[Row], left_out: Counter[str]) -> list[Row]:
    """Rows of jobs that nothing stood between: a profiler changes what it measures."""
    profiled = [row.facts["profiler"] for row in rows if row.facts.get("profiler")]
    left_out.update(f"ran under {profiler}, which changes the figures" for profiler in profiled)
    return [row for row in rows if not row.facts.get("profiler")]


def _of_the_newest_plan(rows: Sequence[Row], left_out: Counter[str]) -> list[Row]:
    """Rows whose settings, and whose programs, are those of the plan that ran last."""
    newest_first = sorted(rows, key=lambda row: (row.start_ms, row.run_id), reverse=True)
    if not newest_first:
        return []
    newest = {row.settings for row in newest_first if row.plan == newest_first[0].plan}
    programs = _newest_programs(newest_first)
    kept = []
    for row in newest_first:
        if row.settings not in newest:
            left_out[f"older plan: {_difference(row, newest)}"] += 1
        elif any(job.digest not in programs[_identity(job.params)] for job in row.jobs):
            left_out["older plan: a program, its options or its environment changed since"] += 1
        else:
            kept.append(row)
    return kept


def _identity(params: Mapping[str, str]) -> tuple[object, ...]:
    return (params.get("workload"), *sorted(labels.own_params(params).items()))


def _newest_programs(newest_first: Sequence[Row]) -> dict[tuple[object, ...], set[str]]:
    """By workload and options: the digests in the newest plan that has it. A plan may compare two environments."""
    programs: dict[tuple[object, ...], set[str]] = {}
    plans: dict[tuple[object, ...], str] = {}
    for row in newest_first:
        for job in row.jobs:
            identity = _identity(job.params)
            if plans.setdefault(identity, row.plan) == row.plan:
                programs.setdefault(identity, set()).add(job.digest)
    return programs


def _difference(row: Row, newest: set[tuple[tuple[str, str], ...]]) -> str:
    """In words, how the settings of a row differ from the nearest ones of the newest plan."""
    nearest = min(sorted(newest), key=lambda settings: len(set(row.settings) - set(settings)))
    now = dict(nearest)
    differing = [(key, value or _UNKNOWN, now[key] or _UNKNOWN) for key, value in row.settings if now[key] != value]
    return "; ".join(f"{key} {value} instead of {new}" for key, value, new in differing)


def _of_one_boot(
    members: Sequence[Row], expected: set[str], left_out: Counter[str]
) -> tuple[tuple[str, str], list[Row]]:
    """GPU and boot of a block, and its rows from there: a complete set if there is one, else the largest."""
    by_boot: dict[tuple[str, str], dict[str, Row]] = defaultdict(dict)
    for row in members:  # newest first
        mine = by_boot[row.gpu_uuid, row.boot_id]
        newer = mine.setdefault(row.key, row)
        if newer is row:
            continue
        dropped = row
        if row.result.is_finding and not newer.result.is_finding:
            dropped, mine[row.key] = newer, row
        # A group that was stopped and then run to its end leaves a study as if it had not been stopped.
        if dropped.result is not Result.INTERRUPTED:
            left_out["run again: the newest finding of the same group counts"] += 1

    def rank(boot: tuple[str, str]) -> tuple[bool, int, int]:
        rows = by_boot[boot].values()
        findings = {row.key for row in rows if row.result.is_finding}
        return (findings >= expected, len(findings), max(row.start_ms for row in rows))

    best = max(sorted(by_boot), key=rank)
    for boot, rows in by_boot.items():
        if boot != best:
            left_out["another GPU or boot than the rest of its block"] += len(rows)
    return best, list(by_boot[best].values())
