"""Results of one plan that later ones have as well, which therefore do not run them: their runs say so.

A study that goes on with more repeats, degrees or workloads is another plan. How far that is, its own runs cannot tell.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from pipeline.base.domain.tags import Tag, facts_of, list_later_plans, restore_names, stored_name
from pipeline.record.store.content import CUT, MAX_TAG
from pipeline.record.store.local import Store, refused_by


def take_over(store: Store, units: Mapping[str, int], facts: Mapping[str, str]) -> None:
    """Have these runs say what a run of the plan with these facts would; `units` has the unit of each there.

    Raises:
        TrackingError: the store cannot be read or written.
    """
    for run_id, unit in units.items():
        with refused_by(f"run {run_id} cannot be marked in {store.uri}"):
            tags = store.client.get_run(run_id).data.tags
            restore_names(tags)
            earlier = list_later_plans(facts_of(tags))
            said = _said([*earlier, {**facts, "plan_unit": str(unit)}])
            store.client.set_tag(run_id, stored_name(Tag.TAKEN_OVER), said)


def _said(plans: Sequence[Mapping[str, str]]) -> str:
    """What a tag has room for: of too many plans the last ones."""
    said = json.dumps(plans, ensure_ascii=False)
    if len(said) <= MAX_TAG:
        return said
    return _said(plans[1:]) if len(plans) > 1 else json.dumps([{**plans[0], "command_line": CUT}], ensure_ascii=False)
