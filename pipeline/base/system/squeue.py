"""Job arrays in Slurm's queue; CommandError if Slurm is missing or does not answer. A task is named `12_3`."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping

from pipeline.base.system import helper_program
from pipeline.base.system.errors import CommandError

PENDING = "PENDING"
_ENDS = frozenset(
    {
        *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED"),
        *("REVOKED", "TIMEOUT"),
    }
)
_LIMIT_S = 60.0
_TASK = re.compile(r"(\d+) (\d+) (\S+) (.*)")
_ASK_CONFIG = ("scontrol", "show", "config")
_CLUSTER = re.compile(r"^ClusterName\s*=\s*(\S+)", re.MULTILINE)


def name_task(job: str, number: int) -> str:
    """Return the name of a task of a job array."""
    return f"{job}_{number}"


def read_states(jobs: Collection[str], *options: str) -> dict[str, str]:
    """Return state and reason of each task of these arrays in the queue: `RUNNING`, `PENDING Priority`."""
    argv = ["squeue", "--all", "--array", "--noheader", *options, f"--jobs={_join(jobs)}", "--format=%F %K %T %r"]
    # User settings that restrict the output would make tasks seem missing.
    environ = {key: value for key, value in os.environ.items() if not key.startswith("SQUEUE_")}
    done = helper_program.run(argv, timeout_s=_LIMIT_S, environ=environ, check=False)
    if "Invalid job id" in done.stderr:  # Slurm no longer knows the job
        return {}
    if done.status != 0:
        raise CommandError(argv, done.status, done.stderr)
    matches = filter(None, map(_TASK.fullmatch, done.stdout.splitlines()))
    return {
        name_task(match[1], int(match[2])): f"{match[3]} {match[4]}".removesuffix(" None").strip() for match in matches
    }


def list_end_states(jobs: Collection[str]) -> Mapping[str, str]:
    """Return the end state of each task of these arrays: `TIMEOUT`, `FAILED NonZeroExitCode`.

    Tasks that Slurm no longer has are missing. Slurm's queue keeps end states for some minutes; its accounting, if
    there is one, keeps them longer.
    """
    remembered = {task: state for task, state in read_states(jobs, "--states=all").items() if _is_end(state)}
    return _list_accounted(jobs) | remembered


def _list_accounted(jobs: Collection[str]) -> dict[str, str]:
    argv = ["sacct", "--allocations", "--noheader", "--parsable2", "--format=JobID,State", f"--jobs={_join(jobs)}"]
    try:
        done = helper_program.run(argv, timeout_s=_LIMIT_S, check=False)
    except CommandError:  # accounting is not installed or does not answer: the overview has fewer details
        return {}
    rows = (line.partition("|") for line in done.stdout.splitlines())
    return {task: state for task, _, state in rows if _is_end(state)}


def _join(jobs: Collection[str]) -> str:
    return ",".join(sorted(jobs))


def _is_end(state: str) -> bool:
    return state.partition(" ")[0] in _ENDS


def read_cluster_states(cluster_name: str, jobs: Collection[str]) -> Mapping[str, str]:
    """Return the result of `read_states` on this cluster; CommandError if this is another cluster."""
    if (name := read_cluster()) != cluster_name:
        raise CommandError(list(_ASK_CONFIG), 0, f"this is cluster {name}, not {cluster_name}")
    return read_states(jobs)


def read_cluster() -> str:
    """Return the name of the cluster of this Slurm."""
    text = helper_program.run(_ASK_CONFIG, timeout_s=_LIMIT_S).stdout
    if (match := _CLUSTER.search(text)) is None:
        raise CommandError(list(_ASK_CONFIG), 0, "its output has no ClusterName")
    return match[1]
