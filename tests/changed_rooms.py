"""Which tests are about what has changed: by the folder that a test lies in, and by its `covers` marker.

A room is a folder below `pipeline`, or `listeners`, `workloads`, `benchmarks` and the like. Tests in `tests/unit/ROOM`
are about `pipeline/ROOM`, or about the folder of that name; the others name theirs:
`pytestmark = pytest.mark.covers("pipeline/scale")`. What is marked `smoke` runs whatever has changed.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from pathlib import PurePosixPath

import pytest

from pipeline.base.paths import PROJECT_DIR


def select(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests that are about what has changed since a revision, and the smoke tests."""
    changed = _changed_since(config.getoption("changed"))
    kept = [item for item in items if item.get_closest_marker("smoke") or is_about(item, changed)]
    config.hook.pytest_deselected(items=[item for item in items if item not in set(kept)])
    items[:] = kept


def is_about(item: pytest.Item, changed: Iterable[str]) -> bool:
    """Whether a test is about one of these files: it is in the file, lies in the folder of its room, or names it."""
    file = item.path.relative_to(PROJECT_DIR).as_posix()
    rooms = [room for marker in item.iter_markers("covers") for room in marker.args]
    rooms += _rooms_of(PurePosixPath(file))
    return any(path == file or any(path == room or path.startswith(f"{room}/") for room in rooms) for path in changed)


def _rooms_of(file: PurePosixPath) -> list[str]:
    """`pipeline/scale` of `tests/unit/scale/test_gpus.py`, `listeners` of `tests/unit/listeners/test_host.py`."""
    if file.parts[:2] != ("tests", "unit") or len(file.parts) < 4:
        return []
    room = file.parts[2]
    return [f"pipeline/{room}" if (PROJECT_DIR / "pipeline" / room).is_dir() else room]


def _changed_since(revision: str) -> list[str]:
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
    return [*git("diff", "--name-only", base), *git("ls-files", "--others", "--exclude-standard")]
