"""The rows of a study that has just ended, from memory instead of MLflow."""

from __future__ import annotations

import json
from collections.abc import Iterable

from pipeline.base.domain.records import Job
from pipeline.base.domain.sharing_modes import mode_of
from pipeline.base.domain.tags import fact_tag
from pipeline.base.domain.work_units import ARRIVALS
from pipeline.observe.group_result import GroupResult, JobResult
from pipeline.report.read.rows import study_of
from pipeline.report.read.study_records import JobRow, Row, Study


def make_study_of_results(experiment: str, rows: Iterable[GroupResult]) -> Study:
    """Make a study of the results of its groups."""
    return study_of(experiment, map(_row, rows))


def _row(ended: GroupResult) -> Row:
    group, job_results = ended.group, {job.job.index: job for job in ended.jobs}
    state = dict(ended.machine_state.facts)
    facts = {"profiler": "" if group.profiler.is_none else group.profiler.name, "case": str(group.case or "")}
    facts |= {"baseline_run": str(group.run)} if group.run > 1 else {}
    facts |= {fact: ended.tags.get(fact_tag(fact), "") for fact in ("window_start_ns", "window_end_ns", "turns")}
    jobs = tuple(_job(job, job_results.get(job.index)) for job in group.jobs)
    return Row(
        run_id=group.digest,
        key=group.key,
        name=group.name,
        scenario=group.scenario,
        sharing=mode_of(group.scenario),
        options=json.loads(json.dumps(group.options)),  # as if read from a store
        settings=tuple(group.settings.items()),
        block=group.block,
        result=ended.result,
        reason=ended.reason,
        marks=ended.marks,
        metrics=ended.metrics,
        params={},
        window=group.window.kind,
        device=group.device.name,
        gpu_uuid=state.get("gpu_uuid", ""),
        boot_id=state.get("boot_id", ""),
        is_simulated=group.device.is_simulated,
        start_ms=group.number,
        end_ms=None,
        start="",
        jobs=jobs,
        facts=state | {name: value for name, value in facts.items() if value},
    )


def _job(job: Job, job_result: JobResult | None) -> JobRow:
    reported = {} if job_result is None else {f"job.{key}": value for key, value in job_result.params.items()}
    arrivals = {ARRIVALS: str(job.arrivals)} if job.workload.is_rate_given else {}
    return JobRow(
        index=job.index,
        label=job.workload.name,
        digest=job.workload.digest,
        size=job.size,
        result=None if job_result is None else job_result.result,
        metrics={} if job_result is None else job_result.metrics,
        params={"workload": job.workload.name, **dict(job.workload.params), **arrivals, **reported},
        place={} if job_result is None else job_result.place,
        start_ns=None if job_result is None else job_result.start_ns,
        end_ns=None if job_result is None else job_result.end_ns,
    )
