"""The classes that declare options: loaded by name and joined to the keys that their group of `conf/` has.

A YAML names its class under `defaults`: the option class of a workload as `/schema/products.options.Products@_here_`,
the class of a sharing mode, environment, profiler or exporter as `/schema/GROUP/MODULE.CLASS@_here_`. When Hydra
composes the YAML, `hydra_plugins/option_classes.py` loads the class with this module. This package therefore does not
import workloads or sharing modes, and a class may be located outside the project.
"""

from __future__ import annotations

import dataclasses
import re
import sys
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from pipeline.base.system import factory
from pipeline.base.system.errors import ConfigError
from pipeline.base.system.option_fields import option
from pipeline.base.system.paths import config_folders
from pipeline.plan import option_values
from pipeline.plan.script_options import ScriptConfig
from pipeline.plan.workload_config import WorkloadConfig

KINDS: dict[str, type[WorkloadConfig]] = {kind.NODE: kind for kind in (WorkloadConfig, ScriptConfig)}
"""Schemas without an option class, by the names that YAML files extend."""
_NAMED = re.compile(r"/schema/((?:\w+/)?(?:\w+\.)+\w+)@")
_WORKLOAD = "workload"
_OPEN = ("flags", "environ")
_TAKEN = {key for key in dir(WorkloadConfig) if callable(getattr(WorkloadConfig, key))}
_HINTS = typing.get_type_hints(WorkloadConfig)
_COMMON = {option.name: option for option in dataclasses.fields(WorkloadConfig)}


@dataclass
class ScenarioConfig:
    """The keys of every sharing mode; `_target_` is a `pipeline.base.domain.protocols.Sharing`."""

    name: str = option("set by `scenario=`", MISSING)
    _target_: str = MISSING
    sequential: bool = option("jobs run one after another; `true` for `serial`", False)


@dataclass
class EnvConfig:
    """The key of every environment, the class of a `pipeline.base.domain.protocols.Env`."""

    _target_: str = MISSING


@dataclass
class ProfilerConfig:
    """The keys of every profiler; `_target_` is a `pipeline.base.domain.protocols.Profiler`."""

    name: str = option("set by `profiler=`", MISSING)
    _target_: str = MISSING


@dataclass
class ExporterConfig:
    """The keys of every exporter; `_target_` is a `pipeline.base.domain.protocols.Exporter`."""

    name: str = option("set by `exporter=`", MISSING)
    _target_: str = MISSING


BASES: dict[str, type[Any]] = {
    "scenario": ScenarioConfig,
    "env": EnvConfig,
    "profiler": ProfilerConfig,
    "exporter": ExporterConfig,
}
"""The keys that all choices of a group have; a choice also has the options of its class."""


@cache
def load(name: str) -> type[WorkloadConfig]:
    """Load an option class by its dotted name and join it to the keys that every workload has.

    Raises:
        ConfigError: the class does not exist or is not a valid option class.
    """
    options = factory.find(name, f"/schema/{name}")
    if not (isinstance(options, type) and dataclasses.is_dataclass(options)):
        raise ConfigError(f"/schema/{name} is not a dataclass; name an option class as MODULE.CLASS")
    if reserved := [option.name for option in dataclasses.fields(options) if option.name in _TAKEN]:
        raise ConfigError(f"/schema/{name} has an option with the reserved name {reserved[0]}; rename this option")
    if old := next((old for old in ("unit", "derive_unit") if hasattr(options, old)), None):
        new = old.replace("unit", "work_unit")
        raise ConfigError(f"/schema/{name}: {old} was renamed; write {new}")
    try:
        hints = typing.get_type_hints(options)
        flags = [field.name for field in dataclasses.fields(options) if field.metadata.get("is_flag", True)]
        option_values.refuse_types({name: hints[name] for name in flags})
        _refuse_declarations(name, options, hints, option_values.explain_wrong_arguments)
        declared = [
            (field.name, hints[field.name], _redeclare(options, field)) for field in dataclasses.fields(options)
        ]
        common = [
            (key, _HINTS[key], dataclasses.field(default=default, metadata=field.metadata))
            for key, field in _COMMON.items()
            if (default := _choose_default(options, name, key)) is not None and key not in hints
        ]
        joined = dataclasses.make_dataclass(options.__name__, [*common, *declared], bases=(options, WorkloadConfig))
        joined.__module__, joined.__qualname__ = __name__, _spell_qualified(_WORKLOAD, name)
        OmegaConf.structured(joined)
        _refuse_declarations(name, options, hints, _explain_refused_default)
    except OmegaConfBaseException as error:
        _refuse_declarations(name, options, hints, option_values.explain_wrong_default)
        raise ConfigError(f"/schema/{name}: {str(error).splitlines()[0]}") from error
    except (TypeError, NameError) as error:
        raise ConfigError(f"/schema/{name}: {str(error).splitlines()[0]}") from error
    return joined


@cache
def load_choice(group: str, name: str) -> type[Any]:
    """Load the class of a sharing mode, environment, profiler or exporter as a schema: its options and `BASES[group]`.

    Raises:
        ConfigError: the class does not exist or does not declare its arguments as fields of a dataclass.
    """
    kind = factory.find(name, f"/schema/{group}/{name}")
    is_declared = isinstance(kind, type) and "__dataclass_fields__" in vars(kind)
    if not is_declared and getattr(kind, "__init__", None) is not object.__init__:
        raise ConfigError(f"/schema/{group}/{name} is not a dataclass; add @dataclass, and declare arguments as fields")
    try:
        hints = typing.get_type_hints(kind)
        options = [option for option in dataclasses.fields(kind) if option.init] if is_declared else []
        declared = [(option.name, hints[option.name], _redeclare(kind, option)) for option in options]
        target = ("_target_", str, dataclasses.field(default=name))
        joined = dataclasses.make_dataclass(kind.__name__, [target, *declared], bases=(BASES[group],))
        joined.__module__, joined.__qualname__ = __name__, _spell_qualified(group, name)
        OmegaConf.structured(joined)
    except (OmegaConfBaseException, TypeError, NameError) as error:
        raise ConfigError(f"/schema/{group}/{name}: {str(error).splitlines()[0]}") from error
    return joined


def _refuse_declarations(
    name: str,
    options: type[Any],
    hints: Mapping[str, Any],
    explain: Callable[[dataclasses.Field[Any], Any], str | None],
) -> None:
    """Raise `ConfigError` for the first option of a class whose declaration is wrong."""
    for field in dataclasses.fields(options):
        if (mistake := explain(field, hints[field.name])) is not None:
            raise ConfigError(f"/schema/{name}: {field.name}: {mistake}; correct it")


def _explain_refused_default(option: dataclasses.Field[Any], _: Any) -> str | None:
    default = option_values.read_default(option)
    mistake = None if default is dataclasses.MISSING else option_values.explain_wrong(option, default)
    return None if mistake is None else f"the default {mistake.removeprefix(f'{option.name}=')}"


def __getattr__(name: str) -> type[Any]:
    """Return a joined class by its name in this module, for pickle in processes that have not loaded the class."""
    group, _, path = name.partition("__")
    if group not in (_WORKLOAD, *BASES) or not path:
        raise AttributeError(name)
    dotted = path.replace("__", ".")
    return load(dotted) if group == _WORKLOAD else load_choice(group, dotted)


def _spell_qualified(group: str, name: str) -> str:
    return f"{group}__{name.replace('.', '__')}"


def make_node(name: str) -> DictConfig:
    """Return the schema that a YAML extends by `/schema/NAME`; raise the errors of `load` and `load_choice`."""
    return open_maps(OmegaConf.structured(_load_named(name)))


def _load_named(name: str) -> type[Any]:
    group, _, kind = name.rpartition("/")
    return load_choice(group, kind) if group else load(kind)


def open_maps(node: DictConfig) -> DictConfig:
    """Allow new keys in `flags` and `environ` without `+`."""
    for key in _OPEN:
        if key in node:
            OmegaConf.set_struct(node[key], False)
    return node


def join(options: Any) -> WorkloadConfig:
    """Convert an instance of an option class to a workload; return a joined instance unchanged."""
    if isinstance(options, WorkloadConfig):
        return options
    kind = load(f"{type(options).__module__}.{type(options).__qualname__}")
    return kind(**{option.name: getattr(options, option.name) for option in dataclasses.fields(options)})


def list_classes(folders: Sequence[Path] | None = None, *, is_strict: bool = False) -> dict[str, type[WorkloadConfig]]:
    """Return every workload class by the name that a YAML extends.

    The fields of a class have types and defaults, and `help`, `choices` and `least` in their metadata.

    Args:
        folders: configuration folders; by default the folders of the command line.
        is_strict: whether to raise the errors of `load`; else classes that cannot be loaded are omitted.
    """
    files = [file for folder in folders or config_folders() for file in _files(folder)]
    names = sorted({name for file in files for name in _read_names(file)})
    return dict(KINDS) | _load_available({name: name for name in names}, is_strict=is_strict)


def list_choices(group: str) -> dict[str, type[Any]]:
    """Return the classes of a group's choices whose YAML names a class, by choice."""
    files = [file for folder in config_folders() for file in sorted((folder / group).glob("*.yaml"))]
    return _load_available({file.stem: name for file in files for name in _read_names(file)}, is_strict=False)


def list_kinds(group: str) -> list[type[Any]]:
    """Return the schemas of a group's choices."""
    return [*list_classes().values()] if group == _WORKLOAD else [BASES[group], *list_choices(group).values()]


def list_keys(group: str, choice: str) -> set[str]:
    """Return the keys of a choice: those in its file and in the schemas it extends; none for an unknown choice."""
    files = [folder / group / f"{choice}.yaml" for folder in config_folders()]
    if (file := next((file for file in files if file.is_file()), None)) is None:
        return set()
    values = yaml.safe_load(file.read_text(encoding="utf-8")) or {}
    extended = [str(default).partition("@")[0] for default in values.get("defaults", ())]
    schemas = {name: name for name in _read_names(file)}
    kinds = [*_load_available(schemas, is_strict=False).values()]
    kinds += [KINDS[name.removeprefix("/schema/")] for name in extended if name.removeprefix("/schema/") in KINDS]
    keys = set(values) - {"defaults"} | {option.name for kind in kinds for option in dataclasses.fields(kind)}
    return keys.union(*(list_keys(group, name) for name in extended if not name.startswith(("/", "_"))))


def _read_names(file: Path) -> list[str]:
    """Read the names of the classes that a YAML extends."""
    return _NAMED.findall(file.read_text(encoding="utf-8"))


def _load_available(names: Mapping[str, str], *, is_strict: bool) -> dict[str, type[Any]]:
    """Load classes by any key; unless strict, omit those that cannot be loaded."""
    kinds: dict[str, type[Any]] = {}
    for key, name in names.items():
        try:
            kinds[key] = _load_named(name)
        except ConfigError:
            if is_strict:
                raise
    return kinds


def read_settings(folder: Path, name: str) -> dict[str, dict[str, Any]]:
    """Return the settings in the workload files of a folder that extend a class, by choice.

    Raises:
        ConfigError: a file is not a YAML map.
    """
    settings: dict[str, dict[str, Any]] = {}
    for file in sorted(_files(folder)):
        if name in _NAMED.findall(text := file.read_text(encoding="utf-8")):
            try:
                settings[file.stem] = dict(yaml.safe_load(text))
            except (yaml.YAMLError, TypeError, ValueError) as error:
                raise ConfigError(f"{file} is not a YAML map: {str(error).splitlines()[0]}") from error
    return settings


def _files(folder: Path) -> Iterator[Path]:
    return (folder / "workload").glob("*.yaml")


def _redeclare(options: type[Any], option: dataclasses.Field[Any]) -> Any:
    above = [vars(kind).get("__dataclass_fields__", {}).get(option.name) for kind in options.__mro__]
    metadata: Mapping[str, Any] = next(
        (declared.metadata for declared in above if declared is not None and declared.metadata), {}
    )
    if option.default_factory is not dataclasses.MISSING:
        return dataclasses.field(default_factory=option.default_factory, metadata=metadata)
    default = MISSING if option.default is dataclasses.MISSING else option.default
    return dataclasses.field(default=default, metadata=metadata)


def _choose_default(options: type[Any], name: str, key: str) -> object:
    if key == "options":
        return name
    if key == "script" and not hasattr(options, key):
        return str(Path(*name.split(".")[: -1 if _is_package(name) else -2], "program.py"))
    if key in ("name", "work_unit") and not hasattr(options, key):
        return "" if key == "name" or hasattr(options, "derive_work_unit") else None
    return getattr(options, key, None)


def find_root(kind: type[WorkloadConfig]) -> tuple[Path, ...]:
    """Return the import folder of an option class as a tuple; empty for a workload without an option class."""
    module = (kind.options or "").rpartition(".")[0]
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is None:
        return ()
    return (Path(file).resolve().parents[module.count(".") + _is_package(f"{module}.")],)


def _is_package(name: str) -> bool:
    return hasattr(sys.modules[name.rpartition(".")[0]], "__path__")
