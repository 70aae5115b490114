"""The runs of a solo baseline in one block, which count as one row with the means of their figures."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, MutableMapping, Sequence

from pipeline.base.domain.marks import Marks, join, merge_notes
from pipeline.base.domain.normalisation import average_figures
from pipeline.base.system.grouping import group_by
from pipeline.report.read.study_records import Row


def average_runs(rows: Iterable[Row], left_out: MutableMapping[str, int]) -> list[Row]:
    """Replace the runs of each group in a block by one row; count the other runs in `left_out`."""
    merged = []
    for runs in group_by(rows, lambda row: (row.block, row.key)).values():
        valid = [row for row in runs if row.is_valid]
        merged.append(_average(valid) if len(valid) > 1 else [*valid, *runs][0])
        if len(runs) > len(valid) > 0:
            reason = "a baseline of which another run in the block counts"
            left_out[reason] = left_out.get(reason, 0) + len(runs) - len(valid)
    return merged


def _average(runs: Sequence[Row]) -> Row:
    jobs = [
        dataclasses.replace(of_job[0], metrics=average_figures([job.metrics for job in of_job]))
        for of_job in zip(*(row.jobs for row in runs), strict=True)
    ]
    return dataclasses.replace(
        runs[0],
        metrics=average_figures([row.metrics for row in runs]),
        jobs=tuple(jobs),
        marks=Marks("", join(merge_notes((row.marks.note for row in runs), "run"))),
    )
