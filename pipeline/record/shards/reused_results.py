"""Results that later plans reuse instead of running the groups again; the runs are tagged with these plans.

A study that is continued with more repeats, degrees or workloads has a new plan; the runs of the new plan alone do not
show the complete progress.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from pipeline.base.domain.tags import Tag, list_later_plans, read_facts, restore_names, stored_name
from pipeline.record.store.content import CUT, MAX_TAG
from pipeline.record.store.local_store import Store, translate_errors


def take_over(store: Store, shards: Mapping[str, int], facts: Mapping[str, str]) -> None:
    """Tag runs as results of a plan with these facts; `shards` maps run ids to shards of that plan.

    Raises:
        TrackingError: the store is not readable or writable.
    """
    for run_id, shard in shards.items():
        with translate_errors(f"could not mark run {run_id} in {store.uri}"):
            tags = store.client.get_run(run_id).data.tags
            restore_names(tags)
            earlier = list_later_plans(read_facts(tags))
            encoded = _encode([*earlier, {**facts, "plan_shard": str(shard)}])
            store.set_tag(run_id, stored_name(Tag.TAKEN_OVER), encoded)


def _encode(plans: Sequence[Mapping[str, str]]) -> str:
    encoded = json.dumps(plans, ensure_ascii=False)
    if len(encoded) <= MAX_TAG:
        return encoded
    return _encode(plans[1:]) if len(plans) > 1 else json.dumps([{**plans[0], "command_line": CUT}], ensure_ascii=False)
