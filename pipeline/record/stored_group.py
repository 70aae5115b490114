"""A stored group with its artifacts, as `reproduce` reads it."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.base.domain.layout import SCRIPT_PREFIX
from pipeline.base.system.paths import MAX_NAME_BYTES
from pipeline.record.group_record import GroupRecord


def name_script_artifacts(scripts: Iterable[str]) -> dict[str, str]:
    """Map the path of each script to the name of its artifact."""
    first = {path: index for index, path in reversed(list(enumerate(scripts)))}
    names = Counter(Path(path).name for path in first)
    return {path: _name_artifact(Path(path).name, index, names[Path(path).name] == 1) for path, index in first.items()}


def _name_artifact(name: str, index: int, is_unique: bool) -> str:
    plain, numbered = f"{SCRIPT_PREFIX}{name}", f"{SCRIPT_PREFIX}{index}-"
    if is_unique and len(os.fsencode(plain)) <= MAX_NAME_BYTES:
        return plain
    return numbered + os.fsencode(name)[-(MAX_NAME_BYTES - len(numbered)) :].decode(errors="ignore")


@dataclass(frozen=True, slots=True, kw_only=True)
class Original:
    """A stored group with all data that is needed to run it again.

    Attributes:
        experiment: the present name of its experiment.
        files: text of the group's artifacts, by name.
        job_locks: locked packages of each job's environment, by the job's index.
    """

    group: GroupRecord
    experiment: str
    files: dict[str, str] = field(default_factory=dict)
    job_locks: dict[str, str] = field(default_factory=dict)

    @property
    def run_id(self) -> str:
        return self.group.run_id
