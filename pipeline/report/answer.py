"""The question of a study and its answer in one paragraph, and what stands between the two: what is missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from pipeline.report import labels
from pipeline.report.rows import Study
from pipeline.report.statistics import MIN_BLOCKS
from pipeline.report.tables import Cell
from pipeline.report.verdicts import Winner
from pipeline.report.wording import listed
from pipeline.types import Result


def question(study: Study) -> str:
    """What the study asks."""
    devices = listed([device for device in study.devices if device] or ["this device"])
    simulated = "a simulated " if study.is_simulated else ""
    return f"On {simulated}{devices}, for these jobs: what is gained by running them together, and how?"


def answer(study: Study, cells: Sequence[Cell], winners: Sequence[Winner]) -> list[str]:
    """Who won, by how much, and what is not known; one sentence an entry."""
    if not study.rows:
        return ["There is no result yet."]
    together = [winner for winner in winners if winner.degree > 1]
    said = []
    if not together:
        said.append("No group of several jobs has a figure to compare with its baseline.")
    else:
        said += _who_won(together)
    said += _endings(cells)
    if study.num_complete_blocks < MIN_BLOCKS:
        said.append(f"With {_blocks(study.num_complete_blocks)} no comparison can be a verdict: it takes {MIN_BLOCKS}.")
    if study.is_simulated:
        said.append("The GPU was simulated, so none of this says anything about a real one.")
    return said


def missing(study: Study) -> list[str]:
    """What a half-run study lacks, and which runs were left out and why; empty for a complete one."""
    said = [
        f"Block {block.number} on {block.device} lacks {block.num_missing} of "
        f"{block.num_missing + block.num_groups} groups."
        if block.num_groups
        else f"Block {block.number} on {block.device} has no group yet."
        for block in study.blocks
        if block.num_missing
    ]
    if study.num_planned is not None and len(study.rows) < study.num_planned:
        said.append(f"The study is not complete: {len(study.rows)} of {study.num_planned} planned groups have a row.")
    said += [f"{_runs(number)} left out ({reason})." for reason, number in sorted(study.left_out.items())]
    return said


def _who_won(winners: Sequence[Winner]) -> list[str]:
    wins = Counter(winner.mode for winner in winners if winner.mode is not None)
    order = sorted(wins, key=lambda mode: (-wins[mode], mode))
    total = len(winners)
    undecided = total - sum(wins.values())
    parts = [f"{'one after another' if mode == labels.SERIAL else mode} in {wins[mode]}" for mode in order]
    if undecided:
        parts.append(f"no single mode in {undecided}")
    said = [f"Of {total} case{'s' if total != 1 else ''} of jobs that ran together, the fastest is {listed(parts)}."]
    known = [winner for winner in winners if winner.speedup is not None]
    if known:
        best = max(known, key=lambda winner: winner.speedup.median if winner.speedup else 0.0)
        least = min(known, key=lambda winner: winner.speedup.median if winner.speedup else 0.0)
        said.append(f"The largest speed-up: {best.sentence}")
        if least is not best:
            said.append(f"The smallest: {least.sentence}")
    return [sentence.removesuffix(" (simulated)") for sentence in said]


def _endings(cells: Sequence[Cell]) -> list[str]:
    found = Counter(cell.finding for cell in cells if not cell.is_derived and not cell.is_ranked)
    words = {
        Result.WRONG_RESULTS: "computed wrong results",
        Result.OOM: "ran out of memory",
        Result.SKIPPED: "could not be placed",
        Result.FAILED: "failed",
        Result.TIMEOUT: "ran out of time",
    }
    parts = [f"{found[result]} {text}" for result, text in words.items() if found[result]]
    return [f"Of all combinations of jobs and mode, {listed(parts)}; they are shown and not ranked."] if parts else []


def _blocks(number: int) -> str:
    return "no complete block" if not number else "one complete block" if number == 1 else f"{number} complete blocks"


def _runs(number: int) -> str:
    return "One run was" if number == 1 else f"{number} runs were"
