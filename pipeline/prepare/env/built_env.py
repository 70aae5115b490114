"""Environments that are built from a file and kept in a cache: what every kind of them shares."""

from __future__ import annotations

import dataclasses

from pipeline.base.domain.records import Interpreter
from pipeline.base.system.paths import PROJECT_DIR, expand_path, find_file
from pipeline.prepare.env import lock
from pipeline.prepare.env.cache import Cache, choose_default_root
from pipeline.prepare.env.recipe import Recipe, find_interpreter


class BuiltEnv(Recipe):
    """Jobs run in an environment of their own, kept below `cache_root`. A kind of it says how that is built.

    Without `file` it is built from the project's own, which has what the networks of `conf/workload/` need.
    """

    default: str
    requested: tuple[str, ...] = ()
    """The packages that the file asks for, line by line; of a lock, what was asked for when it was made."""

    def __init__(self, file: str | None, cache_root: str | None) -> None:
        self.file = PROJECT_DIR / "workloads" / self.default if file is None else find_file("env.file", file)
        self.cache = Cache(expand_path("env.cache_root", cache_root).resolve() if cache_root else choose_default_root())

    def preview(self) -> Interpreter:
        """Return the environment if it is there; else where it would be."""
        state = self.cache.find(self)
        if isinstance(state, Interpreter):
            return self._add_request(state)
        self.check_tools()
        return Interpreter(
            python=find_interpreter(self.cache.prefix(self)),
            lock_digest=f"unbuilt-{self.key}",
            to_build=f"{self.title} {state}; {self.tool} builds it before the study starts",
            requested=self.requested,
        )

    def resolve(self) -> Interpreter:
        return self._add_request(self.cache.prepare(self))

    def _add_request(self, interpreter: Interpreter) -> Interpreter:
        return dataclasses.replace(interpreter, lock=lock.add_request(interpreter.lock, self.requested))
