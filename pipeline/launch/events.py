"""What a job wrote of itself: `events.jsonl`, one JSON object a line, appended by `workloads/client.py`.

The requests that it answered stand beside it, in a file of their own.
"""

from __future__ import annotations

import json
import math
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.base import layout, regular_files
from pipeline.launch import requests
from pipeline.launch.requests import Requests

_INSTANTS = {"started": "started_ns", "process_ended": "ended_ns"}


@dataclass(slots=True)
class Steps:
    """Completed steps in the order of their completion: when, work done since the start, and epoch, if counted.

    Work need not come in whole numbers.
    """

    t_ns: list[int] = field(default_factory=list)
    total: list[float] = field(default_factory=list)
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
        ended_ns: when such a child was seen to have ended; `None` if there is none.
        written: instants, with the bytes of output and of error output that there were.
        requests: those that it answered, or was asked; `None` if it recorded none.
        damaged: number of whole lines that are no event, or one that cannot be: they are left out.
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
    ended_ns: int | None = None
    written: list[tuple[int, int, int]] = field(default_factory=list)
    requests: Requests | None = None
    damaged: int = 0


@dataclass(frozen=True, slots=True)
class JobProgress:
    """Where a running job is, from the last lines of its file."""

    phase: str
    epoch: int | None
    total: float | None
    t_ns: int | None


def read(path: Path) -> Events:
    """All events of a job; a job that wrote none has an empty record."""
    events = Events(requests=requests.read(path.with_name(layout.REQUESTS)))
    try:
        data = regular_files.read_bytes(path)
    except FileNotFoundError:
        return events
    except OSError as error:
        events.errors.append({"type": "EventFileError", "message": f"{path.name} cannot be read: {error.strerror}"})
        return events
    for line in data.splitlines(keepends=True):
        try:
            _add(events, json.loads(line))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            events.damaged += line.endswith(b"\n")  # a job that is killed leaves a torn last line
    return events


def read_progress(path: Path) -> JobProgress:
    """The newest phase and step of a job, or its number of requests, at the cost of reading a few kilobytes."""
    lines = last_lines(path)
    # Whatever scrolled out of the tail was steps.
    phase, epoch, total, t_ns = "train" if lines else "start", None, None, None
    for line in lines:
        try:
            event = json.loads(line)
            if event["event"] == "phase":
                phase = str(event["name"])
            elif event["event"] == "step":
                _add_step(step := Steps(), _count(event["t_ns"]), _amount(event["total"]), event["epoch"])
                epoch, total, t_ns = step.epoch[0], step.total[0], step.t_ns[0]
        except (ValueError, KeyError, TypeError, RecursionError):
            continue
    if answered := requests.number_written(path.with_name(layout.REQUESTS)):
        total, t_ns = answered, time.monotonic_ns()
    return JobProgress(phase, epoch, total, t_ns)


def last_lines(path: Path, num_bytes: int = 4096) -> list[bytes]:
    """The lines in the last bytes of a file, the first of which may be cut; none of a file that cannot be read."""
    try:
        with os.fdopen(regular_files.opened(path), "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - num_bytes))
            return file.read().splitlines()
    except OSError:
        return []


def _add(events: Events, event: dict[str, Any]) -> None:
    """Add one event.

    Raises:
        ValueError, KeyError, TypeError: it is none, or says what cannot be, as fewer samples than before. A job may
            write whatever it likes.
    """
    kind = event["event"]
    if kind == "step":
        _add_step(events.steps, _count(event["t_ns"]), _amount(event["total"]), event["epoch"])
    elif kind == "epoch":
        seconds = _finite(event["seconds"])
        if seconds < 0:
            raise ValueError(seconds)
        figures = {str(name): float(value) for name, value in event["metrics"].items()}
        events.epochs.append(Epoch(_whole(event["epoch"]), _count(event["t_ns"]), seconds, figures))
    elif kind == "metric":
        point = _whole(event["step"]), _count(event["t_ns"]), float(event["value"])
        events.metrics.append((str(event["name"]), *point))
    elif kind == "param":
        events.params.update({str(name): str(value) for name, value in event["params"].items()})
    elif kind == "error":
        events.errors.append({str(name): str(value) for name, value in event.items()})
    elif kind == "phase":
        events.phases.append((str(event["name"]), _count(event["t_ns"])))
    elif kind == "wrong":
        events.wrong.append(str(event["what"]))
    elif kind == "process":
        events.processes.append(_count(event["pid"]))
    elif kind == "written":
        events.written.append((_count(event["t_ns"]), _count(event["stdout"]), _count(event["stderr"])))
    elif kind in _INSTANTS:
        setattr(events, _INSTANTS[kind], _count(event["t_ns"]))
    else:
        raise ValueError(kind)


def _add_step(steps: Steps, t_ns: int, total: float, epoch: Any) -> None:
    if steps.t_ns and (t_ns < steps.t_ns[-1] or total < steps.total[-1]):
        raise ValueError("an earlier step, or fewer samples")
    number = None if epoch is None else _whole(epoch)
    steps.t_ns.append(t_ns)
    steps.total.append(total)
    steps.epoch.append(number)


def _whole(value: Any) -> int:
    """A whole number, of a size that a database takes."""
    if type(value) is not int or abs(value) >= 2**63:
        raise TypeError(value)
    return value


def _count(value: Any) -> int:
    if _whole(value) < 0:
        raise ValueError(value)
    return int(value)


def _amount(value: Any) -> float:
    if type(value) is float:
        if not 0 <= value < math.inf:
            raise ValueError(value)
        return value
    return _count(value)


def _finite(value: Any) -> float:
    if not math.isfinite(number := float(value)):
        raise ValueError(value)
    return number
