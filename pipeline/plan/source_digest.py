"""The code of a program: its file and the local files that it imports. Reads text, executes nothing.

Local files of a project's program are in `workloads/`. Local files of a user's program are in its folder, in the parent
folders up to the top of its git repository, and in `src` there: scripts import from these folders or add them to their
path. A file that no import reaches does not change the digest, so results stay valid when another program is added.
Imports inside functions count. A module that is named only as text (`importlib`) is not found: among the project's
programs, only `fork_server.py` imports this way, and the inventory adds the module that it preloads. The fork server,
and `client.py` if no program imports it, are excluded, because they start jobs like the orchestrator's code.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from pipeline.base.domain.workload import Source
from pipeline.base.system import git

_PACKAGE = "workloads"
_OURS = (f"{_PACKAGE}.", f"gpu_collocation.{_PACKAGE}.")
"""Prefixes of modules that programs import for the job protocol: source tree, installed package."""


class Code(NamedTuple):
    """The code of a program: path, digest of all files, and the files."""

    path: Path
    digest: str
    sources: tuple[Source, ...] = ()


def read_code(path: Path, project: Path, *more_roots: Path) -> Code:
    """Read the code of a program; `project` contains `workloads/`, `more_roots` contain further modules.

    Raises:
        OSError: a file cannot be read.
        SyntaxError: a program of the project is not valid Python.
    """
    is_ours = path.is_relative_to(project / _PACKAGE)
    roots = [project] if is_ours else [*_list_roots(path), *more_roots]
    sources = []
    for file in sorted(_follow_imports(path, roots, is_strict=is_ours)):
        name = os.path.relpath(file, project if is_ours else path.parent)
        sources.append(Source(name=name, path=str(file), digest=hashlib.sha256(file.read_bytes()).hexdigest()))
    digest = hashlib.sha256("".join(source.digest for source in sources).encode()).hexdigest()
    return Code(path, digest, tuple(sources))


def find_module_file(module: str, project: Path) -> Path | None:
    """Return the file of a module of `workloads/`; `None` for any other module."""
    parts = module.split(".")
    files = _find_files(project, parts) if parts[0] == _PACKAGE else []
    return files[-1] if len(files) == len(parts) else None


def uses_job_protocol(code: Code) -> bool:
    """Return whether a program uses the job protocol: it imports `workloads` or cannot be parsed."""
    for source in code.sources:
        imports = _read_imports(Path(source.path)) if source.path.endswith(".py") else None
        if imports is None or any(f"{name}.".startswith(_OURS) for _, name in imports):
            return True
    return False


def list_module_files(module: str, folder: Path) -> list[Path]:
    """Return the files that `python -m MODULE` runs in a folder: those of its parent packages and its own."""
    return _find_files(folder, [*module.split("."), "__main__"])


def _list_roots(path: Path) -> list[Path]:
    folder = path.parent
    top = git.find_root(folder)
    if top is None:
        return [folder]
    return [root for root in (folder, *folder.parents) if root.is_relative_to(top)] + [top / "src"]


def _follow_imports(path: Path, roots: Sequence[Path], *, is_strict: bool) -> set[Path]:
    """Return the file and all files that it imports, directly or not; unless strict, ignore invalid Python."""
    files, waiting = set[Path](), [path]
    listed = {root: _list_module_names(root) for root in roots}  # most imports are in none of these roots
    find = functools.cache(_find_files)  # most modules are imported by several files
    while waiting:
        file = waiting.pop()
        if file in files:
            continue
        files.add(file)
        imports = _parse_imports(file.read_bytes(), str(file)) if is_strict else _read_imports(file)
        for level, name in imports or ():
            parts = tuple(name.split("."))
            if level:
                folders = [file.parents[min(level, len(file.parents)) - 1]]
            else:
                folders = [root for root in roots if parts[0] in listed[root]]
            waiting += next(filter(None, (find(folder, parts) for folder in folders)), [])
    return files


def _read_imports(file: Path) -> frozenset[tuple[int, str]] | None:
    """Read the imports of a file; `None` for another version of Python or a compiled module."""
    try:
        return _parse_imports(file.read_bytes(), str(file))
    except (SyntaxError, ValueError, RecursionError):
        return None


def _list_module_names(folder: Path) -> set[str]:
    try:
        return {entry.name.partition(".")[0] for entry in folder.iterdir()}
    except OSError:  # no such folder, or no permission to read it
        return set()


def _find_files(folder: Path, parts: Sequence[str]) -> list[Path]:
    """Find the files below a folder that an import of a dotted name executes: `a.b` also executes `a`."""
    files: list[Path] = []
    for length in range(1, len(parts) + 1):
        place = folder.joinpath(*parts[:length])
        if not place.parent.is_dir():  # the rest of the name is in the file of a module
            break
        candidates = (place.with_name(f"{place.name}.py"), place / "__init__.py")
        file = next((candidate for candidate in candidates if candidate.is_file()), None)
        file = file or next((entry for entry in place.parent.glob(f"{place.name}.*.so") if entry.is_file()), None)
        if file is not None:
            files.append(file)
        elif not place.is_dir():  # a namespace package has no file
            break
    return files


@functools.cache  # the programs of a study share most of their files
def _parse_imports(source: bytes, file: str) -> frozenset[tuple[int, str]]:
    names = set[tuple[int, str]]()
    for node in ast.walk(ast.parse(source, file)):
        if isinstance(node, ast.Import):
            names.update((0, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = [node.module] if node.module else []
            names.update((node.level, ".".join([*module, alias.name])) for alias in node.names)
    return frozenset(names)
