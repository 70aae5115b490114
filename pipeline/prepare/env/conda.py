"""Conda environments, solved and installed by py-rattler."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from pipeline.base.system.errors import ConfigError
from pipeline.prepare.env import activation, conda_file, lock, rattler, uv
from pipeline.prepare.env.builder import Builder, digest_facts, find_interpreter
from pipeline.prepare.env.built_env import BuiltEnv
from pipeline.prepare.env.lock import Distribution, Lock
from pipeline.prepare.env.probe import Probe, probe_new


@dataclass
class CondaEnv(BuiltEnv):
    """Conda environment that is built from a file.

    py-rattler stores its packages below `cache_root` as well, and links them into environments on the same disk.
    """

    kind, default, builder = "conda", "environment.yml", "py-rattler"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._content = conda_file.read(self.path)
        pip = (line for line in self._content.pip if not line.startswith("-"))
        self.requested = self._content.requested or (*self._content.specs, *pip)
        self.title = f"the conda environment of {self.path}"
        # Overrides of the machine's properties change the solve, so they are part of the key.
        overrides = sorted(item for item in os.environ.items() if item[0].startswith("CONDA_OVERRIDE_"))
        self.key = digest_facts(
            self.kind,
            self._content.content,
            self._content.channels,
            self._content.pip,
            lock.name_platform(),
            overrides,
        )

    def check_tools(self) -> None:
        if importlib.util.find_spec("rattler") is None:
            raise ConfigError("env=conda needs py-rattler; install it: pip install 'py-rattler>=0.28,<1'")
        if self._content.pip:
            uv.find_program()

    def build(self, prefix: Path, builder: Builder) -> Lock:
        self.check_tools()
        request = {name: getattr(self._content, name) for name in ("channels", "specs", "packages")}
        task = json.dumps(request | {"prefix": str(prefix), "cache": str(self.root / "rattler")})
        # -P keeps the script's folder off the module path, where its files would shadow the standard library.
        builder.step([sys.executable, "-P", str(Path(rattler.__file__))], tool=self.builder, stdin=task)
        if self._content.variables:
            # All conda tools store an environment's variables in this file.
            state = json.dumps({"version": 1, "env_vars": self._content.variables})
            (prefix / "conda-meta" / "state").write_text(state, encoding="utf-8")
        probed = probe_new(prefix, self.title)
        pip = self._install_pip(prefix, builder, probed) if self._content.pip else []
        return conda_file.make_explicit_lock(probed.python, conda_file.read_records(prefix), self._content, pip)

    def activation(self, prefix: Path) -> tuple[tuple[str, str], ...]:
        return activation.capture_variables(prefix, self.title)

    def _install_pip(self, prefix: Path, builder: Builder, before: Probe) -> list[Distribution]:
        requirements = builder.scratch / "requirements.txt"
        requirements.write_text("\n".join(self._content.pip) + "\n", encoding="utf-8")
        uv.install(builder, find_interpreter(prefix), requirements, builder.scratch)
        added = set(probe_new(prefix, self.title).packages) - set(before.packages)
        return [lock.pin(package) for package in sorted(added, key=lambda package: package.name)]
