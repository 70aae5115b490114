"""What a job wrote of itself: `events.jsonl`, one JSON object a line, appended by `workloads/client.py`."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(slots=True)
class Steps:
    """Completed steps in the order of their completion: when, samples done since the start, and epoch, if counted."""

    t_ns: list[int] = field(default_factory=list)
    total: list[int] = field(default_factory=list)
    epoch: list[int | None] = field(default_factory=list)


@dataclass(slots=True)
class Epoch:
    """One whole epoch: seconds of training, and its figures (`validation_s` among them if it was validated)."""

    number: int
    t_ns: int
    seconds: float
    metrics: dict[str, float]

    @property
    def whole_s(self) -> float:
        """Seconds of training and validation."""
        return self.seconds + self.metrics.get("validation_s", 0.0)


@dataclass(slots=True)
class Events:
    """Everything that one job reported.

    Attributes:
        phases: what the job did, and since when.
        wrong: results that the job found to be wrong, in words.
        processes: those that did the work, if they were children of the job's own.
        written: instants, with the bytes of output and of error output that there were.
        damaged: number of lines that are no event (a torn last line is normal).
    """

    started_ns: int | None = None
    steps: Steps = field(default_factory=Steps)
    epochs: list[Epoch] = field(default_factory=list)
    metrics: list[tuple[str, int, int, float]] = field(default_factory=list)
    params: dict[str, str] = field(default_factory=dict)
    errors: list[dict[str, str]] = field(default_factory=list)
    phases: list[tuple[str, int]] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    processes: list[int] = field(default_factory=list)
    written: list[tuple[int, int, int]] = field(default_factory=list)
    damaged: int = 0


@dataclass(frozen=True, slots=True)
class JobProgress:
    """Where a running job is, from the last lines of its file."""

    phase: str
    epoch: int | None
    total: int | None
    t_ns: int | None


def read(path: Path) -> Events:
    """All events of a job; a job that wrote none has an empty record."""
    events = Events()
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        return events
    for line in lines:
        try:
            _add(events, json.loads(line))
        except (ValueError, KeyError, TypeError):
            events.damaged += 1
    return events


def read_progress(path: Path) -> JobProgress:
    """The newest phase and step of a job, at the cost of reading a few kilobytes."""
    lines = last_lines(path)
    # Whatever scrolled out of the tail was steps.
    phase, epoch, total, t_ns = "train" if lines else "start", None, None, None
    for line in lines:
        try:
            event = json.loads(line)
            if event["event"] == "phase":
                phase = event["name"]
            elif event["event"] == "step":
                epoch, total, t_ns = event["epoch"], event["total"], event["t_ns"]
        except (ValueError, KeyError, TypeError):
            continue
    return JobProgress(phase, epoch, total, t_ns)


def last_lines(path: Path, num_bytes: int = 4096) -> list[bytes]:
    """The lines in the last bytes of a file, the first of which may be cut; none of a file that cannot be read."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - num_bytes))
            return file.read().splitlines()
    except OSError:
        return []


def _add(events: Events, event: dict[str, Any]) -> None:
    kind = event["event"]
    if kind == "step":
        events.steps.t_ns.append(event["t_ns"])
        events.steps.total.append(event["total"])
        events.steps.epoch.append(event["epoch"])
    elif kind == "epoch":
        events.epochs.append(Epoch(event["epoch"], event["t_ns"], event["seconds"], event["metrics"]))
    elif kind == "metric":
        events.metrics.append((event["name"], event["step"], event["t_ns"], event["value"]))
    elif kind == "param":
        events.params.update(event["params"])
    elif kind == "error":
        events.errors.append(event)
    elif kind == "phase":
        events.phases.append((str(event["name"]), event["t_ns"]))
    elif kind == "wrong":
        events.wrong.append(str(event["what"]))
    elif kind == "process":
        events.processes.append(event["pid"])
    elif kind == "written":
        events.written.append((event["t_ns"], event["stdout"], event["stderr"]))
    elif kind == "started":
        events.started_ns = event["t_ns"]
