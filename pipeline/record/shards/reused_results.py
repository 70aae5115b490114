"""Results that later plans have as well and do not run again: their runs say so.

A study that goes on with more repeats, degrees or workloads is another plan, whose own runs do not show its progress.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from pipeline.base.domain.tags import Tag, list_later_plans, read_facts, restore_names, stored_name
from pipeline.record.store.content import CUT, MAX_TAG
from pipeline.record.store.local_store import Store, translate_errors


def take_over(store: Store, shards: Mapping[str, int], facts: Mapping[str, str]) -> None:
    """Mark these runs as those of a plan with these facts; `shards` has the shard of each there.

    Raises:
        TrackingError: the store cannot be read or written.
    """
    for run_id, shard in shards.items():
        with translate_errors(f"run {run_id} cannot be marked in {store.uri}"):
            tags = store.client.get_run(run_id).data.tags
            restore_names(tags)
            earlier = list_later_plans(read_facts(tags))
            encoded = _encode([*earlier, {**facts, "plan_shard": str(shard)}])
            store.client.set_tag(run_id, stored_name(Tag.TAKEN_OVER), encoded)


def _encode(plans: Sequence[Mapping[str, str]]) -> str:
    """Encode the newest plans that fit into a tag."""
    encoded = json.dumps(plans, ensure_ascii=False)
    if len(encoded) <= MAX_TAG:
        return encoded
    return _encode(plans[1:]) if len(plans) > 1 else json.dumps([{**plans[0], "command_line": CUT}], ensure_ascii=False)
