"""The rate of a running job, from the lines that it prints while it runs, and the pattern of such lines."""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
import re
import statistics
import time
from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from pipeline.base.domain import layout
from pipeline.base.domain.records import Group
from pipeline.base.domain.tags import Tag
from pipeline.base.domain.window import Window, WindowKind
from pipeline.base.domain.workload import RateSource, Workload
from pipeline.base.system import regular_files
from pipeline.launch import events
from pipeline.launch.job_state import JobState
from pipeline.observe.output_rates import OutputReader, divide_rise, is_counter

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

_FRACTION = re.compile(r"(?<![\w.,/])(?P<count>[0-9]{1,18}) ?/ ?(?P<of>[0-9]{1,18})(?![\w/]|[.,][0-9])")
_BETWEEN = r"[\"']?\s*[:=#]?\s*\[?\s*"
_NAMED = re.compile(
    rf"(?<!\w)(?P<name>(?:[a-z]+_)?(?:step|iteration|iter|it|batch|update|epoch)s?){_BETWEEN}"
    r"(?P<count>[0-9]{1,18})(?![\w.])",
    re.IGNORECASE,
)
_HEADER = re.compile(r"\W*(?:step|iteration|iter|batch|epoch)s?\b[^0-9]*$", re.IGNORECASE)
_FIRST_COLUMN = r"^\W*(?P<count>[0-9]{1,18})[\s,;|]"
"""Counters: `120/781`, `step: 120`, and the first column of a table with a header, such as `Step Temp E_pair`."""
_LEAST_COUNTS, _MOSTLY = 3, 0.8
"""Least number of values of a counter, and least part of its changes that rise."""
_MOST_BYTES, _MOST_LINES = 1 << 16, 50
_BREAK = re.compile(rb"[\r\n]+")

_LEAST_VALUES = 6
"""Lines with a value that a job must have printed in a window; `pipeline/observe/row_marks.py` wants one less."""
_SETTLING_VALUES, _SETTLING_S = 2, 2.0
"""Lines and time between a change of the number of jobs and the next window."""

Patterns = Mapping[str, str | None]
"""The `metric_pattern` of each program whose rate is sought, by its digest; `None` if its whole run is measured."""


def find_pattern(lines: Sequence[str]) -> str | None:
    """Return a `workload.metric_pattern` for an output: for its counter, or else for its last rate; `None` without.

    A counter is better: a printed rate may be that of one step, or an average.
    """
    return find_counter(lines) or find_rate(lines)


def find_counter(lines: Collection[str]) -> str | None:
    """Return a pattern for the number in an output that rises most often, such as that of a step; `None` without."""
    counts: dict[str, list[int]] = defaultdict(list)
    has_header = any(_HEADER.match(line) for line in lines)
    for line in lines:
        if re.match(_OTHER_WORK, line):
            continue
        for match in _FRACTION.finditer(line):
            if int(match["count"]) <= int(match["of"]):
                counts[rf"(?<![\w.,/])(?P<count>[0-9]+) ?/ ?{match['of']}(?![\w/])"].append(int(match["count"]))
        for match in _NAMED.finditer(line):
            counts[rf"(?<!\w){match['name']}{_BETWEEN}(?P<count>[0-9]+)(?![\w.])"].append(int(match["count"]))
        if has_header and (row := re.match(_FIRST_COLUMN, line)):
            counts[_FIRST_COLUMN].append(int(row["count"]))
    rising = {pattern: len(set(values)) for pattern, values in counts.items() if _is_rising(values)}
    return max(rising, key=rising.__getitem__, default=None)


def _is_rising(values: Sequence[int]) -> bool:
    changes = [after - before for before, after in itertools.pairwise(values) if after != before]
    return len(set(values)) >= _LEAST_COUNTS and sum(change > 0 for change in changes) >= _MOSTLY * len(changes)


def find_rate(lines: Sequence[str]) -> str | None:
    """Return a pattern for the last rate in an output, such as `([0-9.]+)it/s`; `None` without.

    If lines of other work have such rates, too, the pattern leaves them out.
    """
    of_other_work = [line for line in lines if re.match(_OTHER_WORK, line)]
    last_first = [line for line in reversed(lines) if not re.match(_OTHER_WORK, line)]
    for pattern in _USUAL_PATTERNS:
        if rate := next(filter(None, (re.search(pattern, line) for line in last_first)), None):
            before, after = rate.string[rate.start() : rate.start(1)], rate.string[rate.end(1) : rate.end()]
            before = re.escape(before)
            if any(re.search(pattern, line) for line in of_other_work):
                return f"^(?!{_OTHER_WORK}).*?{before}([0-9][0-9.,]*){after}"
            return f"{before}([0-9.]+){after}"
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
        begin_ns: monotonic instant since which all jobs print rates; `None` before.
        patterns: the pattern of each program whose rate is sought and was found, by its digest.
    """

    def __init__(self, states: Sequence[JobState], seconds: float, *, whole_run_s: float = 0.0) -> None:
        self._states, self._seconds = [state for state in states if not state.job.is_co_runner], seconds
        is_sought = any(state.job.workload.rate.is_sought for state in states)
        self._least_s = time.monotonic() + (whole_run_s if is_sought else 0.0)
        self.begin_ns: int | None = None
        self._begins = dict[Path, int]()
        self._settled_s, self._settling_values = 0.0, 0  # until a restart
        self._counts = dict.fromkeys((state.job.index for state in self._states), 0)
        self.patterns: dict[str, str | None] = {}

    @property
    def num_printing(self) -> int:
        """Number of the jobs that have printed a rate."""
        return sum(map(bool, self._counts.values()))

    def restart(self, num_jobs: int) -> None:
        """Begin again with the first jobs, and with what they print from now on: the others were stopped."""
        self._states = self._states[:num_jobs]
        self._settled_s, self._settling_values = time.monotonic() + _SETTLING_S, _SETTLING_VALUES
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
            workload = state.job.workload
            # In the window, the output of no job is read, but of one whose rate is sought.
            if self._counts[state.job.index] < _LEAST_VALUES or workload.rate.is_sought:
                outputs = self._read(state)
                if workload.rate.is_sought:
                    self._seek(workload, outputs)
                pattern = workload.rate.pattern or self.patterns.get(workload.digest)
                self._counts[state.job.index] = _count(workload, pattern, outputs) if pattern is not None else 0
        if self.patterns != patterns_before:
            self.begin_ns = None
        has_settled = min(self._counts.values()) >= max(1, self._settling_values)
        if self.begin_ns is None and has_settled and time.monotonic() >= self._settled_s:
            if self._settling_values:
                self._settling_values = 0
                self._skip_printed()
            self.begin_ns = time.monotonic_ns()
        if self.begin_ns is None:
            return self._settled_s > 0 and any(state.has_ended for state in self._states)
        is_long = time.monotonic() >= max(self.begin_ns / 1e9 + self._seconds, self._least_s)
        has_enough = is_long and min(self._counts.values()) >= _LEAST_VALUES
        return has_enough or any(state.has_ended for state in self._states)

    def _read(self, state: JobState) -> list[list[str]]:
        """Return the lines at the ends of a job's outputs."""
        paths = [state.folder / name for name in (layout.STDOUT, layout.STDERR)]
        outputs = [events.read_end(path, _MOST_BYTES, begin=self._begins.get(path, 0)) for path in paths]
        return [[line.decode(errors="replace") for line in _BREAK.split(output)] for output in outputs]

    def _seek(self, workload: Workload, outputs: Sequence[Sequence[str]]) -> None:
        """Find the pattern of a program: a counter, or else a rate, in most lines of an output."""
        find = find_rate if workload.work_unit else find_pattern  # a counter counts steps, not the given unit
        patterns = [self.patterns.get(workload.digest), *map(find, outputs)]
        numbers = {
            pattern: (is_counter(pattern), _count(workload, pattern, outputs)) for pattern in patterns if pattern
        }
        if numbers:
            self.patterns[workload.digest] = max(numbers, key=numbers.__getitem__)


def _count(workload: Workload, pattern: str, outputs: Iterable[Iterable[str]]) -> int:
    """Return the number of lines with a clear value in the output that has most."""
    source = workload.rate if workload.rate.pattern == pattern else RateSource(pattern=pattern)
    reader = _make_reader(source, workload.work_unit)
    return max(sum(reader.read_value(line) is not None for line in lines) for lines in outputs)


class LiveRate:
    """A reader of a job's output, which reads each line once; lines beyond 64 KiB of one reading are left out."""

    def __init__(self, state: JobState) -> None:
        rate, self._unit = state.job.workload.rate, state.job.workload.work_unit
        self._reader = None if rate.pattern is None else _make_reader(rate, self._unit)
        self._ends = {state.folder / name: 0 for name in (layout.STDOUT, layout.STDERR)}
        self._cut = dict.fromkeys(self._ends, b"")
        self._lines: deque[str] = deque(maxlen=_MOST_LINES)  # until a rate or a counter is found
        self._counted: tuple[int, int] | None = None  # the last instant with a counter

    def read(self) -> float | None:
        """Return the mean of the rates that were printed since the last reading, or the rate of a counter since it.

        `None` without one, or if the counter was started again.
        """
        values = [value for line in self._read_lines() if (value := self._find_value(line)) is not None]
        if self._reader is None or not values:
            return None
        if not self._reader.is_counter:
            return statistics.fmean(values)
        before, self._counted = self._counted, (time.monotonic_ns(), int(values[-1]))
        rate = math.nan if before is None else divide_rise(before, self._counted)
        return None if math.isnan(rate) else rate

    def _find_value(self, line: str) -> float | None:
        if self._reader is None:
            self._lines.append(line)
            if pattern := find_rate([line]) or find_counter(self._lines):
                self._reader = _make_reader(RateSource(pattern=pattern), self._unit)  # also if others are printed
        return None if self._reader is None else self._reader.read_value(line)

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
