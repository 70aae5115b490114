"""A key of an earlier version is refused with the key of today, and a recorded configuration gets it."""

from __future__ import annotations

import pytest
from hydra.errors import HydraException

from pipeline.plan import command_line, renamed_keys
from pipeline.plan.config_schema import Config


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("unit", "shard"),
        ("unit_of", "shard_of"),
        ("neighbours", "co_runners"),
        ("gpu.beside", "gpu.other_gpus"),
        ("workload.unit", "workload.work_unit"),
        ("sizes.S.unit", "sizes.S.work_unit"),
    ],
)
def test_an_old_key_is_refused_with_the_new_one(compose, old, new) -> None:
    with pytest.raises(HydraException) as caught:
        compose([f"{old}=1"])
    assert command_line.explain(caught.value) == f"{old} was renamed; write {new}"
    assert command_line.explain_unknown_key(old, ()) == f"{old} was renamed; write {new}"  # as after a plus


def test_an_experiment_and_blocks_are_refused_with_their_new_place() -> None:
    assert renamed_keys.explain_old_key("experiment=neighbour_gpus") == (
        "experiment=neighbour_gpus was renamed; write experiment=other_gpus"
    )
    for key in ("blocks", "params"):
        remedy = renamed_keys.explain_old_key(f"hydra.sweeper.{key}")
        assert remedy == f"hydra.sweeper.{key} was renamed; write blocks: [...] at the top level"
    assert renamed_keys.explain_old_key("workload.batch_size") is None


def test_a_recorded_configuration_gets_the_keys_of_today() -> None:
    config = {
        "unit": 2,
        "unit_of": "case",
        "neighbours": 1,
        "gpu": {"beside": 3, "count": 1},
        "workload": {"unit": "samples"},
        "sizes": {"S": {"unit": "requests"}, "M": {}},
    }
    renamed_keys.rename_keys(config)
    assert config == {
        "shard": 2,
        "shard_of": "case",
        "co_runners": 1,
        "gpu": {"other_gpus": 3, "count": 1},
        "workload": {"work_unit": "samples"},
        "sizes": {"S": {"work_unit": "requests"}, "M": {}},
    }
    assert {"shard", "shard_of", "co_runners"} <= set(Config.__dataclass_fields__)
