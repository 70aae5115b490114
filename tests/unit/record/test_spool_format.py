"""Spool folders that others left: which are taken, which are left alone, which cannot be read."""

from __future__ import annotations

import fcntl
import json
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.base.domain.records import Result
from pipeline.base.system.errors import TrackingError
from pipeline.record import group_folder, group_record
from tests.support.tracking_cases import (
    CLOCK,
    SECOND,
    START,
    as_running,
    child,
    make_spool,
    record,
    sample,
)


def test_recover_closes_what_a_dead_owner_left(tmp_path: Path) -> None:
    running = {"result": None, "end_ns": None}
    open_record = record((child(0, **running), child(1, result=Result.FAILED)))
    open_record = replace(open_record, **running)
    folder = make_spool(tmp_path, open_record)
    events = folder / "jobs" / "0" / "events.jsonl"
    events.write_text(f'{{"event":"step","t_ns":{START + 9 * SECOND}}}\n{{"event":"st')
    (folder / "samples.jsonl").write_text(sample("nvml", 100, {"power_w": 1.0}))
    os.utime(folder / "record.json", ns=(0, CLOCK.wall_ns + 2 * SECOND))

    assert group_folder.survey(tmp_path / "spool").ready == (folder,)

    closed = group_record.read(folder)
    assert (closed.is_closed, closed.status, closed.end_ns) == (True, "KILLED", START + 100 * SECOND)
    first, second = closed.jobs
    assert (first.status, first.end_ns, first.result) == (
        "KILLED",
        START + 9 * SECOND,
        "interrupted",
    )
    assert second == open_record.jobs[1]
    assert group_folder.survey(tmp_path / "spool").ready == (folder,)
    assert group_record.read(folder) == closed


def test_recover_leaves_the_living_alone_and_takes_the_oldest_first(tmp_path: Path) -> None:
    def make_folder_at(second: int, name: str) -> Path:
        clock = replace(CLOCK, wall_ns=CLOCK.wall_ns + second * SECOND)
        return make_spool(tmp_path, record((child(0),), clock=clock, result=None, end_ns=None), name)

    late, early, living = make_folder_at(2, "0001-a"), make_folder_at(1, "0002-b"), make_folder_at(3, "0003-c")
    (damaged := make_folder_at(4, "0004-d") / "record.json").write_text('{"version": 1, "st')
    (tmp_path / "spool" / "study" / ".sent-0000-z").mkdir()
    (tmp_path / "spool" / "study" / ".sent-0000-z" / "record.json").write_text("{}")
    with (living / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        survey = group_folder.survey(tmp_path / "spool")
        assert not group_record.read(living).is_closed
    assert (survey.ready, survey.busy) == ((early, late), (living,))
    assert list(survey.unreadable) == [damaged.parent]
    assert not (tmp_path / "spool" / "study" / ".sent-0000-z").exists()


def test_what_has_ended_is_told_without_a_change(tmp_path: Path) -> None:
    running = as_running(record((child(0, result=None, end_ns=None),)))
    dead, living, elsewhere, done = (
        make_spool(tmp_path, written, name)
        for name, written in (
            ("0001-dead", running),
            ("0002-living", replace(running, spool_id="living")),
            ("0003-elsewhere", replace(running, spool_id="elsewhere", host="another", boot_id="", machine_id="")),
            ("0004-done", replace(record((child(0),)), spool_id="done")),
        )
    )
    (sent := tmp_path / "spool" / "study" / ".sent-0000-z").mkdir()
    (sent / "record.json").write_text("{}")
    before = {path: path.read_bytes() for path in (tmp_path / "spool").rglob("*") if path.is_file()}
    with (living / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        first, second = group_folder.read_ended(tmp_path / "spool")
    assert {path: path.read_bytes() for path in (tmp_path / "spool").rglob("*") if path.is_file()} == before
    assert (second, elsewhere.is_dir()) == (group_record.read(done), True)
    group_folder.survey(tmp_path / "spool")
    assert first == group_record.read(dead)


def test_a_spool_that_others_made_removes_and_ends_nothing_of_ours(tmp_path: Path, monkeypatch) -> None:
    cleared: list[str] = []
    monkeypatch.setattr(group_folder.leftovers, "clear", lambda spool_id: cleared.append(spool_id) or 0)
    running = as_running(record(()))
    forged = make_spool(tmp_path, replace(running, spool_id="a/../other"), "0001-forged")
    foreign_folder = make_spool(tmp_path, replace(running, spool_id="b"), "0002-theirs")
    monkeypatch.setattr(os, "geteuid", lambda: foreign_folder.stat().st_uid + 1)
    (elsewhere := tmp_path / "elsewhere" / "folder").mkdir(parents=True)
    (elsewhere / "lock").touch()
    os.utime(elsewhere / "lock", (0, 0))
    (tmp_path / "spool" / "link").symlink_to(elsewhere.parent)
    survey = group_folder.survey(tmp_path / "spool")
    assert survey.ready == (foreign_folder,) and list(survey.unreadable) == [forged]
    assert "spool_id 'a/../other' is not an id" in survey.unreadable[forged]
    assert elsewhere.is_dir() and not cleared


@pytest.mark.parametrize("line", ['{"t_ns": Infinity}', '{"t_ns": 1e300}', "[" * 50_000, f'{{"t_ns": {10**30}}}'])
def test_what_a_killed_job_wrote_last_may_be_anything(tmp_path: Path, line: str) -> None:
    folder = make_spool(tmp_path, as_running(record((child(0, result=None, end_ns=None),))))
    (folder / "jobs" / "0" / "events.jsonl").write_text(f"{line}\n")
    os.utime(folder / "record.json", ns=(0, CLOCK.wall_ns + 2 * SECOND))
    assert group_folder.survey(tmp_path / "spool").ready == (folder,)
    assert group_record.read(folder).jobs[0].end_ns == CLOCK.monotonic_ns + 2 * SECOND


def test_what_is_made_below_the_spool_survives_whoever_removes_its_empty_folders(tmp_path: Path) -> None:
    tries = []

    def make() -> None:
        tries.append(1)
        if len(tries) < 3:
            raise FileNotFoundError

    group_folder.create_below_spool(make)
    assert len(tries) == 3


def test_a_record_of_another_version_is_not_guessed_at(tmp_path: Path) -> None:
    folder = make_spool(tmp_path, record((child(0),)))
    raw = json.loads((folder / "record.json").read_text()) | {"version": 1}
    (folder / "record.json").write_text(json.dumps(raw))
    with pytest.raises(
        TrackingError, match=r"could not read .*record.json: : unknown key 'version'|unknown key 'version'"
    ):
        group_record.read(folder)


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    written = record((child(0, gi_id=2), child(1)), number=7)
    assert group_record.read(make_spool(tmp_path, written)) == written


def test_what_a_full_disk_left_without_a_record_goes_once_it_is_old(tmp_path: Path) -> None:
    for name, age_s in (("old", 7200), ("young", 0)):
        folder = tmp_path / "spool/study" / name
        (folder / "artifacts").mkdir(parents=True)
        (folder / "lock").touch()
        os.utime(folder / "lock", (time.time() - age_s,) * 2)
    survey = group_folder.survey(tmp_path / "spool")
    assert (survey.ready, survey.unreadable) == ((), {})
    assert [path.name for path in (tmp_path / "spool/study").iterdir()] == ["young"]
