"""The rate of a running job, from the lines that it prints while it runs, and the pattern of such lines."""

from __future__ import annotations

import dataclasses
import itertools
import os
import re
import statistics
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from pipeline.base.domain import layout, work_units
from pipeline.base.domain.marks import join
from pipeline.base.domain.records import Group
from pipeline.base.domain.tags import Tag
from pipeline.base.domain.window import Window, WindowKind
from pipeline.base.domain.workload import RateSource
from pipeline.base.system import regular_files
from pipeline.launch import events
from pipeline.launch.job_state import JobState
from pipeline.observe.group_result import GroupResult
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
_SETTLING_RATES, _SETTLING_S = 2, 2.0
"""Lines and time after a change of the number of jobs in which a printed rate, such as a progress bar's, settles."""

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
            before = re.escape(before)
            if not before and _follows_counter(pattern, last_first):
                before = "[0-9] +"
            if any(re.search(pattern, line) for line in of_other_work):
                return f"^(?!{_OTHER_WORK}).*?{before}([0-9][0-9.,]*){after}"
            return f"{before}([0-9.]+){after}"
    return None


def _follows_counter(pattern: str, last_first: Sequence[str]) -> bool:
    """Return whether a number before the rates rises, so that `step 5 199 samples/s` is not 5199 samples."""
    matches = [re.search(rf"([0-9]+) +{pattern}", line) for line in last_first]
    counts = [int(match[1]) for match in matches if match]
    return len(counts) > 2 and all(before > after for before, after in itertools.pairwise(counts))


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


AVERAGES = "its printed speed hardly changed when other copies were stopped"
"""Part of the mark of rows that were measured while copies were stopped, if a program prints averages."""
_LEAST_FOLLOWED, _MOST_RISING = 0.9, 0.9
"""A program prints averages if, with the fewest copies, the total rate is below the first part of that of a launch of
its own, and above the second part of the printed rates are higher than those before them."""


def note_rate(row: GroupResult, rates: dict[str, float]) -> None:
    """Keep the total rate of a group of scripts that had a launch of its own, by its key."""
    total = _get_total(row)
    if total and row.group.window.stops_scripts and Tag.LAUNCH not in row.tags and not row.marks.invalid:
        rates[row.group.key] = total


def mark_averages(rows: Sequence[GroupResult], rates: Mapping[str, float]) -> list[GroupResult]:
    """Mark the rows of groups that were measured while other copies were stopped, if the program prints averages."""
    fewest = min((row for row in rows if row.group.key in rates), key=lambda row: len(row.jobs), default=None)
    if fewest is None or not 0 < _get_total(fewest) < _LEAST_FOLLOWED * rates[fewest.group.key]:
        return list(rows)
    begin_ns = int(fewest.tags.get(Tag.WINDOW_START_NS, 0))
    rises = [
        after > before
        for job in fewest.jobs
        for name, series in job.series.items()
        for (_, t_ns, before), (_, _, after) in itertools.pairwise(series)
        if t_ns >= begin_ns and name.startswith("logged_")
    ]
    if not rises or sum(rises) <= _MOST_RISING * len(rises):
        return list(rows)
    reason = f"{AVERAGES}; it may be an average since the start"
    return [dataclasses.replace(row, tags=row.tags | {Tag.INVALID: join([row.marks.invalid, reason])}) for row in rows]


def _get_total(row: GroupResult) -> float:
    """Return the total rate of a group; 0 without one."""
    return next((row.metrics[work_units.total_of(unit)] for unit in work_units.find_units(row.metrics)), 0.0)


class PrintedRates:
    """The rates that running jobs print, of which the window of a group needs some.

    The whole run of a program is measured, instead of the rate that is sought, if it ends within `whole_run_s`.

    Attributes:
        begin_ns: monotonic instant since which all jobs print rates; `None` before.
        patterns: the pattern of each program whose rate is sought and was found, by its digest.
    """

    def __init__(self, states: Sequence[JobState], seconds: float, *, whole_run_s: float = 0.0) -> None:
        self._states, self._seconds = [state for state in states if not state.job.is_co_runner], seconds
        is_sought = any(state.job.workload.rate.is_sought for state in states)
        self._least_s = time.monotonic() + (whole_run_s if is_sought else 0.0)
        self.begin_ns: int | None = None
        self._begins = dict[Path, int]()
        self._settled_s, self._settling_rates = 0.0, 0  # until a restart
        self._counts = dict.fromkeys((state.job.index for state in self._states), 0)
        self.patterns: dict[str, str | None] = {}

    @property
    def num_printing(self) -> int:
        """Number of the jobs that have printed a rate."""
        return sum(map(bool, self._counts.values()))

    def restart(self, num_jobs: int) -> None:
        """Begin again with the first jobs, and with what they print from now on: the others were stopped."""
        self._states = self._states[:num_jobs]
        self._settled_s, self._settling_rates = time.monotonic() + _SETTLING_S, _SETTLING_RATES
        self._skip_printed()

    def _skip_printed(self) -> None:
        self.begin_ns = None
        self._counts = dict.fromkeys((state.job.index for state in self._states), 0)
        for path in (state.folder / name for state in self._states for name in (layout.STDOUT, layout.STDERR)):
            with suppress(OSError):
                self._begins[path] = regular_files.measure_size(path)

    def is_over(self) -> bool:
        """Return whether all jobs have printed rates for `seconds`, or one that did has ended."""
        patterns_before = dict(self.patterns)
        for state in self._states:
            # In the window, the output of no job is read, but of one whose rate is sought.
            if self._counts[state.job.index] < _LEAST_RATES or state.job.workload.rate.is_sought:
                self._counts[state.job.index] = self._count(state)
        if self.patterns != patterns_before:
            self.begin_ns = None
        has_settled = min(self._counts.values()) >= max(1, self._settling_rates)
        if self.begin_ns is None and has_settled and time.monotonic() >= self._settled_s:
            if self._settling_rates:
                self._settling_rates = 0
                self._skip_printed()
            self.begin_ns = time.monotonic_ns()
        if self.begin_ns is None:
            return self._settled_s > 0 and any(state.has_ended for state in self._states)
        is_long = time.monotonic() >= max(self.begin_ns / 1e9 + self._seconds, self._least_s)
        has_enough = is_long and min(self._counts.values()) >= _LEAST_RATES
        return has_enough or any(state.has_ended for state in self._states)

    def _count(self, state: JobState) -> int:
        """Return the number of lines with a rate at the end of a job's output."""
        workload, most = state.job.workload, 0
        for path in (state.folder / name for name in (layout.STDOUT, layout.STDERR)):
            output = events.read_end(path, _MOST_BYTES, begin=self._begins.get(path, 0))
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
        rate, self._unit = state.job.workload.rate, state.job.workload.work_unit
        self._reader = None if rate.pattern is None else _make_reader(rate, self._unit)
        self._ends = {state.folder / name: 0 for name in (layout.STDOUT, layout.STDERR)}
        self._cut = dict.fromkeys(self._ends, b"")

    def read(self) -> float | None:
        """Return the mean of the rates that were printed since the last reading; `None` without one."""
        rates = [rate for line in self._read_lines() if (rate := self._find_rate(line)) is not None]
        return statistics.fmean(rates) if rates else None

    def _find_rate(self, line: str) -> float | None:
        if self._reader is None and (pattern := find_pattern([line])) is not None:
            self._reader = _make_reader(RateSource(pattern=pattern), self._unit)  # also if others are printed
        return None if self._reader is None else self._reader.read_rate(line)

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
