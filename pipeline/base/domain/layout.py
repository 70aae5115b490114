"""The names of all files and folders that a study leaves on disk or shares with its jobs.

docs/architecture.md lists the locations. The owner of a group's folder holds an flock on `lock` while it writes: if the
lock is free, the group is finished or its owner died. `record.json` is always complete, because it is replaced, never
edited; the last line of `samples.jsonl` may be truncated. The process that sends a group writes `mlflow.json` and holds
`send.lock`. `.init.lock` is held while the store is created or migrated, and contains the version of MLflow used.
"""

from __future__ import annotations

import os
import time

REHEARSAL = "-rehearsal"
"""Suffix of the experiments of rehearsals."""
DATABASE = "mlflow.db"
STORE_LOCK = ".init.lock"
STORE_ARTIFACTS = "artifacts"
SPOOL = "spool"
PLANS = "plans"
"""Facts that must be equal for all workers of a study on several GPUs."""
AMENDMENTS = "amendments"
LEFT_OUT = "left_out"
"""Job files that did not become artifacts: too many, too large, unreadable, or refused by the store."""

SHARED_PREFIX = "collocation-"
"""Prefix of the project's files in shared folders: `gpu.lock_dir` and /tmp."""

# Files in the folder of a group.
LOCK = "lock"
RECORD = "record.json"
SAMPLES = "samples.jsonl"
SERIES = "series.json"
"""Points of the series that jobs reported; also an artifact of the group's run."""
ARTIFACTS = "artifacts"
JOBS = "jobs"
RUN_IDS = "mlflow.json"
SEND_LOCK = "send.lock"
SENT_PREFIX = ".sent-"
"""Prefix of a sent folder that is being removed; folders left by a killed sender are deleted later."""

# Files in the folder of a job. `workloads/client.py`, which cannot import this module, repeats the first three.
JOB_FILE = "job.json"
EVENTS = "events.jsonl"
REQUESTS = "requests.bin"
STDOUT, STDERR = "stdout.log", "stderr.log"
SCRIPT_STORE = "mlflow"
OUTPUT = "output"
"""The folder that a job may fill; its files become artifacts of the run."""
ENVIRONMENT = "environment.txt"

# Artifacts of a group's run.
CONFIG = "config.yaml"
GROUP = "group.json"
PLAN = "plan.txt"
PROVENANCE = "provenance.txt"
PHASES = "phases.json"
TIMELINE = "timeline.json"
SLICES = "slices.json"
FIELDS = "fields.json"
ORCHESTRATOR_ERROR = "orchestrator_error.txt"
SCRIPT_PREFIX = "script-"
UNCOMMITTED = "uncommitted.diff"

# Artifacts of any run.
LONG_VALUES = "long_values.json"
SAMPLE_TABLE = "samples.parquet"
REQUEST_TABLE = "requests.parquet"
SCRIPT_METRICS = "script_metrics"
"""Files of MLflow's file store with metrics that have more points than the run of the job."""


def job_path(index: int) -> str:
    """Return the folder of a job, relative to the folder of its group."""
    return f"{JOBS}/{index}"


def host_path(index: int) -> str:
    """Return the folder of the output of the process that hosts a job and the jobs after it; as `job_path`."""
    return f"{ARTIFACTS}/process-{index}"


def make_stamp() -> str:
    """Return a part of a name that is unique to this start, even among starts within one second."""
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{os.urandom(3).hex()}"
