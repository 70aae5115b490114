"""Classes that declare options: loading, mistakes, hooks, folders of users, and the JSON schemas."""

from __future__ import annotations

import copy
import dataclasses
import enum
import functools
import json
import math
import os
import pickle
import subprocess
import sys
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from pipeline.base.domain.machine_state import cpu_device
from pipeline.base.system import factory
from pipeline.base.system.errors import ConfigError
from pipeline.base.system.paths import PROJECT_DIR, config_folders
from pipeline.plan import command_line, groups, job_entries, json_schema, option_loader
from pipeline.plan import help_text as explained
from workloads import client, program
from workloads.options import CONTENT, option


def test_options_are_unpickled_where_their_class_was_not_loaded():
    options = option_loader.load("workloads.images.options.Tiny")(batch_size=7)
    code = "import pickle, sys; print(pickle.loads(sys.stdin.buffer.read()).batch_size)"
    done = subprocess.run(
        [sys.executable, "-c", code], input=pickle.dumps(options), capture_output=True, cwd=PROJECT_DIR, check=True
    )
    assert done.stdout == b"7\n"


def test_other_names_are_not_there():
    with pytest.raises(AttributeError):
        option_loader.nothing  # noqa: B018


@dataclass
class WithOldName:
    """An option class that was written for an earlier version."""

    unit = "numbers"


def test_an_attribute_of_an_earlier_version_is_refused_with_its_name_of_today() -> None:
    with pytest.raises(ConfigError, match=r"WithOldName: unit was renamed; write work_unit$"):
        option_loader.load(f"{__name__}.WithOldName")


Colour = enum.Enum("Colour", "red blue", start=0)


@pytest.mark.parametrize(
    ("kind", "declared", "message"),
    [
        (int, option(3, help="x", least="a"), "least='a' must be a number"),  # type: ignore[arg-type]
        (int, option(3, help="x", least=True), "least=True must be a number"),
        (str, option("a", help="x", least=3), "least=3 limits numbers, but a value must be a text"),
        (str, option("a", help="x", choices="abc"), "choices='abc' must be a tuple, such as ('a', 'b')"),  # type: ignore[arg-type]
        (int, option(3, help="x", choices=(3, "a")), "choices has 'a', which must be an int"),
        (str, option("a", help="x", path="plac"), "path='plac' must be PLACE or CONTENT of workloads.options"),
        (str, option("a", help="x", braces=3), "braces=3 must be a text"),  # type: ignore[arg-type]
        (str, option("a", help=3), "help=3 must be a text"),  # type: ignore[arg-type]
        (str, option("a", help="x", is_flag="no"), "is_flag='no' must be True or False"),  # type: ignore[arg-type]
        (int, option("big", help="x"), "the default 'big' must be an int"),
        (int, option(None, help="x"), "the default None must be an int"),
        (list[int], option([1, "b"], help="x"), "the default [1, 'b'] must be of type list[int]"),
        (Colour, option("green", help="x"), "the default 'green' must be one of red, blue"),
        (int, option(3, help="x", least=5), "the default 3 must be at least 5"),
        (int, option(3, help="x", choices=(1, 2)), "the default 3 must be one of 1, 2"),
    ],
)
def test_a_wrong_declaration_names_the_class_and_the_option(
    monkeypatch, kind: Any, declared: Any, message: str
) -> None:
    monkeypatch.setitem(globals(), "Products", dataclasses.make_dataclass("Products", [("size", kind, declared)]))
    with pytest.raises(ConfigError) as refused:
        option_loader.load(f"{__name__}.Products")
    assert str(refused.value) == f"/schema/{__name__}.Products: size: {message}; correct it"


def test_right_declarations_are_accepted(monkeypatch) -> None:
    fields = [
        ("steps", int | None, option(None, help="x", least=1)),
        ("share", float, option(1, help="x", choices=(0.5, 1))),
        ("sizes", list[int], option([3], help="x", least=1)),
        ("file", str, option(help="x", path=CONTENT)),
    ]
    monkeypatch.setitem(globals(), "Fine", dataclasses.make_dataclass("Fine", fields, kw_only=True))
    assert option_loader.load(f"{__name__}.Fine")(file="a").steps is None


def test_a_class_that_python_refuses_is_named_with_its_line(monkeypatch, tmp_path) -> None:
    text = "from dataclasses import dataclass\nfrom workloads.options import option\n\n@dataclass\nclass Wrong:\n"
    (tmp_path / "wrong_options.py").write_text(f"{text}    size: int = option(3)\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"missing 1 .*: 'help' \(wrong_options\.py:6\); correct the module$"):
        option_loader.load("wrong_options.Wrong")


CPU = cpu_device()


@dataclass(kw_only=True)
class Primes:
    """Count primes."""

    work_unit = "numbers"
    tilt: float = option(0.5, least=0, help="of the sieve")
    total: int = option(0, least=0, help="of all")
    bins: list[int] = option([1], least=1, help="of the histogram")

    def derive_values(self) -> dict[str, Any]:
        return {"tilt": self.tilt / 2, "total": 3}


def make_primes(**methods: Any) -> Any:
    """Return a workload of `Primes` with other methods."""
    kind = option_loader.load(f"{__name__}.Primes")
    values = {key: methods.pop(key) for key in ("tilt", "total", "bins") if key in methods}
    return type("Primes", (kind,), methods)(**values)


def test_values_are_derived_once_and_those_that_are_given_win(monkeypatch):
    planned = make_primes(total=99).complete().program_options()
    assert planned == {"tilt": 0.25, "total": 99, "bins": [1]}
    by_hand = program.parse(Primes, ["--total", "99"])
    assert (by_hand.tilt, by_hand.options.tilt, by_hand.total) == (0.25, 0.25, 99)
    monkeypatch.setenv(client.FOLDER_VARIABLE, "job")
    args = program.parse(Primes, groups._make_flags(planned))
    assert {key: getattr(args, key) for key in planned} == planned


def fail(*_: object) -> None:
    raise RuntimeError("no luck")


@pytest.mark.parametrize(
    ("workload", "why"),
    [
        ({"derive_values": lambda _: {"totl": 3}}, "derive_values returns totl, which is not an option"),
        ({"derive_values": lambda _: {"total": "x"}}, "derive_values: total=x: Value 'x' of type 'str' could not"),
        ({"derive_values": lambda _: {"total": -1}}, "derive_values: total=-1 must not be negative"),
        ({"derive_values": lambda _: None}, r"derive_values failed: TypeError: .* \(test_option_loader.py:\d+\)"),
        ({"check": lambda _: None}, r"check failed: TypeError: .* \(test_option_loader.py:\d+\)"),
        ({"check": fail}, r"check failed: RuntimeError: no luck \(test_option_loader.py:\d+\)"),
        ({"check_data": fail}, "check_data failed: RuntimeError"),
        ({"packages": fail}, "packages failed: RuntimeError"),
        ({"tilt": math.inf}, "tilt=inf must be finite"),
        ({"bins": [2, 0]}, "bins=0 must be at least 1"),
    ],
)
def test_a_mistake_in_a_class_or_value_is_refused_in_one_line(workload, why):
    wrong = make_primes(**workload)
    with pytest.raises(ConfigError, match=f"^workload primes: {why}"):
        wrong = wrong.complete()
        wrong.refuse_wrong(CPU, device_was_chosen=True)
        wrong.refuse_missing_data()
        wrong.needed_packages()


@pytest.mark.parametrize(
    ("method", "why"),
    [
        (lambda _: 3, "small returned 3, not a workload"),
        (fail, "small failed: RuntimeError"),
        (lambda self: replace(self, total=-1), "small: total=-1 must not be negative"),
        (lambda self: replace(self, total="x"), "small: total: Value 'x'"),
    ],
)
def test_a_small_form_that_cannot_run_is_refused_by_its_name(method, why):
    with pytest.raises(ConfigError, match=f"^workload primes: {why}"):
        job_entries._shrink(make_primes(small=method))


@dataclass
class Pair:
    """An option of a type that no command line has."""

    pair: tuple[int, int] = field(default=(1, 2))


@pytest.mark.parametrize(
    ("name", "why"),
    [
        (f"{__name__}.Pair", r"pair has the unsupported type tuple\[int, int\]; use int, float"),
        ("workloads.primes.Primes", "this project's package `workloads` has no workloads.primes; correct the name"),
    ],
)
def test_a_class_that_cannot_be_used_is_refused(name, why):
    with pytest.raises(ConfigError, match=why):
        option_loader.load(name)


def test_a_module_that_lacks_another_cannot_be_imported(tmp_path, monkeypatch):
    (tmp_path / "lacking.py").write_text("import torchh\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match="lacking cannot be imported: No module named 'torchh'"):
        factory.find("lacking.Options", "/schema/lacking.Options")


def test_the_element_of_a_list_is_refused_and_not_the_list():
    node = OmegaConf.structured(Primes)
    with pytest.raises(OmegaConfBaseException) as refused:
        OmegaConf.update(node, "bins", ["x"])
    assert command_line.explain_refusal("bins", refused.value) == "holds x; each element must be a whole number"


OPTIONS = """
from dataclasses import dataclass
from workloads.options import option

@dataclass(kw_only=True)
class Primes:
    "Count primes."
    limit: int = option(20000, least=2, help="numbers to try")
"""
YAML = "defaults: [/schema/own_primes.Primes@_here_, _self_]\nlimit: 50000\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "own_primes.py").write_text(OPTIONS)
    (tmp_path / "conf/workload").mkdir(parents=True)
    (tmp_path / "conf/workload/primes.yaml").write_text(YAML)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["run.py", "--config-dir", "conf"])
    return tmp_path


def read_schema(capsys, kind):
    assert json_schema.main([kind, "--config-dir", "conf"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_schema_of_workloads_takes_the_keys_of_ones_own(folder, capsys):
    jsonschema = pytest.importorskip("jsonschema")
    validator = jsonschema.Draft202012Validator(read_schema(capsys, "workload"))
    content = {"defaults": ["/schema/own_primes.Primes@_here_", "_self_"], "limit": 50000}
    assert list(validator.iter_errors(content)) == []
    assert [error.path[0] for error in validator.iter_errors(content | {"limit": [1]})] == ["limit", "limit"]


def test_the_schema_of_experiments_takes_them_in_blocks(folder, capsys):
    jsonschema = pytest.importorskip("jsonschema")
    schema = read_schema(capsys, "experiment")
    experiment = {"workload": {"limit": 5}, "blocks": [{"workload": "primes", "workload.limit": "5,7"}]}
    assert list(jsonschema.Draft202012Validator(schema).iter_errors(experiment)) == []
    block = schema["properties"]["blocks"]["items"]["properties"]
    assert "primes" in block["workload"]["examples"]


def test_the_schema_needs_the_class_and_the_folder(folder, capsys):
    (folder / "conf/workload/other.yaml").write_text("defaults: [/schema/own_nothing.Other@_here_]\n")
    assert json_schema.main(["workload"]) == 2
    assert capsys.readouterr().err.startswith("error: /schema/own_nothing.Other is not a class that can be imported")
    assert json_schema.main(["--config-dir", "nosuch"]) == 2
    assert "--config-dir nosuch does not exist" in capsys.readouterr().err


def test_help_lists_the_choices_and_what_they_set(folder):
    assert ", primes, " in " ".join(explained.format_overview().split())
    assert "workload.limit  (int; default: 20000, 50000 in primes)\n" in explained.format_keys("workload.limit")
    (folder / "conf/workload/primes.yaml").write_text(f"{YAML}  - wrong: [\n")
    with pytest.raises(explained.ConfigError, match=r"primes\.yaml is not a YAML map"):
        explained.format_keys("workload.limit")


@pytest.mark.parametrize("words", [["-cd", "a"], ["--config-dir", "a"], ["--config-dir=a"], ["-cd=a"]])
def test_the_folder_is_an_option_of_ours_alone(words):
    assert [path.name for path in config_folders([*words, "--", "train.py", "--config-dir", "b"])] == ["conf", "a"]


@pytest.mark.slow
def test_a_shell_completes_them(folder):
    environ = {**os.environ, "PYTHONPATH": str(folder), "COMP_LINE": "python run.py --config-dir conf workload=pri"}
    argv = [sys.executable, PROJECT_DIR / "run.py", "-sc", "query=bash"]
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.stderr) == ("workload=primes\n", "")


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


def list_errors(kind, content):
    return [f"{error.json_path}: {error.message}" for error in validator(kind).iter_errors(content)]


@pytest.mark.parametrize(
    ("kind", "path"), [(kind, path) for kind, paths in FILES.items() for path in paths], ids=lambda value: str(value)
)
def test_files_of_the_project_are_valid(kind, path):
    assert list_errors(kind, read_content(path)) == []


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
    assert list_errors("experiment", set_value(read_content(QUICK), place, value))


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
    assert list_errors("experiment", set_value(read_content(QUICK), place, value)) == []


def test_a_workload_file_has_the_keys_of_its_kind():
    tiny = read_content(PROJECT_DIR / "conf/workload/tiny.yaml")
    assert list_errors("workload", tiny | {"rate_per_s": 3})
    assert list_errors("workload", tiny | {"batchsize": 3})
    infer = read_content(PROJECT_DIR / "conf/workload/infer_tiny.yaml")
    assert list_errors("workload", infer | {"rate_per_s": 3}) == []


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
