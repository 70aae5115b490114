"""Runs whose orchestrator or host died; they are closed as interrupted."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Collection, Sequence

from pipeline.base.domain.records import Result
from pipeline.base.domain.tags import Tag
from pipeline.base.system import squeue
from pipeline.record.group_record import GroupRecord
from pipeline.record.shards import group_runs
from pipeline.record.shards.shard_states import QueueState
from pipeline.record.store import results, run_artifacts
from pipeline.record.store.local_store import Store

_LOST = "its host was lost, or its orchestrator"


def close_shard(store: Store, experiment: str, plan: str, shard: int, programs: Collection[str]) -> list[str]:
    """Close the open runs of earlier attempts of a shard; return the names of the groups.

    An attempt that is still running later ends its run itself. Groups of another plan with these program digests are
    closed only if their Slurm task has left the queue, because the other plan may still be running.
    """
    running = _find_running(store, experiment, silent_s=0)
    of_plan = [group for group in running if (group.facts.get("plan"), group.shard) == (plan, shard)]
    alike = [group for group in running if group.program_digest in programs and group not in of_plan]
    of_other_plans = [(group, group_runs.convert_record(group)) for group in alike]
    queued = QueueState.read([run for _, run in of_other_plans], squeue.read_cluster_states)
    return _close(store, [*of_plan, *(group for group, run in of_other_plans if queued.is_gone(run))])


def close_silent(store: Store, experiment: str, silent_s: float) -> list[str]:
    """Close the open groups of an experiment that began more than `silent_s` ago; return their names."""
    return _close(store, _find_running(store, experiment, silent_s))


def _find_running(store: Store, experiment: str, silent_s: float) -> list[GroupRecord]:
    latest_ms = (time.time() - silent_s) * 1000
    groups = results.read_stored_groups(store, experiment)
    return [group for group in groups if group.result is None and group.start_ms <= latest_ms]


def _close(store: Store, running: Sequence[GroupRecord]) -> list[str]:
    result = Result.INTERRUPTED
    for group in running:
        end_ns = group.clock.to_monotonic_ns(int(time.time() * 1000))
        open_jobs = [job for job in group.jobs if job.result is None]
        jobs = (
            dataclasses.replace(job, result=result, end_ns=end_ns) if job.result is None else job for job in group.jobs
        )
        # No reason is set: if the group is still running, its end overwrites the record and the description.
        run_artifacts.log_record(store, dataclasses.replace(group, result=result, end_ns=end_ns, jobs=tuple(jobs)))
        for run in (*open_jobs, group):
            store.set_tag(run.run_id, Tag.RESULT, result.value)
            store.set_tag(run.run_id, Tag.DESCRIPTION, f"{result.value}: {_LOST}")
            store.client.set_terminated(run.run_id, result.mlflow_status)
    return [group.name for group in running]
