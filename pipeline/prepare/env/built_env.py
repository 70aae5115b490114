"""Common base of the environments that are built from a file and stored in a cache."""

from __future__ import annotations

import dataclasses

from pipeline.base.domain.records import Interpreter
from pipeline.base.system.paths import PROJECT_DIR, expand_path, find_file
from pipeline.prepare.env import lock
from pipeline.prepare.env.cache import Cache, choose_default_root
from pipeline.prepare.env.recipe import Recipe, find_interpreter


class BuiltEnv(Recipe):
    """Environment that is built for jobs and stored below `cache_root`; subclasses implement the build.

    Without `file`, the project's default file is used: it lists the packages that the workloads of `conf/workload/`
    need.
    """

    default: str
    requested: tuple[str, ...] = ()
    """Lines of the file that request packages; for a lock, the lines of the file from which the lock was made."""

    def __init__(self, file: str | None, cache_root: str | None) -> None:
        self.file = PROJECT_DIR / "workloads" / self.default if file is None else find_file("env.file", file)
        self.cache = Cache(expand_path("env.cache_root", cache_root).resolve() if cache_root else choose_default_root())

    def preview(self) -> Interpreter:
        """Return the environment if it exists, else the path at which it would be built."""
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
