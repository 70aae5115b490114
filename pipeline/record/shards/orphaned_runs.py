"""Runs whose orchestrator or host died; they are closed as interrupted."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from typing import Any

from pipeline.base.domain.records import Result
from pipeline.base.domain.tags import GROUP, JOB, Tag, read_facts
from pipeline.base.system import squeue
from pipeline.record.shards import group_runs
from pipeline.record.shards.shard_states import QueueState
from pipeline.record.store import results
from pipeline.record.store.local_store import Store

_LOST = "its host was lost, or its orchestrator"


def close_shard(store: Store, experiment: str, plan: str, shard: int, programs: Collection[str]) -> list[str]:
    """Close the open runs of earlier attempts of a shard; return the names of the groups.

    An attempt that is still running later ends its run itself. Groups of another plan with these program digests are
    closed only if their Slurm task has left the queue, because the other plan may still be running.
    """
    running = _find_running(store, experiment, silent_s=0)
    of_shard = {"plan": plan, "plan_shard": str(shard)}.items()
    of_plan = [run for run in running if of_shard <= read_facts(run.data.tags).items()]
    alike = [run for run in running if run.data.tags.get(Tag.PROGRAM_DIGEST) in programs and run not in of_plan]
    of_other_plans = [(run, group_runs.convert_run(run)) for run in alike]
    queued = QueueState.read([group for _, group in of_other_plans], squeue.read_cluster_states)
    return _close(store, experiment, [*of_plan, *(run for run, group in of_other_plans if queued.is_gone(group))])


def close_silent(store: Store, experiment: str, silent_s: float) -> list[str]:
    """Close the open groups of an experiment that began more than `silent_s` ago; return their names."""
    return _close(store, experiment, _find_running(store, experiment, silent_s))


def _find_running(store: Store, experiment: str, silent_s: float) -> list[Any]:
    latest_ms = (time.time() - silent_s) * 1000
    groups = results.read_runs(store, experiment, GROUP)
    return [run for run in groups if run.info.status == "RUNNING" and run.info.start_time <= latest_ms]


def _close(store: Store, experiment: str, running: Sequence[Any]) -> list[str]:
    result = Result.INTERRUPTED
    lost = {run.info.run_id for run in running}
    jobs = results.read_runs(store, experiment, JOB) if lost else []
    of_jobs = [run for run in jobs if run.data.tags.get(Tag.PARENT_RUN) in lost and run.info.status == "RUNNING"]
    for run in (*of_jobs, *running):
        store.set_tag(run.info.run_id, Tag.RESULT, result.value)
        # The reason tag is not set: if the group is still running, its end overwrites the description but not a reason.
        store.set_tag(run.info.run_id, Tag.DESCRIPTION, f"{result.value}: {_LOST}")
        store.client.set_terminated(run.info.run_id, result.mlflow_status)
    return [str(run.info.run_name) for run in running]
