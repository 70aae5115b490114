"""A worker runs one shard at a time and reports its exit status."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.base.domain.machine_state import cpu_device
from pipeline.scale.worker import STATUS
from pipeline.scale.worker_process import WorkerProcess

ANSWERS = f"""
import json, sys
for line in sys.stdin:
    print(json.dumps({{{STATUS!r}: int(line)}}), flush=True)
"""


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[WorkerProcess]:
    """A worker whose shards end with their number as exit status."""
    script = tmp_path / "worker.py"
    script.write_text(ANSWERS)
    running = WorkerProcess(cpu_device(), [str(script)], os.environ, frozenset(os.sched_getaffinity(0)))
    yield running
    if not running.has_ended:
        running.send_signal(signal.SIGKILL)
        wait_for_status(running)


def wait_for_status(worker: WorkerProcess) -> int | None:
    """Listen until a shard or the process has ended; return the exit status of the shard."""
    while not worker.has_ended:
        ready, _, _ = select.select([output for output in worker.outputs if not output.closed], [], [], 60)
        assert ready, "no answer"
        for output in ready:
            if not output.closed and (status := worker.listen(output)) is not None:
                return status
    return None


def test_a_busy_worker_takes_no_other_shard(worker: WorkerProcess) -> None:
    assert worker.takes_shards
    for shard in (3, 1):
        worker.give("shard", shard)
        assert not worker.takes_shards
        assert wait_for_status(worker) == shard
        assert worker.takes_shards
    worker.dismiss()
    assert not worker.takes_shards


def test_a_killed_worker_ends_its_shard_as_a_shell_says_it(worker: WorkerProcess) -> None:
    worker.send_signal(signal.SIGSTOP)
    worker.give("shard", 1)
    worker.send_signal(signal.SIGKILL)
    assert wait_for_status(worker) == 128 + signal.SIGKILL
    assert worker.has_ended and not worker.takes_shards
