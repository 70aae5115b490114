"""The name of every file and folder that a study leaves on disk, and of those that it shares with its jobs.

docs/architecture.md says what lies where. Whoever owns a group's folder holds an flock on `lock` while it writes: where
it is free, the group is finished or its owner died. `record.json` is always whole, because it is replaced and never
edited; the last line of `samples.jsonl` may be torn. The process that sends a group writes `mlflow.json` and holds
`send.lock`. `.init.lock` is held while the store is created or migrated, and names the MLflow version that did it.
"""

from __future__ import annotations

import os
import time

DATABASE = "mlflow.db"
STORE_LOCK = ".init.lock"
STORE_ARTIFACTS = "artifacts"
SPOOL = "spool"
PLANS = "plans"
"""What the workers of a study on several GPUs agree on."""
AMENDMENTS = "amendments"
LEFT_OUT = "left_out"
"""Files of jobs that did not become artifacts: too many, too large, unreadable, or not taken by the store."""

SHARED_PREFIX = "collocation-"
"""Of what lies in folders that others use too: `gpu.lock_dir` and /tmp."""

# In the folder of a group.
LOCK = "lock"
RECORD = "record.json"
SAMPLES = "samples.jsonl"
ARTIFACTS = "artifacts"
JOBS = "jobs"
RUN_IDS = "mlflow.json"
SEND_LOCK = "send.lock"
SENT_PREFIX = ".sent-"
"""Of a folder that was accepted and is being removed; what a killed sender leaves of it is swept later."""

# In the folder of a job. `workloads/client.py`, which imports nothing of ours, names the first three as well.
JOB_FILE = "job.json"
EVENTS = "events.jsonl"
REQUESTS = "requests.bin"
STDOUT, STDERR = "stdout.log", "stderr.log"
SCRIPT_STORE = "mlflow"
OUTPUT = "output"
"""The folder that a job may fill; what is in it becomes artifacts of its run."""
ENVIRONMENT = "environment.txt"

# Artifacts of a group's run.
CONFIG = "config.yaml"
GROUP = "group.json"
PLAN = "plan.txt"
PROVENANCE = "provenance.txt"
PHASES = "phases.json"
TIMELINE = "timeline.json"
FIELDS = "fields.json"
ORCHESTRATOR_ERROR = "orchestrator_error.txt"
SCRIPT_PREFIX = "script-"
UNCOMMITTED = "uncommitted.diff"

# Artifacts of any run.
LONG_VALUES = "long_values.json"
SAMPLE_TABLE = "samples.parquet"
REQUEST_TABLE = "requests.parquet"
SCRIPT_METRICS = "script_metrics"
"""Files of MLflow's file store: of metrics with more points than the run of the job has."""


def job_path(index: int) -> str:
    """Return the folder of a job, relative to that of its group."""
    return f"{JOBS}/{index}"


def make_stamp() -> str:
    """Return a part of a name that is unique to this start, even within a second."""
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{os.urandom(3).hex()}"
