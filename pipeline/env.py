"""Where the interpreter of a job comes from: the orchestrator's own, or an environment built from a file."""

from __future__ import annotations

import functools
import sys
from abc import ABC, abstractmethod
from importlib import metadata
from pathlib import Path

from pipeline import env_cache, env_lock
from pipeline.env_cache import Cache, Environment, Recipe
from pipeline.errors import ConfigError
from pipeline.paths import expanded, find_file
from pipeline.schema import EnvTool
from pipeline.types import Interpreter

# Not told by the lock: the project itself is told by its commit.
_OWN_NAME = "gpu-collocation"


class CurrentEnv:
    """Jobs run with the interpreter, and the packages, of the orchestrator."""

    def preview(self) -> Interpreter:
        """This interpreter, with every installed distribution as `name==version`."""
        return _current()

    def resolve(self) -> Interpreter:
        """This interpreter, with every installed distribution as `name==version`."""
        return _current()


class _BuiltEnv(ABC):
    """Jobs run in an environment that is built from a file and kept in a cache."""

    def __init__(self, cache_root: str | None) -> None:
        self._cache = Cache(_cache_root(cache_root))

    def preview(self) -> Interpreter:
        """The environment if it is there; else where it would be."""
        return _preview(self._recipe(), self._cache)

    def resolve(self) -> Interpreter:
        """The environment, built if it is not there or not as it was built."""
        recipe = self._recipe()
        return _ready(recipe, self._cache.prepare(recipe))

    @abstractmethod
    def _recipe(self) -> Recipe:
        """How it is built."""


class VenvEnv(_BuiltEnv):
    """Jobs run in a virtual environment that uv builds from a file.

    Args:
        file: requirements.txt, pyproject.toml, uv.lock, pylock.toml, or the lock of an earlier run.
        python: version or path of the interpreter; if not given, the one of the lock, or of the orchestrator.
        cache_root: where environments are kept; in the user's cache folder if not given.
    """

    def __init__(self, file: str | None, python: str | None = None, cache_root: str | None = None) -> None:
        super().__init__(cache_root)
        self._file, self._python = file, python

    def _recipe(self) -> Recipe:
        file = _find_file(self._file, "env=venv", "requirements.txt")
        from pipeline.env_venv import VenvRecipe

        return VenvRecipe(file, self._python)


class CondaEnv(_BuiltEnv):
    """Jobs run in a conda environment that is built from a file.

    Args:
        file: environment.yml, or an explicit lock, such as that of an earlier run.
        tool: what builds it; py-rattler needs no conda on the machine.
        cache_root: where environments are kept; in the user's cache folder if not given.
    """

    def __init__(self, file: str | None, tool: EnvTool = EnvTool.rattler, cache_root: str | None = None) -> None:
        super().__init__(cache_root)
        self._file, self._tool = file, tool

    def _recipe(self) -> Recipe:
        file = _find_file(self._file, "env=conda", "environment.yml")
        from pipeline.env_conda import CondaRecipe

        return CondaRecipe(file, self._tool, self._cache.root)


@functools.cache
def _current() -> Interpreter:
    """What is installed does not change under a running orchestrator, and listing it takes 100 ms."""
    found = {(dist.name, dist.version) for dist in metadata.distributions() if dist.name}
    packages = sorted(f"{name}=={version}" for name, version in found if name != _OWN_NAME)
    lock = env_lock.of_packages("current", sys.version.split()[0], packages)
    return Interpreter(python=Path(sys.executable), lock=lock.lines, lock_digest=lock.digest)


def _preview(recipe: Recipe, cache: Cache) -> Interpreter:
    found = cache.find(recipe)
    if isinstance(found, Environment):
        return _ready(recipe, found)
    recipe.check_tools()
    return Interpreter(
        python=env_cache.python_of(cache.prefix(recipe)),
        lock_digest=f"unbuilt-{recipe.key}",
        to_build=f"{recipe.title} {found}, and is built by {recipe.tool} before the study starts",
    )


def _ready(recipe: Recipe, environment: Environment) -> Interpreter:
    return Interpreter(
        python=environment.python,
        environ=recipe.activation(environment.prefix),
        lock=environment.lock,
        lock_digest=environment.lock_digest,
    )


def _cache_root(given: str | None) -> Path:
    return expanded("env.cache_root", given).resolve() if given else env_cache.default_root()


def _find_file(given: str | None, kind: str, example: str) -> Path:
    if given is None:
        raise ConfigError(
            f"{kind} needs a file to build the environment from: env.file={example} for all jobs, or "
            "workload.env_file (sizes.S.env_file, ...) for those of one workload"
        )
    return find_file("env.file", given)
