"""Fixtures of the tests of tracking. Loaded as a plugin, so that no test module has to import a fixture's name."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pipeline.base.layout import DATABASE, STORE_LOCK
from pipeline.record.store.local import open_store
from pipeline.record.store.relocate import relocate
from tests.tracking_cases import Serve


@pytest.fixture(scope="session")
def template_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated store, made once: migrating takes seconds, copying the file takes none."""
    root = tmp_path_factory.mktemp("template")
    open_store(root)
    return root


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
