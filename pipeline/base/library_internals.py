"""Uses of other libraries beyond their documented interfaces.

Each use says why it is needed; `tests/unit/base/test_library_internals.py` fails when a library changes beneath it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
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
