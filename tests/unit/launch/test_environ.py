"""The CPUs of jobs and of the clients of servers."""

from __future__ import annotations

import itertools
import os

import pytest

from pipeline.base.domain.records import CpuPinning
from pipeline.launch import environ
from pipeline.launch.environ import list_client_cpus, share_cpus


@pytest.fixture
def set_cpus(monkeypatch):
    """Set the available CPUs; CPU i and CPU i + n/2 are two threads of one core."""

    def use(num_cpus: int) -> None:
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(num_cpus)))
        num_cores = max(1, num_cpus // 2)
        monkeypatch.setattr(environ, "_find_core", lambda cpu: (0, cpu % num_cores, cpu))

    return use


@pytest.mark.parametrize(("num_cpus", "clients"), [(16, [0, 8]), (32, [0, 1, 16, 17]), (4, [0, 2]), (1, [0])])
def test_clients_have_an_eighth_of_the_cores_and_at_least_one(set_cpus, num_cpus, clients):
    set_cpus(num_cpus)
    assert list_client_cpus(CpuPinning.SERVERS) == clients
    assert list_client_cpus(CpuPinning.JOBS) == list_client_cpus(CpuPinning.NONE) == []


@pytest.mark.parametrize("num_servers", [1, 2, 3, 4])
def test_servers_divide_the_other_cpus_whatever_their_number(set_cpus, num_servers):
    set_cpus(32)
    shares = [share_cpus(position, num_servers, CpuPinning.SERVERS) for position in range(num_servers)]
    others = set(range(32)) - set(list_client_cpus(CpuPinning.SERVERS))
    assert sorted(itertools.chain(*shares)) == sorted(others)
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_servers_without_enough_cpus_share_those_of_no_client_if_there_are_any(set_cpus):
    set_cpus(4)
    assert [share_cpus(position, 3, CpuPinning.SERVERS) for position in range(3)] == [[1], [3], [1]]
    set_cpus(1)
    assert share_cpus(1, 2, CpuPinning.SERVERS) == [0]
