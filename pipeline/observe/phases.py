"""Phases of a group and of its jobs, and the share of a study's time that was measurement.

A group has five phases: set-up (GPU and listeners), launch (until the last job is ready), window, end (from the stop
message to the last exit) and clean-up. A sequential group repeats launch, window and end for each job. The first groups
of a study also have phases in which idle power is measured, before launch and before the window.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import time
from collections.abc import Iterable, Sequence

from pipeline.launch.events import Events
from pipeline.launch.job_state import JobState
from pipeline.observe.group_result import Span

SETUP, IDLE, LAUNCH, WINDOW, END, CLEANUP = "setup", "idle", "launch", "window", "end", "cleanup"
_IN_WORDS = {
    WINDOW: "measuring",
    LAUNCH: "launching",
    END: "ending jobs",
    SETUP: "setting up",
    CLEANUP: "cleaning up",
    IDLE: "measuring idle power",
}
_LEAST_SHARE = 0.05
"""Smaller shares of a study's time are not printed."""


class Phases:
    """The phases of a group, one after another without a gap."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self._name: str | None = None
        self._since_ns = 0

    def begin(self, name: str, at_ns: int | None = None) -> None:
        """End the running phase and begin another one, now or at an instant."""
        self.finish(at_ns)
        self._name, self._since_ns = name, time.monotonic_ns() if at_ns is None else at_ns

    def finish(self, at_ns: int | None = None) -> None:
        if self._name is not None:
            end_ns = time.monotonic_ns() if at_ns is None else at_ns
            self.spans.append(Span(name=self._name, start_ns=self._since_ns, end_ns=max(end_ns, self._since_ns)))
        self._name = None


def list_job_phases(state: JobState, log: Events) -> list[Span]:
    """Return the phases of a job: `process` until its first message, then the reported phases until its end."""
    ends_ns = state.ended.at_ns
    if state.started is None or ends_ns is None:
        return []
    pairs = itertools.pairwise([("process", state.started.at_ns), *log.phases, ("", ends_ns)])
    index = state.job.index
    return [Span(name=name, start_ns=begin, end_ns=max(begin, end), job=index) for (name, begin), (_, end) in pairs]


def compute_group_metrics(spans: Iterable[Span]) -> dict[str, float]:
    """Return the seconds of each phase of a group, as `time_<phase>_s`."""
    metrics: dict[str, float] = {}
    for span in spans:
        if span.job is None:
            key = f"time_{span.name}_s"
            metrics[key] = metrics.get(key, 0.0) + span.seconds
    return metrics


def compute_job_metrics(spans: Sequence[Span]) -> dict[str, float]:
    """Return the seconds of a job's phases until the job is ready, as `startup_<phase>_s`, and their sum."""
    metrics: dict[str, float] = {}
    for span in spans:
        if span.name == "ready":
            metrics["startup_s"] = (span.start_ns - spans[0].start_ns) / 1e9
            return metrics
        key = f"startup_{span.name}_s"
        metrics[key] = metrics.get(key, 0.0) + span.seconds
    return {}  # the job was never ready


def as_json(spans: Sequence[Span], wall_offset_ns: int) -> str:
    """Format the spans, with the offset of the wall clock, as the content of a JSON file."""
    content = {"wall_offset_ns": wall_offset_ns, "spans": [dataclasses.asdict(span) for span in spans]}
    return json.dumps(content, indent=1) + "\n"


def describe_shares(metrics: Iterable[dict[str, float]], elapsed_s: float) -> str:
    """Describe how a study spent its time, from the metrics of its groups; empty if no group had a window."""
    rows = list(metrics)
    spent = {name: sum(row.get(f"time_{name}_s", 0.0) for row in rows) for name in _IN_WORDS}
    if not spent[WINDOW] or elapsed_s <= 0:
        return ""
    shares = {_IN_WORDS[name]: seconds / elapsed_s for name, seconds in spent.items()}
    shares["the rest"] = 1 - sum(shares.values())
    measuring = f"measuring took {100 * shares.pop(_IN_WORDS[WINDOW]):.0f} % of the time"
    sorted_shares = sorted(shares.items(), key=lambda share: -share[1])
    parts = [f"{name} {100 * share:.0f} %" for name, share in sorted_shares if share > _LEAST_SHARE]
    return "; ".join(filter(None, (measuring, ", ".join(parts))))
