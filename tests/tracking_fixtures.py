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
def template_store(made_once: Callable[..., Path]) -> Path:
    """A migrated store, made once: migrating takes seconds, copying the file takes none."""
    return made_once("template_store", _make_store)


def _make_store(root: Path) -> None:
    """Make a store whose files nothing changes any more: another worker copies them while this one ends."""
    open_store(root).client._tracking_client.store.engine.dispose()


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
