"""What an interpreter says of itself. The program runs in the environment, so it is standard library only."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from pipeline.base import command
from pipeline.base.errors import CommandError, ConfigError
from pipeline.prepare.env.lock import Distribution
from pipeline.prepare.env.recipe import python_of

_LIMIT_S = 120.0
_PROGRAM = """
import json, sys
if sys.version_info < (3, 8):
    sys.exit("Python %d.%d: jobs need 3.8 or newer" % sys.version_info[:2])
from importlib import metadata
found = {d.metadata["Name"]: [d.metadata["Name"], d.version, d.read_text("direct_url.json")]
         for d in reversed(list(metadata.distributions())) if d.metadata["Name"]}
print(json.dumps({"prefix": sys.prefix, "python": sys.version.split()[0], "packages": sorted(found.values())}))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """An interpreter that starts: its version, and what is installed, by name."""

    python: str
    packages: tuple[Distribution, ...]


def probe(prefix: Path) -> Probe:
    """Start the interpreter of an environment and ask it what is installed.

    Raises:
        CommandError: it does not start, is too old, or belongs to another environment.
    """
    # Isolated, as jobs are: neither PYTHONPATH nor the user's own packages count.
    python = str(python_of(prefix))
    argv = [python, "-I", "-c", _PROGRAM]
    try:
        answer = command.run(argv, timeout_s=_LIMIT_S).stdout
    except CommandError as error:
        raise CommandError([python], error.status, error.stderr) from error  # without the program's text
    try:
        facts = json.loads(answer)
        packages = tuple(Distribution(name=n, version=v, direct_url=url) for n, v, url in facts["packages"])
        found = Probe(python=facts["python"], packages=packages)
    except (ValueError, KeyError, TypeError) as error:
        raise CommandError([python], 0, f"answered {answer[:200]!r}") from error
    if Path(facts["prefix"]).resolve() != prefix.resolve():
        raise CommandError([python], 0, f"belongs to {facts['prefix']}, not to {prefix}")
    return found


def probe_new(prefix: Path, title: str) -> Probe:
    """The same for an environment that was just built; ConfigError if it cannot run jobs."""
    if not python_of(prefix).exists():
        raise ConfigError(f"{title} has no interpreter: add `python` to its dependencies")
    try:
        return probe(prefix)
    except CommandError as error:
        raise ConfigError(f"{title} was built, but its interpreter cannot run jobs: {error}") from error
