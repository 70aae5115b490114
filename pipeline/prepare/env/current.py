"""Jobs in the orchestrator's own environment."""

from __future__ import annotations

import functools
import sys
from importlib import metadata
from pathlib import Path

from pipeline.base.records import Interpreter
from pipeline.prepare.env import editable
from pipeline.prepare.env import lock as env_lock
from pipeline.prepare.env.lock import Distribution

# Not told by the lock: the project itself is told by its commit.
_OWN_NAME = "gpu-collocation"


class CurrentEnv:
    """Jobs run with the interpreter, and the packages, of the orchestrator."""

    def preview(self) -> Interpreter:
        return _current()

    def resolve(self) -> Interpreter:
        return _current()


@functools.cache
def _current() -> Interpreter:
    """What is installed does not change under a running orchestrator, and listing it takes 100 ms."""
    found = [
        editable.with_state(
            Distribution(name=dist.name, version=dist.version, direct_url=dist.read_text("direct_url.json")),
            str(getattr(dist, "_path", "")),
        )
        for dist in metadata.distributions()
        if dist.name and dist.name != _OWN_NAME
    ]
    lock = env_lock.of_packages("current", sys.version.split()[0], dict.fromkeys(found))
    return Interpreter(python=Path(sys.executable), lock=lock.lines, lock_digest=lock.digest)
