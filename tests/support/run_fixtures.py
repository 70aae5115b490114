"""Fixtures that run `python run.py` as a user does, in a separate folder with a separate store.

`tests/conftest.py` loads them.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import studies
from tests.support.forks import Process
from tests.support.run_program import Program
from tests.support.studies import Study


@pytest.fixture
def program(tmp_path: Path, template_store: Path) -> Program:
    """Return run.py with an existing store; a module may replace this fixture by a program with other words."""
    shutil.copytree(template_store, tmp_path / "mlruns")
    # Other programs may use the machine during a test.
    return Program(tmp_path, last=[f"gpu.lock_dir={tmp_path}", "gpu=cpu", "foreign_load=note"])


@pytest.fixture
def start(program: Program) -> Callable[..., Process]:
    return program.start


@pytest.fixture
def run(program: Program) -> Callable[..., tuple[int, str, str]]:
    return program.run


@pytest.fixture
def client(tmp_path):
    """Return the store of the test."""
    from mlflow import MlflowClient

    return MlflowClient(f"sqlite:///{tmp_path}/mlruns/mlflow.db")


@pytest.fixture
def study_of(tmp_path, monkeypatch, capsys) -> Callable[..., Study]:
    """Run the study of a command line in this process, in the folder of the test, without a store."""

    def run_here(*arguments: str, gpu: str = "cpu") -> Study:
        end = arguments.index("--") if "--" in arguments else len(arguments)
        defaults = [f"gpu.lock_dir={tmp_path}", f"gpu={gpu}", "foreign_load=note"]
        capsys.readouterr()
        with monkeypatch.context() as patch:
            patch.chdir(tmp_path)
            status, rows = studies.execute([*arguments[:end], *defaults, *arguments[end:]], tmp_path / "kept", patch)
        out, err = capsys.readouterr()
        return Study(status, out, err, list(rows.groups.values()))

    return run_here
