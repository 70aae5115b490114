"""The kernel's count of processes that it killed for lack of memory is found in every hierarchy of control groups."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.base.system import cgroup

V2 = "30 20 0:26 / {sys}/cgroup rw - cgroup2 cgroup2 rw\n"
V1 = (
    "35 31 0:32 / {sys}/cgroup/memory rw - cgroup cgroup rw,memory\n"
    "34 31 0:31 / {sys}/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
)
# A container that sees the hierarchy from its own group on, but not the name of that group.
V1_OF_DOCKER = "35 31 0:32 /docker/abc {sys}/cgroup/memory ro - cgroup cgroup rw,memory\n"
V2_BESIDE_V1 = "41 31 0:38 / {sys}/cgroup/unified rw - cgroup2 cgroup2 rw\n"
EVENTS = "low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\noom_group_kill 0\n"
CONTROL = "oom_kill_disable 0\nunder_oom 0\noom_kill 5\n"


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Say which control groups this process is in, and where they are mounted."""
    monkeypatch.setattr(cgroup, "_PROC", tmp_path / "proc")

    def make(groups: str, mounts: str) -> None:
        write(tmp_path / "proc/self/cgroup", f"{groups}\n")
        write(tmp_path / "proc/self/mountinfo", mounts.format(sys=tmp_path / "sys"))

    return make


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(
    ("groups", "mounts", "file", "text", "count"),
    [
        ("0::/user.slice/job 1", V2, "sys/cgroup/user.slice/job 1/memory.events", EVENTS, 2),
        ("0::/", V2, "sys/cgroup/memory.events", EVENTS, 2),
        (
            "4:memory:/slurm/job_1\n2:cpu:/\n0::/",
            V1 + V2_BESIDE_V1,
            "sys/cgroup/memory/slurm/job_1/memory.oom_control",
            CONTROL,
            5,
        ),
        ("4:cpu,memory:/docker/abc", V1_OF_DOCKER, "sys/cgroup/memory/memory.oom_control", CONTROL, 5),
        ("0::/", V2, "proc/vmstat", "nr_free_pages 7\noom_kill 9\n", 9),
        ("0::/a", V2, "proc/vmstat", "nr_free_pages 7\noom_kill 9\n", None),
        ("0::/a", V2, "sys/cgroup/a/memory.events", "oom_kill many\n", None),
        ("4:memory:/a", V1, "sys/cgroup/memory/a/memory.oom_control", "under_oom 0\n", None),
    ],
)
def test_the_count_is_that_of_the_group_of_this_process(machine, tmp_path, groups, mounts, file, text, count):
    machine(groups, mounts)
    write(tmp_path / file, text)
    assert cgroup.count_oom_kills() == count


def test_where_nothing_can_be_read_there_is_no_count(machine, tmp_path):
    assert cgroup.count_oom_kills() is None
    machine("0::/a", V2)
    assert cgroup.count_oom_kills() is None
