"""Whose orchestrator left a group open, and whether that may be closed here."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from pathlib import Path

import pytest

from pipeline import tracking
from pipeline.base.system import host_info
from pipeline.record import group_folder, group_record, owner
from pipeline.record.owner import Owner, Standing
from tests.support.tracking_cases import child, make_spool, record

BOOT, OTHER_BOOT = "d73c7570-fee9-44f5-abbd-6fd97157cc4a", "00000000-1111-2222-3333-444444444444"
MACHINE, OTHER_MACHINE = "3d1219c7c4c5404aaa1f6d2a48adfda4", "0" * 31 + "1"


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """This machine is called `here`; the folder holds its boot and its machine-id."""
    (folder := tmp_path / "machine").mkdir()
    (folder / "boot_id").write_text(f"{BOOT}\n")
    (folder / "machine-id").write_text(f"{MACHINE}\n")
    monkeypatch.setattr(host_info, "BOOT_ID_FILE", folder / "boot_id")
    monkeypatch.setattr(host_info, "MACHINE_ID_FILES", (folder / "none", folder / "machine-id"))
    monkeypatch.setattr(owner.platform, "node", lambda: "here")
    monkeypatch.setattr(owner, "_WATCH_S", 0.1)
    return folder


def leave_open(tmp_path: Path, name: str = "0001-a", **whose: str) -> Path:
    """The folder of a group that was left open by an orchestrator of this machine, unless `whose` says otherwise."""
    of = {"host": "here", "boot_id": BOOT, "machine_id": MACHINE} | whose
    running = record((child(0, result=None, end_ns=None),), spool_id=name, **of)
    folder = make_spool(tmp_path, running, name)
    os.utime(folder / "record.json", (1, 1))
    return folder


@pytest.mark.parametrize(
    ("boot", "machine_id", "name", "standing"),
    [
        (BOOT, MACHINE, "here", Standing.DEAD),
        (BOOT, OTHER_MACHINE, "a-container", Standing.DEAD),
        (BOOT, "", "a-container", Standing.DEAD),
        (OTHER_BOOT, MACHINE, "renamed", Standing.BEFORE_BOOT),
        (OTHER_BOOT, OTHER_MACHINE, "here", Standing.BEFORE_BOOT),
        (OTHER_BOOT, "", "here", Standing.BEFORE_BOOT),
        (OTHER_BOOT, OTHER_MACHINE, "there", Standing.ELSEWHERE),
        (OTHER_BOOT, "", "a-container", Standing.ELSEWHERE),
        ("", "", "here", Standing.DEAD),  # of an earlier version, which named the host alone
        ("", "", "there", Standing.ELSEWHERE),
        ("", MACHINE, "there", Standing.DEAD),
    ],
)
def test_boot_then_machine_id_or_name_say_whose_a_free_lock_is(boot, machine_id, name, standing):
    assert Owner(host=name, boot_id=boot, machine_id=machine_id).standing is standing


@pytest.mark.parametrize("text", ["", "\n", "uninitialized\n", "0" * 32, "not an id", "\xff"])
def test_two_machines_without_a_machine_id_are_not_one(machine: Path, text: str) -> None:
    (machine / "machine-id").write_text(text, encoding="latin-1")
    assert host_info.machine_id() == ""
    assert Owner(host="there", boot_id=OTHER_BOOT, machine_id="").standing is Standing.ELSEWHERE


def test_where_no_boot_is_known_the_name_decides(machine: Path) -> None:
    (machine / "boot_id").unlink()
    assert Owner(host="here", boot_id=BOOT, machine_id="").standing is Standing.DEAD
    assert Owner(host="there", boot_id="", machine_id="").standing is Standing.ELSEWHERE


def test_what_a_dead_container_left_is_closed_and_what_another_machine_left_only_when_asked(tmp_path: Path) -> None:
    of_container = leave_open(tmp_path, "0001-container", host="4f2a", machine_id="")
    before_boot = leave_open(tmp_path, "0002-boot", host="4f2a", boot_id=OTHER_BOOT)
    foreign_folder = leave_open(tmp_path, "0003-theirs", host="there", boot_id=OTHER_BOOT, machine_id=OTHER_MACHINE)
    spool = foreign_folder.parents[1]
    assert len(group_folder.read_ended(spool)) == 2
    survey = group_folder.survey(spool)
    assert (set(survey.ready), survey.elsewhere) == ({of_container, before_boot}, {foreign_folder: "there"})
    assert [group_record.read(folder).is_closed for folder in (of_container, foreign_folder)] == [True, False]
    survey = group_folder.survey(spool, closes_lost=True)
    assert (foreign_folder in survey.ready, survey.elsewhere) == (True, {})
    assert group_record.read(foreign_folder).status == "KILLED"


def test_a_container_that_lives_keeps_its_group_by_its_lock(tmp_path: Path) -> None:
    folder = leave_open(tmp_path, host="4f2a", machine_id="")
    with (folder / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        survey = group_folder.survey(folder.parents[1], closes_lost=True)
    assert (survey.ready, survey.busy, survey.elsewhere) == ((), (folder,), {})


@pytest.mark.parametrize(
    ("whose", "closes_lost"),
    [
        ({"host": "of-the-same-image"}, False),  # machine-ids that come with an image are not one machine's
        ({"machine_id": OTHER_MACHINE}, False),  # neither are host names
        ({"host": "there", "machine_id": OTHER_MACHINE}, True),
    ],
)
def test_a_group_that_is_written_is_left_to_whoever_writes_it(tmp_path, monkeypatch, whose, closes_lost):
    monkeypatch.setattr(owner, "_WATCH_S", 1.0)
    folder = leave_open(tmp_path, boot_id=OTHER_BOOT, **whose)
    (folder / "samples.jsonl").write_text("{}\n")
    is_over = threading.Event()

    def sample() -> None:
        while not is_over.wait(0.1):
            with (folder / "samples.jsonl").open("a") as file:
                file.write("{}\n")

    (listener := threading.Thread(target=sample)).start()
    try:
        survey = group_folder.survey(folder.parents[1], closes_lost=closes_lost)
    finally:
        is_over.set()
        listener.join()
    assert (survey.ready, list(survey.elsewhere)) == ((), [folder])
    assert not group_record.read(folder).is_closed
    survey = group_folder.survey(folder.parents[1], closes_lost=closes_lost)
    assert (survey.ready, list(survey.elsewhere)) == ((folder,), [])


def test_nobody_waits_for_what_has_been_silent_for_an_hour(tmp_path, monkeypatch):
    folder = leave_open(tmp_path, boot_id=OTHER_BOOT)
    monkeypatch.setattr(owner.time, "sleep", lambda seconds: seconds < 1 or pytest.fail("it watched"))
    for path in folder.rglob("*"):
        os.utime(path, (time.time() - 4000,) * 2)
    assert group_folder.survey(folder.parents[1]).ready == (folder,)


@pytest.mark.slow
def test_flush_says_what_it_leaves_with_the_command_that_closes_it(tmp_path, monkeypatch, capsys):
    folder = leave_open(tmp_path, host="there", boot_id=OTHER_BOOT, machine_id="")
    root = folder.parents[2]
    assert tracking.main(["flush", "--root", str(root)]) == 1
    out = capsys.readouterr().out
    assert out.startswith(f"skipped {folder}: host there may still write it; if that host is lost, run ")
    assert out.endswith(f" -m pipeline.tracking flush --root {root} --close-lost\n")
    monkeypatch.setattr(tracking.RequestHandler, "send", lambda *_: None)
    assert tracking.main(["flush", "--root", str(root), "--close-lost"]) == 0
    assert group_record.read(folder).is_closed


def test_a_record_names_the_machine_that_wrote_it(tmp_path: Path) -> None:
    stored_record = group_record.read(make_spool(tmp_path, record(())))
    assert (stored_record.boot_id, stored_record.machine_id) == (BOOT, MACHINE)
