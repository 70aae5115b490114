"""What is used of other libraries beyond their documented interfaces still has the effect that it is used for."""

from __future__ import annotations

import copy
import subprocess
import sys

import hydra
import omegaconf.base
import pynvml
import pytest
import yaml
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import ConfigCompositionException
from hydra.types import RunMode
from omegaconf import OmegaConf, _utils, grammar_parser

from pipeline.base import library_internals
from pipeline.base.paths import PROJECT_DIR

RAISES = """
import hydra
from pipeline.base import library_internals
library_internals.let_hydra_raise()
@hydra.main(version_base="1.3", config_path=None)
def main(config):
    raise AssertionError("never composed")
try:
    main()
except hydra.errors.HydraException:
    print("reached the caller")
"""


def test_an_error_of_hydra_reaches_the_caller():
    done = subprocess.run(
        [sys.executable, "-c", RAISES, "no_such_key=1"], cwd=PROJECT_DIR, capture_output=True, text=True, timeout=300
    )
    assert done.stdout == "reached the caller\n", done.stderr


OPTIONS = """
import hydra
from pipeline.base import library_internals
library_internals.let_options_stand_anywhere()
@hydra.main(version_base="1.3", config_path=None)
def main(config):
    print(config)
main()
"""


def test_options_stand_between_overrides_and_one_that_is_none_is_an_error_of_one_line(tmp_path):
    argv = [
        sys.executable,
        "-c",
        OPTIONS,
        "+a=1",
        "--config-dir",
        str(tmp_path),
        "+b=2",
        f"hydra.run.dir={tmp_path}",
        "+c=3",
    ]
    done = subprocess.run(argv, cwd=PROJECT_DIR, capture_output=True, text=True, timeout=300)
    assert done.stdout == "{'a': 1, 'b': 2, 'c': 3}\n", done.stderr
    done = subprocess.run([*argv, "--foo"], cwd=PROJECT_DIR, capture_output=True, text=True, timeout=300)
    assert done.stderr.splitlines()[-1].startswith("pipeline.base.errors.ConfigError: unrecognized arguments: --foo; ")


@pytest.mark.parametrize(
    ("arguments", "times", "values"), [(["+a=1"], 1, [1]), (["-m", "+a=1,2"], 2, [1, 2])], ids=["alone", "sweep"]
)
def test_a_configuration_is_composed_once(arguments, times, values, monkeypatch, tmp_path):
    compose, composed, seen = ConfigLoaderImpl._load_configuration_impl, [], []

    def counted(self, *, run_mode, **asked):
        config = compose(self, run_mode=run_mode, **asked)
        composed.append(run_mode)
        return config

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ConfigLoaderImpl, "load_configuration", ConfigLoaderImpl.load_configuration)
    library_internals.let_hydra_compose_once()
    monkeypatch.setattr(ConfigLoaderImpl, "_load_configuration_impl", counted)
    quiet = ["hydra/job_logging=none", "hydra/hydra_logging=none", "hydra.output_subdir=null"]
    monkeypatch.setattr(sys, "argv", ["program", *arguments, *quiet])
    hydra.main(version_base="1.3", config_path=None)(lambda config: seen.append(config.a))()
    assert seen == values
    assert composed.count(RunMode.MULTIRUN if "-m" in arguments else RunMode.RUN) == times


def test_the_config_store_is_shared_and_not_copied(monkeypatch):
    monkeypatch.delattr(ConfigStore, "__deepcopy__", raising=False)
    store = ConfigStore.instance()
    assert copy.deepcopy({"store": store})["store"] is not store, "Hydra shares it by itself now"
    monkeypatch.setattr(ConfigStore, "__deepcopy__", None, raising=False)
    library_internals.share_config_store()
    assert copy.deepcopy({"store": store})["store"] is store


def test_a_file_is_parsed_again_only_when_it_changed(monkeypatch, tmp_path):
    read, parsed = yaml.load, []
    monkeypatch.setattr(yaml, "load", lambda file, **options: parsed.append(1) or read(file, **options))
    for module, name in ((OmegaConf, "load"), (_utils, "parse"), (omegaconf.base, "parse")):
        monkeypatch.setattr(module, name, getattr(module, name))
    library_internals.parse_once()
    file = tmp_path / "a.yaml"
    file.write_text("a: 1\nhydra: {sweeper: {blocks: [{a: 1}, {a: 2}], x: 3}}\n")
    first = OmegaConf.load(file)
    first.a = 7
    assert OmegaConf.load(file).a == 1 and len(parsed) == 1, "a caller has a copy"
    with file.open() as opened, library_internals.files_without_blocks():
        assert OmegaConf.load(opened).hydra.sweeper == {"x": 3}
    assert len(OmegaConf.load(file).hydra.sweeper.blocks) == 2
    file.write_text("a: 25\n")
    assert OmegaConf.load(file) == {"a": 25}


def test_an_interpolation_is_parsed_once(monkeypatch):
    parse, parsed = grammar_parser.parse, []
    monkeypatch.setattr(grammar_parser, "parse", lambda text, **options: parsed.append(text) or parse(text, **options))
    for module, name in ((OmegaConf, "load"), (_utils, "parse"), (omegaconf.base, "parse")):
        monkeypatch.setattr(module, name, getattr(module, name))
    library_internals.parse_once()
    for value in range(3):
        assert OmegaConf.create({"a": value, "b": "${a} and ${.a}"}).b == f"{value} and {value}"
    assert parsed == ["${a} and ${.a}"]


def test_the_combinations_of_a_grid_come_in_order():
    overrides = OverridesParser.create().parse_overrides(["a=1,2", "b=x", "c=range(2)"])
    assert library_internals.combinations(overrides) == [
        ["a=1", "b=x", "c=0"],
        ["a=1", "b=x", "c=1"],
        ["a=2", "b=x", "c=0"],
        ["a=2", "b=x", "c=1"],
    ]


def test_values_are_set_in_a_composed_configuration():
    config = OmegaConf.create({"window": {"seconds": 1.0}})
    OmegaConf.set_struct(config, True)
    parse = OverridesParser.create().parse_overrides
    library_internals.set_values(parse(["window.seconds=2.5"]), config)
    assert config.window.seconds == 2.5
    with pytest.raises(ConfigCompositionException, match=r"Could not override 'window\.second'"):
        library_internals.set_values(parse(["window.second=1"]), config)


class _Library:
    """Counts the devices of a machine, for `nvmlDeviceGetCount`."""

    def __init__(self, count: int) -> None:
        self.nvmlDeviceGetCount_v2 = lambda pointer: setattr(pointer._obj, "value", count) or 0


def test_nvml_is_answered_by_another_library_and_then_as_before():
    with library_internals.nvml_answered_by(_Library(3)):
        assert pynvml.nvmlDeviceGetCount() == 3
        with library_internals.nvml_answered_by(_Library(5)):
            assert pynvml.nvmlDeviceGetCount() == 5
        assert pynvml.nvmlDeviceGetCount() == 3


def test_plain_values_are_written_as_omegaconf_writes_a_configuration_of_them():
    texts = [
        "",
        "yes",
        "1",
        "1e3",
        "0x1f",
        "a: b",
        "c # d",
        " e",
        "\u00e9",
        "f\ng\n",
        "null",
        "~",
        "\\${h}",
        "x " * 100,
    ]
    values = {"texts": texts, "others": [1, 1.5, 1e-7, float("inf"), True, None, [], {}, [[1], {"a": {"b": ["c"]}}]]}
    assert library_internals.as_yaml(values) == OmegaConf.to_yaml(OmegaConf.create(values))
