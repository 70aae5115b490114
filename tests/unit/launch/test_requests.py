"""Records of requests that come twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.launch import requests
from tests.support.rows import S
from workloads import client

MS = S // 1000
Record = tuple[int, int, int, int, int, int, int]


def make_single(number: int) -> list[Record]:
    """A request that is answered alone."""
    at_ns = S + 10 * MS * number
    return [(at_ns, at_ns, at_ns, 0, at_ns + 5 * MS, 0, 1)]


def make_batch(number: int) -> list[Record]:
    """Requests of different instants that are answered together."""
    at_ns = S + 10 * MS * number
    return [(at_ns + place, at_ns + place, at_ns + MS, 0, at_ns + 5 * MS, 7, 4) for place in range(4)]


def make_burst(number: int) -> list[Record]:
    """Requests of the same clients' turn: sent at one instant and answered together, so that they are equal."""
    return [(*make_single(number)[0][:6], 4)] * 4


def make_failures(number: int) -> list[Record]:
    """Requests that were sent at one instant and never answered."""
    return [(S + number, S + number, 0, 0, 0, 0, 1)] * 3


def read(path: Path, records: list[Record]) -> requests.Requests:
    path.write_bytes(b"".join(client.REQUEST.pack(*record) for record in records))
    read_requests = requests.read(path)
    assert read_requests is not None
    return read_requests


@pytest.mark.parametrize("make", [make_single, make_batch, make_burst])
@pytest.mark.parametrize("order", ["at once", "one after another", "much later", "no"])
def test_records_that_come_twice_count_once(tmp_path: Path, make, order: str) -> None:
    parts = [make(number) for number in range(100)]
    once = [record for part in parts for record in part]
    twice = {
        "no": once,
        "at once": [record for part in parts for record in part * 2],
        "one after another": [record for record in once for _ in range(2)],
        "much later": once * 2,
    }[order]
    recorded = read(tmp_path / "requests.bin", twice)
    assert len(recorded) == len(once)
    assert sorted(recorded["intended_ns"]) == sorted(record[0] for record in once)
    repeated = f"{len(once)} requests: a record that came before ({len(once)})"
    assert recorded.damages.describe() == ("" if order == "no" else repeated)


def test_one_repeated_record_of_a_batch_is_left_out(tmp_path: Path) -> None:
    records = make_batch(0) + make_batch(1)[:2] + make_batch(0)[:1]
    recorded = read(tmp_path / "requests.bin", records)
    assert (len(recorded), recorded.damages.describe()) == (6, "1 request: a record that came before")


def test_requests_without_an_answer_are_kept(tmp_path: Path) -> None:
    recorded = read(tmp_path / "requests.bin", make_failures(0) + make_single(1) + make_failures(0))
    assert (len(recorded), len(recorded.damages)) == (7, 0)
