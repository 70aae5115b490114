"""The code of a program: its file, and what that imports from where it belongs. Reads text, executes nothing.

Of ours, that is `workloads/`; of a user's, its folder, the folders above it up to the top of its git repository, and
`src` there: where scripts look for modules by themselves, or add to their path. A file that no import leads to changes
nothing, so that results stay valid when another program is added. Imports inside functions count. A module that is
named only as text (`importlib`) is not seen: of our programs, only `fork_server.py` does that, with the module to
preload, which the inventory adds. The fork server itself and `client.py` where no program imports it belong to how jobs
are started, like the orchestrator's own code.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from pipeline.base.domain.workload import Source
from pipeline.base.system import git

_PACKAGE = "workloads"
_OURS = (f"{_PACKAGE}.", f"gpu_collocation.{_PACKAGE}.")
"""Modules by which programs import the client; the second is that of the installed package."""


class Code(NamedTuple):
    """The code of a program: where it is, the digest of all of it, and its files."""

    path: Path
    digest: str
    sources: tuple[Source, ...] = ()


def read_code(path: Path, project: Path, *more_roots: Path) -> Code:
    """Read the code of a program; `project` is the folder that holds `workloads/`, others hold modules as well.

    Raises:
        OSError, SyntaxError: its file cannot be read; one of ours is no Python.
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
    """Tell whether a program uses the job protocol: it imports `workloads`, or cannot be read."""
    for source in code.sources:
        imports = _read_imports(Path(source.path)) if source.path.endswith(".py") else None
        if imports is None or any(f"{name}.".startswith(_OURS) for _, name in imports):
            return True
    return False


def list_module_files(module: str, folder: Path) -> list[Path]:
    """Return the files that `python -m MODULE` runs in a folder: of the packages around it, and its own."""
    return _find_files(folder, [*module.split("."), "__main__"])


def _list_roots(path: Path) -> list[Path]:
    folder = path.parent
    top = git.find_root(folder)
    if top is None:
        return [folder]
    return [root for root in (folder, *folder.parents) if root.is_relative_to(top)] + [top / "src"]


def _follow_imports(path: Path, roots: Sequence[Path], *, is_strict: bool) -> set[Path]:
    """Return the file, and every file that its imports lead to. Unless strict, what is no Python imports nothing."""
    files, waiting = set[Path](), [path]
    listed = {root: _list_module_names(root) for root in roots}  # most imports are of none of them
    while waiting:
        file = waiting.pop()
        if file in files:
            continue
        files.add(file)
        imports = _parse_imports(file.read_bytes(), str(file)) if is_strict else _read_imports(file)
        for level, name in imports or ():
            parts = name.split(".")
            if level:
                folders = [file.parents[min(level, len(file.parents)) - 1]]
            else:
                folders = [root for root in roots if parts[0] in listed[root]]
            waiting += next(filter(None, (_find_files(folder, parts) for folder in folders)), [])
    return files


def _read_imports(file: Path) -> frozenset[tuple[int, str]] | None:
    """Read the imports of a file; `None` if it is of another version of Python, or a compiled module."""
    try:
        return _parse_imports(file.read_bytes(), str(file))
    except (SyntaxError, ValueError, RecursionError):
        return None


def _list_module_names(folder: Path) -> set[str]:
    try:
        return {entry.name.partition(".")[0] for entry in folder.iterdir()}
    except OSError:  # no such folder, or not ours to read
        return set()


def _find_files(folder: Path, parts: Sequence[str]) -> list[Path]:
    """Find the files below a folder that importing a dotted name executes: `a.b` executes `a` as well."""
    files: list[Path] = []
    for length in range(1, len(parts) + 1):
        place = folder.joinpath(*parts[:length])
        candidates = (place.with_name(f"{place.name}.py"), place / "__init__.py")
        file = next((candidate for candidate in candidates if candidate.is_file()), None)
        file = file or next((candidate for candidate in _list_compiled(place) if candidate.is_file()), None)
        if file is not None:
            files.append(file)
        elif not place.is_dir():  # a package may do without a file
            break
    return files


def _list_compiled(place: Path) -> Iterator[Path]:
    return place.parent.glob(f"{place.name}.*.so") if place.parent.is_dir() else iter(())


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
