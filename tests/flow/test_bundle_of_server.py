"""A bundle of a tracking server: equal to the bundle of the store that its runs came from."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pipeline.record.group_record import GroupRecord
from pipeline.record.store import bundle_reader, upload
from pipeline.record.store.local_store import open_store
from pipeline.report import bundle_command
from tests.support.bundles import EXPERIMENT, make_groups
from tests.support.mlflow_server import kill, start_server
from tests.support.slurm_cluster import free_ports
from tests.support.tracking_cases import make_spool

pytestmark = [pytest.mark.slow, pytest.mark.covers("pipeline/record/store", "pipeline/report")]


def test_a_server_and_a_store_give_the_same_runs_and_artifacts(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    server = start_server(tmp_path, port)
    try:
        uri = f"http://127.0.0.1:{port}"
        sent = send(tmp_path, uri)
        out = tmp_path / "study.tar.xz"
        assert bundle_command.main(["--uri", uri, "--experiment", EXPERIMENT, "--out", str(out)]) == 0
        assert bundle_command.main(["--uri", uri, "--experiment", "none", "--out", str(out)]) == 2
    finally:
        kill(server)
    experiment, read = bundle_reader.read_records(out)
    assert experiment == EXPERIMENT
    assert [group.name for group in read] == [group.name for group in sent]
    assert [[run.metrics for run in (group, *group.jobs)] for group in read] == [
        [run.metrics for run in (group, *group.jobs)] for group in sent
    ]
    (data,) = {job.params["--data"] for group in read for job in group.jobs}
    assert re.fullmatch(r"\$FOLDER_[0-9a-f]{6}/images", data) and "a246bb" not in data  # the digest without a salt
    assert (bundle_reader.locate(out, read[0].run_id) / "note.txt").read_text() == "$WORKING_FOLDER/x\n"


def send(folder: Path, uri: str) -> list[GroupRecord]:
    """Send the groups of a study to a server."""
    store, groups = open_store(Path(), uri), make_groups()[:3]
    for group in groups:
        spooled = make_spool(folder, group, group.spool_id)
        (spooled / "artifacts" / "note.txt").write_text("/home/alice/study/x\n")
        upload.send(lambda _: store, spooled, series_points=10)
    return groups
