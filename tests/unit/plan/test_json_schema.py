"""The JSON schemas accept what runs, and refuse keys and values that no study takes."""

from __future__ import annotations

import copy
import dataclasses
import functools
import json

import pytest
from omegaconf import OmegaConf

from pipeline.base.system.paths import PROJECT_DIR
from pipeline.plan import json_schema, option_loader

jsonschema = pytest.importorskip("jsonschema")
FILES = {kind: sorted((PROJECT_DIR / "conf" / kind).glob("*.yaml")) for kind in ("experiment", "workload")}
QUICK = PROJECT_DIR / "conf/experiment/robroek_quick.yaml"


@functools.cache
def validator(kind):
    schema = json_schema.KINDS[kind]()
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def read_content(path):
    return OmegaConf.to_container(OmegaConf.load(path))


def errors(kind, content):
    return [f"{error.json_path}: {error.message}" for error in validator(kind).iter_errors(content)]


@pytest.mark.parametrize(
    ("kind", "path"), [(kind, path) for kind, paths in FILES.items() for path in paths], ids=lambda value: str(value)
)
def test_files_of_the_project_are_valid(kind, path):
    assert errors(kind, read_content(path)) == []


def set_value(content, place, value):
    changed = copy.deepcopy(content)
    node = changed
    for key in place[:-1]:
        node = node[key] if isinstance(node, list) else node.setdefault(key, {})
    node[place[-1]] = value
    return changed


BLOCK = ("blocks", 0)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("repeat",), 5),
        (("window", "second"), 3),
        (("workload", "batchsize"), 8),
        (("sizes", "S", "batchsize"), 8),
        (("scenario", "profil"), "1g"),
        (("listeners", "nvml", "interval"), 100),
        (("gpu", "devices"), 0),
        (("order",), "shuffled"),
        (("repeats",), "many"),
        (("workload", "precision"), "fp17"),
        (("hydra", "mode"), "SWEEP"),
        ((*BLOCK, "workload.batchsize"), 8),
        ((*BLOCK, "sizes.S.batchsize"), 8),
        ((*BLOCK, "scenari"), "naive,mps"),
        ((*BLOCK, "window.seconds.x"), 3),
    ],
    ids=lambda value: ".".join(map(str, value)) if isinstance(value, tuple) else str(value),
)
def test_what_no_study_takes_is_refused(place, value):
    assert errors("experiment", set_value(read_content(QUICK), place, value))


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("repeats",), "${oc.env:REPEATS}"),
        (("repeats",), "auto"),
        (("resume",), True),
        (("workload", "flags"), {"optimizer": {"lr": 0.1}}),
        (("sizes", "mine", "batch_size"), 8),
        (("listeners", "mine", "interval_ms"), 500),
        (("mix",), ["S", "train.py --epochs 3"]),
        (("degree",), None),
        ((*BLOCK, "+scenario.size_profile.I"), "1g"),
        ((*BLOCK, "workload@sizes.mine"), "tiny"),
        ((*BLOCK, "workload.flags.lr"), "0.1,0.2"),
        ((*BLOCK, "workload.batch_size"), "32,64"),
    ],
    ids=lambda value: ".".join(map(str, value)) if isinstance(value, tuple) else str(value),
)
def test_what_a_study_takes_is_valid(place, value):
    assert errors("experiment", set_value(read_content(QUICK), place, value)) == []


def test_a_workload_file_has_the_keys_of_its_kind():
    tiny = read_content(PROJECT_DIR / "conf/workload/tiny.yaml")
    assert errors("workload", tiny | {"rate_per_s": 3})
    assert errors("workload", tiny | {"batchsize": 3})
    infer = read_content(PROJECT_DIR / "conf/workload/infer_tiny.yaml")
    assert errors("workload", infer | {"rate_per_s": 3}) == []


def test_every_option_of_every_kind_is_known():
    properties = json_schema.make_workload_schema()["properties"]
    for kind in option_loader.list_kinds("workload"):
        assert {field.name for field in dataclasses.fields(kind)} <= properties.keys()


def test_options_have_their_default_and_meaning():
    seconds = json_schema.make_experiment_schema()["properties"]["window"]["properties"]["seconds"]
    assert seconds["default"] == 20.0
    assert str(seconds["description"]).startswith("length of the steady window")


def test_help_of_a_field_is_preferred():
    @dataclasses.dataclass
    class Mine:
        rows: int = dataclasses.field(default=3, metadata={"help": "rows of the factors"})

    node = json_schema._properties(Mine, "workload.")["rows"]
    assert (node["description"], node["default"]) == ("rows of the factors", 3)


def test_the_command_prints_a_schema(capsys):
    assert json_schema.main(["workload"]) == 0
    assert json.loads(capsys.readouterr().out) == json_schema.make_workload_schema()
