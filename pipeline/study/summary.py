"""The final output of a study: its table, sentences of the report, and links."""

from __future__ import annotations

import dataclasses
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from pipeline.base.domain import layout
from pipeline.base.domain.normalisation import MEMORY_PEAK
from pipeline.base.domain.precision_goal import MIN_BLOCKS
from pipeline.base.domain.records import Result
from pipeline.base.domain.sharing_modes import NAIVE, SERIAL, mode_of
from pipeline.base.system import entry_points, factory
from pipeline.base.system.errors import TrackingError
from pipeline.base.system.secrets import mask_text
from pipeline.base.system.words import format_count
from pipeline.clean.journal import Journal
from pipeline.observe.group_result import GroupResult
from pipeline.observe.sample_figures import Fields
from pipeline.observe.table import format_table
from pipeline.plan import plan_text
from pipeline.plan.config_schema import TrackingConfig
from pipeline.record.invocation import Invocation, spell_longer_study
from pipeline.record.store import run_artifacts
from pipeline.record.tracking_sender import Sender
from pipeline.study.reproduce.reproduction import Reproduction

_MOST_LINKS = 3


def show(
    experiment: str,
    rows: Sequence[GroupResult],
    invocation: Invocation,
    reproduction: Reproduction | None = None,
    journals: Sequence[Journal] = (),
) -> None:
    """Print a table of rows of a study and the report's sentences about them; for a reproduction, compare both runs.

    A rehearsal has instead a sentence on its machinery; `journals` are those of its devices.
    """
    # Imported late, because the modules of the report take long to import.
    from pipeline.report.evaluate.verdicts import BLOCKS_IN_WORDS
    from pipeline.report.terminal_summary import StudySummary, summarize_study

    specs = dict.fromkeys(spec for row in rows for spec in row.group.listeners)
    fields = Fields(factory.build_object(spec.build, interval_ms=spec.interval_ms).table for spec in specs)
    is_simulated = any(row.group.device.is_simulated for row in rows)
    is_rehearsal = is_simulated or experiment.endswith(layout.REHEARSAL)
    shown = list(map(_drop_speeds, rows)) if is_rehearsal else rows
    # A reproduction has one group of a block, which allows no comparison.
    closing_remarks = summarize_study(experiment, rows) if reproduction is None else StudySummary()
    table = format_table(shown, fields, closing_remarks.fastest, closing_remarks.notes)
    sentences = list(closing_remarks.sentences)
    if closing_remarks.has_too_few_blocks and not invocation.has_launcher:
        command = spell_longer_study(invocation.words, MIN_BLOCKS)
        sentences += [f"{BLOCKS_IN_WORDS}; to settle what is open: {command}"] if command else []
    if is_rehearsal:
        sentences.append(_describe_rehearsal(rows, journals))
    sentences += plan_text.explain_numbers([row.group for row in rows])
    sys.stdout.writelines(f"{line}\n" for line in (table, *sentences))
    if reproduction is not None:
        sys.stdout.write(f"{reproduction.side_by_side(rows[0])}\n")


def _drop_speeds(row: GroupResult) -> GroupResult:
    """Return a row of a rehearsal without its marks and without figures, except its memory."""
    memory = {name: value for name, value in row.metrics.items() if name == MEMORY_PEAK}
    return dataclasses.replace(row, metrics=memory, tags={})


def _describe_rehearsal(rows: Sequence[GroupResult], journals: Sequence[Journal]) -> str:
    """Return `rehearsal on ...: 7 of 7 groups ran; set up and undone: MIG 2 times; nothing to clean; ...`."""
    ran = [row for row in rows if row.result is Result.OK]
    modes = Counter(mode_of(row.group.scenario) for row in ran)
    changes = [f"{mode.label} {format_count(modes[mode], 'time')}" for mode in modes if mode not in (SERIAL, NAIVE)]
    parts = [f"{len(ran)} of {format_count(len(rows), 'group')} ran"]
    if journals and (num_left := sum(len(journal.read_steps()) for journal in journals)):
        parts.append(f"{format_count(num_left, 'step')} to clean")
    elif journals:
        parts += [f"set up and undone: {', '.join(changes)}"] if changes else []
        parts.append("nothing to clean")
    devices = dict.fromkeys(f"simulated {device.name}" for row in rows if (device := row.group.device).is_simulated)
    return f"rehearsal{' on ' if devices else ''}{', '.join(devices)}: {'; '.join(parts)}; its speeds mean nothing"


def show_where(
    experiment: str, tracking: TrackingConfig, sender: Sender, root: Path, failed: Mapping[str, str] | None = None
) -> None:
    """Print the commands that write the report and open MLflow's page, and links to the runs of `failed` groups."""
    location = [f"--uri={mask_text(tracking.uri)}" if tracking.uri else f"--root={tracking.root}"]
    location = [] if location == [f"--root={TrackingConfig().root}"] else location
    command = entry_points.spell("report", f"--experiment={experiment}", *location)
    lines = [f"report: {command}", *_list_links(sender, root, failed or {})]
    sys.stdout.writelines(f"{line}\n" for line in lines)


def _list_links(sender: Sender, root: Path, failed: Mapping[str, str]) -> list[str]:
    try:
        store = sender.wait_for_store()
    except TrackingError as error:  # the server was lost during the study; the groups wait in the spool
        return [f"error: {error}"]
    experiment_id = store["experiment_id"]
    if store["kind"] == "local":
        hint, server = run_artifacts.describe_local_ui(root, experiment_id), None
    else:
        hint, server = run_artifacts.describe_ui(store["uri"], experiment_id), store["uri"]
    shown = list(failed.items())[:_MOST_LINKS]
    return [
        f"open: {hint}",
        *(f"open {name}: {run_artifacts.make_run_link(server, experiment_id, run)}" for run, name in shown),
    ]
