"""The final output of a study: its table, sentences of the report, and run_artifacts."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.base.domain.protocols import Listener
from pipeline.base.domain.records import Group, Plan
from pipeline.base.system import entry_points, factory
from pipeline.base.system.errors import TrackingError
from pipeline.base.system.factory import build_object
from pipeline.base.system.secrets import mask_text
from pipeline.base.system.words import format_count
from pipeline.observe.group_result import GroupResult
from pipeline.observe.sample_figures import ENERGY, Fields, name_figure
from pipeline.observe.table import format_table
from pipeline.plan.config_schema import TrackingConfig
from pipeline.record.store import run_artifacts
from pipeline.record.tracking_sender import Sender
from pipeline.study.reproduce.reproduction import Reproduction

if TYPE_CHECKING:
    from pipeline.report.evaluate.publication import Finding, Publication


_MOST_LINKS = 3


def show(experiment: str, rows: Sequence[GroupResult], reproduction: Reproduction | None = None) -> None:
    """Print a table of rows of a study and the report's sentences about them; for a reproduction, compare both runs."""
    # Imported late, because the modules of the report take long to import.
    from pipeline.report.terminal_summary import StudySummary, summarize_study

    specs = dict.fromkeys(spec for row in rows for spec in row.group.listeners)
    fields = Fields(factory.build_object(spec.build, interval_ms=spec.interval_ms).table for spec in specs)
    # A reproduction has one group of a block, which allows no comparison.
    closing_remarks = summarize_study(experiment, rows) if reproduction is None else StudySummary()
    table = format_table(rows, fields, closing_remarks.fastest, closing_remarks.notes)
    sys.stdout.writelines(f"{line}\n" for line in (table, *closing_remarks.sentences))
    if reproduction is not None:
        sys.stdout.write(f"{reproduction.side_by_side(rows[0])}\n")


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


_GRACT, _MEMORY = "gract_mean_ratio", "memory_peak_mib"
_SOURCES = {_GRACT: ("GRACT", "activity"), _MEMORY: ("memory", "nvml"), ENERGY: ("energy", "nvml")}
"""In words, each figure of samples that publications have, and the listener that reads it."""


def list_missing_sources(plan: Plan) -> Iterator[str]:
    """Yield a warning for each quantity that findings of a publication need and no listener of the plan reads."""
    if not any(device.is_gpu for device in plan.devices):
        return
    figures, reasons = _read_listeners(plan)
    absent = _SOURCES.keys() - figures
    if not absent:
        return
    # Imported late, because reading the publications takes longer than planning a small study.
    from pipeline.report.evaluate.publication import publications

    groups = list({(group.key, group.scenario): group for group in plan.groups}.values())
    for publication in publications():
        findings = [
            (name, finding)
            for finding in publication.findings
            if (name := _name_source(finding)) in absent
            and any(_is_measured(finding, publication, group) for group in groups)
        ]
        for name, (quantity, listener) in _SOURCES.items():
            if num := sum(finding_source == name for finding_source, _ in findings):
                reason = reasons.get(listener, f"no listener reads {quantity}; add {listener} to listeners")
                source = publication.about.partition(":")[0]
                yield f"{quantity} of {format_count(num, 'published finding')} will be missing ({source}): {reason}"


def _read_listeners(plan: Plan) -> tuple[set[str | None], dict[str, str]]:
    """Return the figures of the plan's listeners, and why a listener cannot read the plan's GPUs."""
    figures: set[str | None] = set()
    reasons: dict[str, str] = {}
    for spec in dict.fromkeys(spec for group in plan.groups for spec in group.listeners):
        listener: Listener = build_object(spec.build, interval_ms=spec.interval_ms)
        describe = getattr(listener, "describe_missing_source", lambda _: None)
        if reason := next(filter(None, map(describe, plan.devices)), None):
            reasons[spec.name] = reason
        else:
            figures |= {name_figure(field) for field in listener.table.fields}
    return figures, reasons


def _name_source(finding: Finding) -> str | None:
    """Return the figure of samples on which a finding rests, if any."""
    if finding.kind == "memory_growth":
        return _MEMORY
    return ENERGY if finding.quantity.startswith("energy_") else finding.quantity.removeprefix("instance_")


def _is_measured(finding: Finding, publication: Publication, group: Group) -> bool:
    """Return whether a group runs copies of a workload of the finding, in its mode and number."""
    names = finding.workloads or tuple(program.name for program in publication.workloads)
    has_degree = group.degree > 1 if finding.degree is None else group.degree == finding.degree
    runs = {job.workload.name for job in group.measured}
    return group.scenario in finding.modes and has_degree and len(runs) == 1 and runs <= set(names)
