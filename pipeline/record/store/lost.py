"""Runs whose orchestrator is gone with its host: nobody will end them, so they are closed as interrupted."""

from __future__ import annotations

import time

from pipeline.base.tags import GROUP, JOB, Tag, facts_of
from pipeline.observe import endings
from pipeline.record.store import results
from pipeline.record.store.local import Store

_LOST = "its host was lost, or its orchestrator there"


def close_unit(store: Store, experiment: str, plan: str, unit: int) -> list[str]:
    """Close what earlier attempts of a unit left running; the names of the groups.

    An attempt that lives on after all, on a host that only seemed to be dead, ends its run itself later.
    """
    return _close(store, experiment, {"plan": plan, "plan_unit": str(unit)}, silent_s=0)


def close_silent(store: Store, experiment: str, silent_s: float) -> list[str]:
    """Close the groups of an experiment that began so long ago and still run; their names."""
    return _close(store, experiment, {}, silent_s)


def _close(store: Store, experiment: str, wanted: dict[str, str], silent_s: float) -> list[str]:
    ending = endings.without_owner()
    latest_ms = (time.time() - silent_s) * 1000
    running = [
        run
        for run in results.runs_in(store, experiment, GROUP)
        if run.info.status == "RUNNING"
        and wanted.items() <= facts_of(run.data.tags).items()
        and run.info.start_time <= latest_ms
    ]
    lost = {run.info.run_id for run in running}
    jobs = results.runs_in(store, experiment, JOB) if lost else []
    of_jobs = [run for run in jobs if run.data.tags.get(Tag.PARENT_RUN) in lost and run.info.status == "RUNNING"]
    for run in (*of_jobs, *running):
        store.client.set_tag(run.info.run_id, Tag.RESULT, ending.result.value)
        # Not as its reason: a group that lives on after all ends without one, and then says what came of it here.
        store.client.set_tag(run.info.run_id, Tag.DESCRIPTION, f"{ending.result.value}: {_LOST}")
        store.client.set_terminated(run.info.run_id, ending.result.mlflow_status)
    return [str(run.info.run_name) for run in running]
