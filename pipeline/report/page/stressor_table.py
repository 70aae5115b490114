"""The table of workloads beside stressors."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.report.evaluate.stressor_effects import StressorEffect
from pipeline.report.page.table_format import Table, list_ends


def make_stressor_table(effects: Sequence[StressorEffect]) -> Table:
    """Return a table of the slowdowns of each workload and of the stressor beside it."""
    rows = [
        (
            *(effect.workload, effect.mode, effect.resource, effect.dial),
            *list_ends(effect.sensitivity),
            *list_ends(effect.pressure),
        )
        for effect in effects
    ]
    slowdowns = ("slowdown", "low", "high", "slowdown of the stressor", "low of the stressor", "high of the stressor")
    note = (
        "Speed alone over speed together, in the same block; median over the blocks and 95 % t interval (with three "
        "blocks or more). Slowdown: of the workload beside the stressor (sensitivity). Dial: share of time in which "
        "the stressor works."
    )
    columns = ("workload", "mode", "resource", "dial", *slowdowns)
    return Table("sensitivity", "Workloads beside stressors", columns, tuple(rows), note)
