"""The command `python -m pipeline.plan.json_schema`: JSON schemas of experiment files and workload files, for editors.

The schemas are generated from `config_schema.py` and the option classes of workloads, so they contain the keys of this
installation and of the workloads in the folder of `--config-dir`. Every value may also be an interpolation, `${...}`,
because an experiment may use values that are known only at run time.
"""

from __future__ import annotations

import argparse
import enum
import json
import re
import sys
import types
import typing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import MISSING as NO_DEFAULT
from dataclasses import Field, fields, is_dataclass
from pathlib import Path
from typing import Any

from omegaconf import MISSING

from pipeline.base.domain.config_choices import list_choices
from pipeline.base.system import entry_points, startup, words
from pipeline.base.system.command_parser import CommandParser
from pipeline.base.system.errors import ConfigError
from pipeline.base.system.paths import config_folders
from pipeline.plan import config_schema, option_loader
from pipeline.plan import help_text as explained

Schema = dict[str, Any]

_DRAFT = "https://json-schema.org/draft/2020-12/schema"
_INTERPOLATION = r"\$\{"
_NAMES = "[^.]+"  # name of a size or a listener
_SCALARS: dict[object, list[str]] = {
    int: ["integer"],
    float: ["number"],
    bool: ["boolean"],
    str: ["string", "number", "boolean"],  # a text may look like another type, as in `resume: true`
}
_WORKLOAD = "workload"
"""Key whose options depend on its choice, like the keys of `BASES`; files of the choices name the option classes."""


def make_experiment_schema() -> Schema:
    """Return the schema of an experiment file: a study's keys, the defaults list, and keys of Hydra."""
    defaults = {"type": "array", "items": {"anyOf": [{"type": "string"}, _choices_schema()]}}
    mode = {"enum": ["RUN", "MULTIRUN"], "description": "MULTIRUN: a sweep, without -m"}
    properties = {
        "defaults": defaults | {"description": "choices: override /GROUP: CHOICE"},
        **_study_properties(),
        "blocks": {"type": "array", "items": _block_schema(), "description": "a union of grids, for a sweep"},
        "hydra": _object({"mode": mode}, is_open=True),
    }
    return {"$schema": _DRAFT, "title": "Experiment of collocate", **_object(properties)}


def make_workload_schema() -> Schema:
    """Return the schema of a workload file; its keys depend on the class that its defaults name."""
    kinds = option_loader.list_classes()
    defaults: Schema = {"type": "array", "items": {"type": ["string", "object"]}}
    of_kind = [
        {
            "if": {
                "properties": {"defaults": {"contains": {"const": f"/schema/{name}@_here_"}}},
                "required": ["defaults"],
            },
            "then": _object({"defaults": defaults, **_properties(kind, "workload.")}),
        }
        for name, kind in kinds.items()
    ]
    start = {
        "examples": [[f"/schema/{name}@_here_", "_self_"] for name in kinds],
        "description": "the option class, and _self_",
    }
    properties = {**_properties_of_kinds("workload"), "defaults": defaults | start}
    return {"$schema": _DRAFT, "title": "Workload of collocate", **_object(properties), "allOf": of_kind}


KINDS: dict[str, Callable[[], Schema]] = {"experiment": make_experiment_schema, "workload": make_workload_schema}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a schema; return the exit status."""
    options = make_parser().parse_args(arguments)
    if options.config_dir and not Path(options.config_dir).is_dir():
        words.say(f"error: --config-dir {options.config_dir} does not exist; check the name")
        return 2
    try:
        option_loader.list_classes(is_strict=True)  # reads --config-dir from the command line, as later calls do
    except ConfigError as error:
        words.say(f"error: {error}")
        return 2
    sys.stdout.write(json.dumps(KINDS[options.kind](), indent=1) + "\n")
    return 0


def make_parser(*_: str) -> argparse.ArgumentParser:
    """Return the parser of the command."""
    parser = CommandParser(
        prog=entry_points.spell("schema"),
        allow_abbrev=False,
        description="Print a JSON schema for editors to complete and check YAML files (docs/installation.md).",
    )
    parser.add_argument(
        "kind", nargs="?", choices=KINDS, default="experiment", help="kind of the YAML files (%(default)s)"
    )
    parser.add_argument("--config-dir", "-cd", metavar="FOLDER", help="configuration folder with your own workloads")
    return parser


def _object(properties: Schema, *, is_open: bool = False) -> Schema:
    return {"type": "object", "properties": properties, "additionalProperties": is_open}


def _study_properties() -> Schema:
    properties = _properties(config_schema.Config, "")
    for key in (*option_loader.BASES, _WORKLOAD):
        properties[key] = _object(_properties_of_kinds(key))
    properties["sizes"] = {"type": "object", "additionalProperties": properties["workload"]}
    listener = properties["listeners"]["additionalProperties"]
    properties["listeners"]["properties"] = dict.fromkeys(list_choices("listeners"), listener)
    return properties


def _properties_of_kinds(key: str) -> Schema:
    """Return the options of all classes of a key; if classes differ, a value may match any of them."""
    nodes: dict[str, list[Schema]] = {}
    for kind in option_loader.list_kinds(key):
        for name, node in _properties(kind, f"{key}.").items():
            nodes.setdefault(name, []).append(node)
    return {name: _either(of_kinds) for name, of_kinds in nodes.items()}


def _either(nodes: Sequence[Schema]) -> Schema:
    """Merge nodes: keep their common part and list their differences as alternatives."""
    common = {key: value for key, value in nodes[0].items() if all(node.get(key, ...) == value for node in nodes)}
    differences = [{key: value for key, value in node.items() if key not in (*common, "default")} for node in nodes]
    alternatives = [other for number, other in enumerate(differences) if other not in differences[:number]]
    return common if alternatives == [{}] else common | {"anyOf": alternatives}


def _properties(owner: type[Any], prefix: str) -> Schema:
    """Return the schema of each field of an option class by name; `prefix` is the parent of the keys."""
    hints = typing.get_type_hints(owner)
    return {field.name: _field_schema(field, hints[field.name], f"{prefix}{field.name}") for field in fields(owner)}


def _field_schema(field: Field[Any], hint: object, key: str) -> Schema:
    node: Schema = _value_schema(hint, key)
    if key == "repeats":
        node = {"anyOf": [_value_schema(int, key), {"enum": [config_schema.AUTO_REPEATS]}]}
    if text := field.metadata.get("help"):
        node["description"] = explained.strip_markdown(text)
    default = field.default if field.default_factory is NO_DEFAULT else field.default_factory()
    if default is not NO_DEFAULT and default != MISSING and not is_dataclass(default):
        node["default"] = default.name if isinstance(default, enum.Enum) else default
    return node


def _value_schema(hint: object, key: str) -> Schema:
    """Return the schema of the values that a type hint of OmegaConf allows."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return {}
    if origin in (types.UnionType, typing.Union):
        nodes = [_value_schema(argument, key) for argument in arguments if argument is not types.NoneType]
        return _nullable(nodes[0] if len(nodes) == 1 else {"anyOf": nodes}, types.NoneType in arguments)
    if hint in _SCALARS:
        names = _SCALARS[hint]
        return {"type": names} if "string" in names else {"type": [*names, "string"], "pattern": _INTERPOLATION}
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return {"anyOf": [{"enum": list(hint.__members__)}, {"type": "string", "pattern": _INTERPOLATION}]}
    if isinstance(hint, type) and is_dataclass(hint):
        return _object(_properties(hint, f"{key}."))
    if origin is list:
        return {"type": ["array", "string"], "items": _value_schema(arguments[0], key), "pattern": _INTERPOLATION}
    assert origin is dict, f"{key}: no schema is known for {hint}"
    return {"type": "object", "additionalProperties": _value_schema(arguments[1], f"{key}.NAME")}


def _nullable(node: Schema, is_nullable: bool) -> Schema:
    if not is_nullable:
        return node
    if isinstance(node.get("type"), list):
        return node | {"type": [*node["type"], "null"]}
    return {"anyOf": [*node.get("anyOf", [node]), {"type": "null"}]}


def _block_schema() -> Schema:
    """Return the schema of a block: keys as on the command line, each with one or several values (`naive,mps`)."""
    properties: Schema = {name: {"examples": list_choices(name)} for name in _groups()}
    patterns: Schema = {_pattern("workload@sizes.NAME"): {"examples": list_choices("workload")}}
    for key, node in _flattened(_study_properties(), ""):
        annotation = {"description": node["description"]} if "description" in node else {}
        if "NAME" in key:
            patterns[_pattern(key)] = annotation
        else:
            properties[key] = annotation | properties.get(key, {})
        if node.get("type") == "object":  # a map
            patterns[_pattern(f"{key}.NAME")] = annotation
    return {**_object(properties), "patternProperties": patterns}


def _pattern(key: str) -> str:
    """Return the pattern of a key of a block; `NAME` matches any name, and a leading `+` is allowed."""
    return rf"^\+?{re.escape(key).replace('NAME', _NAMES)}$"


def _flattened(properties: Schema, prefix: str) -> Iterator[tuple[str, Schema]]:
    """Yield the keys of nested properties in override syntax, with schemas; `NAME` stands for any key of a map."""
    for name, node in properties.items():
        key, named = f"{prefix}{name}", node.get("additionalProperties")
        if "properties" in node and named is False:
            yield from _flattened(node["properties"], f"{key}.")
        elif isinstance(named, dict) and "properties" in named:
            yield from _flattened(named["properties"], f"{key}.NAME.")
        else:
            yield key, node


def _choices_schema() -> Schema:
    """Return the schema of a defaults list entry that names a choice; users may add choices."""
    properties: Schema = {}
    patterns: Schema = {}
    for group in _groups():
        choice = {"anyOf": [{"enum": list_choices(group)}, {"type": ["string", "null"]}, {"type": "array"}]}
        properties |= {f"override /{group}": choice, f"/{group}": choice}
        if group == "workload":
            patterns[rf"^(override )?/workload@sizes\.{_NAMES}$"] = choice
    patterns[r"^(override )?/?hydra/"] = {}
    return {**_object(properties), "patternProperties": patterns}


def _groups() -> list[str]:
    return sorted({path.name for folder in config_folders() for path in folder.iterdir() if path.is_dir()})


if __name__ == "__main__":
    startup.run(main)
