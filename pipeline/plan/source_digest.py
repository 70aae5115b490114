"""What the code of a program is: of ours, its file and what that imports in `workloads/`; of a user's, its one file.

A file that no import leads to changes nothing, so that results stay valid when another program is added. Imports are
read from the text, those inside functions among them. A module that is named only as text (`importlib`) is not seen:
of our programs, only `fork_server.py` does that, with the module to preload, which the inventory adds. The fork server
itself and `client.py` where no program imports it belong to how jobs are started, like the orchestrator's own code.
"""

from __future__ import annotations

import ast
import functools
import hashlib
from pathlib import Path

_PACKAGE = "workloads"


def source_digest(path: Path, project: Path) -> str:
    """The digest of a program's code; `project` is the folder that holds `workloads/`.

    Raises:
        OSError, SyntaxError: a file cannot be read, or one of ours is no Python.
    """
    files = sorted(_closure(path, project)) if path.is_relative_to(project / _PACKAGE) else [path]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def module_file(module: str, project: Path) -> Path | None:
    """The file of a module of `workloads/`; `None` for any other module."""
    if module.partition(".")[0] != _PACKAGE:
        return None
    place = project.joinpath(*module.split("."))
    return next((file for file in (place.with_suffix(".py"), place / "__init__.py") if file.is_file()), None)


def _closure(path: Path, project: Path) -> set[Path]:
    """The file, and every file of `workloads/` that its imports lead to."""
    found, left = set[Path](), [path]
    while left:
        file = left.pop()
        if file not in found:
            found.add(file)
            modules = _imported(file.read_bytes(), str(file), file.relative_to(project).parent.parts)
            left += [each for module in modules if (each := module_file(module, project)) is not None]
    return found


@functools.cache  # the programs of a study share most of their files
def _imported(source: bytes, file: str, package: tuple[str, ...]) -> frozenset[str]:
    """The dotted names that may be modules, with the packages they are in: importing `a.b` executes `a` as well."""
    found = set[str]()
    for node in ast.walk(ast.parse(source, file)):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
        if isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*base, *([node.module] if node.module else [])])
            names = [f"{module}.{name}" for name in names]
        for name in names:
            parts = name.split(".")
            found.update(".".join(parts[:length]) for length in range(1, len(parts) + 1))
    return frozenset(found)
