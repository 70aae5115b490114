"""Fixtures that run `python run.py` as a user does, in a separate folder with a separate store. Loaded as a plugin."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.base.system.paths import PROJECT_DIR
from tests.support import forks, studies
from tests.support.forks import Process
from tests.support.studies import Study


@pytest.fixture
def start(tmp_path, template_store) -> Callable[..., Process]:
    """Start run.py in a separate folder with an existing store; as a fork, unless a real process is requested."""
    shutil.copytree(template_store, tmp_path / "mlruns")

    def begin(
        *arguments: str, script: Path = PROJECT_DIR / "run.py", is_real: bool = False, num_senders: int = 1
    ) -> Process:
        end = arguments.index("--") if "--" in arguments else len(arguments)  # the remaining arguments are not checked
        # Other programs may use the machine during a test.
        defaults = [f"gpu.lock_dir={tmp_path}", "gpu=cpu", "foreign_load=note"]
        argv = [str(script), *arguments[:end], *defaults, *arguments[end:]]
        if is_real:
            return forks.start_real(*argv, cwd=tmp_path)
        return forks.start(*argv, cwd=tmp_path, num_senders=num_senders)

    return begin


@pytest.fixture
def run(start) -> Callable[..., tuple[int, str, str]]:
    """Run run.py until it exits; return exit status, output and errors. Options are those of `start`."""

    def to_the_end(*arguments: str, **options: Any) -> tuple[int, str, str]:
        process = start(*arguments, **options)
        try:
            out, err = process.communicate(timeout=600)
        finally:
            process.kill()
        return process.returncode, out, err

    return to_the_end


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
