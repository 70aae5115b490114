"""Waiting for what other processes do."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from pipeline.record import group_record
from tests.support.forks import Process


def wait_until(condition: Callable[[], object], limit_s: float = 120.0, *, process: Process | None = None) -> None:
    """Wait until the condition holds; fail after the limit, or once the process that should cause it has ended."""
    deadline = time.monotonic() + limit_s
    while not condition():
        assert process is None or process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "the condition did not become true in time"
        time.sleep(0.01)


def wait_for_training(root: Path, process: Process, num_jobs: int = 2) -> str:
    """Wait until all jobs of the first group of a study train; return the mark of the group's processes.

    Args:
        root: folder of the store.
        process: the study.
    """
    marks: list[str] = []

    def are_training() -> bool:
        for record in root.glob("spool/*/*/record.json"):
            events = list(record.parent.glob("jobs/*/events.jsonl"))
            if len(events) == num_jobs and all('"started"' in file.read_text() for file in events):
                marks.append(group_record.read(record.parent).spool_id)
        return bool(marks)

    wait_until(are_training, 180, process=process)
    return marks[0]
