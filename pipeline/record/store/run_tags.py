"""The tags of MLflow runs, for MLflow's pages and for people; the project finds runs by them and reads nothing else."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

from pipeline.base.domain.marks import NO_MARKS
from pipeline.base.domain.tags import GROUP, JOB, Tag, fact_tag
from pipeline.observe.table import format_line
from pipeline.record.group_record import GroupRecord, JobRecord, RunRecord

_NAMES = {"program_commit": Tag.GIT_COMMIT}
"""Facts with a tag of MLflow."""


def make_group_tags(record: GroupRecord) -> dict[str, str]:
    """Return the tags of a group's run."""
    of_result = {Tag.INVALID: record.invalid, Tag.FLAG: record.note}
    tags = {
        **_make_common_tags(record),
        **_make_run_tags(record),
        Tag.ROLE: GROUP,
        Tag.DIGEST: record.digest,
        Tag.KEY: record.key,
        Tag.PROGRAM_DIGEST: record.program_digest,
        Tag.SETTINGS: record.settings_digest,
        Tag.PLANNED: json.dumps({"settings": record.settings, "options": record.options}),
        **_make_ending_tags(record, record),
        **of_result,
        Tag.TAKEN_OVER: json.dumps(record.later_plans, ensure_ascii=False) if record.later_plans else "",
    }
    return {key: text for key, text in tags.items() if text}


def make_job_tags(record: GroupRecord, job: JobRecord) -> dict[str, str]:
    """Return the tags of a job's run."""
    tags = {
        **_make_common_tags(record),
        **_make_run_tags(job),
        Tag.ROLE: JOB,
        Tag.WORKLOAD_DIGEST: job.digest,
        Tag.PROGRAM_DIGEST: job.program_digest,
        Tag.SIZE: job.size or "",
        Tag.CO_RUNNER: "true" if job.is_co_runner else "",
        **_make_ending_tags(record, job),
        Tag.EXIT_STATUS: _spell(job.exit_status),
        Tag.PID: _spell(job.pid),
        Tag.START_NS: _spell(job.work_start_ns),
        Tag.END_NS: _spell(job.work_end_ns),
        **job.script_tags,
    }
    return {key: text for key, text in tags.items() if text}


def describe_ending(record: GroupRecord, run: RunRecord) -> str:
    """Return MLflow's description of an ended group, or of one of its jobs."""
    marks = record.marks if run is record else NO_MARKS
    assert run.result is not None
    return format_line(run.result, run.reason, run.metrics, marks=marks, is_simulated=record.is_simulated)


def _make_common_tags(record: GroupRecord) -> dict[str, str]:
    """Return the tags that a group and its jobs have in common."""
    return {
        Tag.STUDY: record.study,
        Tag.BLOCK: str(record.block),
        Tag.BASELINE_RUN: str(record.baseline_run) if record.baseline_run > 1 else "",
        Tag.SHARD: _spell(record.shard or None),
        Tag.CASE: _spell(record.case or None),
        Tag.SCENARIO: record.scenario,
        Tag.GPU_UUID: record.gpu_uuid,
        Tag.DEVICE: record.device,
        Tag.SIMULATED: "true" if record.is_simulated else "",
        Tag.PROFILER: record.profiler,
        **{_NAMES.get(name, fact_tag(name)): text for name, text in record.facts.items()},
        # MLflow's Source column shows the text after the last slash.
        Tag.SOURCE: "".join(Path(word).name for word in _split(record.facts.get("command_line", ""))[:1]),
        Tag.USER: record.facts.get("user", ""),
    }


def _make_run_tags(run: RunRecord) -> dict[str, str]:
    named = {_NAMES.get(name, fact_tag(name)): text for name, text in run.facts.items()}
    return named | {fact_tag(name): text for name, text in run.notes.items()}


def _make_ending_tags(record: GroupRecord, run: RunRecord) -> dict[str, str]:
    if run.result is None:
        return {}
    return {
        Tag.RESULT: run.result.value,
        Tag.REASON: run.reason,
        Tag.DESCRIPTION: describe_ending(record, run),
    }


def _split(command_line: str) -> list[str]:
    try:
        return shlex.split(command_line)
    except ValueError:
        return []


def _spell(number: int | None) -> str:
    return "" if number is None else str(number)
