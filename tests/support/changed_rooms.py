"""Select the tests that cover changed files: by the folder of a test, and by its `covers` marker.

A room is a folder or a file of the project. Tests in `tests/unit/plan` cover `pipeline/plan`, and tests in
`tests/unit/listeners` cover `listeners`. Other tests name the rooms that they cover in addition to their own file:
`pytestmark = pytest.mark.covers("pipeline/scale")`. Tests with the marker `smoke` always run.
"""

from __future__ import annotations

import functools
import re
import subprocess
from collections.abc import Collection
from pathlib import Path

import pytest

from pipeline.base.system.paths import PROJECT_DIR

_MARKED = re.compile(r"mark\.(smoke|covers\()")


def may_be_about(path: Path, changed: Collection[str]) -> bool:
    """Return whether a test file, or a file in a test folder, may cover a changed file; if not, it is not imported."""
    if path.is_dir() or path.suffix != ".py":
        return True
    return _is_in_one_of(_rooms_of(path), changed) or _MARKED.search(path.read_text(encoding="utf-8")) is not None


def is_about(item: pytest.Item, changed: Collection[str]) -> bool:
    """Return whether a test covers one of these files, or is a smoke test."""
    named = [room for marker in item.iter_markers("covers") for room in marker.args]
    is_smoke = item.get_closest_marker("smoke") is not None
    return is_smoke or _is_in_one_of([*named, *_rooms_of(item.path)], changed)


@functools.cache
def changed_since(revision: str) -> frozenset[str]:
    """Return the files that differ from the merge base with a revision, including untracked files.

    Raises:
        UsageError: the revision does not exist.
    """

    def git(*words: str) -> list[str]:
        done = subprocess.run(["git", *words], cwd=PROJECT_DIR, capture_output=True, text=True)
        if done.returncode:
            raise pytest.UsageError(f"--changed {revision}: {done.stderr.strip()}")
        return done.stdout.splitlines()

    (base,) = git("merge-base", "HEAD", revision)
    return frozenset((*git("diff", "--name-only", base), *git("ls-files", "--others", "--exclude-standard")))


def _rooms_of(path: Path) -> list[str]:
    """Return the file itself, and the room after which its folder is named."""
    file = path.relative_to(PROJECT_DIR)
    rooms = [file.as_posix()]
    if file.parts[:2] == ("tests", "unit") and len(file.parts) > 3:
        room = file.parts[2]
        rooms.append(f"pipeline/{room}" if (PROJECT_DIR / "pipeline" / room).is_dir() else room)
    return rooms


def _is_in_one_of(rooms: Collection[str], changed: Collection[str]) -> bool:
    return any(file == room or file.startswith(f"{room}/") for file in changed for room in rooms)
