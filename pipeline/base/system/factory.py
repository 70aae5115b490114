"""Objects from `_target_` keys: a plan names classes as `Spec`s, the executor instantiates them."""

from __future__ import annotations

import importlib
import importlib.util
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.base.system import errors
from pipeline.base.system.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """A class to instantiate later: its dotted path and keyword arguments."""

    target: str
    options: tuple[tuple[str, object], ...] = ()


def make_spec(config: object, *, without: frozenset[str] = frozenset()) -> Spec:
    """Return the class in a config's `_target_`, with the other keys as arguments; `ConfigError` without `_target_`."""
    values = dict(config) if isinstance(config, Mapping) else dict(vars(config))
    if (target := values.pop("_target_", None)) is None:
        raise ConfigError(
            f"_target_ is missing (keys: {', '.join(map(str, values)) or 'none'}); set _target_ to a class"
        )
    return Spec(target=target, options=tuple((key, freeze(v)) for key, v in values.items() if key not in without))


def build_object(spec: Spec, **arguments: object) -> Any:
    """Instantiate a spec; raise `ConfigError` if the class does not exist or does not accept the arguments."""
    factory = find(spec.target, f"_target_={spec.target}")
    try:
        return factory(**arguments, **dict(spec.options))
    except TypeError as error:
        raise ConfigError(f"_target_={spec.target} does not accept these arguments: {error}") from error


def find(name: str, key: str) -> Any:
    """Import an object by its dotted name; ConfigError with `key` if that fails."""
    module_name, _, class_name = name.rpartition(".")
    if not module_name or module_name.startswith("."):
        raise ConfigError(f"{key} is not a class that can be imported ({name} names no module); check the name")
    try:
        return getattr(importlib.import_module(module_name), class_name)
    except (ImportError, AttributeError) as error:
        if isinstance(error, ModuleNotFoundError) and not f"{module_name}.".startswith(f"{error.name}."):
            raise ConfigError(
                f"{key}: {module_name} cannot be imported: {error}; install the missing module"
            ) from error
        if isinstance(error, ModuleNotFoundError) and module_name.startswith("workloads."):
            raise ConfigError(
                f"{key}: this project's package `workloads` has no {error.name}; correct the name, or rename your own "
                "package `workloads`"
            ) from error
        is_package_found = importlib.util.find_spec(module_name.partition(".")[0] or "?") is not None
        remedy = "check the name" if is_package_found else "put the folder of its package on PYTHONPATH"
        raise ConfigError(f"{key} is not a class that can be imported ({error}); {remedy}") from error
    except Exception as error:  # a module may raise any exception while it is imported
        modules = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.name == "<module>"]
        place = f" ({errors.locate(error, modules[-1].filename)})" if modules else ""
        raise ConfigError(
            f"{key}: {module_name} cannot be imported: {type(error).__name__}: {error}{place}; correct the module"
        ) from error


def freeze(value: object) -> object:
    """Return the value with lists and dicts as tuples, which are hashable."""
    if isinstance(value, dict):
        return tuple((key, freeze(item)) for key, item in value.items())
    if isinstance(value, list):
        return tuple(freeze(item) for item in value)
    return value
