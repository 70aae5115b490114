"""Files that changed while jobs ran: which are seen, and whose they are."""

from __future__ import annotations

import dataclasses
import os

import pytest

from pipeline.base.domain.window import WindowKind
from pipeline.base.domain.workload import Source
from pipeline.launch.events import Events
from pipeline.observe import changed_files, group_row
from pipeline.observe.changed_files import Changes
from pipeline.observe.clock import ClockRecord
from pipeline.observe.group_result import Observation
from tests.support.rows import S, group, state

CLOCK = ClockRecord(offsets=((0, 1_000_000 * S),))


def test_what_changed_is_found_but_nothing_hidden_old_or_of_ours(tmp_path):
    for name in (
        "new.pt",
        "deep/er/new.csv",
        "old.pt",
        ".git/index",
        "__pycache__/a.pyc",
        "mlruns/spool/x",
        "machine.json",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
        os.utime(tmp_path / name, ns=(0, get_wall_ns(5 if name == "old.pt" else 20)))
    (tmp_path / "linked").symlink_to(tmp_path / "deep")
    with (tmp_path / "messages.log").open("w") as messages:
        status = os.fstat(messages.fileno())
    ignored_paths = {tmp_path / "mlruns", tmp_path / "machine.json"}
    changed = changed_files.find_changes(
        tmp_path, 10 * S, CLOCK, without=ignored_paths, inodes={(status.st_dev, status.st_ino)}
    )
    assert changed.files == {tmp_path / "new.pt": get_wall_ns(20), tmp_path / "deep/er/new.csv": get_wall_ns(20)}
    assert changed.is_whole


def test_no_more_than_some_entries_are_looked_at_the_nearest_first(tmp_path, monkeypatch):
    monkeypatch.setattr(changed_files, "_MAX_ENTRIES", 3)
    (tmp_path / "a/b").mkdir(parents=True)
    for name in ("near", "a/far", "a/b/farthest"):
        (tmp_path / name).write_text("x")
    changed = changed_files.find_changes(tmp_path, 0, CLOCK, without=())
    assert tmp_path / "near" in changed.files and not changed.is_whole


@pytest.fixture
def pair(tmp_path):
    """Two scripts that ran from 0 s to 100 s; the second was process 4711."""
    both = group("a", "b", kind=WindowKind.WORK)
    states = [state(tmp_path, job, [{"event": "started", "t_ns": 0}]) for job in both.jobs]
    (states[1].folder / "events.jsonl").open("a").write('{"event":"process","t_ns":1,"pid":4711}\n')
    return both, states


def get_wall_ns(seconds: int) -> int:
    return CLOCK.wall_ns(seconds * S)


def test_a_file_that_two_jobs_may_have_written_is_named_in_the_row(tmp_path, pair):
    both, states = pair
    files = {
        tmp_path / "x/model.pt": get_wall_ns(50),
        tmp_path / "events.out.tfevents.170.my.host.4711.0": get_wall_ns(50),
    }
    seen = Observation(
        batches=[states],
        samples=(),
        changed=Changes(folder=tmp_path, files=files, is_whole=True),
        clock=CLOCK,
    )
    row = group_row.judge(both, seen)
    assert row.tags["collocation.shared_files"] == "changed while 2 jobs ran: x/model.pt"


@pytest.mark.parametrize(
    ("args", "texts", "is_shared"),
    [
        ((), ("open('result.json', 'w')", "open('log.txt', 'w')"), False),
        ((), ("open('result.json', 'w')", "json.load(open('result.json'))"), True),
        (("--out=result.json",), ("open(args.out, 'w')", "json.load(open('result.json'))"), True),
        (("--out", "result.json"), ("open(args.out, 'w')", None), False),
    ],
)
def test_different_programs_share_a_file_that_both_name(tmp_path, pair, args, texts, is_shared):
    _, states = pair
    for job_state, text, own_args in zip(states, texts, (args, ()), strict=True):
        script = tmp_path / f"{job_state.job.index}.py"
        if text is not None:  # else the script is gone by now
            script.write_text(text)
        workload = dataclasses.replace(
            job_state.job.workload,
            script=str(script),
            argv=(str(script), *own_args),
            sources=(Source(name=script.name, path=str(script), digest=""),),
        )
        job_state.job = dataclasses.replace(job_state.job, workload=workload)
    description = changed_files.describe_shared(tmp_path, {tmp_path / "result.json": None}, states)
    assert description == ("changed while 2 jobs ran: result.json" if is_shared else "")


def test_numbers_in_the_name_of_a_file_are_of_no_account(tmp_path, pair):
    _, states = pair
    for job_state in states:
        argv = (f"{job_state.job.index}.py", "--save=epoch{}.pt")
        workload = dataclasses.replace(job_state.job.workload, script=argv[0], argv=argv, sources=())
        job_state.job = dataclasses.replace(job_state.job, workload=workload)
    assert changed_files.describe_shared(tmp_path, {tmp_path / "epoch12.pt": None}, states).endswith(": epoch12.pt")
    assert not changed_files.describe_shared(tmp_path, {tmp_path / "epochs.csv": None}, states)


def test_jobs_in_folders_of_their_own_share_no_files(tmp_path, pair):
    _, states = pair
    apart = dataclasses.replace(states[1].job.workload, is_in_own_folder=True)
    states[1].job = dataclasses.replace(states[1].job, workload=apart)
    assert changed_files.describe_shared(tmp_path, {tmp_path / "model.pt": None}, states) == ""


@pytest.mark.parametrize(
    ("name", "is_shared"),
    [
        ("model.pt", True),
        ("runs/resnet18.pt", True),
        ("result-1.json", False),  # the number of the job
        ("101.log", False),  # its PID
        ("events.out.tfevents.1.h.101.0", False),
    ],
)
def test_copies_share_a_file_that_the_last_of_them_wrote_last(tmp_path, name, is_shared):
    both = group("a", "a", kind=WindowKind.WORK)
    states = [state(tmp_path, job, [{"event": "started", "t_ns": 0}]) for job in both.jobs]
    states[0].ended.at_ns = 40 * S
    changed = Changes(folder=tmp_path, files={tmp_path / name: get_wall_ns(50)}, is_whole=True)
    whose = changed_files.find_owners(changed, states, {0: Events(), 1: Events()}, CLOCK)
    assert list(whose.values()) == [1]
    shared = changed_files.describe_shared(tmp_path, whose, states)
    assert shared == (f"changed while 2 jobs ran: {name}" if is_shared else "")


def test_whose_a_file_is_follows_from_the_process_in_its_name_or_from_who_ran_alone(tmp_path, pair):
    _, states = pair
    states[0].ended.at_ns = 40 * S
    files = {
        tmp_path / "early": get_wall_ns(30),
        tmp_path / "late": get_wall_ns(50),
        tmp_path / "events.out.tfevents.1.h.4711.0": get_wall_ns(30),
    }
    logs = {0: Events(), 1: Events(processes=[4711])}
    changed = Changes(folder=tmp_path, files=files, is_whole=True)
    whose = changed_files.find_owners(changed, states, logs, CLOCK)
    assert list(whose.values()) == [None, 1, 1]
