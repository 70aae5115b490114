"""What Slurm's queue holds of some jobs. A task of a job array is named as Slurm does: `12_3`; a job alone `12`."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping

from pipeline.base import command
from pipeline.base.errors import CommandError

PENDING = "PENDING"
_LIMIT_S = 60.0


def own_task() -> str:
    """The task or job that this process is of; empty outside Slurm."""
    array, number = (os.environ.get(f"SLURM_ARRAY_{part}", "") for part in ("JOB_ID", "TASK_ID"))
    return task_of(array, number) if array else os.environ.get("SLURM_JOB_ID", "")


def task_of(job: str, number: int | str) -> str:
    """The name of a task of a job array."""
    return f"{job}_{number}"


def job_of(task: str) -> str:
    """The job array that a task is of, or the job that it is."""
    return task.partition("_")[0]


def states(jobs: Collection[str]) -> Mapping[str, str]:
    """State and reason, by task, of all that the queue holds of these jobs: `RUNNING None`, `PENDING Resources`.

    Raises:
        CommandError: there is no Slurm, or it does not answer.
    """
    argv = ["squeue", "--noheader", "--array", f"--jobs={','.join(sorted(jobs))}", "--format=%F %K %T %r"]
    done = command.run(argv, timeout_s=_LIMIT_S, check=False)
    if "Invalid job id" in done.stderr:  # a job that Slurm has forgotten
        return {}
    if done.status != 0:
        raise CommandError(argv, done.status, done.stderr)
    found = (line.split(None, 2) for line in done.stdout.splitlines())
    return {task_of(job, number) if number.isdigit() else job: state for job, number, state in found}
