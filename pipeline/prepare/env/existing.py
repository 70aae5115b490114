"""An environment, or an interpreter, that is there already: it is asked what is installed, and never changed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from pipeline.base.domain.records import Interpreter
from pipeline.base.system import study_cache
from pipeline.base.system.errors import CommandError, ConfigError
from pipeline.base.system.paths import expanded
from pipeline.prepare.env import activation, conda_file, conda_meta, editable, lock
from pipeline.prepare.env.conda_file import CondaFile
from pipeline.prepare.env.lock import Distribution, Lock
from pipeline.prepare.env.probe import Probe, ask
from pipeline.prepare.env.recipe import activated, python_of

_WANTED = "give the folder of a conda or virtual environment, or the path of an interpreter"


class ExistingEnv:
    """Jobs run in a conda environment, a virtual environment or with an interpreter, as it is."""

    def __init__(self, prefix: str | None = None) -> None:
        if prefix is None:
            raise ConfigError(
                "env=existing needs an environment that is there: env.prefix=~/miniconda3/envs/NAME for all jobs, or "
                f"workload.env_prefix (sizes.S.env_prefix, ...) for those of one workload; {_WANTED}"
            )
        self._given, self._python = prefix, _interpreter(prefix)

    def preview(self) -> Interpreter:
        return _described(self._python, self._given)

    def resolve(self) -> Interpreter:
        return self.preview()


def _interpreter(given: str) -> Path:
    """The interpreter that a key names, as it is named: that of a virtual environment is a link to another one."""
    path = Path(os.path.abspath(expanded("env.prefix", given)))  # noqa: PTH100  `resolve` would follow that link
    python = python_of(path) if path.is_dir() else path
    if not path.exists():
        seen = f"{path} does not exist"
    elif not python.is_file():
        seen = f"there is no interpreter in it: {python} does not exist"
    elif not os.access(python, os.X_OK):
        seen = f"{python} cannot be executed"
    else:
        return python
    raise ConfigError(f"env.prefix={given}: {seen}; {_WANTED}")


@study_cache.cache_for_study  # what is installed does not change under a running study
def _described(python: Path, given: str) -> Interpreter:
    try:
        probed = ask(python)
    except CommandError as error:
        raise ConfigError(f"env.prefix={given}: its interpreter cannot run jobs: {error}; {_WANTED}") from error
    packages = [editable.with_state(each, probed.places[each.name]) for each in probed.packages]
    prefix = probed.prefix
    if conda_meta.is_conda(prefix):
        found = _conda_lock(probed, packages)
        environ = activation.variables(prefix, f"the conda environment {prefix}")
    else:
        found = lock.of_packages("venv", probed.python, packages)
        is_virtual = (prefix / "pyvenv.cfg").exists()
        environ = tuple((activated(prefix) | ({"VIRTUAL_ENV": str(prefix)} if is_virtual else {})).items())
    return Interpreter(python=probed.executable, environ=environ, lock=found.lines, lock_digest=found.digest)


def _conda_lock(probed: Probe, packages: Sequence[Distribution]) -> Lock:
    """The packages of conda, and those of Python that none of these brought."""
    records = conda_meta.records(probed.prefix)
    brought = {str(probed.prefix / file) for record in records for file in record.get("files", ())}
    by_pip = [each for each in packages if f"{probed.places[each.name]}/METADATA" not in brought]
    found = conda_file.explicit_lock(probed.python, records, CondaFile(), by_pip)
    variables = activation.state(probed.prefix)
    if not variables:
        return found
    # Nobody set them with a record in mind: their values stay here, and decide nevertheless.
    names = f"# variables whose values are not recorded: {', '.join(sorted(variables))}"
    identity = (f"variable {name}={value}" for name, value in variables.items())
    return Lock(lines=(found.lines[0], names, *found.lines[1:]), identity=(*found.identity, *identity))
