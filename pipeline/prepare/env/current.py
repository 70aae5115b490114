"""The orchestrator's own environment, used for jobs."""

from __future__ import annotations

import re
import sys
from importlib import metadata
from pathlib import Path

from pipeline.base.domain.records import Interpreter
from pipeline.base.system import study_cache
from pipeline.prepare.env import editable
from pipeline.prepare.env import lock as env_lock
from pipeline.prepare.env.lock import Distribution

# The lock leaves out the project itself, because the commit identifies it.
_OWN_NAME = "gpu-collocation"
_FIELD = re.compile(r"^(Name|Version): (.*)$", re.MULTILINE)


class CurrentEnv:
    """Interpreter and packages of the orchestrator, which jobs use as well."""

    def preview(self) -> Interpreter:
        return _describe()

    resolve = preview


@study_cache.cache_for_study
def _describe() -> Interpreter:
    """Describe the orchestrator's environment once per study, because listing its packages takes 10 ms."""
    installed = env_lock.select_imported(map(_read_package, metadata.distributions()))
    packages = [editable.add_state(package) for package in installed if package.name not in ("", _OWN_NAME)]
    lock = env_lock.lock_packages("current", sys.version.split()[0], packages)
    return Interpreter(python=Path(sys.executable), lock=lock.lines, lock_digest=lock.digest)


def _read_package(dist: metadata.Distribution) -> Distribution:
    """Read name and version by a regular expression: `dist.name` and `dist.version` take 90 ms for 140 packages."""
    text = next(filter(None, map(dist.read_text, ("METADATA", "PKG-INFO", ""))), "")
    fields = dict(reversed(_FIELD.findall(text.partition("\n\n")[0])))
    direct_url = dist.read_text("direct_url.json")
    return env_lock.make_distribution(
        name=fields.get("Name", ""),
        version=fields.get("Version", ""),
        direct_url=direct_url,
        installer=dist.read_text("INSTALLER") if direct_url else None,
        place=str(getattr(dist, "_path", "")),
    )
