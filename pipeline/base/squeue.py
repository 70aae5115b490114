"""What Slurm's queue holds of some job arrays. A task is named as Slurm does: `12_3`."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping

from pipeline.base import command
from pipeline.base.errors import CommandError

PENDING = "PENDING"
_LIMIT_S = 60.0
_TASK = re.compile(r"(\d+) (\d+) (\S+) (.*)")
_ASK_CONFIG = ("scontrol", "show", "config")
_CLUSTER = re.compile(r"^ClusterName\s*=\s*(\S+)", re.MULTILINE)


def task_of(job: str, number: int) -> str:
    """The name of a task of a job array."""
    return f"{job}_{number}"


def states(jobs: Collection[str]) -> Mapping[str, str]:
    """State and, unless it is `None`, reason of each task of these arrays in the queue: `RUNNING`, `PENDING Priority`.

    Raises:
        CommandError: there is no Slurm, or it does not answer.
    """
    argv = ["squeue", "--all", "--array", "--noheader", f"--jobs={','.join(sorted(jobs))}", "--format=%F %K %T %r"]
    # What a user has set to see less of the queue would make tasks absent that are there.
    environ = {key: value for key, value in os.environ.items() if not key.startswith("SQUEUE_")}
    done = command.run(argv, timeout_s=_LIMIT_S, environ=environ, check=False)
    if "Invalid job id" in done.stderr:  # a job that Slurm has forgotten
        return {}
    if done.status != 0:
        raise CommandError(argv, done.status, done.stderr)
    found = filter(None, map(_TASK.fullmatch, done.stdout.splitlines()))
    return {task_of(each[1], int(each[2])): f"{each[3]} {each[4]}".removesuffix(" None").strip() for each in found}


def states_on(wanted: str, jobs: Collection[str]) -> Mapping[str, str]:
    """As `states`, from the Slurm of the cluster that is wanted.

    Raises:
        CommandError: there is no Slurm, it does not answer, or it is that of another cluster.
    """
    if (name := cluster()) != wanted:
        raise CommandError(list(_ASK_CONFIG), 0, f"this is cluster {name}, and not {wanted}")
    return states(jobs)


def cluster() -> str:
    """The name of the cluster whose Slurm this is.

    Raises:
        CommandError: there is no Slurm, or it does not say.
    """
    said = command.run(_ASK_CONFIG, timeout_s=_LIMIT_S).stdout
    if (found := _CLUSTER.search(said)) is None:
        raise CommandError(list(_ASK_CONFIG), 0, "it says no ClusterName")
    return found[1]
