"""A group as the store holds it: what `resume` and a reproduction need to know of it."""

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


def script_files(scripts: Iterable[str]) -> dict[str, str]:
    """The artifact of a group that each script becomes, by the script's path."""
    first = {path: index for index, path in reversed(list(enumerate(scripts)))}
    names = Counter(Path(path).name for path in first)
    return {path: _artifact(Path(path).name, index, names[Path(path).name] == 1) for path, index in first.items()}


def _artifact(name: str, index: int, is_unique: bool) -> str:
    """The name of a script's artifact, with its number where it would else be another's; a long one loses its begin."""
    whole, numbered = f"{SCRIPT_PREFIX}{name}", f"{SCRIPT_PREFIX}{index}-"
    if is_unique and len(os.fsencode(whole)) <= MAX_NAME_BYTES:
        return whole
    return numbered + os.fsencode(name)[-(MAX_NAME_BYTES - len(numbered)) :].decode(errors="ignore")


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedGroup:
    """A group that ended. What its run does not say is `None`; of its tags, those that the row has in a comparison.

    Attributes:
        facts: of the state of the machine that it ran on, by name.
        plans: that have it, by their digests.
        plans_any_gpu: the same by the digests without the GPU models.
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
    """What MLflow holds of a group that ran.

    Attributes:
        metrics: the figures; sampled series are left out.
        files: text of its artifacts, by name.
        job_locks: lock of each job's environment by the job's index, where the run holds them.
    """

    run_id: str
    experiment: str
    name: str
    tags: dict[str, str]
    params: dict[str, str]
    metrics: dict[str, float]
    files: dict[str, str] = field(default_factory=dict)
    job_locks: dict[str, str] = field(default_factory=dict)

    def fact(self, name: str) -> str | None:
        """A fact of its provenance; `None` if it does not say."""
        return self.tags.get(fact_tag(name))
