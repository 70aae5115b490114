"""Fixtures for tests of tracking. `tests/conftest.py` loads them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pipeline.base.domain.layout import DATABASE, STORE_LOCK
from pipeline.record.store.local_store import open_store
from pipeline.record.store.portable_paths import relocate
from tests.support.tracking_cases import Serve


@pytest.fixture(scope="session")
def template_store(write_once: Callable[..., Path]) -> Path:
    """Return a migrated store, which is created once, because migrating takes seconds; tests copy the file."""
    return write_once("template_store", _make_store)


def _make_store(root: Path) -> None:
    """Create a store whose files do not change any more, because other workers copy them while this worker ends.

    It has the files that exist next to a study's database, because a sender exits without closing the database.
    """
    open_store(root).client._tracking_client.store.engine.dispose()
    leave = "import os, sqlite3, sys; sqlite3.connect(sys.argv[1]).execute('SELECT 1 FROM runs'); os._exit(0)"
    subprocess.run([sys.executable, "-c", leave, str(root / DATABASE)], check=True)
    assert {f"{DATABASE}-shm", f"{DATABASE}-wal"} <= {file.name for file in root.iterdir()}


@pytest.fixture
def root(template_store: Path, tmp_path: Path) -> Path:
    root = tmp_path / "mlruns"
    root.mkdir()
    shutil.copy(template_store / DATABASE, root)
    shutil.copy(template_store / STORE_LOCK, root)
    relocate(root)
    return root


@pytest.fixture
def serve() -> Iterator[Callable[..., Serve]]:
    started: list[Serve] = []

    def start(*arguments: object, **options: bool) -> Serve:
        started.append(Serve(*arguments, **options))
        return started[-1]

    yield start
    for process in started:
        process.kill()
