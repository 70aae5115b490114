"""Stored groups, as `resume` and `reproduce` read them."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.base.domain.layout import SCRIPT_PREFIX
from pipeline.base.domain.machine_state import MachineState
from pipeline.base.domain.records import Result
from pipeline.base.domain.tags import fact_tag
from pipeline.base.system.paths import MAX_NAME_BYTES


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
class FinishedGroup:
    """A group that ended; a field is `None` if the run does not contain it.

    Attributes:
        facts: facts of the machine state in which the group ran, by name.
        plans, plans_any_gpu: digests of the plans that contain the group, with and without the GPU models.
        tags: the tags that a comparison needs.
    """

    digest: str
    program_digest: str | None = None
    name: str = ""
    block: str | None = None
    result: Result
    facts: Mapping[str, str]
    run_id: str = ""
    spool_id: str | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    reason: str | None = None
    tags: dict[str, str] = field(default_factory=dict)
    settings: str | None = None
    plans: Sequence[str] = ()
    plans_any_gpu: Sequence[str] = ()
    start_ms: int = 0

    @property
    def machine_state(self) -> MachineState:
        return MachineState.from_facts(self.facts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Original:
    """A stored group with all data that is needed to run it again.

    Attributes:
        metrics: figures, without sampled series.
        files: text of the group's artifacts, by name.
        job_locks: locked packages of each job's environment, by the job's index.
    """

    run_id: str
    experiment: str
    name: str
    tags: dict[str, str]
    params: dict[str, str]
    metrics: dict[str, float]
    files: dict[str, str] = field(default_factory=dict)
    job_locks: dict[str, str] = field(default_factory=dict)

    def get_fact(self, name: str) -> str | None:
        """Return a fact of the provenance; `None` if absent."""
        return self.tags.get(fact_tag(name))
