"""Probe of an interpreter: a program that runs in its environment and uses only the standard library."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.base.system import helper_program
from pipeline.base.system.errors import CommandError, ConfigError
from pipeline.prepare.env.builder import find_interpreter
from pipeline.prepare.env.lock import Distribution, make_distribution, select_imported

_LIMIT_S = 120.0
_PROGRAM = """
import json, sys
if sys.version_info < (3, 8):
    sys.exit("Python %d.%d: jobs need 3.8 or newer" % sys.version_info[:2])
from importlib import metadata
packages = [{"name": d.metadata["Name"], "version": d.version, "place": str(d._path),
             "direct_url": d.read_text("direct_url.json"), "installer": d.read_text("INSTALLER")}
            for d in metadata.distributions() if d.metadata["Name"]]
print(json.dumps({"prefix": sys.prefix, "executable": sys.executable, "python": sys.version.split()[0],
                  "packages": packages}))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """Facts that a working interpreter reported."""

    python: str
    executable: Path
    prefix: Path
    packages: tuple[Distribution, ...]


def ask(python: Path, before: Sequence[str] = ()) -> Probe:
    """Start an interpreter and read its installed packages. Writes nothing, not even compiled modules.

    Args:
        python: the interpreter.
        before: words before it, which start a container.

    Raises:
        CommandError: the interpreter does not start, is too old, or is not Python.
    """
    # -I isolates the interpreter like a job's: PYTHONPATH and the user's site packages are ignored.
    argv = [*before, str(python), "-I", "-B", "-c", _PROGRAM]
    try:
        answer = helper_program.run(argv, timeout_s=_LIMIT_S).stdout
    except CommandError as error:
        raise CommandError([str(python)], error.status, error.stderr) from error  # omits the text of `_PROGRAM`
    try:
        facts = json.loads(answer)
        return Probe(
            python=facts["python"],
            executable=Path(facts["executable"]),
            prefix=Path(facts["prefix"]),
            packages=select_imported(make_distribution(**package) for package in facts["packages"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise CommandError([str(python)], 0, f"printed {answer[:200]!r}") from error


def probe(prefix: Path) -> Probe:
    """Probe an environment's interpreter; CommandError also if the interpreter belongs to another environment."""
    probed = ask(find_interpreter(prefix))
    if probed.prefix.resolve() != prefix.resolve():
        raise CommandError([str(find_interpreter(prefix))], 0, f"belongs to {probed.prefix}, not to {prefix}")
    return probed


def probe_new(prefix: Path, title: str) -> Probe:
    """Probe an environment that was just built; ConfigError if it cannot run jobs."""
    if not find_interpreter(prefix).exists():
        raise ConfigError(f"{title} has no interpreter; add `python` to the dependencies in its file")
    try:
        return probe(prefix)
    except CommandError as error:
        raise ConfigError(
            f"{title} was built, but its interpreter cannot run jobs: {error}; change the version of Python"
        ) from error
