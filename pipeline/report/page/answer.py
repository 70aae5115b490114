"""The question of a study and its answer in one paragraph, and what stands between the two: what is missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from pipeline.base.modes import SERIAL
from pipeline.base.words import counted
from pipeline.report.evaluate.cells import Cell
from pipeline.report.evaluate.statistics import MIN_BLOCKS
from pipeline.report.evaluate.verdicts import Winner
from pipeline.report.evaluate.wording import ENDINGS, jobs_in_words, listed, times_in_words
from pipeline.report.read.records import Study


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
    nobody = "No group of several jobs has a figure to compare with its baseline."
    said = [*(_who_won(together) if together else [nobody]), *_endings(cells)]
    if study.num_complete_blocks < MIN_BLOCKS:
        said.append(f"With {_blocks(study.num_complete_blocks)} no comparison can be a verdict: it takes {MIN_BLOCKS}.")
    if study.is_simulated:
        said.append("The GPU was simulated, so none of this says anything about a real one.")
    return said


def missing(study: Study) -> list[str]:
    """What a half-run study lacks, and which runs were left out and why; empty for a complete one."""
    said = [
        f"Block {block.number} on {block.device} lacks {block.num_missing} of {block.num_expected} groups."
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
    total = counted(len(winners), "collocated case")
    undecided = len(winners) - sum(wins.values())
    if len(winners) > 1 and len(wins) == 1 and not undecided:
        fastest = _way(order[0])
        said = [f"{fastest[0].upper()}{fastest[1:]} is fastest in all {total}."]
    elif wins:
        parts = [f"{_way(order[0])} is fastest in {wins[order[0]]}"]
        parts += [f"{_way(mode)} in {wins[mode]}" for mode in order[1:]]
        parts += [f"no single mode in {undecided}"] if undecided else []
        said = [f"Of {total}, {listed(parts)}."]
    else:
        said = [f"In {total} no single mode is shown to be fastest."]
    gains = [_gain(winner) for winner in sorted(winners, key=lambda winner: -winner.speedup.median)]
    said.append(f"The largest speed-up over one after another is {gains[0]}.")
    if len(gains) > 1:
        said.append(f"The smallest of a fastest mode is {gains[-1]}.")
    return said


def _way(mode: str) -> str:
    return "one after another" if mode == SERIAL.label else mode


def _gain(winner: Winner) -> str:
    """`2.18 times (2.16 to 2.23): 3 ResNets under MPS; over the best step mode alone it is 0.55 times`."""
    fastest = winner.mode or winner.tied[0]
    under = "" if fastest == SERIAL.label else f" under {fastest}"
    text = f"{times_in_words(winner.speedup)}: {jobs_in_words(winner.case, winner.degree)}{under}"
    if winner.mode is None:
        text += f", not told apart from {listed(winner.tied[1:])}" if len(winner.tied) > 1 else ", no verdict"
    best = winner.over_best_solo
    return text + (f"; over one at a time in the best step mode it is {times_in_words(best)}" if best else "")


def _endings(cells: Sequence[Cell]) -> list[str]:
    found = Counter(cell.finding for cell in cells if not cell.is_derived and not cell.is_ranked)
    told = {result: words.of_several for result, words in ENDINGS.items() if found[result] and words.of_several}
    parts = [f"{found[result]} {words}" for result, words in told.items()]
    return [f"Of all combinations of jobs and mode, {listed(parts)}; they are shown and not ranked."] if parts else []


def _blocks(number: int) -> str:
    return "no complete block" if not number else "one complete block" if number == 1 else f"{number} complete blocks"


def _runs(number: int) -> str:
    return "One run was" if number == 1 else f"{number} runs were"
