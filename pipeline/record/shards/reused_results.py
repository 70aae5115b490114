"""Results that later plans reuse instead of running the groups again; their records list these plans.

A study that is continued with more repeats, degrees or workloads has a new plan; the runs of the new plan alone do not
show the complete progress.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from pipeline.base.domain.tags import Tag, stored_name
from pipeline.record.store import run_artifacts, run_tags
from pipeline.record.store.content import RunContent
from pipeline.record.store.local_store import Store, translate_errors


def take_over(store: Store, shards: Mapping[str, int], facts: Mapping[str, str]) -> None:
    """Add a plan with these facts to the records of runs; `shards` maps run ids to shards of that plan.

    Raises:
        TrackingError: the store is not readable or writable.
    """
    for run_id, shard in shards.items():
        with translate_errors(f"could not mark run {run_id} in {store.uri}"):
            earlier = run_artifacts.read_record(store, run_id)
            plans = (*earlier.later_plans, {**facts, "plan_shard": str(shard)})
            group = dataclasses.replace(earlier, later_plans=plans)
            run_artifacts.log_record(store, group)
            content = RunContent()
            content.add_tag(Tag.TAKEN_OVER, run_tags.make_group_tags(group)[Tag.TAKEN_OVER])
            store.set_tag(run_id, stored_name(Tag.TAKEN_OVER), content.tags[stored_name(Tag.TAKEN_OVER)])
