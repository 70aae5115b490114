"""Find functions, classes and modules of other libraries that a program replaces.

`watch` returns environment variables for the program. With these variables, the program and every Python process that
it starts list the contents of the modules of other libraries twice a second, so that temporary replacements are found
too, and write the lists to a folder. `find_replaced` compares the lists with those of a process that only imports the
same modules.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import json
import os
import subprocess
import sys
import time
import types
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

_PROJECT_DIR = str(Path(__file__).resolve().parents[2])
_OURS = "us"
_PYTHON = (os.path.dirname(os.__file__), sys.base_prefix)
_LIBRARIES = frozenset(
    (
        *("hydra", "omegaconf", "antlr4", "yaml", "pynvml", "psutil", "rich", "prometheus_client"),
        *("mlflow", "sqlalchemy", "alembic", "flask", "requests", "pandas", "pyarrow"),
        *("matplotlib", "fontTools", "PIL", "jinja2", "markdown_it"),
    )
)
_FOLDER = "REPLACED_FUNCTIONS"
_EVERY_S = 0.5
_FUNCTIONS = (
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    functools.partial,
    type(functools.cache(id)),
)
_START = """
import sys
sys.path.append({project!r})
from tests.support import replaced
sys.path.pop()
replaced.look_often()
"""
_IMPORT = """
import json, sys
from tests.support import replaced
json.dump(replaced.describe_imported(sys.argv[1]), sys.stdout)
"""


def watch(folder: Path) -> dict[str, str]:
    """Return environment variables with which the Python processes of a program write their lists to the folder."""
    (folder / "sitecustomize.py").write_text(_START.format(project=_PROJECT_DIR))
    return {"PYTHONPATH": str(folder), _FOLDER: str(folder)}


def look_often() -> None:
    """List the contents of this process's libraries repeatedly, until the process ends."""
    folder, seen, next_s = Path(os.environ[_FOLDER]), defaultdict[str, list[str]](list), [0.0]

    def look(*_: object) -> None:
        if time.monotonic() < next_s[0]:
            return
        next_s[0] = float("inf")  # the calls below raise audit events too
        is_news = False
        for name, description in describe(list(sys.modules)):
            if description not in seen[name]:
                seen[name].append(description)
                is_news = True
        if is_news:
            (folder / f"{os.getpid()}.json").write_text(json.dumps(seen))
        next_s[0] = time.monotonic() + _EVERY_S

    def look_last() -> None:
        next_s[0] = 0.0
        look()

    sys.addaudithook(look)
    atexit.register(look_last)


def find_replaced(folder: Path) -> dict[str, str]:
    """Return the replaced names in all processes that wrote to the folder, each with its replacement."""
    seen = defaultdict[str, set[str]](set)
    for path in folder.glob("*.json"):
        for name, descriptions in json.loads(path.read_text()).items():
            seen[name].update(descriptions)
    modules = [name for name in seen if ":" not in name]
    (folder / "modules").write_text("\n".join(modules))
    done = subprocess.run(
        [sys.executable, "-c", _IMPORT, str(folder / "modules")],
        cwd=_PROJECT_DIR,
        check=True,
        capture_output=True,
        text=True,
        timeout=300,
    )
    untouched = json.loads(done.stdout)
    return {
        name: description
        for name, descriptions in seen.items()
        for description in sorted(descriptions)
        if _is_replacement(description, untouched.get(name))
    }


def _is_replacement(description: str, untouched: str | None) -> bool:
    """Return whether an object belongs to this project, or is a wrapper, such as a cache, in place of another object.

    Other differences are caused by libraries, which bind a name several times while a module is imported.
    """
    kind, _, owner = description.partition(":")[0].partition(" of ")
    is_wrapper = kind in ("_lru_cache_wrapper", "partial", "method")
    return owner == _OURS or (is_wrapper and untouched is not None and kind != untouched.partition(" of ")[0])


def describe_imported(path: str) -> dict[str, str]:
    """Import the modules that a file names, one per line, and return their contents."""
    for name in Path(path).read_text().split():
        with suppress(Exception):
            importlib.import_module(name)
    return dict(describe(list(sys.modules)))


def describe(modules: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the contents of libraries' modules: `MODULE`, `MODULE:NAME` and `MODULE:CLASS.NAME`, with a description.

    Objects that are not functions, classes or modules are yielded only if they belong to this project.
    """
    for module in modules:
        content = sys.modules.get(module)
        if module.partition(".")[0] not in _LIBRARIES or content is None:
            continue
        yield module, _describe(content) or type(content).__name__
        for name, value in list(vars(content).items()):
            if (description := _describe(value)) is not None and not name.startswith("__"):
                yield f"{module}:{name}", description
            if isinstance(value, type) and value.__module__ == module:
                for key, member in list(vars(value).items()):
                    if (description := _describe(member)) is not None:
                        yield f"{module}:{name}.{key}", description


def _describe(value: Any) -> str | None:
    if isinstance(value, staticmethod | classmethod):
        value = value.__func__
    if isinstance(value, property):
        value = value.fget
    kind = value if isinstance(value, type) else type(value)
    if isinstance(value, types.FunctionType):
        return f"function of {_owner(value.__code__.co_filename)}: {value.__code__.co_name}"
    if _owner(getattr(sys.modules.get(str(kind.__module__)), "__file__", None) or "<>") == _OURS:
        return f"{'class' if value is kind else 'object'} of {_OURS}: {kind.__module__}.{kind.__qualname__}"
    if isinstance(value, type):
        return f"class of {value.__module__.partition('.')[0]}: {value.__qualname__}"
    if isinstance(value, types.ModuleType):
        return f"module of {value.__name__.partition('.')[0]}: {value.__name__}"
    if isinstance(value, _FUNCTIONS):
        return f"{kind.__name__} of {getattr(value, '__module__', '')}: {getattr(value, '__qualname__', '')}"
    return None


@functools.cache
def _owner(path: str) -> str:
    """Return the library to which a file belongs, `python`, or `us` for this project."""
    if "/site-packages/" in path:
        return path.rpartition("/site-packages/")[2].partition("/")[0].removesuffix(".py")
    return "python" if path.startswith((*_PYTHON, "<")) else _OURS
