"""What the user sees: a live view while a group runs, plain lines where there is no terminal, and the table of rows."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pipeline import events, layout
from pipeline.progress import Progress
from pipeline.tags import Tag
from pipeline.types import Group, GroupResult, Result, Window, WindowKind
from pipeline.words import aligned, counted, duration, say

if TYPE_CHECKING:
    from rich.table import Table

    from pipeline.observation import Watched

_REFRESH_S = 1.0
_COLUMNS = (
    ("samples/s", "throughput_total_samples_per_s", "{:.1f}"),
    ("epoch s", "epoch_time_mean_s", "{:.2f}"),
    ("makespan s", "makespan_s", "{:.1f}"),
    ("speed-up", "speedup_vs_serial_ratio", "{:.2f}"),
    ("slowdown", "slowdown_worst_ratio", "{:.2f}"),
    ("fairness", "fairness_jain_ratio", "{:.3f}"),
    ("overlap", "overlap_ratio", "{:.3f}"),
    ("skew ms", "start_skew_ms", "{:.1f}"),
    ("GPU MiB", "memory_peak_mib", "{:.0f}"),
    ("GRACT", "gract_mean_ratio", "{:.2f}"),
    ("SMACT", "smact_mean_ratio", "{:.2f}"),
    ("J/sample", "energy_per_sample_j", "{:.4f}"),
    ("own CPU %", "orchestrator_cpu_pct", "{:.1f}"),
)


class PlainView:
    """One line a group, for logs and pipes."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress

    def begin(self, group: Group) -> None:
        """Say which group begins."""
        self.progress.begin(group)
        self._announce(group)

    @contextmanager
    def watch(self, group: Group, watched: Watched) -> Iterator[None]:
        """Show the group while it runs."""
        yield

    def done(self, row: GroupResult) -> None:
        """Say how it ended, and where the study is."""
        self.progress.done(row.result)
        rate = row.metrics.get("throughput_total_samples_per_s")
        figure = f", {rate:.1f} samples/s" if rate is not None else ""
        reason = f": {row.reason}" if row.reason else ""
        say(f"    {row.result.value}{figure}{reason} ({self.progress.summary()})")

    def _announce(self, group: Group) -> None:
        say(f"{self.progress.position(group)} {group.name}")


class LiveView(PlainView):
    """A table that is drawn anew every second, on a terminal."""

    @contextmanager
    def watch(self, group: Group, watched: Watched) -> Iterator[None]:
        """Show phase, epoch, samples/s and memory of each job until the group ends."""
        from rich.console import Console
        from rich.live import Live

        drawer = _Drawer(group, watched, self.progress)
        stopped = threading.Event()
        with Live(drawer.table(), console=Console(file=sys.stderr), auto_refresh=False, transient=True) as live:

            def draw() -> None:
                while not stopped.wait(_REFRESH_S):
                    live.update(drawer.table(), refresh=True)

            thread = threading.Thread(target=draw, name="live-view", daemon=True)
            thread.start()
            try:
                yield
            finally:
                stopped.set()
                thread.join()

    def _announce(self, group: Group) -> None:
        """Nothing: the live table says it."""

    def done(self, row: GroupResult) -> None:
        """Leave the group and how it ended on the screen."""
        super()._announce(row.group)
        super().done(row)


class _Drawer:
    """Builds the live table from the tails of the jobs' event files."""

    def __init__(self, group: Group, watched: Watched, progress: Progress) -> None:
        self.group, self.watched, self.progress = group, watched, progress
        self.before: dict[int, events.Progress] = {}
        self.begin_s = time.monotonic()

    def table(self) -> Table:
        from rich.table import Table
        from rich.text import Text

        window = self.group.window
        aim = f"{window.seconds:g} s window" if window.kind is WindowKind.STEADY else "until the jobs end"
        spent = duration(time.monotonic() - self.begin_s)
        title = f"{self.progress.position(self.group)} {self.group.name}: {spent}, {aim}"
        table = Table(title=Text(title), title_justify="left", caption=Text(f"study: {self.progress.summary()}"))
        table.caption_justify = "left"
        for name in ("job", "phase", "epoch", "samples/s", "memory MiB"):
            table.add_column(name, justify="left" if name in ("job", "phase") else "right")
        alive = self.watched.pids()
        for job in self.group.jobs:
            now = events.read_progress(self.watched.folder / layout.job_path(job.index) / layout.EVENTS)
            phase = now.phase if job.index in alive else "ended" if now.t_ns else "waiting"
            table.add_row(job.name, phase, _or_dash(now.epoch), self._rate(job.index, now), self._memory(job.index))
        return table

    def _rate(self, index: int, now: events.Progress) -> str:
        before = self.before.get(index)
        self.before[index] = now
        if before is None or before.t_ns is None or now.t_ns is None or now.total is None or before.total is None:
            return "-"
        elapsed_s = (now.t_ns - before.t_ns) / 1e9
        return f"{(now.total - before.total) / elapsed_s:.1f}" if elapsed_s > 0 else "-"

    def _memory(self, index: int) -> str:
        memory_mib = self.watched.fields.live_memory_mib(self.watched.samples[-200:], index)
        return "-" if memory_mib is None else f"{memory_mib:.0f}"


def make_view(progress: Progress) -> PlainView:
    """The live view on a terminal, plain lines elsewhere."""
    return (LiveView if sys.stderr.isatty() else PlainView)(progress)


def table(rows: Sequence[GroupResult]) -> str:
    """The rows as an aligned text table; a column without any value is left out, a missing value is `-`."""
    shown = [column for column in _COLUMNS if any(column[1] in row.metrics for row in rows)]
    # Groups of one name that differ in these are told apart by them.
    facts = {
        "window": [_window(row.group.window) for row in rows],
        "device": [row.group.device.name for row in rows],
    }
    facts = {title: values for title, values in facts.items() if len(set(values)) > 1}
    lines = [["group", *facts, "block", "result", *(title for title, _, _ in shown)]]
    for row, *said in zip(rows, *facts.values(), strict=True):
        figures = [form.format(row.metrics[key]) if key in row.metrics else "-" for _, key, form in shown]
        flag = "*" if Tag.FLAG in row.tags else ""
        lines.append([row.group.name, *said, str(row.group.block), row.result.value + flag, *figures])
    text = aligned(lines, left={*range(1 + len(facts)), 2 + len(facts)})
    notes = [f"* {row.group.name}: {row.tags['collocation.flag']}" for row in rows if Tag.FLAG in row.tags]
    notes += [f"{row.group.name}: {row.reason}" for row in rows if row.result is not Result.OK and row.reason]
    simulated = dict.fromkeys(row.group.device.name for row in rows if row.group.device.is_simulated)
    if simulated:
        notes.append(f"simulated: {', '.join(simulated)}; the jobs ran on the CPU, so no figure speaks of a real GPU")
    return "\n".join([*text, *notes])


def _window(window: Window) -> str:
    if window.kind is WindowKind.STEADY:
        return f"steady, {window.seconds:g} s"
    return f"work, {counted(window.epochs, 'epoch')}"


def _or_dash(value: int | None) -> str:
    return "-" if value is None else str(value)
