"""The view of running groups: a live table on a terminal, else plain lines; and the progress of the running jobs."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.base.domain import layout, work_units
from pipeline.base.domain.marks import NO_MARKS
from pipeline.base.domain.protocols import RunningGroup
from pipeline.base.domain.records import Group, Result
from pipeline.base.system.paths import shorten_path
from pipeline.base.system.words import format_duration, say
from pipeline.observe.group_result import GroupResult
from pipeline.observe.sample_figures import Fields
from pipeline.observe.study_progress import Progress
from pipeline.observe.table import format_line

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text


from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from pipeline.base.domain.records import Job
from pipeline.launch import events


class PlainView:
    """Plain lines, for logs and pipes."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self._skipped: dict[str, str] = {}  # name of the first group that was skipped for each reason
        self._has_named_output = False

    def begin(self, group: Group) -> None:
        self.progress.begin(group)
        self._announce(group)

    @contextmanager
    def show(self, group: Group, running: RunningGroup) -> Iterator[None]:
        if not self._has_named_output and (logs := _describe_logs(group, running.folder.parent / "*")):
            say(f"    {logs}")
            self._has_named_output = True
        yield

    def done(self, row: GroupResult) -> None:
        self.progress.done(row.result)
        reason = row.reason
        if row.result is Result.SKIPPED:
            if reason in self._skipped:
                reason = f"same reason as {self._skipped[reason]}"
            else:
                self._skipped[reason] = row.group.display_name
        is_simulated = row.group.device.is_simulated
        marks = NO_MARKS if row.group.pack is not None else row.marks  # its rows are never compared
        line = format_line(row.result, reason, row.metrics, marks=marks, is_simulated=is_simulated, is_brief=True)
        say(f"    {line} ({self.progress.summary()})")

    def _announce(self, group: Group) -> None:
        say(f"{self.progress.position(group)} {group.display_name}")


class LiveView(PlainView):
    """A table on a terminal, redrawn every second."""

    @contextmanager
    def show(self, group: Group, running: RunningGroup) -> Iterator[None]:
        from rich.console import Console
        from rich.live import Live

        drawer = _Drawer(group, running, self.progress)
        console = Console(stderr=True)
        with Live(get_renderable=drawer.draw, refresh_per_second=1, console=console, transient=True) as live:
            live.refresh()
            yield

    def _announce(self, group: Group) -> None:
        """Print nothing, because the live table shows the running group."""

    def done(self, row: GroupResult) -> None:
        super()._announce(row.group)
        super().done(row)


class _Drawer:
    def __init__(self, group: Group, running: RunningGroup, progress: Progress) -> None:
        self.group, self.running, self.progress = group, running, progress
        self.jobs = LiveJobs(group, running)
        self.begin_s = time.monotonic()

    def draw(self) -> Table | Text:
        """Return the table, or the text of its error, because an error of the view must not end a measurement."""
        from rich.text import Text

        try:
            return self._make_table()
        except Exception as error:  # noqa: BLE001  jobs may have written any content, and removed any file
            return Text(f"the live table failed: {type(error).__name__}: {error}")

    def _make_table(self) -> Table:
        from rich.table import Table
        from rich.text import Text

        window = self.group.window
        aim = f"{window.length_text} window" if window.kind.is_steady else "until the jobs end"
        spent = format_duration(time.monotonic() - self.begin_s)
        title = f"{self.progress.position(self.group)} {self.group.display_name}: {spent}, {aim}"
        caption = "\n".join(filter(None, [_describe_logs(self.group, self.running.folder), self._describe_progress()]))
        table = Table(title=Text(title), title_justify="left", caption=Text(caption))
        table.caption_justify = "left"
        counted = dict.fromkeys(work_units.per_second(job.workload.work_unit) for job in self.group.jobs)
        for name in ("job", "phase", "epoch", " or ".join(counted), "memory MiB"):
            table.add_column(Text(name), justify="left" if name in ("job", "phase") else "right")
        alive = self.running.pids()
        for progress in self.jobs.read():
            if self.running.describe is not None and progress.job.index not in alive:
                continue
            epoch = "-" if progress.epoch is None else str(progress.epoch)
            per_s = self.running.live_rates.get(progress.job.index, progress.per_s)
            rate = "-" if per_s is None else work_units.format_rate(per_s)
            cells = (progress.job.name, progress.phase, epoch, rate, self._format_memory(progress.job.index))
            table.add_row(*map(Text, cells))  # rich would interpret a plain string as markup
        return table

    def _describe_progress(self) -> str:
        return f"study: {self.progress.summary()}" if self.running.describe is None else self.running.describe()

    def _format_memory(self, index: int) -> str:
        memory_mib = Fields(self.running.tables).read_live_memory_mib(self.running.samples[-200:], index)
        return "-" if memory_mib is None else f"{memory_mib:.0f}"


def _describe_logs(group: Group, folder: Path) -> str:
    if not any(job.workload.ends_by_itself for job in group.jobs):
        return ""
    return f"output: {shorten_path(folder / layout.JOBS)}/*/{layout.STDOUT}, {layout.STDERR}"


def make_view(progress: Progress) -> PlainView:
    """Return the live view on a terminal, plain lines elsewhere."""
    return (LiveView if sys.stderr.isatty() else PlainView)(progress)


_RATE_OVER_NS = 5_000_000_000  # short enough for a current rate, long enough for several steps


@dataclass(frozen=True, slots=True, kw_only=True)
class JobNow:
    """Progress of one job.

    Attributes:
        phase: phase that the job reported; `waiting` before its first message, `ended` after its process exited.
        total: work since the job's start, in its work unit.
        per_s: work per second, over the last seconds; `None` if unknown.
    """

    job: Job
    phase: str
    epoch: int | None
    total: float | None
    per_s: float | None


class LiveJobs:
    """A reader of the jobs' event files, which derives rates from its earlier readings."""

    def __init__(self, group: Group, running: RunningGroup, now_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._group, self._running, self._now_ns = group, running, now_ns
        self._seen: dict[int, deque[tuple[int, int, float]]] = {job.index: deque() for job in group.jobs}

    def read(self) -> list[JobNow]:
        alive = self._running.pids()
        return [self._read(job, job.index in alive) for job in self._group.jobs]

    def _read(self, job: Job, is_alive: bool) -> JobNow:
        reported = events.read_progress(self._running.folder / layout.job_path(job.index) / layout.EVENTS)
        phase = reported.phase if is_alive else "ended" if reported.t_ns else "waiting"
        per_s = self._compute_per_s(job.index, reported) if is_alive else None
        return JobNow(job=job, phase=phase, epoch=reported.epoch, total=reported.total, per_s=per_s)

    def _compute_per_s(self, index: int, reported: events.JobProgress) -> float | None:
        if reported.t_ns is None or reported.total is None:
            return None
        seen, now_ns = self._seen[index], self._now_ns()
        seen.append((now_ns, reported.t_ns, reported.total))
        while len(seen) > 2 and seen[1][0] <= now_ns - _RATE_OVER_NS:
            seen.popleft()  # always keep one older reading, which a rare caller needs for a rate
        (_, begin_ns, before), (_, end_ns, after) = seen[0], seen[-1]
        return (after - before) / ((end_ns - begin_ns) / 1e9) if end_ns > begin_ns else None
