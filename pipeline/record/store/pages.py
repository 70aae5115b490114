"""The MLflow page of a study: the columns of its table of runs, and its charts.

MLflow stores a shared view as a tag of the experiment, which the link names. The tag contains the JSON of the page's
state. Source: `experiment-page/models/ExperimentPageUIState` of MLflow's UI, 3.17.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence

from pipeline.base.domain import work_units
from pipeline.base.domain.tags import GROUP, Tag

_VIEW = "collocation"
VIEW_TAG = f"mlflow.sharedViewState.{_VIEW}"

_CREATED = "runDateAndNestInfo"
"""The column of the time and the icon of the status, which MLflow always shows."""
_FIGURES = ("speedup_vs_serial_ratio", "slowdown_worst_ratio", "memory_peak_mib")
_MOST_CHARACTERS = 5000  # limit of a tag's value on servers of older versions; 20,000 in 3.17
_GROUPS, _OTHERS = "Groups", ("Model metrics", "system/host", "system/nvml", "System metrics")


@functools.cache
def view_as_json(counted: frozenset[str]) -> str:
    """Return the state of the page, as stored in the tag, for workloads with these work units.

    Units are included in alphabetical order, up to the length limit of a tag.
    """
    in_order = sorted(counted)
    state = _view(in_order)
    return state if len(state) <= _MOST_CHARACTERS else view_as_json(frozenset(in_order[:-1]))


def _view(in_order: Sequence[str]) -> str:
    figures = [*map(work_units.total_of, in_order), *_FIGURES, *map(work_units.energy_of, in_order)]
    axes = {"xaxis": {"type": "PARAM", "key": "degree"}, "yaxis": {"type": "METRIC", "key": "speedup_vs_serial_ratio"}}
    charts = [_card("SCATTER", "by_degree") | axes, *(_card("BAR", name) | {"metricKey": name} for name in figures)]
    # Column widths in pixels, in order. A description begins with the mark of its row, and MLflow's assistant covers
    # the right quarter of a page, so the mark and the first figures need a narrow column at the left.
    selected = {
        "attributes.`Description`": 130,
        **{f"metrics.`{name}`": 100 for name in figures},
        "params.`degree`": 70,
        "params.`scenario`": 85,
        f"tags.`{Tag.BLOCK}`": 120,
        f"tags.`{Tag.RESULT}`": 125,
        f"tags.`{Tag.DEVICE}`": 190,
        f"tags.`{Tag.SIMULATED}`": 150,
    }
    widths = {"attributes.`Run Name`": 210, _CREATED: 50, **selected, "duration": 90}
    return json.dumps(
        {
            # Jobs appear below their groups only if runs are sorted by time; the page of a group links to them.
            "searchFilter": f"tags.`{Tag.ROLE}` = '{GROUP}'",
            "orderByKey": f"tags.`{Tag.RUN_NAME}`",
            "orderByAsc": True,
            "selectedColumns": list(selected),
            "columnOrder": list(widths),
            "columnWidths": widths,
            "runsHiddenMode": "SHOW_ALL",
            "hideEmptyCharts": True,
            "compareRunCharts": charts,
            "compareRunSections": [_section(_GROUPS, is_open=True), *(_section(name) for name in _OTHERS)],
            "isAccordionReordered": True,  # by default, sections are in alphabetical order
        }
    )


def units_in_view(state: str) -> frozenset[str]:
    """Return the work units shown in a state; none if this module did not create it."""
    try:
        charts = json.loads(state)["compareRunCharts"]
        return frozenset(work_units.find_units(str(chart.get("metricKey")) for chart in charts))
    except (ValueError, KeyError, TypeError, AttributeError):
        return frozenset()


def _card(kind: str, name: str) -> dict[str, object]:
    return {"type": kind, "uuid": name, "metricSectionId": _GROUPS, "deleted": False, "isGenerated": False}


def _section(name: str, *, is_open: bool = False) -> dict[str, object]:
    return {"uuid": name, "name": name, "display": is_open, "isReordered": True}


def link_experiment(server: str, experiment_id: str) -> str:
    """Return the URL of an experiment's runs in the shared view; without a view, MLflow 3 opens an empty GenAI view."""
    return f"{server}/#/experiments/{experiment_id}/runs?workflowType=machine_learning&viewStateShareKey={_VIEW}"


def link_run(server: str, experiment_id: str, run_id: str) -> str:
    """Return the URL of a run. The query string keeps MLflow 3 from opening its GenAI view."""
    return f"{server}/#/experiments/{experiment_id}/runs/{run_id}?workflowType=machine_learning"
