"""A group's run as the store holds it: what a reproduction needs to know of its original."""

from __future__ import annotations

from dataclasses import dataclass, field

# Artifacts that `pipeline/spool.py` writes: of a group, and of a job.
CONFIG_FILE, GROUP_FILE = "config.yaml", "group.json"
LOCK_FILE = "environment.txt"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedGroup:
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
        return self.tags.get(f"collocation.{name}")
