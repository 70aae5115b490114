"""Checks of the texts with which a report computes: bundles come from strangers, and files can be edited."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pipeline.base.domain.service_figures import OBJECTIVE
from pipeline.base.domain.turns import DIAL, SETTLE_S, TURN_S, parse_turns
from pipeline.base.system.errors import TrackingError
from pipeline.record.group_record import GroupRecord


def check_record(group: GroupRecord, store: Path | str) -> None:
    """Check the notes and params of a group and its jobs.

    Raises:
        TrackingError: a value has another form than this project records.
    """
    for run in (group, *group.jobs):
        for kind, values, forms in (("note", run.notes, _NOTES), ("param", run.params, _PARAMS)):
            for key in forms.keys() & values.keys():
                try:
                    forms[key](values[key])
                except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
                    raise TrackingError(
                        f"run {run.run_id} in {store} has an impossible {kind} {key}={values[key][:40]!r}; "
                        "delete the run"
                    ) from error


def _check_figures(text: str) -> None:
    for facts in json.loads(text).values():
        "".join((facts["title"], facts["unit"], facts["summary"]))


def _check_list(text: str, convert: Callable[[Any], object] = str) -> None:
    for part in list(json.loads(text)):
        convert(part)


_NOTES: Mapping[str, Callable[[str], object]] = {
    **dict.fromkeys(("rates", "first_losses"), lambda text: json.loads(text).items()),
    "turns": parse_turns,
    "figures": _check_figures,
}
_PARAMS: Mapping[str, Callable[[str], object]] = {
    **dict.fromkeys((DIAL, TURN_S, SETTLE_S, OBJECTIVE), float),
    "resources": _check_list,
    "dials": lambda text: _check_list(text, float),
}
