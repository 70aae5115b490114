"""The name of every file and folder that a study leaves on disk, and of those that it shares with its jobs.

<tracking.root>/
mlflow.db                    the local store; artifacts/<experiment>/ holds the artifacts of its runs
.init.lock                   held while the store is created or migrated; names the MLflow version that did it
spool/<study>/<0001-name>/   a group until the store has all of it
lock                     its owner holds an flock on it while it writes; free: it is finished, or the owner died
record.json              what the store will be told; always whole, because it is replaced and never edited
samples.jsonl            one line a sample; its last line may be torn
artifacts/               files of the group's run
jobs/<i>/                files of a job's run: job.json, events.jsonl, its output, and mlflow/, to which its
own MLflow calls go
mlflow.json, send.lock   written and held by the process that sends it
spool/amendments/<spool id>.json     figures that came after a group was closed
"""

from __future__ import annotations

DATABASE = "mlflow.db"
STORE_LOCK = ".init.lock"
STORE_ARTIFACTS = "artifacts"
SPOOL = "spool"
AMENDMENTS = "amendments"

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

# In the folder of a job. `workloads/client.py`, which imports nothing of ours, names the first two as well.
JOB_FILE = "job.json"
EVENTS = "events.jsonl"
STDOUT, STDERR = "stdout.log", "stderr.log"
SCRIPT_STORE = "mlflow"
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

# Artifacts of any run.
LONG_VALUES = "long_values.json"
SAMPLE_TABLES = ("samples.parquet", "samples.csv")
"""The second one is written where pyarrow is missing (as with mlflow-skinny)."""


def job_path(index: int) -> str:
    """The folder of a job, relative to that of its group."""
    return f"{JOBS}/{index}"
