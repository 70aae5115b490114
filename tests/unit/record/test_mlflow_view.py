"""What MLflow's page of an experiment shows, by what the workloads of its studies count."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.record.store import pages
from pipeline.record.store.local_store import open_store

pytest_plugins = ["tests.support.tracking_fixtures"]
pytestmark = pytest.mark.store


@pytest.mark.slow
def test_the_page_shows_each_unit_that_any_study_of_the_experiment_counts(root: Path) -> None:
    def columns() -> list[str]:
        experiment = open_store(root).client.get_experiment_by_name("e")
        return list(json.loads(experiment.tags[pages.VIEW_TAG])["selectedColumns"])

    open_store(root).open_experiment("e", {"samples"})
    assert "metrics.`throughput_total_samples_per_s`" in columns()
    assert not any("requests" in column for column in columns())
    store = open_store(root)
    assert store.open_experiment("e", {"requests"}) == store.open_experiment("e")
    both = ["samples", "requests"]
    assert {f"metrics.`throughput_total_{unit}_per_s`" for unit in both} <= set(columns())
    assert {"metrics.`energy_per_sample_j`", "metrics.`energy_per_request_j`"} <= set(columns())


def test_a_page_that_somebody_else_made_shows_no_unit() -> None:
    assert pages.units_in_view("") == pages.units_in_view("[1]") == pages.units_in_view('{"compareRunCharts": 3}')
    assert pages.units_in_view(pages.view_as_json(frozenset({"particle_turns"}))) == {"particle_turns"}


def test_more_units_than_a_tag_has_room_for_are_not_all_shown() -> None:
    state = pages.view_as_json(frozenset(f"units_{number:03}" for number in range(100)))
    assert len(state) <= 5000 and len(pages.units_in_view(state)) > 2


def test_the_view_is_of_groups_by_name_with_their_marks_and_first_figures_in_sight() -> None:
    state = json.loads(pages.view_as_json(frozenset({"samples"})))
    assert state["selectedColumns"][:4] == [
        "attributes.`Description`",  # begins with the mark
        *(f"metrics.`{name}`" for name in ("throughput_total_samples_per_s", "speedup_vs_serial_ratio")),
        "metrics.`slowdown_worst_ratio`",
    ]
    # MLflow leaves 700 pixels to the columns of a page of 1,400 while its menu and its assistant are open.
    assert sum(state["columnWidths"][name] for name in state["columnOrder"][:6]) <= 700
    assert {"tags.`collocation.device`", "tags.`collocation.simulated`"} < set(state["selectedColumns"])
    assert (state["orderByKey"], state["orderByAsc"]) == ("tags.`mlflow.runName`", True)
    assert state["searchFilter"] == "tags.`collocation.role` = 'group'"  # neither reports nor jobs between them
