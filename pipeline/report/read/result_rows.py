"""The rows of a study that has just ended, from memory instead of MLflow."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from pipeline.observe.group_result import GroupResult
from pipeline.record import spool
from pipeline.record.group_record import Clock
from pipeline.report.read.rows import make_row, study_of
from pipeline.report.read.study_records import Row, Study

_FROM_ZERO = Clock(wall_ns=0, monotonic_ns=0)


def make_study_of_results(experiment: str, rows: Iterable[GroupResult]) -> Study:
    """Make a study of the results of its groups."""
    return study_of(experiment, map(_make_row, rows))


def _make_row(ended: GroupResult) -> Row | None:
    """Make the row that a report would read from the group's record; the number of the group is its start in ms."""
    group, state = ended.group, dict(ended.machine_state.facts)
    record = spool.close_record(spool.make_record(group, "", {}, {}, {}), ended)
    places = {job.job.index: job.place for job in ended.jobs}
    jobs = (dataclasses.replace(job, placement=places.get(job.index, {})) for job in record.jobs)
    record = dataclasses.replace(
        record,
        run_id=group.digest,
        facts=state,
        gpu_uuid=state.get("gpu_uuid", ""),
        clock=_FROM_ZERO,
        start_ns=group.number * 1_000_000,
        end_ns=None,
        jobs=tuple(jobs),
    )
    row = make_row(record, "the results of this study", is_any_environment=False)
    return row and dataclasses.replace(row, key=group.key)
