"""Where the interpreter of a job comes from."""

from __future__ import annotations

import hashlib
import sys
from importlib import metadata
from pathlib import Path

from pipeline.types import Interpreter


class CurrentEnv:
    """Jobs run with the interpreter, and the packages, of the orchestrator."""

    def resolve(self) -> Interpreter:
        """This interpreter, with every installed distribution as `name==version`."""
        lock = tuple(sorted({f"{dist.name}=={dist.version}" for dist in metadata.distributions() if dist.name}))
        text = "\n".join((f"python=={sys.version.split()[0]}", *lock))
        return Interpreter(
            python=Path(sys.executable), lock=lock, lock_digest=hashlib.sha256(text.encode()).hexdigest()
        )
