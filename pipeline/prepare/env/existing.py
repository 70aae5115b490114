"""Existing environments and interpreters: their packages are listed, and they are never changed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.base.domain.records import Interpreter
from pipeline.base.system import study_cache
from pipeline.base.system.errors import CommandError, ConfigError
from pipeline.base.system.option_fields import option
from pipeline.base.system.paths import expand_path
from pipeline.prepare.env import activation, conda_file, editable, lock
from pipeline.prepare.env.builder import find_interpreter, make_path_variables
from pipeline.prepare.env.conda_file import CondaFile
from pipeline.prepare.env.lock import Distribution, Lock
from pipeline.prepare.env.probe import Probe, ask

_WANTED = "set it to the folder of a conda or virtual environment, or to the path of an interpreter"


@dataclass
class ExistingEnv:
    """Existing conda environment, virtual environment or interpreter, in which jobs run without any change to it."""

    prefix: str | None = option("folder of a conda or virtual environment, or an interpreter", None, values="path")

    def __post_init__(self) -> None:
        prefix = self.prefix
        if prefix is None:
            raise ConfigError(
                "env=existing names no environment; set env.prefix=~/miniconda3/envs/NAME, or for one workload "
                "workload.env_prefix (sizes.S.env_prefix, ...)"
            )
        self._prefix, self._python = prefix, _find_interpreter(prefix)

    def preview(self) -> Interpreter:
        return _describe(self._python, self._prefix)

    resolve = preview


def _find_interpreter(prefix: str) -> Path:
    """Find the interpreter without following links: the interpreter of a virtual environment is a link."""
    path = Path(os.path.abspath(expand_path("env.prefix", prefix)))  # noqa: PTH100  `resolve` would follow that link
    python = find_interpreter(path) if path.is_dir() else path
    if not path.exists():
        seen = f"{path} does not exist"
    elif not python.is_file():
        seen = f"the environment has no interpreter {python}"
    elif not os.access(python, os.X_OK):
        seen = f"{python} cannot be executed"
    else:
        return python
    raise ConfigError(f"env.prefix={prefix}: {seen}; {_WANTED}")


@study_cache.cache_for_study  # installed packages do not change while a study runs
def _describe(python: Path, setting: str) -> Interpreter:
    try:
        probed = ask(python)
    except CommandError as error:
        raise ConfigError(f"env.prefix={setting}: the interpreter cannot run jobs: {error}; {_WANTED}") from error
    packages = [editable.add_state(package) for package in probed.packages]
    prefix = probed.prefix
    if (prefix / "conda-meta").is_dir():
        recorded = _lock_conda(probed, packages)
        environ = activation.capture_variables(prefix, f"the conda environment {prefix}")
    else:
        recorded = lock.lock_packages("venv", probed.python, packages)
        is_virtual = (prefix / "pyvenv.cfg").exists()
        environ = tuple((make_path_variables(prefix) | ({"VIRTUAL_ENV": str(prefix)} if is_virtual else {})).items())
    return Interpreter(python=probed.executable, environ=environ, lock=recorded.lines, lock_digest=recorded.digest)


def _lock_conda(probed: Probe, packages: Sequence[Distribution]) -> Lock:
    records = conda_file.read_records(probed.prefix)
    brought = {str(probed.prefix / file) for record in records for file in record.get("files", ())}
    by_pip = [package for package in packages if f"{package.place}/METADATA" not in brought]
    explicit = conda_file.make_explicit_lock(probed.python, records, CondaFile(), by_pip)
    variables = activation.read_state(probed.prefix)
    if not variables:
        return explicit
    # Values may be secret, so the lock records only their names; the digest covers the values too.
    names = f"# variables whose values are not recorded: {', '.join(sorted(variables))}"
    identity = (f"variable {name}={value}" for name, value in variables.items())
    return Lock(lines=(explicit.lines[0], names, *explicit.lines[1:]), identity=(*explicit.identity, *identity))
