"""Progress of a study, and forecasts of its duration and of the memory that its groups need.

A duration is estimated from similar earlier groups, or else from the windows. The device memory of a group is the sum
of what its jobs used alone.
"""

from __future__ import annotations

import enum
import statistics
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from pipeline.base.domain import idle_measurements
from pipeline.base.domain.normalisation import MEMORY_PEAK
from pipeline.base.domain.records import Group, Result
from pipeline.base.domain.sharing_modes import mode_of
from pipeline.base.domain.window import Window, WindowKind
from pipeline.base.system.words import format_count, format_duration
from pipeline.observe.group_result import GroupResult

_WINDOWS_OF_SCRIPTS = frozenset(Window(kind=kind).text for kind in (WindowKind.WORK, WindowKind.LOGGED))
"""Texts of the windows of programs that exit on their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PastGroup:
    """A successful group, whose duration is an estimate for similar groups.

    Attributes:
        window, device: texts in the group's settings.
        kind: kind of the group's window.
        jobs: sizes or workloads of the jobs, as in the group's run: `tiny+tiny`.
        on_top_s: time in addition to the window's fixed or shortest length; all of the group's time without a window
            of such a length.
        program: digest of the group without its packages.
        called: programs of the group with their arguments: `train --epochs 3`.
        memory_mib: peak memory of the GPU, if it was measured.
        speedup: speed-up over one job after another, if it was measured.
    """

    key: str
    scenario: str
    jobs: str
    window: str
    kind: str
    device: str
    on_top_s: float
    program: str = ""
    called: str = ""
    memory_mib: float | None = None
    speedup: float | None = None


class Likeness(enum.Enum):
    """Similarity between a group and the earlier groups of its estimate, if the amount of work is unknown."""

    SAME = "the same group, or a group with a window of fixed length"
    OTHER_PACKAGES = "the same group with other packages"
    OTHER_PROGRAM = "the same script with other arguments, or an earlier version of the script"


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Estimated seconds of a group, and the programs that the estimate is from."""

    seconds: float
    likeness: Likeness = Likeness.SAME
    source: str = ""


class Progress:
    """Progress of a study, with an estimate of the time left from similar groups that ran.

    The duration of a group is its window, whose length is known, and an extra time for starting, warming up and ending:
    the median over the most similar groups that ran. From most to least similar: the same group in another block; the
    same jobs under the same sharing mode; the same workloads under the same sharing mode; the same workloads under any
    sharing mode. Groups of this study may also have other workloads: the same sharing mode and degree, the same sharing
    mode, the same window, or the same kind of window on the same kind of device.

    `known` has the results of groups that an earlier start ran, and `past` has groups of earlier studies.

    Attributes:
        last_block: block after which a study with `repeats=auto` is expected to end; 0 if the plan is complete.
        is_least: whether `last_block` is only the first block after which the study can end.
        is_open: whether the study chooses its groups while it runs, so that their number is unknown.
    """

    last_block, is_least, is_open = 0, False, False

    def __init__(
        self,
        groups: Sequence[Group],
        results: Iterable[Result] = (),
        to_run: Sequence[Group] | None = None,
        clock: Callable[[], float] = time.monotonic,
        past: Iterable[PastGroup] = (),
    ) -> None:
        self.results = Counter(results)
        self.num_groups, self.num_blocks = len(groups), len({group.block for group in groups})
        self._left = list(groups if to_run is None else to_run)
        self._idle_s = idle_measurements.plan_seconds(self._left)
        self._clock = clock
        self._begin_s = clock()
        self._group_begin_s: float | None = None
        self._seen: dict[Hashable, list[PastGroup]] = {}
        for past_group in past:
            # Groups of another study are used only for the same workloads, because other workloads may take minutes to
            # start. If the window's length is not fixed, only the same work, or roughly the same script, is similar.
            self._learn(
                past_group,
                _list_kinds_by_jobs(past_group)
                if WindowKind(past_group.kind).is_steady
                else [past_group.key, *_list_looser_kinds(past_group)],
            )

    def begin(self, group: Group) -> None:
        assert self._left[0] is group
        self._group_begin_s = self._clock()

    def replace_next(self, planned: Sequence[Group], chosen: Sequence[Group]) -> None:
        """Replace the next planned groups by those that run."""
        self._left[: len(planned)] = chosen

    def done(self, result: Result) -> None:
        assert self._group_begin_s is not None
        group, took_s = self._left.pop(0), self._clock() - self._group_begin_s
        self._group_begin_s = None
        self.results[result] += 1
        if group.skip_reason is None and result is Result.OK:
            # The duration of a failed group is no estimate: it ended early, or late at a deadline.
            self._learn(_describe_group(group, took_s - self._compute_known_s(group)), _list_kinds(group))

    def estimate_left_s(self) -> tuple[float, bool]:
        """Return the seconds until the study ends, and whether they are an estimate or only a minimum."""
        total, is_estimate = 0.0, not self.is_least
        expected_groups = [group for group in self._left if not self.last_block or group.block <= self.last_block]
        for number, group in enumerate(expected_groups):
            expected = self.expect(group)
            is_estimate = is_estimate and expected is not None
            takes_s = self._compute_known_s(group) if expected is None else expected.seconds
            if number == 0 and self._group_begin_s is not None:
                takes_s -= self._clock() - self._group_begin_s
            total += max(0.0, takes_s)
        return total, is_estimate

    def position(self, group: Group) -> str:
        """Return the position of the running or latest group: `[3/20] block 1 of 5`."""
        number = self.results.total() + (self._group_begin_s is not None)
        if self.is_open:
            return f"[{number}] block {group.block}"
        most = "at most " if self.last_block else ""
        block = f" block {group.block} of {most}{self.num_blocks}" if self.num_blocks > 1 else ""
        return f"[{number}/{self.num_groups}]{block}"

    def summary(self) -> str:
        words = [f"{format_duration(self._clock() - self._begin_s)} elapsed"]
        if self._left and not self.is_open:
            left_s, is_estimate = self.estimate_left_s()
            if is_estimate:
                words.append(f"about {format_duration(left_s)} left")
            elif left_s > 0:  # no group was measured: the windows are known, the time to start jobs is unknown
                words.append(f"more than {format_duration(left_s)} left")
        counted = [f"{self.results[result]} {result.value}" for result in Result if self.results[result]]
        return ", ".join(words) + (f"; {', '.join(counted)}" if counted else "")

    def expect(self, group: Group) -> Estimate | None:
        """Estimate the duration of a group; `None` if nothing similar has run."""
        if group.skip_reason is not None:
            return Estimate(seconds=0.0)
        same, *wider = _list_kinds(group)
        kind = next(
            (kind for kind in (same, *_list_looser_kinds(_describe_group(group)), *wider) if kind in self._seen), None
        )
        if kind is None:
            return None
        likeness = kind[0] if isinstance(kind, tuple) and isinstance(kind[0], Likeness) else Likeness.SAME
        source = self._seen[kind][0].called  # the newest earlier group
        of_one = likeness is Likeness.OTHER_PROGRAM
        on_top_s = [past_group.on_top_s for past_group in self._seen[kind] if past_group.called == source or not of_one]
        seconds = self._compute_known_s(group) + statistics.median(on_top_s)
        return Estimate(seconds=seconds, likeness=likeness, source=source)

    def _compute_known_s(self, group: Group) -> float:
        """Return the seconds of a group that are known before it runs: its window, and measurements of idle power."""
        return _compute_window_s(group) + self._idle_s.get(group.number, 0.0)

    def _learn(self, past_group: PastGroup, kinds: Iterable[Hashable]) -> None:
        for kind in kinds:
            self._seen.setdefault(kind, []).append(past_group)


def _list_kinds(group: Group) -> Iterator[Hashable]:
    past_group = _describe_group(group)
    device_window = (past_group.device, past_group.window)
    yield from _list_kinds_by_jobs(past_group)
    yield (*device_window, past_group.scenario, len(past_group.jobs.split("+")))
    yield (*device_window, past_group.scenario)
    yield device_window
    yield (past_group.device, past_group.kind)


def _list_looser_kinds(past_group: PastGroup) -> Iterator[Hashable]:
    """Yield the kinds, for a window without a fixed length, that ignore packages or the arguments of scripts."""
    if WindowKind(past_group.kind).is_steady:
        return
    if past_group.program:
        yield (Likeness.OTHER_PACKAGES, past_group.program)
    if past_group.window in _WINDOWS_OF_SCRIPTS:
        yield (Likeness.OTHER_PROGRAM, past_group.device, past_group.window, past_group.scenario, past_group.jobs)


def _list_kinds_by_jobs(past_group: PastGroup) -> Iterator[Hashable]:
    device_window, workloads = (past_group.device, past_group.window), frozenset(past_group.jobs.split("+"))
    yield past_group.key
    yield (*device_window, past_group.scenario, past_group.jobs)
    yield (*device_window, past_group.scenario, workloads)
    yield (*device_window, workloads)


def _describe_group(group: Group, on_top_s: float = 0.0) -> PastGroup:
    return PastGroup(
        key=group.key,
        scenario=group.scenario,
        jobs=group.job_names,
        window=group.settings["window"],
        kind=group.window.kind,
        device=group.settings["device"],
        on_top_s=on_top_s,
        program=group.program_digest,
    )


def count_windows(group: Group) -> int:
    """Count the windows of a group: one for all jobs together, or one for each of its jobs in turn."""
    return len(group.jobs) if group.sequential else 1


def _compute_window_s(group: Group) -> float:
    """Return the seconds of a group's windows, by need at their shortest length."""
    if group.skip_reason is not None or not group.window.kind.is_steady:
        return 0.0
    return count_windows(group) * (group.window.begin_s + group.window.seconds)


_MOST_NAMES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Forecast of a study's duration, in seconds.

    Attributes:
        of_each: estimated seconds of each group that has a similar earlier group, by number of the group.
        least_s, most_s: seconds of the study, if each other group takes only its window, or its limits.
        shortest_s, longest_s: seconds of all windows by need at their shortest and longest lengths.
        num_unknown: number of groups without a similar earlier group.
        num_unknown_windows: number of these groups whose windows have no fixed length, because their work is fixed.
        num_groups: number of groups, without skipped groups.
        num_blocks: number of blocks of these groups.
        num_other_packages: number of groups estimated from the same group with other packages.
        other_programs: earlier programs, with other arguments or code, from which groups are estimated.
        num_other_programs: number of groups estimated from `other_programs`.
    """

    of_each: dict[int, float]
    least_s: float
    most_s: float
    num_unknown: int
    num_unknown_windows: int
    num_groups: int
    num_blocks: int
    shortest_s: float = 0.0
    longest_s: float = 0.0
    num_other_packages: int = 0
    other_programs: tuple[str, ...] = ()
    num_other_programs: int = 0

    @property
    def words(self) -> str:
        """The forecast in one line."""
        return self._duration + self._windows_by_need

    @property
    def _windows_by_need(self) -> str:
        if not self.longest_s:
            return ""
        return f"; its windows by need take {format_duration(self.shortest_s)} to {format_duration(self.longest_s)}"

    @property
    def _duration(self) -> str:
        if not self.num_unknown:
            return f"takes about {format_duration(self.least_s)}, estimated from similar earlier groups{self._basis}"
        unknown_part = "the starts of jobs"
        if self.num_unknown_windows:
            unknown_part += f" and the windows of {format_count(self.num_unknown_windows, 'group')}, which are unknown"
        duration = f"takes at least {format_duration(self.least_s)} plus {unknown_part}"
        if not self.least_s:
            duration = "takes an unknown time, because the windows are unknown"
        have = "has" if self.num_unknown == 1 else "have"
        remedy = "; for an estimate, run one block with repeats=1" if self.num_blocks > 1 else ""
        return (
            f"{duration}: {self.num_unknown} of {self.num_groups} groups {have} no similar earlier run"
            f"{self._basis}{remedy}"
        )

    @property
    def _basis(self) -> str:
        parts = []
        if self.num_other_packages:
            parts.append(f"; {self.num_other_packages} of {self.num_groups} from runs with other packages")
        if self.num_other_programs:
            names = [*self.other_programs[:_MOST_NAMES], *(["..."] if len(self.other_programs) > _MOST_NAMES else [])]
            other = f"{self.num_other_programs} of {self.num_groups} from runs with other arguments or code"
            parts.append(f"; {other}: {', '.join(names)}")
        return "".join(parts)


def forecast(groups: Sequence[Group], past: Iterable[PastGroup]) -> Forecast:
    """Estimate the duration of groups from earlier groups."""
    progress = Progress(groups, past=past)
    expected = {group.number: progress.expect(group) for group in groups}
    unknown = [group for group in groups if expected[group.number] is None]
    estimates = {number: estimate for number, estimate in expected.items() if estimate is not None}
    of_each = {number: estimate.seconds for number, estimate in estimates.items()}
    by_need = [group for group in groups if group.window.most_s and group.skip_reason is None]
    loose = [estimate.source for estimate in estimates.values() if estimate.likeness is Likeness.OTHER_PROGRAM]
    least_s, _ = progress.estimate_left_s()
    most_s = sum(of_each.values()) + sum(map(_compute_limit_s, unknown))
    planned = [group for group in groups if group.skip_reason is None]
    return Forecast(
        of_each=of_each,
        least_s=least_s,
        most_s=most_s,
        num_unknown=len(unknown),
        num_unknown_windows=sum(not group.window.kind.is_steady for group in unknown),
        num_groups=len(planned),
        num_blocks=len({group.block for group in planned}),
        shortest_s=sum(count_windows(group) * group.window.seconds for group in by_need),
        longest_s=sum(count_windows(group) * group.window.most_s for group in by_need),
        num_other_packages=sum(estimate.likeness is Likeness.OTHER_PACKAGES for estimate in estimates.values()),
        other_programs=tuple(dict.fromkeys(loose)),
        num_other_programs=len(loose),
    )


def _compute_limit_s(group: Group) -> float:
    window, limits = group.window, group.limits
    work_s = window.begin_s + window.longest_s if window.kind.is_steady else limits.group_s
    return count_windows(group) * (limits.ready_s + work_s + limits.stop_s)


_MIB_PER_GIB = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryNeed:
    """The forecast of a group on a device.

    Attributes:
        alone_mib: peak memory of each job alone.
        capacity_mib: memory of the device.
    """

    alone_mib: tuple[float, ...]
    capacity_mib: float

    @property
    def needed_mib(self) -> float:
        """The memory that the jobs need together."""
        return sum(self.alone_mib)

    @property
    def fits(self) -> bool:
        """True if the device has this memory."""
        return self.needed_mib <= self.capacity_mib

    @property
    def words(self) -> str:
        """The forecast in words: `needs 92.0 of 79.6 GiB of memory: 6 copies fit (measured: 1 job, 13.1 GiB)`."""
        of_each = dict.fromkeys(self.alone_mib)
        subject, memories = "1 job" if len(of_each) == 1 else "each job alone", " and ".join(map(_gib, of_each))
        measured = f"measured: {subject}, {memories} GiB"
        needs = f"needs {_gib(self.needed_mib)} of {_gib(self.capacity_mib)} GiB of memory"
        if self.fits or len(of_each) > 1:
            return f"{needs} ({measured})"
        num_fitting = int(self.capacity_mib // self.alone_mib[0])
        fitting = "1 copy fits" if num_fitting == 1 else f"{num_fitting} copies fit"
        return f"{needs}: {fitting} ({measured})"


class MemoryForecast:
    """The memory of jobs alone, from earlier studies and from the rows of this one."""

    def __init__(self, groups: Iterable[Group], past: Sequence[PastGroup] = ()) -> None:
        """Take the memory of the groups of one job from earlier groups, newest first, with the same key."""
        self._alone_mib: dict[tuple[str, str], float] = {}
        newest = {
            past_group.key: past_group.memory_mib for past_group in reversed(past) if past_group.memory_mib is not None
        }
        for group in groups:
            if group.key in newest:
                self._add(group, newest[group.key])

    def add(self, row: GroupResult) -> None:
        """Take the memory of a job from the row of a job that ran alone."""
        if row.result is Result.OK and not row.marks.invalid and MEMORY_PEAK in row.metrics:
            self._add(row.group, row.metrics[MEMORY_PEAK])

    def _add(self, group: Group, memory_mib: float) -> None:
        if len(group.jobs) == 1 and group.sequential:
            self._alone_mib[group.device.name, group.jobs[0].workload.digest] = memory_mib

    def forecast(self, group: Group) -> MemoryNeed | None:
        """Return the need of a group; `None` if a job was not measured alone.

        Also `None` for jobs one after another, for jobs on MIG devices or in one process, and for one job.
        """
        device, mode = group.device, mode_of(group.scenario)
        if group.sequential or len(group.jobs) == 1 or not mode.adds_memory or device.memory_mib is None:
            return None
        alone = [self._alone_mib.get((device.name, job.workload.digest)) for job in group.jobs]
        known_mib = tuple(mib for mib in alone if mib is not None)
        return MemoryNeed(alone_mib=known_mib, capacity_mib=device.memory_mib) if len(known_mib) == len(alone) else None


def _gib(memory_mib: float) -> str:
    return f"{memory_mib / _MIB_PER_GIB:.1f}"
