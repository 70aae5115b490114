"""Editable packages, which are installed from a source folder: their commit and the digest of their current code."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from pathlib import Path
from urllib.parse import unquote, urlsplit

from pipeline.base.system import git
from pipeline.prepare.env.lock import Distribution

# Files that an import can execute.
_SUFFIXES = (".py", ".so", ".pyd")
_READ_BYTES = 1 << 24  # for a longer file, such as a compiled library, the time of its last change is hashed instead
_NO_SOURCES = frozenset({"__pycache__", "node_modules", "site-packages"})


def add_state(package: Distribution) -> Distribution:
    """Add commit and code digest to an editable package, because its version does not identify its code.

    An old `setup.py develop` records no URL of the package's folder, so this folder is found by the path of the
    package's metadata.
    """
    folder = _find_folder(package)
    if folder is None or not folder.is_dir():
        return package
    repository = git.read(folder)
    state = {"content": _digest_modules(folder)}
    if repository is not None:
        state |= {"commit": repository.commit} | ({"changed": "true"} if repository.is_changed else {})
    return dataclasses.replace(
        package, direct_url=json.dumps({"url": folder.as_uri(), "dir_info": {"editable": True}, "state": state})
    )


def _find_folder(package: Distribution) -> Path | None:
    origin = package.origin
    if "dir_info" in origin:
        is_editable = origin["dir_info"].get("editable", False)
        return Path(unquote(urlsplit(str(origin["url"])).path)) if is_editable else None
    folder = Path(package.place).parent
    is_project = any((folder / name).is_file() for name in ("setup.py", "pyproject.toml"))
    return folder if package.place.endswith(".egg-info") and is_project else None


def _digest_modules(folder: Path) -> str:
    digest = hashlib.sha256()
    for parent, folders, files in os.walk(folder):
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith(".")
            and name not in _NO_SOURCES
            and not (Path(parent) / name / "pyvenv.cfg").exists()
        )
        for name in sorted(files):
            if name.endswith(_SUFFIXES):
                path = Path(parent) / name
                try:
                    status = path.stat()
                    content = path.read_bytes() if status.st_size <= _READ_BYTES else str(status.st_mtime_ns).encode()
                except OSError:
                    continue  # a broken link
                digest.update(f"{path.relative_to(folder)}\0{status.st_size}\0".encode())
                digest.update(content)
    return digest.hexdigest()
