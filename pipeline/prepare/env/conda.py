"""Conda environments: solved and installed by py-rattler, or by conda, mamba or micromamba."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import yaml

from pipeline.base.domain.records import EnvTool
from pipeline.base.system.errors import ConfigError
from pipeline.base.system.option_fields import option
from pipeline.prepare.env import activation, conda_file, lock, rattler, uv
from pipeline.prepare.env.builder import Builder, digest_facts, find_interpreter
from pipeline.prepare.env.built_env import BuiltEnv
from pipeline.prepare.env.lock import Distribution, Lock
from pipeline.prepare.env.probe import Probe, probe_new

# These variables suppress questions; no command-line flag does so in every version of conda and mamba.
_NEVER_ASK = {"CONDA_ALWAYS_YES": "true", "MAMBA_ALWAYS_YES": "true"}


@dataclass
class CondaEnv(BuiltEnv):
    """Conda environment that is built from a file.

    py-rattler stores its packages below `cache_root` as well, and links them into environments on the same disk.
    """

    kind, default = "conda", "environment.yml"

    tool: EnvTool = option("solver and installer; `rattler` needs no conda", EnvTool.rattler)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._content = conda_file.read(self.path)
        pip = (line for line in self._content.pip if not line.startswith("-"))
        self.requested = self._content.requested or (*self._content.specs, *pip)
        self.builder = "py-rattler" if self.tool is EnvTool.rattler else self.tool.name
        self.title = f"the conda environment of {self.path}"
        # Overrides of the machine's properties change the solve, so they are part of the key.
        overrides = sorted(item for item in os.environ.items() if item[0].startswith("CONDA_OVERRIDE_"))
        self.key = digest_facts(
            self.kind,
            self.tool.name,
            self._content.content,
            self._content.channels,
            self._content.pip,
            lock.name_platform(),
            overrides,
        )

    def check_tools(self) -> None:
        if self.tool is not EnvTool.rattler:
            self._program()
        elif importlib.util.find_spec("rattler") is None:
            raise ConfigError(
                "env=conda needs py-rattler; install it: pip install 'py-rattler>=0.28,<1', or set env.tool to conda, "
                "mamba or micromamba"
            )
        if self._content.pip:
            uv.find_program()

    def build(self, prefix: Path, builder: Builder) -> Lock:
        self.check_tools()
        if self.tool is EnvTool.rattler:
            request = {name: getattr(self._content, name) for name in ("channels", "specs", "packages")}
            task = json.dumps(request | {"prefix": str(prefix), "cache": str(self.root / "rattler")})
            # -P keeps the script's folder off the module path, where its files would shadow the standard library.
            builder.step([sys.executable, "-P", str(Path(rattler.__file__))], tool=self.builder, stdin=task)
        else:
            builder.step(self._command(prefix, builder.scratch), tool=self.builder, environ=_NEVER_ASK)
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

    def _program(self) -> str:
        # After activation, conda is a shell function, and its program may be found only through a variable.
        variable = "MAMBA_EXE" if self.tool is EnvTool.micromamba else "CONDA_EXE"
        program = shutil.which(self.tool.name) or (
            None if self.tool is EnvTool.mamba else shutil.which(os.environ.get(variable, ""))
        )
        if program is None:
            raise ConfigError(f"env.tool={self.tool.name} is not on PATH; install it, or use env.tool=rattler")
        return program

    def _command(self, prefix: Path, scratch: Path) -> list[str]:
        if self._content.packages:
            file = scratch / "packages.txt"
            lines = [p["url"] + (f"#{p['md5']}" if "md5" in p else "") for p in self._content.packages]
            text = "\n".join(["@EXPLICIT", *lines]) + "\n"
        else:
            file = scratch / "environment.yml"
            # Without `nodefaults`, the channels of the user's settings would be searched too.
            channels = [*self._content.channels, "nodefaults"]
            text = yaml.safe_dump({"channels": channels, "dependencies": list(self._content.specs)})
        file.write_text(text, encoding="utf-8")
        takes_both = self._content.packages or self.tool is EnvTool.micromamba
        create = ["create", "--yes"] if takes_both else ["env", "create"]
        return [self._program(), *create, "--prefix", str(prefix), "--file", str(file)]
