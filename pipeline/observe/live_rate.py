"""The rate of a running job, from the lines that it prints while it runs, and the pattern of such lines."""

from __future__ import annotations

import dataclasses
import os
import re
import statistics
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

from pipeline.base.domain import layout
from pipeline.base.domain.records import Group
from pipeline.base.domain.tags import Tag
from pipeline.base.domain.window import Window, WindowKind
from pipeline.base.domain.workload import RateSource
from pipeline.base.system import regular_files
from pipeline.launch import events
from pipeline.launch.job_state import JobState
from pipeline.observe.output_rates import OutputReader

_USUAL_PATTERNS = (
    "([0-9.]+) ?it/s",
    r"[A-Za-z]+/s(?:ec|econd)?\)?[:=] ?([0-9][0-9.,]*)",
    r"([0-9][0-9.,]*)[kKMG]? ?(?![kKMGT]?i?B/)[A-Za-z]+(?:/| per )s(?:ec|econd)?\b",  # without `5.2MB/s`
    r"([0-9.]+) ?m?s/(?:it|iter|step|batch)\b",
    r"([0-9][0-9.,]*)/s\b",
)
"""Patterns of rates if the user names none: progress bars, `tok/s: 80`, `5130.4 samples/s`, `3 ms/step`, then `7/s`."""
_OTHER_WORK = (
    r"\W*(?:Load|Download|Fetch|Resolv|Generat|Map\b|Filter|Tokeni|Preprocess|Prepar|Convert|Creat|Build|Comput|Sav|Sanity"
    "|Eval|Valid|Test|Predict)"
)
"""Begins of lines whose rates are not those of the training, such as `Loading weights: 5000it/s`."""
_UNKNOWN_WORK = "samples"
"""Work unit of a rate that is found as `7/s`."""
_MOST_BYTES = 1 << 16
_BREAK = re.compile(rb"[\r\n]+")


_LEAST_RATES = 6
"""Lines with a rate that a job must have printed in a window; `pipeline/observe/row_marks.py` wants one less."""

Patterns = Mapping[str, str | None]
"""The `metric_pattern` of each program whose rate is sought, by its digest; `None` if its whole run is measured."""


def find_pattern(lines: Sequence[str]) -> str | None:
    """Return a `workload.metric_pattern` for the last rate in an output, such as `([0-9.]+)it/s`, if it has one.

    If lines of other work have such rates, too, the pattern leaves them out.
    """
    of_other_work = [line for line in lines if re.match(_OTHER_WORK, line)]
    last_first = [line for line in reversed(lines) if not re.match(_OTHER_WORK, line)]
    for pattern in _USUAL_PATTERNS:
        if rate := next(filter(None, (re.search(pattern, line) for line in last_first)), None):
            before, after = rate.string[rate.start() : rate.start(1)], rate.string[rate.end(1) : rate.end()]
            if any(re.search(pattern, line) for line in of_other_work):
                return f"^(?!{_OTHER_WORK}).*?{re.escape(before)}([0-9][0-9.,]*){after}"
            return f"{re.escape(before)}([0-9.]+){after}"
    return None


def apply_patterns(group: Group, patterns: Patterns) -> Group:
    """Return a group with the found patterns of rates that were sought; with whole runs if a program prints none."""
    digests = {job.workload.digest for job in group.jobs if job.workload.rate.is_sought}
    if not digests or not digests <= patterns.keys():
        return group
    has_rates = all(patterns[digest] is not None for digest in digests)
    jobs = []
    for job in group.jobs:
        rate = RateSource(pattern=patterns[job.workload.digest]) if has_rates else RateSource()
        unit = _choose_unit(rate, job.workload.work_unit)
        jobs.append(dataclasses.replace(job, workload=dataclasses.replace(job.workload, rate=rate, work_unit=unit)))
    window = group.window if has_rates else Window(kind=WindowKind.WORK)
    return dataclasses.replace(group, jobs=tuple(jobs), window=window)


def _choose_unit(source: RateSource, unit: str) -> str:
    is_bare = source.pattern is not None and source.pattern.endswith((")/s", r")/s\b"))
    return unit or (_UNKNOWN_WORK if is_bare else "")


def _make_reader(source: RateSource, unit: str) -> OutputReader:
    return OutputReader(source, _choose_unit(source, unit))


def make_tags(group: Group, patterns: Patterns) -> dict[str, str]:
    """Return the tag with the pattern of a planned group whose rate is sought, so that a resumed study has it."""
    first = group.jobs[0].workload
    is_known = first.rate.is_sought and first.digest in patterns
    return {Tag.RATE_PATTERN: patterns[first.digest] or ""} if is_known else {}


def read_tags(group: Group, tags: Mapping[str, str]) -> dict[str, str | None]:
    """Return the patterns in the tags of a group that ran, by the digest of the program."""
    text = tags.get(Tag.RATE_PATTERN)
    return {} if text is None else {job.workload.digest: text or None for job in group.jobs}


class PrintedRates:
    """The rates that running jobs print, of which the window of a group needs some.

    The whole run of a program is measured, instead of the rate that is sought, if it ends within `whole_run_s`.

    Attributes:
        patterns: the pattern of each program whose rate is sought and was found, by its digest.
    """

    def __init__(self, states: Sequence[JobState], seconds: float, *, whole_run_s: float = 0.0) -> None:
        self._states, self._seconds = [state for state in states if not state.job.is_co_runner], seconds
        is_sought = any(state.job.workload.rate.is_sought for state in states)
        self._least_s = time.monotonic() + (whole_run_s if is_sought else 0.0)
        self._begin_s: float | None = None
        self._counts = dict.fromkeys((state.job.index for state in self._states), 0)
        self.patterns: dict[str, str | None] = {}

    def is_over(self) -> bool:
        """Return whether all jobs have printed rates for `seconds`, or one that did has ended."""
        patterns_before = dict(self.patterns)
        for state in self._states:
            # In the window, the output of no job is read, but of one whose rate is sought.
            if self._counts[state.job.index] < _LEAST_RATES or state.job.workload.rate.is_sought:
                self._counts[state.job.index] = self._count(state)
        if self.patterns != patterns_before:
            self._begin_s = None
        if self._begin_s is None and all(self._counts.values()):
            self._begin_s = time.monotonic()
        if self._begin_s is None:
            return False
        is_long = time.monotonic() >= max(self._begin_s + self._seconds, self._least_s)
        has_enough = is_long and min(self._counts.values()) >= _LEAST_RATES
        return has_enough or any(state.has_ended for state in self._states)

    def _count(self, state: JobState) -> int:
        """Return the number of lines with a rate at the end of a job's output."""
        workload, most = state.job.workload, 0
        for name in (layout.STDOUT, layout.STDERR):
            output = events.read_end(state.folder / name, _MOST_BYTES)
            lines = [line.decode(errors="replace") for line in _BREAK.split(output)]
            source = RateSource(pattern=find_pattern(lines)) if workload.rate.is_sought else workload.rate
            if source.pattern is None:
                continue
            reader = _make_reader(source, workload.work_unit)
            number = sum(reader.read_rate(line) is not None for line in lines)
            if number > most:
                most = number
                if workload.rate.is_sought:
                    self.patterns[workload.digest] = source.pattern
        return most


class LiveRate:
    """A reader of a job's output, which reads each line once; lines beyond 64 KiB of one reading are left out."""

    def __init__(self, state: JobState) -> None:
        rate = state.job.workload.rate
        sources = [rate] if rate.pattern is not None else [RateSource(pattern=pattern) for pattern in _USUAL_PATTERNS]
        self._readers = [_make_reader(source, state.job.workload.work_unit) for source in sources]
        self._ends = {state.folder / name: 0 for name in (layout.STDOUT, layout.STDERR)}
        self._cut = dict.fromkeys(self._ends, b"")

    def read(self) -> float | None:
        """Return the mean of the rates that were printed since the last reading; `None` without one."""
        rates = [rate for line in self._read_lines() if (rate := self._find_rate(line)) is not None]
        return statistics.fmean(rates) if rates else None

    def _find_rate(self, line: str) -> float | None:
        for reader in self._readers:
            if (rate := reader.read_rate(line)) is not None:
                self._readers = [reader]  # a program that prints several rates is read by the first
                return rate
        return None

    def _read_lines(self) -> list[str]:
        lines: list[bytes] = []
        for path, end in self._ends.items():
            with suppress(OSError), os.fdopen(regular_files.open_regular_file(path), "rb") as file:
                size = os.fstat(file.fileno()).st_size
                file.seek(max(end, size - _MOST_BYTES))
                *new, self._cut[path] = _BREAK.split(self._cut[path] + file.read(_MOST_BYTES))
                lines += new
                self._ends[path] = file.tell()
        return [line.decode(errors="replace") for line in lines]
