"""The groups of an experiment as an overview of shards needs them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.record.group_record import GroupRecord
from pipeline.record.store import results


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRun:
    """The run of a group.

    Attributes:
        start_ms, end_ms: begin and end, since the epoch.
        facts: facts of the group in one plan, by name.
        later_plans: facts that differ in each plan that reuses the group, oldest first.
    """

    name: str
    status: str
    start_ms: int
    end_ms: int | None
    facts: Mapping[str, str]
    later_plans: Sequence[Mapping[str, str]] = ()


def read_groups(location: Path | str, experiment: str) -> list[GroupRun]:
    """Return all groups of an experiment, oldest first.

    Raises:
        TrackingError: the store or experiment does not exist or is not readable.
    """
    return [convert_record(group) for group in results.read_groups(location, experiment)]


def convert_record(group: GroupRecord) -> GroupRun:
    """Convert the record of a group."""
    facts = {
        **group.plan_facts[0],
        "digest": group.digest,
        "result": "" if group.result is None else group.result.value,
        "device": group.device,
        "gpu_uuid": group.gpu_uuid,
        "simulated": "true" if group.is_simulated else "",
        "spool_id": group.spool_id,
    }
    return GroupRun(
        name=group.name,
        status=group.status,
        start_ms=group.start_ms,
        end_ms=group.end_ms,
        facts={name: text for name, text in facts.items() if text},
        later_plans=group.later_plans,
    )
