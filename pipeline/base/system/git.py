"""The state of a git repository, read without running hooks or diff filters and without updating the index.

If git fails, functions raise `CommandError`; `read` returns `None`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.base.system import helper_program
from pipeline.base.system.errors import CommandError

_LIMIT_S = 20.0
# Options that disable programs named in the repository's settings, and writes to the repository.
_SETTINGS = ("-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "--no-optional-locks")


@dataclass(frozen=True, slots=True, kw_only=True)
class Repository:
    """A working tree.

    Attributes:
        root: top folder of the working tree.
        commit: commit of HEAD.
        is_changed: whether a file that git tracks differs from that commit.
    """

    root: Path
    commit: str
    is_changed: bool


def find_root(path: Path) -> Path | None:
    """Return the top folder of the working tree around a path; `None` if there is none. Runs no program."""
    return next((folder for folder in (path, *path.parents) if (folder / ".git").exists()), None)


def read(path: Path) -> Repository | None:
    """Return the repository around a file or folder.

    The result is `None` if there is no repository, if it has no commit, if git does not trust its owner, or if git is
    not installed.
    """
    root = find_root(path)
    if root is None:
        return None
    try:
        commit = _git(root, "rev-parse", "--verify", "HEAD").strip()
        changed = _git(root, "status", "--porcelain", "--untracked-files=no").strip()
    except CommandError:
        return None
    return Repository(root=root, commit=commit, is_changed=bool(changed))


def read_difference(repository: Repository) -> str:
    """Return the changes of tracked files since the commit, for `git apply`; binary files are only named."""
    return _git(repository.root, "diff", "--no-ext-diff", "--no-textconv", "--no-color", "--submodule=short", "HEAD")


def list_untracked(repository: Repository, files: Sequence[Path]) -> list[Path]:
    """Return the files among these that git does not track, ignored ones included."""
    inside = [str(file) for file in files if file.is_relative_to(repository.root)]
    if not inside:
        return []
    listed = _git(repository.root, "ls-files", "-z", "--others", "--", *inside)
    return [repository.root / name for name in listed.split("\0") if name]


def _git(root: Path, *arguments: str) -> str:
    # A git hook that starts a study sets variables that name its own repository.
    environ = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    argv = ["git", *_SETTINGS, "-C", str(root), *arguments]
    return helper_program.run(argv, timeout_s=_LIMIT_S, environ=environ).stdout
