"""Reader of the events of a job that has ended; impossible events are left out.

A job may write arbitrary data, and a file may be damaged or have two writers. Every reported instant must therefore
lie within the instants that the orchestrator measured: the start of the process, the release of the job, and its `bye`
or exit.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pipeline.base.domain import layout
from pipeline.base.domain.samples import PointSeries
from pipeline.base.system import regular_files
from pipeline.launch import requests
from pipeline.launch.damages import ImpossibleLineError
from pipeline.launch.events import Epoch, Events, parse_amount, parse_count, parse_whole
from pipeline.launch.job_state import WHOLE_TIME, Lifetime
from pipeline.launch.job_steps import NO_EPOCH, Step, StepChain

MOST_BYTES = 1 << 34
_BLOCK_BYTES = 1 << 20
_MOST_EPOCHS, _MOST_METRICS, _MOST_PARAMS, _MOST_TEXTS = 100_000, 1000, 1000, 100
_MOST_PHASES = _MOST_PROCESSES = 10_000
_MOST_SIZES = 1 << 22

# A step in the format of `workloads/client.py` or `json.dumps`; nearly all lines of a file are such steps.
_STEP_LINE = re.compile(
    rb'\{"event": ?"step", ?"t_ns": ?(\d{1,18}), ?"samples": ?(\d{1,15}(?:\.\d{1,18})?), ?'
    rb'"total": ?(\d{1,15}(?:\.\d{1,18})?), ?"epoch": ?(null|\d{1,18})\}\n'
)
# Consecutive steps with integers only. Without the characters of `_BETWEEN_NUMBERS`, only numbers and commas remain.
_STEP_LINES = re.compile(
    rb'(?:\{"event": ?"step", ?"t_ns": ?\d{1,18}, ?"samples": ?\d{1,15}, ?"total": ?\d{1,15}, ?'
    rb'"epoch": ?(?:null|\d{1,18})\}\n)*+'
)
_BETWEEN_NUMBERS = b'{}":_ \nabcdefghijklmnopqrstuvwxyz'
_LARGE_BYTES, _MANY_BYTES = 1 << 20, 1 << 14
"""In files of at least the first size, runs of steps of at least the second size are parsed with numpy, ten times as
fast."""

_SLACK_S, _SLACK_SHARE = 0.01, 0.01
"""Tolerance by which an epoch may be longer than the time available, because a job may use another clock."""

_LATE_S, _LATE_SHARE = 0.5, 0.1
"""Tolerance by which an epoch may be longer than the time since the report of the previous epoch, which may have been
late."""

_NO_EVENT = "not an event"
_OUTSIDE = "an instant outside the life of the job"


def read(path: Path, lifetime: Lifetime = WHOLE_TIME) -> Events:
    """Return the events of a job that has ended; the record is empty if the job wrote none."""
    events = Events()
    reader = _Reader(events, path, lifetime)
    try:
        events.requests = requests.read(path.with_name(layout.REQUESTS), lifetime)
    except ValueError as error:
        events.errors.append({"type": "RequestFileError", "message": str(error)})
    try:
        if (size := regular_files.measure_size(path)) > MOST_BYTES:
            sizes = f"{size / 2**30:.3g} GiB, which exceeds the limit of {MOST_BYTES / 2**30:g} GiB"
            message = f"{path.name} has {sizes}; report larger steps"
            events.errors.append({"type": "EventFileError", "message": message})
        else:
            reader.read(path)
    except FileNotFoundError:
        pass
    except OSError as error:
        events.errors.append({"type": "EventFileError", "message": f"{path.name} cannot be read: {error.strerror}"})
    return events


class _Reader:
    def __init__(self, events: Events, path: Path, lifetime: Lifetime) -> None:
        self._events, self._lifetime = events, lifetime
        self._number = 0  # number of the current line
        self._is_large = False
        self._no_many_until = 0
        self._chain: StepChain | None = None
        self._since_step_ns: int | None = None
        self._epoch_end_ns = 0  # the earliest possible end of the last epoch
        self._output_bytes = (_find_size(path.with_name(layout.STDOUT)), _find_size(path.with_name(layout.STDERR)))
        self._kinds: dict[str, Callable[[dict[str, Any]], None]] = {
            "step": self._read_step,
            "epoch": self._read_epoch,
            "metric": self._read_metric,
            "param": self._read_param,
            "error": self._read_error,
            "phase": self._read_phase,
            "wrong": self._read_wrong,
            "process": self._read_process,
            "written": self._read_written,
            "started": self._read_start,
            "process_ended": self._read_process_end,
        }

    def read(self, path: Path) -> None:
        self._is_large = regular_files.measure_size(path) >= _LARGE_BYTES
        for block in regular_files.read_line_blocks(path, _BLOCK_BYTES):
            begin = self._no_many_until = 0
            while begin < len(block):
                end = self._add_many(block, begin)
                if end == begin:
                    end = block.find(b"\n", begin) + 1 or len(block)
                    self._number += 1
                    self._add_line(block[begin:end])
                begin = end
        if self._chain is not None:
            self._events.steps = self._chain.finish(self._since_step_ns)

    def _add_many(self, block: bytes, begin: int) -> int:
        """Add a long run of consistent steps that begins here, if there is one; return the position after it."""
        if begin < self._no_many_until or len(block) - begin < _MANY_BYTES or not self._is_large or self._chain is None:
            return begin
        match = _STEP_LINES.match(block, begin)
        assert match is not None
        end = block.rfind(b"\n", begin, match.end()) + 1 or begin  # before Python 3.11.5, it may end within a line
        self._no_many_until = end
        if end - begin < _MANY_BYTES:
            return begin
        import numpy as np

        text = block[begin:end].translate(None, _BETWEEN_NUMBERS).replace(b",,", b",-1,")
        numbers = np.fromstring(text[1:] + (b"-1" if text.endswith(b",") else b""), np.int64, sep=",").reshape(-1, 4)
        columns = [np.ascontiguousarray(column) for column in numbers.T]
        columns[3][columns[3] == -1] = NO_EPOCH
        if columns[0][-1] > self._lifetime.end_ns or not self._chain.add_many(self._number + 1, *columns):
            return begin
        self._number += len(numbers)
        self._since_step_ns = None
        return end

    def _add_line(self, line: bytes) -> None:
        try:
            if (match := _STEP_LINE.fullmatch(line)) is not None:
                t_ns, samples, total, epoch = match.groups()
                number = NO_EPOCH if epoch == b"null" else int(epoch)
                self._add_step(Step(int(t_ns), float(samples), float(total), number, self._number))
            else:
                self._add(line)
        except ImpossibleLineError as error:
            self._damage(str(error))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
            if line.endswith(b"\n") or len(line) >= _BLOCK_BYTES:  # a killed job may leave an incomplete last line
                self._damage(_NO_EVENT)

    def _damage(self, reason: str) -> None:
        if self._chain is not None:
            self._chain.note_lost()
        self._events.damages.add(reason, self._number)

    def _add(self, line: bytes) -> None:
        event = json.loads(line)
        kind = event["event"]
        self._kinds[kind](event)
        if kind != "step" and type(t_ns := event.get("t_ns")) is int:
            self._since_step_ns = max(t_ns, self._since_step_ns or 0)

    def _read_instant(self, event: dict[str, Any]) -> int:
        t_ns = parse_count(event["t_ns"])
        if not self._lifetime.begin_ns <= t_ns <= self._lifetime.end_ns:
            raise ImpossibleLineError(_OUTSIDE)
        return t_ns

    def _read_start(self, event: dict[str, Any]) -> None:
        t_ns = self._read_instant(event)
        if t_ns < self._lifetime.released_ns:
            raise ImpossibleLineError("a start before the job was released")
        if self._chain is not None:
            raise ImpossibleLineError("a second start")
        self._events.started_ns = self._epoch_end_ns = t_ns
        self._chain = StepChain(t_ns, self._events.damages.add)

    def _read_step(self, event: dict[str, Any]) -> None:
        samples = event.get("samples")
        number = NO_EPOCH if event["epoch"] is None else parse_whole(event["epoch"])
        done = None if samples is None else parse_amount(samples)
        self._add_step(Step(parse_count(event["t_ns"]), done, parse_amount(event["total"]), number, self._number))

    def _add_step(self, step: Step) -> None:
        if self._chain is None or step.t_ns < self._chain.start_ns:
            raise ImpossibleLineError("a step before the start of the work")
        if step.t_ns > self._lifetime.end_ns:
            raise ImpossibleLineError(_OUTSIDE)
        self._chain.add(step)
        self._since_step_ns = None

    def _read_epoch(self, event: dict[str, Any]) -> None:
        try:
            self._add_epoch(event)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
            self._events.lacks_epochs = True
            raise

    def _add_epoch(self, event: dict[str, Any]) -> None:
        events, t_ns = self._events, self._read_instant(event)
        figures = {str(name): _parse_number(value) for name, value in event["metrics"].items()}
        epoch = Epoch(parse_whole(event["epoch"]), t_ns, _parse_number(event["seconds"]), figures)
        if not (0 <= epoch.seconds < math.inf and 0 <= figures.get("validation_s", 0.0) < math.inf):
            raise ImpossibleLineError("an epoch of an impossible duration")
        if events.started_ns is None or t_ns < events.started_ns:
            raise ImpossibleLineError("an epoch before the start of the work")
        if events.epochs and (epoch.number <= events.epochs[-1].number or t_ns < events.epochs[-1].t_ns):
            raise ImpossibleLineError("an epoch that was already reported, or out of order")
        since_s = (t_ns - (events.epochs[-1].t_ns if events.epochs else events.started_ns)) / 1e9
        left_s = (t_ns - self._epoch_end_ns) / 1e9
        is_longer = epoch.whole_s > (1 + _LATE_SHARE) * since_s + _LATE_S and since_s > _LATE_SHARE * epoch.whole_s
        if is_longer or epoch.whole_s > (1 + _SLACK_SHARE) * left_s + _SLACK_S:
            raise ImpossibleLineError("an epoch longer than the time since the previous one")
        if len(events.epochs) == _MOST_EPOCHS:
            raise ImpossibleLineError(f"more than {_MOST_EPOCHS} epochs")
        events.epochs.append(epoch)
        self._epoch_end_ns = min(self._epoch_end_ns + int(epoch.whole_s * 1e9), t_ns)
        if self._chain is not None and (last_ns := self._chain.last_ns(epoch.number)) is not None:
            validated_ns = int((epoch.whole_s - epoch.seconds) * 1e9)
            self._epoch_end_ns = max(self._epoch_end_ns, min(last_ns + validated_ns, t_ns))

    def _read_metric(self, event: dict[str, Any]) -> None:
        name, step = str(event["name"]), parse_whole(event["step"])
        t_ns, value = self._read_instant(event), _parse_number(event["value"])
        series = self._events.metrics.get(name)
        if series is None:
            if len(self._events.metrics) == _MOST_METRICS:
                raise ImpossibleLineError(f"more than {_MOST_METRICS} metrics")
            series = self._events.metrics[name] = PointSeries()
        elif series.newest == (step, t_ns, value):
            raise ImpossibleLineError("a metric that was already reported")
        series.append(step, t_ns, value)

    def _read_param(self, event: dict[str, Any]) -> None:
        params = {str(name): str(value) for name, value in event["params"].items()}
        stored_params = self._events.params
        # Such a param is the basis of a figure (`work_units.list_second_units`).
        if any("_per_" in name and stored_params.get(name, value) != value for name, value in params.items()):
            raise ImpossibleLineError("a param that changed its value")
        if len(stored_params | params) > _MOST_PARAMS:
            raise ImpossibleLineError(f"more than {_MOST_PARAMS} params")
        stored_params.update(params)

    def _read_error(self, event: dict[str, Any]) -> None:
        errors = self._events.errors
        errors.append({str(name): str(value) for name, value in event.items()})
        del errors[_MOST_TEXTS:-1]

    def _read_phase(self, event: dict[str, Any]) -> None:
        phases, name, t_ns = self._events.phases, str(event["name"]), self._read_instant(event)
        if phases and t_ns < phases[-1][1]:
            raise ImpossibleLineError("a phase earlier than the previous one")
        if len(phases) == _MOST_PHASES:
            raise ImpossibleLineError(f"more than {_MOST_PHASES} phases")
        phases.append((name, t_ns))

    def _read_wrong(self, event: dict[str, Any]) -> None:
        self._events.num_wrong += 1
        if len(self._events.wrong) < _MOST_TEXTS:
            self._events.wrong.append(str(event["what"]))

    def _read_process(self, event: dict[str, Any]) -> None:
        if len(self._events.processes) == _MOST_PROCESSES:
            raise ImpossibleLineError(f"more than {_MOST_PROCESSES} processes")
        self._events.processes.append(parse_count(event["pid"]))

    def _read_process_end(self, event: dict[str, Any]) -> None:
        t_ns = self._read_instant(event)
        if self._events.ended_ns is not None or t_ns < (self._events.started_ns or 0):
            raise ImpossibleLineError("an end before the start, or a second end")
        self._events.ended_ns = t_ns

    def _read_written(self, event: dict[str, Any]) -> None:
        written = self._events.written
        row = self._read_instant(event), parse_count(event["stdout"]), parse_count(event["stderr"])
        if any(size > most for size, most in zip(row[1:], self._output_bytes, strict=True)):
            raise ImpossibleLineError("more output than the job wrote")
        columns = (written.t_ns, written.stdout, written.stderr)
        if written.t_ns and any(value < column[-1] for value, column in zip(row, columns, strict=True)):
            raise ImpossibleLineError("less output than before")
        if len(written.t_ns) == _MOST_SIZES:
            raise ImpossibleLineError(f"more than {_MOST_SIZES} sizes of output")
        for column, value in zip(columns, row, strict=True):
            column.append(value)


def _parse_number(value: Any) -> float:
    """Return a number, which need not be finite: a job reports NaN if its loss is not a number."""
    if type(value) not in (int, float):
        raise TypeError(value)
    return float(value)


def _find_size(path: Path) -> int:
    try:
        return regular_files.measure_size(path)
    except OSError:
        return 2**63
