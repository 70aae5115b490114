"""How far jobs are while they run: the rate is that of the last seconds, however often somebody asks."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from pipeline.observe.view import LiveJobs
from tests.support.rows import S, group


class Jobs:
    """Jobs whose steps a test writes, at instants that it gives."""

    def __init__(self, folder, *names):
        self.group, self.folder, self.now_s = group(*names), folder, 0.0
        self.alive = {index: 1000 + index for index in range(len(names))}
        live = SimpleNamespace(folder=folder, pids=lambda: self.alive)
        self.live = LiveJobs(self.group, live, lambda: int(self.now_s * S))

    def step(self, index, t_s, total):
        file = self.folder / f"jobs/{index}/events.jsonl"
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("a") as out:
            out.write(json.dumps({"event": "step", "t_ns": int(t_s * S), "total": total, "epoch": 2}) + "\n")

    def at(self, now_s):
        self.now_s = now_s
        return self.live.read()


@pytest.fixture
def jobs(tmp_path):
    return Jobs(tmp_path, "a", "b")


def test_jobs_wait_work_and_end(jobs):
    jobs.alive = {0: 1000}
    jobs.step(0, 1, 10)
    first, second = jobs.at(2)
    assert (first.phase, first.epoch, first.total, first.per_s) == ("train", 2, 10, None)
    assert (second.phase, second.epoch, second.total, second.per_s) == ("waiting", None, None, None)
    jobs.step(0, 2, 30)
    assert jobs.at(3)[0].per_s == 20
    jobs.alive = {}
    ended = jobs.at(4)[0]
    assert (ended.phase, ended.total, ended.per_s) == ("ended", 30, None)


def test_the_rate_is_that_of_the_last_seconds(jobs):
    for second in range(1, 30):
        jobs.step(0, second, 10 * second if second < 20 else 10_000 + second)
        rate = jobs.at(second + 0.5)[0].per_s
        if second == 19:
            assert rate == 10
    assert rate == 1  # what was faster is more than five seconds ago


def test_a_job_that_does_nothing_has_no_rate(jobs):
    jobs.step(0, 1, 10)
    jobs.at(1)
    jobs.step(0, 2, 20)
    assert [jobs.at(now)[0].per_s for now in (2, 4, 6, 8)] == [10, 10, 10, None]


def test_who_asks_rarely_gets_the_rate_since_then(jobs):
    jobs.step(0, 1, 10)
    jobs.at(1)
    jobs.step(0, 61, 130)
    assert jobs.at(61)[0].per_s == 2
