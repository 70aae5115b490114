"""Eight workers into one MLflow server on PostgreSQL and S3, which are away in the middle."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import re
import tempfile
from collections import Counter
from pathlib import Path

import pytest

from pipeline.base.domain.tags import Tag, stored_name
from pipeline.base.system.paths import PROJECT_DIR
from pipeline.record.shards.overview import read_overview
from tests.support import forks, postgres_cluster
from tests.support.mlflow_server import kill, start_server
from tests.support.run_cases import SHORT, TOY, groups
from tests.support.servers import refuse_or_skip
from tests.support.slurm_cluster import free_ports

WORKERS = 8
KEYS = {"AWS_ACCESS_KEY_ID": "tests", "AWS_SECRET_ACCESS_KEY": "tests", "AWS_DEFAULT_REGION": "us-east-1"}
BUCKET = "mlflow"
STUDY = ["-m", *TOY, *SHORT, "degree=2", f"repeats={WORKERS}", "listeners=[host]", "gpu=simulated_a100_40gb"]
MACHINE = [f"gpu.count={WORKERS}", "gpu.machine=machine.json"]


def missing():
    """Why there can be no such server here, in words; empty if there can."""
    absent = [name for name in ("boto3", "moto", "psycopg2") if importlib.util.find_spec(name) is None]
    return f"{', '.join(absent)}: not installed (pip install '.[dev]')" if absent else postgres_cluster.missing()


pytestmark = [
    refuse_or_skip(missing()),
    pytest.mark.slow,
    pytest.mark.covers("pipeline/record/store", "pipeline/tracking.py"),
]


class Bucket:
    """An S3 endpoint with a bucket, which can be away; what it holds stays."""

    def __init__(self):
        import boto3

        logging.getLogger("werkzeug").setLevel(logging.ERROR)  # else a line for each file
        (self.port,) = free_ports(1)
        self.address = f"http://127.0.0.1:{self.port}"
        self.server = None
        self.come_back()
        secrets = {"aws_access_key_id": KEYS["AWS_ACCESS_KEY_ID"], "aws_secret_access_key": "tests"}
        self.client = boto3.client("s3", endpoint_url=self.address, region_name=KEYS["AWS_DEFAULT_REGION"], **secrets)
        self.client.create_bucket(Bucket=BUCKET)

    def come_back(self):
        from moto.server import ThreadedMotoServer

        self.server = ThreadedMotoServer("127.0.0.1", self.port, verbose=False)
        self.server.start()

    def go_away(self):
        if self.server is not None:
            self.server.stop()
        self.server = None

    def files(self):
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET)
        return [entry["Key"] for page in pages for entry in page.get("Contents", ())]


@pytest.fixture
def bucket():
    bucket = Bucket()
    yield bucket
    bucket.go_away()


@pytest.fixture
def serve(tmp_path, bucket):
    """Start the server on PostgreSQL and the bucket, always at the same address; gives the address and the process."""
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="postgres-", dir="/tmp"))
        Path(folder).chmod(0o755)  # PostgreSQL is another user
        database = stack.enter_context(postgres_cluster.cluster(Path(folder) / "cluster"))
        (port,) = free_ports(1)
        environ = {**KEYS, "MLFLOW_S3_ENDPOINT_URL": bucket.address, "AWS_MAX_ATTEMPTS": "1"}
        where = {"database": database, "artifacts": f"s3://{BUCKET}/artifacts", "environ": environ}

        def start():
            process = start_server(tmp_path, port, 120, **where)
            stack.callback(kill, process)
            return f"http://127.0.0.1:{port}", process

        yield start


def test_eight_workers_lose_no_row_and_send_none_twice_while_server_and_bucket_are_away(tmp_path, serve, bucket):
    uri, server = serve()
    environ = {**os.environ, "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"}

    def start(shard):
        (tmp_path / f"host{shard}").mkdir()
        tracking = ["tracking=server", f"tracking.uri={uri}", f"tracking.root=host{shard}/mlruns"]
        places = [f"gpu.lock_dir={tmp_path}", f"plan_file={tmp_path}/plan.json"]
        arguments = [f"shard={shard}", f"gpu.device={shard - 1}", "gpu.other_gpus=7"]
        argv = [PROJECT_DIR / "run.py", *STUDY, *MACHINE, *tracking, *places, *arguments]
        return forks.start(*argv, cwd=tmp_path, env=environ)

    def flush(shards):
        commands = [["-m", "pipeline.tracking", "flush", "--root", tmp_path / f"host{u}/mlruns"] for u in shards]
        running = [forks.start(*command, env=environ) for command in commands]
        outputs = [process.communicate(timeout=600) for process in running]
        return [process.returncode for process in running], outputs

    shards = range(1, WORKERS + 1)
    workers = [start(shard) for shard in shards]
    for worker in workers:
        assert any(re.match(r"\[1/2\]", line) for line in worker.stderr)
    kill(server)
    bucket.go_away()
    outputs = [worker.communicate(timeout=600) for worker in workers]
    assert [worker.returncode for worker in workers] == [1] * WORKERS, outputs
    assert all("could not be sent" in err for _, err in outputs), outputs

    uri, _ = serve()
    statuses, outputs = flush([1, 2])
    assert statuses == [1, 1], outputs  # of the runs that they made, no file could be kept
    bucket.come_back()
    statuses, outputs = flush([*shards, *shards])  # each twice at once
    assert statuses == [0] * 2 * WORKERS, outputs
    assert not list(tmp_path.glob("host*/mlruns/spool/*"))

    overview = read_overview(uri, "collocation-rehearsal")
    assert [(shard.number, dict(shard.results)) for shard in overview.shards] == [
        (shard, {"ok": 2}) for shard in shards
    ]
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    sent = groups(client, "collocation-rehearsal")
    assert len({run.data.tags[stored_name(Tag.DIGEST)] for run, _ in sent}) == len(sent) == 2 * WORKERS
    assert Counter(len(jobs) for _, jobs in sent) == {1: WORKERS, 2: WORKERS}
    assert all(run.info.status == "FINISHED" for group, jobs in sent for run in (group, *jobs))
    assert all("job.json" in {file.path for file in client.list_artifacts(job.info.run_id)} for _, [job, *_] in sent)
    of_runs = Counter(key.split("/")[2] for key in bucket.files())
    assert of_runs.keys() == {run.info.run_id for group, jobs in sent for run in (group, *jobs)}
