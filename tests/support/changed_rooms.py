"""Which tests are about what has changed: by the folder that a test lies in, and by its `covers` marker.

A room is a folder of the project or a file. Tests in `tests/unit/plan` are about `pipeline/plan`, those in
`tests/unit/listeners` about `listeners`; others name what they are about besides their own file:
`pytestmark = pytest.mark.covers("pipeline/scale")`. What is marked `smoke` runs whatever has changed.
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
    """Whether a file of tests, or one in a folder, may be about one of these files: else it need not be imported."""
    if path.is_dir() or path.suffix != ".py":
        return True
    return _is_in_one_of(_rooms_of(path), changed) or _MARKED.search(path.read_text(encoding="utf-8")) is not None


def is_about(item: pytest.Item, changed: Collection[str]) -> bool:
    """Whether a test is about one of these files, or a smoke test."""
    named = [room for marker in item.iter_markers("covers") for room in marker.args]
    is_smoke = item.get_closest_marker("smoke") is not None
    return is_smoke or _is_in_one_of([*named, *_rooms_of(item.path)], changed)


@functools.cache
def changed_since(revision: str) -> frozenset[str]:
    """The files that differ from where this branch left a revision, those that git does not know among them.

    Raises:
        UsageError: git knows no such revision.
    """

    def git(*words: str) -> list[str]:
        done = subprocess.run(["git", *words], cwd=PROJECT_DIR, capture_output=True, text=True)
        if done.returncode:
            raise pytest.UsageError(f"--changed {revision}: {done.stderr.strip()}")
        return done.stdout.splitlines()

    (base,) = git("merge-base", "HEAD", revision)
    return frozenset((*git("diff", "--name-only", base), *git("ls-files", "--others", "--exclude-standard")))


def _rooms_of(path: Path) -> list[str]:
    """The file itself, and the room that its folder is named after."""
    file = path.relative_to(PROJECT_DIR)
    rooms = [file.as_posix()]
    if file.parts[:2] == ("tests", "unit") and len(file.parts) > 3:
        room = file.parts[2]
        rooms.append(f"pipeline/{room}" if (PROJECT_DIR / "pipeline" / room).is_dir() else room)
    return rooms


def _is_in_one_of(rooms: Collection[str], changed: Collection[str]) -> bool:
    return any(file == room or file.startswith(f"{room}/") for file in changed for room in rooms)
