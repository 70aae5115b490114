"""`python run.py` as a user types it, in a folder and with a store of its own. Loaded as a plugin."""

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
    """Start run.py in a folder of its own, with a store that was made before; as a fork, unless a real one is asked."""
    shutil.copytree(template_store, tmp_path / "mlruns")

    def begin(
        *arguments: str, script: Path = PROJECT_DIR / "run.py", is_real: bool = False, num_senders: int = 1
    ) -> Process:
        end = arguments.index("--") if "--" in arguments else len(arguments)  # what follows is no business of ours
        # The machine of a test may be busy with others.
        here = [f"gpu.lock_dir={tmp_path}", "gpu=cpu", "foreign_load=note"]
        argv = [str(script), *arguments[:end], *here, *arguments[end:]]
        if is_real:
            return forks.start_real(*argv, cwd=tmp_path)
        return forks.start(*argv, cwd=tmp_path, num_senders=num_senders)

    return begin


@pytest.fixture
def run(start) -> Callable[..., tuple[int, str, str]]:
    """Run run.py to its end: exit status, output, errors. Options are those of the module's own `start`."""

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
    """The store of the test."""
    from mlflow import MlflowClient

    return MlflowClient(f"sqlite:///{tmp_path}/mlruns/mlflow.db")


@pytest.fixture
def study_of(tmp_path, monkeypatch, capsys) -> Callable[..., Study]:
    """Run the study of a command line in this process and the folder of the test, without a store."""

    def run_here(*arguments: str, gpu: str = "cpu") -> Study:
        end = arguments.index("--") if "--" in arguments else len(arguments)
        here = [f"gpu.lock_dir={tmp_path}", f"gpu={gpu}", "foreign_load=note"]
        capsys.readouterr()
        with monkeypatch.context() as patch:
            patch.chdir(tmp_path)
            status, rows = studies.execute([*arguments[:end], *here, *arguments[end:]], tmp_path / "kept", patch)
        out, err = capsys.readouterr()
        return Study(status, out, err, list(rows.groups.values()))

    return run_here
