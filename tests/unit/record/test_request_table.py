"""The requests of a job as an artifact of its run."""

from __future__ import annotations

from pipeline.record import sample_series
from pipeline.record.group_record import Clock
from workloads import client


def test_the_table_has_every_whole_record_and_what_never_came_is_missing(tmp_path):
    import pandas as pd

    clock, file = Clock(wall_ns=10**18, monotonic_ns=1000), tmp_path / client.REQUESTS_FILE
    records = [(2000, 2001, 2005, 2007, 2010, 3, 4), (3000, 3001, 0, 0, 0, 0, 1)]
    file.write_bytes(b"".join(client.REQUEST.pack(*record) for record in records) + b"torn")
    path = sample_series.write(file, clock, tmp_path)
    assert path is not None
    table = pd.read_parquet(path)
    assert table["wall_time"].astype("int64").tolist() == [10**18 + 1000, 10**18 + 2000]
    first, second = table.drop(columns="wall_time").to_dict("records")
    assert tuple(first.values()) == records[0]
    assert pd.isna([second["begun_ns"], second["first_token_ns"], second["done_ns"]]).all()
    assert (second["sent_ns"], second["tokens"], second["batch"]) == (3001, 0, 1)


def test_a_job_without_requests_has_no_table(tmp_path):
    assert sample_series.write(tmp_path / client.REQUESTS_FILE, Clock(wall_ns=1, monotonic_ns=1), tmp_path) is None
