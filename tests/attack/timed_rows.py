"""The rates of programs that record when they worked (`tests/toys/timed.py`), in windows, slices and turns.

The truth is computed from the program's own instants. In a steady window and in turns, it is the work between these
edges, so the noise of the machine is in both figures. The slices of a launch sample a program, so the truth is its rate
over all its periods without the time for which it was held; how much longer its steps took than they sleep is added to
the tolerance, because no slice need be as noisy as the launch.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.attack.store_reader import StoredRun, groups_of, jobs_of, read_runs
from tests.attack.true_rows import EXACT

Window = tuple[int, int]
TURN_S, TURN_SETTLE_S = 0.5, 0.1
"""The length of a stressor's turn, and the part of it that does not count."""
# Notes that say nothing of a rate: other programs, and percentiles of latencies.
_OTHER_NOTES = re.compile("other programs used|too short for a p[0-9]")
_TURN = re.compile(r"turn (\w+) ([\d.]+)")


@dataclass(frozen=True, slots=True)
class Work:
    """The work of a program: begin and end of each step, and how long it was held before it."""

    spans: Sequence[tuple[int, int, int]]
    steps: int
    step_ms: float

    def count(self, windows: Sequence[Window]) -> float:
        """Count the steps in windows; one across an edge by its share."""
        return sum(
            max(0, min(end, window[1]) - max(begin, window[0])) / (end - begin)
            for begin, end, _ in self.spans
            for window in windows
        )

    def rate_within(self, windows: Sequence[Window]) -> float:
        return self.count(windows) * 1e9 / sum(end - begin for begin, end in windows)

    @property
    def rate(self) -> float:
        """The rate over whole periods, each from its first step to that of the next."""
        begins = self.spans[:: self.steps]
        ns = begins[-1][0] - begins[0][0] - (begins[-1][2] - begins[0][2])
        return (len(begins) - 1) * self.steps * 1e9 / ns

    @property
    def noise(self) -> float:
        """Mean excess of the steps over their sleep, as a ratio to it."""
        return sum(end - begin for begin, end, _ in self.spans) / len(self.spans) / (self.step_ms * 1e6) - 1


@dataclass(slots=True)
class Judgement:
    """Problems, the numbers of figures that were compared and of rows, and the marks of rows."""

    problems: list[str] = field(default_factory=list)
    marks: list[str] = field(default_factory=list)
    num_compared: int = 0
    num_rows: int = 0


class Store:
    """The rows of an experiment, with the files of their jobs."""

    def __init__(self, root: Path, experiment: str) -> None:
        self._folder = root / "artifacts" / experiment
        self.runs = read_runs(root / "mlflow.db", experiment)
        self.groups = groups_of(self.runs)

    def find_launch(self, group: StoredRun) -> StoredRun:
        """Return the row whose jobs ran: another one if this was measured in its launch."""
        return next((other for other in self.groups if other.tags.get("spool_id") == group.tags.get("launch")), group)

    def read(self, run: StoredRun, name: str) -> str | None:
        file = next((self._folder / run.run_id).rglob(name), None)
        return None if file is None else file.read_text()

    def works_of(self, group: StoredRun) -> dict[int, Work]:
        texts = {int(job.tags["index"]): self.read(job, "truth.json") for job in jobs_of(self.runs, group)}
        return {index: Work(**json.loads(text)) for index, text in texts.items() if text is not None}


def judge(root: Path, experiment: str, *, is_steady: bool) -> Judgement:
    """Hold every row of an experiment against what its jobs did; a steady program must have figures."""
    store, judgement = Store(root, experiment), Judgement()
    if not store.groups:
        judgement.problems.append("no group was measured")
    for group in store.groups:
        if group.tags.get("result") != "ok":
            reason = group.tags.get("reason")
            if is_steady or not reason:
                judgement.problems.append(f"{group.name}: {group.tags.get('result')}: {reason}")
            continue
        marks = [mark for mark in group.marks.split("; ") if mark and not _OTHER_NOTES.search(mark)]
        judgement.num_rows += 1
        judgement.marks += [f"{group.name}: {'; '.join(marks)}"] if marks else []
        if not marks:
            judgement.problems += [f"{group.name}: {problem}" for problem in _find_wrong(store, group, judgement)]
    return judgement


def _find_wrong(store: Store, group: StoredRun, judgement: Judgement) -> Iterator[str]:
    launch = store.find_launch(group)
    works = store.works_of(launch)
    window = int(group.tags["window_start_ns"]), int(group.tags["window_end_ns"])
    is_sampled = "slices" in group.tags or group.tags.get("scenario") == "serial"
    for job in jobs_of(store.runs, group):
        figures = {name: rate for name, rate in job.metrics.items() if re.fullmatch(r"throughput_\w+_per_s", name)}
        if (work := works.get(int(job.tags["index"]))) is None:
            continue  # the stressor
        for name, rate in figures.items():
            judgement.num_compared += 1
            truth, exact = (work.rate, EXACT + work.noise) if is_sampled else (work.rate_within([window]), EXACT)
            if abs(rate - truth) > exact * truth:
                yield f"{name} of {job.name} is {rate:.6g} and was {truth:.6g} (to {100 * exact:.1f} %)"
    for text in (store.read(launch, "slices.json"),) if "slices" in group.tags else ():
        yield from _find_work_while_held(works, json.loads(text or "[]"))
    if "turns" in group.tags:
        yield from _find_wrong_turns(store, group, works, window, judgement)


def _find_work_while_held(works: dict[int, Work], slices: Sequence[dict[str, Any]]) -> Iterator[str]:
    for index, work in works.items():
        held = [(part["begin_ns"], part["end_ns"]) for part in slices if part["num_jobs"] <= index]
        if (number := work.count(held)) >= 1:
            yield f"job {index} made {number:.0f} steps in slices of fewer jobs"


def _find_wrong_turns(
    store: Store, group: StoredRun, works: dict[int, Work], window: Window, judgement: Judgement
) -> Iterator[str]:
    stressor = next(job for job in jobs_of(store.runs, group) if int(job.tags["index"]) not in works)
    events = map(json.loads, (store.read(stressor, "events.jsonl") or "").splitlines())
    phases = [(event["name"], event["t_ns"]) for event in events if event["event"] == "phase"]
    spans: dict[tuple[str, float], list[Window]] = {}
    for (name, begin), (_, end) in pairwise(phases):
        settled, is_whole = begin + int(TURN_SETTLE_S * 1e9), end - begin >= TURN_S * 1e9
        if (turn := _TURN.fullmatch(name)) and is_whole and window[0] <= settled and end <= window[1]:
            spans.setdefault((turn[1], float(turn[2])), []).append((settled, end))
    for resource, dial, _, rates in json.loads(group.tags["turns"]):
        for index, rate in rates.items():
            if (work := works.get(int(index))) is not None:
                judgement.num_compared += 1
                truth = work.rate_within(spans[resource, dial])
                if abs(rate - truth) > EXACT * truth:
                    yield f"the rate of job {index} in turns of {resource} {dial:g} is {rate:.6g} and was {truth:.6g}"
