"""Findings of publications that a study repeats although no listener reads one of their quantities."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pipeline.base.domain.protocols import Listener
from pipeline.base.domain.records import Group, Plan
from pipeline.base.system.factory import build_object
from pipeline.base.system.words import format_count
from pipeline.observe.sample_figures import ENERGY, name_figure

if TYPE_CHECKING:
    from pipeline.report.evaluate.publication import Finding, Publication

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
