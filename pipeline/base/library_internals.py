"""Uses of other libraries beyond their documented interfaces.

Each use says why it is needed; `tests/unit/base/test_library_internals.py` fails when a library changes beneath it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from omegaconf import DictConfig

_SCHEMAS = "/schema/"


def loader_of(folder: Path) -> Any:
    """What reads the files of a folder of configuration."""
    from hydra._internal.config_loader_impl import ConfigLoaderImpl
    from hydra._internal.utils import create_config_search_path

    return ConfigLoaderImpl(create_config_search_path(str(folder)))


def schema_of(loader: Any, group: str, choice: str) -> str:
    """The schema that a choice of a group extends, be it through others of the group; empty without one."""
    schemas = (name for name, _ in _extended(loader, group, choice) if name.startswith(_SCHEMAS))
    return next(schemas, "").removeprefix(_SCHEMAS)


def values_of(loader: Any, group: str, choice: str) -> dict[str, Any]:
    """What a choice of a group says, with the choices and the schema that it extends, unresolved."""
    from hydra.core.config_store import ConfigStore
    from omegaconf import OmegaConf

    values: dict[str, Any] = {}
    for path, content in _extended(loader, group, choice):
        if content is None:
            content = ConfigStore.instance().load(f"{path[1:]}.yaml").node
        plain: Any = OmegaConf.to_container(content)
        values |= plain
    return values


def _extended(loader: Any, group: str, choice: str) -> Iterator[tuple[str, DictConfig | None]]:
    """What a choice extends, the furthest first, then itself: the path and the content of each, `None` of a schema."""
    if (found := loader.repository.load_config(f"{group}/{choice}")) is None:
        return
    for default in found.defaults_list or ():
        path = str(getattr(default, "path", None) or "_self_")
        if path.startswith(_SCHEMAS):
            yield path, None
        elif path != "_self_":
            yield from _extended(loader, group, path)
    yield f"{group}/{choice}", found.config


@contextmanager
def nvml_answered_by(library: Any) -> Iterator[None]:
    """Let pynvml call this library instead of libnvidia-ml. Afterwards pynvml is as it was.

    pynvml keeps every function that it has looked up: those of another library must not be called.
    """
    import pynvml

    functions = pynvml._nvmlGetFunctionPointer_cache
    before = pynvml.nvmlLib, dict(functions)
    functions.clear()
    pynvml.nvmlLib = library
    try:
        yield
    finally:
        pynvml.nvmlLib = before[0]
        functions.clear()
        functions.update(before[1])


@contextmanager
def fonts_without_layout() -> Iterator[None]:
    """Let Matplotlib leave the tables by which text is laid out away from the fonts in a PDF.

    Its text is laid out already, and fontTools would read, prune and write them for each figure: a font of DejaVu takes
    50 instead of 120 ms without.
    """
    from fontTools.subset import Options

    before = Options._drop_tables_default
    setattr(Options, "_drop_tables_default", [*before, "GDEF", "GPOS", "GSUB", "MATH", "kern"])  # noqa: B010
    try:
        yield
    finally:
        setattr(Options, "_drop_tables_default", before)  # noqa: B010


@contextmanager
def without(modules: Sequence[str], *, stand_ins: Sequence[str] = ()) -> Iterator[None]:
    """Let libraries that are imported meanwhile take these modules for not installed.

    MLflow goes without some of what it imports, and never says so. One that is in use already is left as it is.

    Args:
        modules: that are optional.
        stand_ins: modules that are not optional. They and what lies below them are empty; any name that is looked for
            in them is an empty class.
    """
    hidden = [name for name in modules if name not in sys.modules]
    finder = _StandIns([name for name in stand_ins if name not in sys.modules])
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in hidden:
            del sys.modules[name]
        for name in finder.made:
            del sys.modules[name]
            parent, _, last = name.rpartition(".")
            vars(sys.modules.get(parent, finder)).pop(last, None)  # or `parent.last` would be the empty one still


class _StandIns(MetaPathFinder, Loader):
    """Finds empty modules."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names, self.made = names, list[str]()

    def find_spec(self, name: str, path: object, target: object = None) -> ModuleSpec | None:
        if not any(f"{name}.".startswith(f"{each}.") for each in self._names):
            return None
        self.made.append(name)
        return ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Empty(spec.name)

    def exec_module(self, module: ModuleType) -> None: ...


class _Empty(ModuleType):
    def __getattr__(self, name: str) -> type[Exception]:
        if name.startswith("__"):
            raise AttributeError(name)
        made = type(name, (Exception,), {"__module__": self.__name__})  # some of them are caught
        setattr(self, name, made)
        return made
