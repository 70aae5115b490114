"""Combinations and values are those of Hydra's own sweeper and composition."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from pipeline.base.system.errors import ConfigError
from pipeline.plan import command_line, overrides
from pipeline.plan.overrides import read_blocks

parse = OverridesParser.create().parse_overrides


@dataclass
class Flags:
    """A configuration with a flag and a number."""

    verbose: bool = True
    degree: int = 2


def test_the_combinations_of_a_grid_come_in_order():
    grid = parse(["a=1,2", "b=x", "c=range(2)"])
    assert overrides.list_combinations(grid) == [
        ["a=1", "b=x", "c=0"],
        ["a=1", "b=x", "c=1"],
        ["a=2", "b=x", "c=0"],
        ["a=2", "b=x", "c=1"],
    ]
    assert overrides.list_combinations([]) == [[]]
    assert overrides.list_combinations(parse(["a=1,2", "b=3,3", "a=4"])) == [["a=4", "b=3"]] * 2
    assert overrides.list_combinations(parse(["a=null,null"])) == [["a=null"]]
    with pytest.raises(ConfigError, match=r"a=interval\(0,1\) has no discrete values"):
        overrides.list_combinations(parse(["a=interval(0,1)"]))


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    """A configuration with values of every kind; nothing in it is a group."""
    (tmp_path / "config.yaml").write_text(
        "window: {seconds: 1.0, unset: null}\ndegree: null\nflags: {a: 1, b: {c: 2}}\nmix: [1, 2]\nname: x\n"
    )
    return tmp_path


def compose_by_hydra(conf: Path, words: list[str]) -> DictConfig:
    with initialize_config_dir(str(conf), version_base="1.3"):
        return compose("config", words)


def get_outcome(make: Any) -> tuple[str, Any]:
    """What came of composing: the values, or the one line in which a refusal is explained."""
    try:
        return "composed", OmegaConf.to_container(make())
    except HydraException as error:
        return "refused", command_line.explain(error)


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    "words",
    [
        ["window.seconds=2.5"],
        ["degree=3", "name='a b'"],
        ["window.second=1"],
        ["windw=1"],
        ["+window.extra=1"],
        ["+window.extra={a: {b: 1}}"],
        ["+window.seconds=3"],
        ["+degree=3"],
        ["+flags={d: 4}"],
        ["++window.seconds=3", "++window.more=4"],
        ["flags={a: 5}"],
        ["flags.b.c=7", "flags.b={c: 8}"],
        ["mix=[3]"],
        ["mix.0=9"],
        ["mix.7=9"],
        ["+mix=[3]"],
        ["~window.seconds"],
        ["~window.seconds=1.0"],
        ["~window.seconds=7"],
        ["~window.x"],
        ["~flags"],
        ["~window.unset"],
        ["name=${window.seconds}"],
        ["name=${"],
        ["x@y=3"],
        ["window=3"],
        ["window.seconds.x=3"],
    ],
    ids=" ".join,
)
def test_values_are_set_as_hydra_sets_them(conf, words):
    def set_in_copy() -> DictConfig:
        config = compose_by_hydra(conf, [])
        overrides.set_values(parse(words), config)
        return config

    expected = get_outcome(lambda: compose_by_hydra(conf, words))
    if words == ["x@y=3"]:  # Hydra words it by package
        assert expected[0] == get_outcome(set_in_copy)[0] == "refused"
        return
    assert get_outcome(set_in_copy) == expected


@pytest.mark.parametrize("word", ["verbose=7", "verbose=true,2", "+verbose=-1"])
def test_a_number_is_neither_true_nor_false(word):
    config = OmegaConf.structured(Flags)
    with pytest.raises(ConfigError, match=r"verbose=-?\d must be true or false"):
        overrides.refuse_integers([word], config)
    overrides.refuse_integers(["verbose=1", "verbose=false", "degree=7", "-m", "other=3"], config)


def test_a_number_in_a_block_is_neither():
    config = OmegaConf.structured(Flags)
    with pytest.raises(ConfigError, match="verbose=7 must be true or false"):
        overrides.set_values(parse(["verbose=7"]), config)


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
