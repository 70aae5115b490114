"""The rows of a study against what its jobs did: each figure is right, marked, or missing with a reason."""

from __future__ import annotations

import json
import statistics
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from tests.attack.store_reader import StoredRun, groups_of, jobs_of, read_runs
from tests.toys import known, meter

EXACT = 0.02
"""How far a figure may be from the truth without a mark."""

_BUSY = "other programs used"
_LEAST_OUTAGE_S, _OUTAGE_SHARE = 0.4, 0.05
_TOTAL, _RATE = "throughput_total_samples_per_s", "throughput_samples_per_s"

Window = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Faults:
    """What was done to a study, as far as its rows must show it.

    Attributes:
        begin_ns: from which on the energy is counted.
        may_lack_rates: that rates may be missing. The energy may always be, with a reason.
        outages: when nothing ran, in monotonic ns.
        are_none: that its rows must be valid, on a quiet machine.
        may_fail: that a row without figures is an answer as well.
    """

    begin_ns: int
    may_lack_rates: bool = False
    outages: list[Window] = field(default_factory=list)
    are_none: bool = False
    may_fail: bool = False


@dataclass(slots=True)
class Judgement:
    """What was found: problems, and how many figures without a mark were held against the truth."""

    problems: list[str] = field(default_factory=list)
    num_compared: int = 0


def judge(root: Path, experiment: str, faults: Faults, *, is_quiet: bool) -> Judgement:
    """Compare every row of an experiment with the truth."""
    judgement = Judgement()
    runs = read_runs(root / "mlflow.db", experiment)
    for group in groups_of(runs):
        jobs = jobs_of(runs, group)
        truths = {job.name: truth for job in jobs if (truth := _read_truth(root, experiment, job)) is not None}
        problems = _judge_row(group, jobs, truths, faults, judgement)
        judgement.problems += [f"{group.name}: {problem}; marks: {group.marks or 'none'}" for problem in problems]
        if faults.are_none and is_quiet and group.is_invalid:
            judgement.problems.append(f"{group.name} is invalid on a quiet machine: {group.tags['invalid']}")
    if not judgement.num_compared and not judgement.problems and not groups_of(runs):
        judgement.problems.append("no group was measured")
    return judgement


def _judge_row(
    group: StoredRun, jobs: Sequence[StoredRun], truths: dict[str, known.Truth], faults: Faults, judgement: Judgement
) -> Iterator[str]:
    if group.tags.get("result") != "ok":
        if not group.tags.get("reason"):
            yield f"{group.tags.get('result')} without a reason"
        elif not faults.may_fail:
            yield f"{group.tags['result']}: {group.tags['reason']}"
        return
    if len(truths) < len(jobs):
        yield f"jobs {sorted({job.name for job in jobs} - set(truths))} left no truth"
        return
    if _window(group, truths)[1] is None:
        if (total := group.metrics.get(_TOTAL)) is not None and not _marks(group):
            yield f"{total:.6g} samples/s of jobs that never worked at the same time"
        return
    yield from _missing(group, faults)
    if unmarked := _unmarked_outage(group, faults.outages):
        yield unmarked
    if not _marks(group):
        yield from _wrong_figures(group, jobs, truths, faults, judgement)


def _wrong_figures(
    group: StoredRun, jobs: Sequence[StoredRun], truths: dict[str, known.Truth], faults: Faults, judgement: Judgement
) -> Iterator[str]:
    """Name the figures that are further from the truth than `EXACT`; count those that there are."""
    is_logged, window = _window(group, truths)
    assert window is not None
    for run, figures in [
        *((job, _true_figures(truths[job.name], window, is_logged=is_logged)) for job in jobs),
        (group, _true_totals(list(truths.values()), window, faults, is_logged=is_logged)),
    ]:
        for name in figures.keys() & run.metrics:
            judgement.num_compared += 1
            measured, true = run.metrics[name], figures[name]
            if abs(measured - true) > EXACT * abs(true):
                yield f"{name} of {run.name} is {measured:.6g} and was {true:.6g} ({_seconds(window):.3g} s)"


def _marks(group: StoredRun) -> str:
    """Return the marks of a row but that of a busy machine, which says nothing of its figures."""
    return "; ".join(mark for mark in group.marks.split("; ") if _BUSY not in mark)


def _missing(group: StoredRun, faults: Faults) -> Iterator[str]:
    """Name the figures that the fault did not touch and that are not there, nor is a reason."""
    if not faults.may_lack_rates and _TOTAL not in group.metrics:
        yield "there is no rate"
    is_explained = "energy_j" in group.tags.get("absent_figures", "") or any("listener." in tag for tag in group.tags)
    if "energy_j" not in group.metrics and not is_explained:
        yield "there is no energy, and no reason"


def _unmarked_outage(group: StoredRun, outages: Sequence[Window]) -> str:
    """Name the part of the window in which nothing ran, of a row that is not invalid."""
    window = _tagged_window(group)
    if window is None or group.is_invalid:
        return ""
    outage_s = sum(max(0, min(end, window[1]) - max(begin, window[0])) for begin, end in outages) / 1e9
    if outage_s < max(_LEAST_OUTAGE_S, _OUTAGE_SHARE * _seconds(window)):
        return ""
    return f"all stood still for {outage_s:.3g} s of the {_seconds(window):.3g} s window, and the row is not invalid"


def _window(group: StoredRun, truths: dict[str, known.Truth]) -> tuple[bool, Window | None]:
    """Return whether the stamps of jobs are logged rates, of which there are two, and the window of their row."""
    is_logged = all(len({value for _, value in truth.stamps}) < 3 for truth in truths.values())
    return is_logged, _common_window(truths.values()) if is_logged else _tagged_window(group)


def _tagged_window(group: StoredRun) -> Window | None:
    edges = [group.tags.get(f"window_{edge}_ns") for edge in ("start", "end")]
    return (int(edges[0]), int(edges[1])) if edges[0] and edges[1] else None


def _common_window(truths: Collection[known.Truth]) -> Window | None:
    """Return the time between the first and the last value of every job."""
    if any(len(truth.stamps) < 2 for truth in truths):
        return None
    window = max(truth.stamps[0][0] for truth in truths), min(truth.stamps[-1][0] for truth in truths)
    return window if window[0] < window[1] else None


def _true_figures(truth: known.Truth, window: Window, *, is_logged: bool) -> dict[str, float]:
    """Compute what is true of one job in a window."""
    begin, end = window
    if is_logged:
        spans = [
            (max(0, min(now, end) - max(before, begin)), value) for (before, _), (now, value) in pairwise(truth.stamps)
        ]
        return {_RATE: sum(ns * value for ns, value in spans) / sum(ns for ns, _ in spans)}
    instants, last = [t_ns for t_ns, _ in truth.stamps], truth.stamps[-1]
    figures = {"makespan_s": (last[0] - truth.begin_ns) / 1e9}
    if truth.epochs_s:
        return figures | {
            _RATE: last[1] / sum(truth.epochs_s),
            "epoch_time_mean_s": statistics.fmean(truth.epochs_s),
        }
    samples = [known.samples_until((edge - truth.begin_ns) / 1e9) for edge in window]
    figures[_RATE] = (samples[1] - samples[0]) / _seconds(window)
    inside = instants[max(0, bisect_left(instants, begin) - 1) : bisect_right(instants, end)]
    if len(inside) > 1:
        figures["step_time_p50_ms"] = statistics.median((now - before) / 1e6 for before, now in pairwise(inside))
    return figures


def _true_totals(truths: Sequence[known.Truth], window: Window, faults: Faults, *, is_logged: bool) -> dict[str, float]:
    """Compute what is true of the group."""
    energy_j = _energy_until(window[1], faults) - _energy_until(window[0], faults)
    figures = {"energy_j": energy_j, "power_mean_w": energy_j / _seconds(window)}
    if truths[0].epochs_s:
        makespan_s = (max(truth.stamps[-1][0] for truth in truths) - min(truth.begin_ns for truth in truths)) / 1e9
        total = sum(truth.stamps[-1][1] for truth in truths) / makespan_s
        figures["makespan_s"] = makespan_s
    else:
        total = sum(_true_figures(truth, window, is_logged=is_logged)[_RATE] for truth in truths)
    return figures | {_TOTAL: total, "energy_per_sample_j": energy_j / _seconds(window) / total}


def _energy_until(t_ns: int, faults: Faults) -> float:
    return meter.energy_j((t_ns - faults.begin_ns) / 1e9)


def _seconds(window: Window) -> float:
    return (window[1] - window[0]) / 1e9


def _read_truth(root: Path, experiment: str, job: StoredRun) -> known.Truth | None:
    files = list((root / "artifacts" / experiment / job.run_id).rglob("truth.json"))
    return known.Truth(**json.loads(files[0].read_text())) if files else None
