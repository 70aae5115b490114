"""Mistakes in the blocks of an experiment file that YAML accepts."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from omegaconf import OmegaConf

from pipeline.base.system.errors import ConfigError
from pipeline.plan.overrides import read_blocks


def read(block: str) -> list[dict[str, Any]]:
    keys = dict.fromkeys(("baseline", "degree", "listeners", "mix", "scenario", "window", "workload"))
    hydra = {"runtime": {"choices": {"experiment": "mine"}}, "overrides": {"task": []}}
    return read_blocks(OmegaConf.create({**keys, "hydra": hydra, "blocks": [yaml.safe_load(block)]}))


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ("{degree: 2,3,7, workload: tiny}", '3 is not a key; quote several values: degree: "2,3,7"'),
        ("{scenario: naive,mps}", 'mps is not a key; quote several values: scenario: "naive,mps"'),
        ("{window.seconds: 2,3}", '3 is not a key; quote several values: window.seconds: "2,3"'),
        ("{listeners: host,nvml}", "nvml is not a key; write a list as listeners: [host,nvml]"),
        ("{on: 1}", "true is not a key; write KEY: VALUE"),
        ("{degree: [2,3]}", 'degree does not accept a list; write degree: "2,3"'),
        ("{workload.batch_size: [8]}", 'workload.batch_size does not accept a list; write workload.batch_size: "8"'),
        ("{scenario: [naive,mps]}", 'scenario does not accept a list; write scenario: "naive,mps"'),
    ],
)
def test_values_without_quotes_are_named_with_their_place(block: str, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read(block)
    assert str(refused.value) == f"experiment/mine.yaml: blocks[0]: {message}"


@pytest.mark.parametrize(
    "block", ['{degree: "2,3"}', "{mix: [M,S], listeners: [host]}", "{window.most_s: null, workload@sizes.S: tiny}"]
)
def test_values_of_keys_are_accepted(block: str) -> None:
    assert read(block) == [yaml.safe_load(block)]
