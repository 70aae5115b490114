"""Checks of the tags and params with which a report computes: bundles come from strangers, and tags can be edited."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pipeline.base.domain.service_figures import OBJECTIVE
from pipeline.base.domain.tags import Tag, list_facts_by_plan, read_facts
from pipeline.base.domain.turns import DIAL, SETTLE_S, TURN_S, parse_turns
from pipeline.base.domain.window import WindowKind
from pipeline.base.system.errors import TrackingError


def check(run: Any, store: Path | str) -> None:
    """Check the tags and params of a run.

    Raises:
        TrackingError: a value has another form than this project records.
    """
    for kind, values, forms in (("tag", run.data.tags, _TAGS), ("param", run.data.params, _PARAMS)):
        for key in forms.keys() & values.keys():
            try:
                forms[key](values[key])
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
                raise TrackingError(
                    f"run {run.info.run_id} in {store} has an impossible {kind} {key}={values[key][:40]!r}; "
                    "correct it in MLflow, or delete the run"
                ) from error


def _check_figures(text: str) -> None:
    for facts in json.loads(text).values():
        "".join((facts["title"], facts["unit"], facts["summary"]))


def _check_list(text: str, convert: Callable[[Any], object] = str) -> None:
    for part in list(json.loads(text)):
        convert(part)


_TAGS: Mapping[str, Callable[[str], object]] = {
    **dict.fromkeys((Tag.INDEX, Tag.BASELINE_RUN), int),
    **dict.fromkeys((Tag.RATES, Tag.FIRST_LOSSES), lambda text: json.loads(text).items()),
    Tag.TURNS: parse_turns,
    Tag.FIGURES: _check_figures,
    Tag.TAKEN_OVER: lambda text: list_facts_by_plan(read_facts({Tag.TAKEN_OVER: text})),
}
_PARAMS: Mapping[str, Callable[[str], object]] = {
    **dict.fromkeys((DIAL, TURN_S, SETTLE_S, OBJECTIVE), float),
    "window": WindowKind,
    "resources": _check_list,
    "dials": lambda text: _check_list(text, float),
}
