"""Events of a job: `events.jsonl`, one JSON object per line, appended by `workloads/client.py`.

The requests that the job answered are in a separate file of the same folder. Both files are read in bounded memory;
impossible lines are left out and counted (`event_reader`).
"""

from __future__ import annotations

import json
import math
import os
import time
from array import array
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.base.domain import layout
from pipeline.base.domain.samples import PointSeries
from pipeline.base.system import regular_files
from pipeline.launch import requests
from pipeline.launch.damages import Damages
from pipeline.launch.job_steps import Steps
from pipeline.launch.requests import Requests

_FIRST_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Epoch:
    """One complete epoch: seconds of training, and its metrics, including `validation_s` if there was a validation."""

    number: int
    t_ns: int
    seconds: float
    metrics: dict[str, float]

    @property
    def whole_s(self) -> float:
        return self.seconds + self.metrics.get("validation_s", 0.0)


@dataclass(slots=True)
class OutputSizes:
    """Sizes of the output and the error output in bytes, in the order of their instants."""

    t_ns: array[int] = field(default_factory=lambda: array("q"))
    stdout: array[int] = field(default_factory=lambda: array("q"))
    stderr: array[int] = field(default_factory=lambda: array("q"))


@dataclass(slots=True)
class Events:
    """Events that one job reported; impossible events are left out.

    Attributes:
        metrics: points of each metric, by name.
        phases: name and start of each phase of the job.
        wrong: descriptions of the first of the `num_wrong` results that the job found to be wrong.
        processes: PIDs of the processes that did the work, if they were children of the job's own process.
        ended_ns: instant at which the end of such a child was seen; `None` if there is none.
        written: sizes of the output over time, if they were observed.
        requests: the requests that the job received, answered or not; `None` if it recorded none.
        damages: complete lines that are invalid or impossible events.
        lacks_epochs: whether epochs are among the lines that were left out.
    """

    started_ns: int | None = None
    steps: Steps = field(default_factory=Steps)
    epochs: list[Epoch] = field(default_factory=list)
    metrics: dict[str, PointSeries] = field(default_factory=dict)
    params: dict[str, str] = field(default_factory=dict)
    errors: list[dict[str, str]] = field(default_factory=list)
    phases: list[tuple[str, int]] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    num_wrong: int = 0
    processes: list[int] = field(default_factory=list)
    ended_ns: int | None = None
    written: OutputSizes = field(default_factory=OutputSizes)
    requests: Requests | None = None
    damages: Damages = field(default_factory=Damages)
    lacks_epochs: bool = False


@dataclass(frozen=True, slots=True)
class JobProgress:
    """Progress of a running job, from the last lines of its file; `samples` is the work of its newest step."""

    phase: str
    epoch: int | None
    total: float | None
    t_ns: int | None
    samples: float | None = None


def read_progress(path: Path) -> JobProgress:
    """Read the newest phase and step of a job, or its number of requests, from a few kilobytes."""
    lines = read_last_lines(path)
    # Lines before the tail are assumed to be steps.
    phase, epoch, total, t_ns, samples = "train" if lines else "start", None, None, None, None
    for line in lines:
        try:
            event = json.loads(line)
            if event["event"] == "phase":
                phase = str(event["name"])
            elif event["event"] == "step":
                number = None if event["epoch"] is None else parse_whole(event["epoch"])
                t_ns, total, epoch = parse_count(event["t_ns"]), parse_amount(event["total"]), number
                samples = None if event.get("samples") is None else parse_amount(event["samples"])
        except (ValueError, KeyError, TypeError, RecursionError):
            continue
    if num_answered := requests.count_written(path.with_name(layout.REQUESTS)):
        total, t_ns, samples = num_answered, time.monotonic_ns(), None
    return JobProgress(phase, epoch, total, t_ns, samples)


def count_steps(path: Path) -> int:
    """Count the steps that a running job has reported, as far as they lie in the first 64 KiB of its file."""
    with suppress(OSError), os.fdopen(regular_files.open_regular_file(path), "rb") as file:
        return file.read(_FIRST_BYTES).count(b'"event":"step"')
    return 0


def read_last_lines(path: Path, num_bytes: int = 4096) -> list[bytes]:
    """Read the lines in the last bytes of a file; the first line may be cut. None if the file cannot be read."""
    return read_end(path, num_bytes).splitlines()


def read_shown_lines(path: Path, num_bytes: int = 4096) -> Sequence[str]:
    """Return the last lines of an output as on a terminal: without blank lines, a progress bar in its last state."""
    lines = read_end(path, num_bytes).decode(errors="replace").split("\n")
    states = ([state for state in line.split("\r") if state.strip()] for line in lines)
    return [shown[-1].rstrip() for shown in states if shown]


def read_end(path: Path, num_bytes: int, *, begin: int = 0) -> bytes:
    """Return the last bytes of an output, those from `begin` on; none if it cannot be read."""
    with suppress(OSError), os.fdopen(regular_files.open_regular_file(path), "rb") as file:
        file.seek(max(begin, file.seek(0, os.SEEK_END) - num_bytes))
        return file.read()
    return b""


def parse_whole(value: Any) -> int:
    """Return an integer that fits into a column of a database; TypeError if the value is none."""
    if type(value) is not int or abs(value) >= 2**63:
        raise TypeError(value)
    return value


def parse_count(value: Any) -> int:
    """Return a non-negative integer; TypeError or ValueError if the value is none."""
    if parse_whole(value) < 0:
        raise ValueError(value)
    return int(value)


def parse_amount(value: Any) -> float:
    """Return a finite non-negative number; TypeError or ValueError if the value is none."""
    if type(value) is float:
        if not 0 <= value < math.inf:
            raise ValueError(value)
        return value
    return parse_count(value)
