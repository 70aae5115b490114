"""Groups of toy jobs: real processes, without a plan and without a store."""

from __future__ import annotations

import contextlib
import sys
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pipeline.base.domain.records import HostProgram, Interpreter, Job, Limits, Slot
from pipeline.base.domain.workload import Workload
from pipeline.base.system.factory import Spec
from pipeline.base.system.paths import PROJECT_DIR
from pipeline.clean import processes
from pipeline.launch.job_group import GroupFiles, JobGroup, JobStart
from pipeline.launch.spawn import Spawner
from pipeline.launch.warm_start import Starter

PYTHON = Interpreter(python=Path(sys.executable))
PATIENT = Limits(ready_s=60, group_s=60, stop_s=60)
_TOY = str(PROJECT_DIR / "tests/toys/toy.py")


def make_jobs(*manners: str, epochs: int = 0, num_co_runners: int = 0) -> tuple[Job, ...]:
    """Return a toy job of each manner; the last `num_co_runners` of them are co-runners, which train until the end."""
    num_measured = len(manners) - num_co_runners
    return tuple(
        Job(index=index, workload=_workload(manner, epochs if index < num_measured else 0), is_co_runner=is_co_runner)
        for index, manner in enumerate(manners)
        for is_co_runner in [index >= num_measured]
    )


def _workload(manner: str, epochs: int) -> Workload:
    return Workload(
        name="toy",
        script=_TOY,
        argv=(_TOY, manner, "--epochs", str(epochs)),
        ends_by_itself=False,
        env=Spec(target="pipeline.prepare.env.current.CurrentEnv"),
        digest="d",
    )


@contextlib.contextmanager
def prepare_launch(
    folder: Path,
    jobs: Sequence[Job],
    *,
    starter: Starter | None = None,
    host: HostProgram | None = None,
    limits: Limits = PATIENT,
    **options: Any,
) -> Iterator[JobGroup]:
    """Return a group of jobs that starts when it is entered; at the end, no process and no scratch file is left of it.

    Args:
        folder: folder of the group, which this creates.
        starter: what starts the processes; by default, each is a new process.
        host: the program that hosts all jobs in one process.
        options: further arguments of `JobGroup`.
    """
    mark = uuid.uuid4().hex
    scratch = Path("/tmp") / f"t-{mark[:12]}"  # the path of a socket must be short
    scratch.mkdir()
    slot = Slot(visible_devices="", host=host)
    starts = [JobStart(job=job, slot=slot, starter=starter or Spawner(PYTHON)) for job in jobs]
    running = JobGroup(starts, GroupFiles(folder=folder, scratch=scratch, mark=mark), limits, **options)
    try:
        yield running
    finally:
        assert processes.list_marked(mark) == []
        assert list(scratch.iterdir()) == []
        scratch.rmdir()
