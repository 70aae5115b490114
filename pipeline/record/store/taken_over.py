"""Results of one plan that a later one has as well, which therefore does not run them: their runs say so.

A study that goes on with more repeats, degrees or workloads is another plan. How far that is, its own runs cannot tell.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from pipeline.base.errors import TrackingError
from pipeline.base.tags import PREFIX, Tag
from pipeline.record.store.content import CUT, MAX_TAG
from pipeline.record.store.local import Store, reason_of


def take_over(store: Store, units: Mapping[str, int], facts: Mapping[str, str]) -> None:
    """Have these runs say what a run of the plan with these facts would; `units` has the unit of each there.

    Raises:
        TrackingError: the store cannot be written.
    """
    from mlflow.exceptions import MlflowException

    for run_id, unit in units.items():
        said = json.dumps({**facts, "plan_unit": str(unit)}, ensure_ascii=False)
        if len(said) > MAX_TAG:
            said = json.dumps({**facts, "plan_unit": str(unit), "command_line": CUT}, ensure_ascii=False)
        try:
            store.client.set_tag(run_id, Tag.TAKEN_OVER, said)
        except MlflowException as error:
            raise TrackingError(f"run {run_id} in {store.uri} cannot be marked: {reason_of(error)}") from error


def facts_now(facts: Mapping[str, str]) -> dict[str, str]:
    """The facts of a run, with those of the last plan that has it in the place of its own."""
    later: dict[str, str] = json.loads(facts.get(Tag.TAKEN_OVER.removeprefix(PREFIX), "{}"))
    return {**facts, **later}
