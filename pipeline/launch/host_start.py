"""The file that tells a host program which jobs it runs in its process (`workloads/tenants.py` reads it)."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.base.domain import layout
from pipeline.base.domain.records import HostProgram

_PATH = "PYTHONPATH"


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedJob:
    """A job whose folder exists, with the arguments and the complete environment of its program."""

    folder: Path
    argv: Sequence[str]
    environ: Mapping[str, str]

    @property
    def stdout(self) -> Path:
        return self.folder / layout.STDOUT

    @property
    def stderr(self) -> Path:
        return self.folder / layout.STDERR


def write_file(file: Path, host: HostProgram, jobs: Sequence[PreparedJob]) -> dict[str, str]:
    """Write the file of a host program; return the environment of its process: the variables that all jobs share.

    Every job finds its modules, because the folders of all jobs are in PYTHONPATH.
    """
    common = {name: text for name, text in jobs[0].environ.items() if all(j.environ.get(name) == text for j in jobs)}
    folders = [folder for job in jobs for folder in job.environ.get(_PATH, "").split(os.pathsep) if folder]
    shared = common | ({_PATH: os.pathsep.join(dict.fromkeys(folders))} if folders else {})
    tenants = [
        {
            "folder": str(job.folder),
            "argv": list(job.argv),
            "stdout": str(job.stdout),
            "stderr": str(job.stderr),
            "environ": {name: text for name, text in job.environ.items() if name not in shared},
        }
        for job in jobs
    ]
    spec = {"tenants": tenants, "options": dict(host.options)}
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as stream:
        json.dump(spec, stream)
    return shared
