"""Rehearsals and reproductions have experiments of their own, whatever the user calls the study."""

from __future__ import annotations

import pytest
from hydra.core.hydra_config import HydraConfig

from pipeline.plan import config_reader
from pipeline.plan.config_reader import name_company, name_rehearsal, name_reproductions, separate_rehearsals
from tests.support.experiments import configs_of


@pytest.fixture(autouse=True)
def _own_choices(monkeypatch):
    """Forget what Hydra composed before, here and in the tests that follow."""
    monkeypatch.setattr(HydraConfig.instance(), "cfg", None)


@pytest.mark.parametrize(
    ("overrides", "experiment"),
    [
        (["gpu=cpu"], "collocation"),
        (["gpu=nvidia", "tracking.experiment=mine"], "mine"),
        (["gpu=simulated_a100_40gb"], "collocation-rehearsal"),
        (["gpu=simulated_h100_80gb", "tracking.experiment=mine"], "mine-rehearsal"),
        (["gpu=simulated_h100_80gb", "tracking.experiment=mine-rehearsal"], "mine-rehearsal"),
    ],
)
def test_a_rehearsal_has_an_experiment_of_its_own(compose, overrides, experiment):
    configs = config_reader.read(compose(overrides))
    separate_rehearsals(configs)
    assert [config.tracking.experiment for config in configs] == [experiment]


def test_stand_ins_on_a_real_device_are_a_rehearsal():
    (config,) = configs_of(["+rehearse=tiny", "gpu=cpu"])
    separate_rehearsals([config])
    assert config.tracking.experiment == "collocation-rehearsal"


def test_names_are_derived_from_the_study_and_not_from_each_other():
    assert name_rehearsal(name_rehearsal("a")) == "a-rehearsal"
    assert [name_company(name) for name in ("a", "a-rehearsal")] == ["a_company", "a_company-rehearsal"]
    for original in ("a", "a-rehearsal", "a-reproductions", "a-rehearsal-reproductions"):
        assert name_reproductions(original, is_rehearsed=False) == "a-reproductions"
        assert name_reproductions(original, is_rehearsed=True) == "a-rehearsal-reproductions"
