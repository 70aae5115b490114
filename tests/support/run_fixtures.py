"""Fixtures that run `python run.py` as a user does, in a separate folder with a separate store. Loaded as a plugin."""

from __future__ import annotations

import dataclasses
import os
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from pipeline.base.system.paths import PROJECT_DIR
from tests.support import forks, studies
from tests.support.forks import Process
from tests.support.studies import Study

RUN = PROJECT_DIR / "run.py"


@dataclasses.dataclass
class Program:
    """`run.py` in a folder of its own, which has a store.

    Attributes:
        folder: working directory.
        first: words before the arguments of each start, which override them.
        last: words after the arguments, before `--`.
        environ: further environment variables.
    """

    folder: Path
    first: Sequence[object] = ()
    last: Sequence[object] = ()
    environ: dict[str, str] = dataclasses.field(default_factory=dict)

    def start(
        self, *arguments: object, script: object = RUN, is_real: bool = False, has_stdin: bool = False, **options: Any
    ) -> Process:
        """Start the program, as a fork unless a real process is requested; options are those of `forks.start`."""
        end = arguments.index("--") if "--" in arguments else len(arguments)  # the remaining arguments are not checked
        argv = [script, *self.first, *arguments[:end], *self.last, *arguments[end:]]
        begin = forks.start_real if is_real else forks.start
        return begin(*argv, cwd=self.folder, env=os.environ | self.environ, has_stdin=has_stdin, **options)

    def run(
        self, *arguments: object, killed_when: Callable[[], bool] | None = None, **options: Any
    ) -> tuple[int, str, str]:
        """Run the program until it exits, or kill it once a condition holds; return exit status, output and errors."""
        process = self.start(*arguments, **options)
        try:
            while killed_when is not None and process.poll() is None:
                if killed_when():
                    process.kill()
                time.sleep(0.02)
            out, err = process.communicate(timeout=600)
        finally:
            process.kill()
        return process.returncode, out, err


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
