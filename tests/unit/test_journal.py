"""Undo steps are on disk before they are taken, survive every kill, and are carried out once, newest first."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from pipeline import journal as journals
from pipeline.errors import SharingError
from pipeline.journal import Journal, JournalError, replay

UUID = "GPU-11111111-2222-3333-4444-555555555555"
TAKEN = "taken"


def remove_file(path: str) -> None:
    """What the tests undo: a file that was made. Content with what is gone, as every such function is."""
    Path(path).unlink(missing_ok=True)
    with (Path(path).parent / "undone.log").open("a") as log:
        log.write(Path(path).name + "\n")


def fail(path: str) -> None:
    raise SharingError(f"{path} is stuck")


@pytest.fixture(autouse=True)
def kinds(monkeypatch):
    monkeypatch.setitem(journals.UNDO_FUNCTIONS, "file", "unit_journal_steps.remove_file")
    monkeypatch.setitem(journals.UNDO_FUNCTIONS, "stuck", "unit_journal_steps.fail")
    monkeypatch.setitem(sys.modules, "unit_journal_steps", sys.modules[__name__])


@pytest.fixture
def journal(tmp_path):
    return Journal(tmp_path, UUID)


def undone(tmp_path):
    log = tmp_path / "undone.log"
    return log.read_text().split() if log.exists() else []


def test_a_step_is_on_disk_while_its_body_runs_and_nothing_is_left_afterwards(journal, tmp_path):
    made = tmp_path / TAKEN
    with journal.undoing("file", path=str(made)):
        assert json.loads(journal.path.read_text())["arguments"] == {"path": str(made)}
        made.touch()
        assert [step.kind for step in Journal(tmp_path, UUID).steps()] == ["file"]  # as another process reads it
    assert not made.exists()
    assert not journal.path.exists()


def test_each_device_has_a_journal_of_its_own(journal, tmp_path):
    other = Journal(tmp_path, "MIG-0/1")
    other.add("file", path=str(tmp_path / "other"))
    journal.add("file", path=str(tmp_path / "own"))
    assert [step.arguments["path"] for step in replay(journal)] == [str(tmp_path / "own")]
    assert len(other.steps()) == 1
    assert other.path.parent == tmp_path


def test_what_became_known_later_is_used(journal, tmp_path):
    (tmp_path / "known-later").touch()
    with journal.undoing("file", path="/nonexistent/guess") as step:
        journal.amend(step, path=str(tmp_path / "known-later"))
        assert len(journal.steps()) == 1
    assert undone(tmp_path) == ["known-later"]


def test_steps_are_undone_newest_first_and_once(journal, tmp_path):
    steps = [journal.add("file", path=str(tmp_path / name)) for name in ("a", "b", "c")]
    journal.undo(steps[1])
    assert [step.step_id for step in replay(journal)] == [steps[2].step_id, steps[0].step_id]
    assert undone(tmp_path) == ["b", "c", "a"]
    assert replay(journal) == ()
    journal.undo(steps[0])
    assert undone(tmp_path) == ["b", "c", "a"]


def test_a_step_that_cannot_be_undone_stays_and_the_older_ones_are_undone(journal, tmp_path):
    journal.add("file", path=str(tmp_path / "a"))
    for name in ("x", "y"):
        journal.add("stuck", path=name)
    with pytest.raises(SharingError, match="y is stuck") as caught:
        replay(journal)
    assert caught.value.__notes__ == ["also not undone: x is stuck"]
    assert undone(tmp_path) == ["a"]
    assert [step.kind for step in journal.steps()] == ["stuck", "stuck"]


def test_the_error_of_a_body_is_not_hidden_by_that_of_its_undoing(journal):
    with pytest.raises(ValueError, match="the body") as caught, journal.undoing("stuck", path="it"):
        raise ValueError("the body")
    assert "it is stuck" in caught.value.__notes__[0]
    assert [step.kind for step in journal.steps()] == ["stuck"]


def test_a_failed_undoing_of_a_good_body_is_raised(journal):
    with pytest.raises(SharingError, match="it is stuck"), journal.undoing("stuck", path="it"):
        pass


def run_killed(folder: Path, fatal: int) -> int:
    """Take two steps in a process of its own that SIGKILL ends right before one of its writes; returns its status."""
    if pid := os.fork():
        return os.waitpid(pid, 0)[1]
    try:
        count = 0

        def step(event: str, args: Any) -> None:
            nonlocal count
            is_write = event == "open" and Path(str(args[0])).parent == folder and args[2] & (os.O_WRONLY | os.O_RDWR)
            if is_write or event in ("os.truncate", "os.remove"):
                count += 1
                if count == fatal:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(step)
        journal = Journal(folder, UUID)
        with journal.undoing("file", path=str(folder / "a")):
            (folder / "a").touch()
            with journal.undoing("file", path=str(folder / "b")):
                (folder / "b").touch()
        os._exit(0)
    finally:
        os._exit(1)


def test_killed_at_any_step_the_next_start_finds_and_undoes_everything(tmp_path):
    for fatal in range(1, 100):
        folder = tmp_path / str(fatal)
        folder.mkdir()
        status = run_killed(folder, fatal)
        replay(Journal(folder, UUID))
        assert {path.name for path in folder.iterdir()} <= {"undone.log"}, f"killed at step {fatal}"
        if status == 0:
            break
        assert os.WIFSIGNALED(status)
    assert fatal > 12, "the process was hardly killed anywhere"


def test_half_a_line_is_a_step_that_was_not_taken(journal, tmp_path):
    first = journal.add("file", path=str(tmp_path / "a"))
    journal.add("file", path=str(tmp_path / "not-taken"))
    journal.path.write_bytes(journal.path.read_bytes()[:-20])
    assert journal.steps() == (first,)
    journal.add("file", path=str(tmp_path / "b"))
    replay(journal)
    assert undone(tmp_path) == ["b", "a"]


def test_a_file_with_only_half_a_line_goes_away(journal):
    journal.path.write_bytes(b'{"step_id": "1", "ki')
    assert replay(journal) == ()
    assert not journal.path.exists()


@pytest.mark.parametrize(
    "line", [b"rubbish\n", b'{"undone": "nothing that was added"}\n', b'{"step_id": "1"}\n', b"[]\n"]
)
def test_a_line_of_somebody_else_is_refused(journal, line):
    journal.path.write_bytes(line)
    with pytest.raises(JournalError, match="a line that is not ours"):
        replay(journal)
    assert journal.path.read_bytes() == line


def test_a_step_of_an_unknown_kind_is_kept(journal):
    journal.path.write_bytes(b'{"step_id": "1", "kind": "future", "arguments": {}}\n')
    with pytest.raises(JournalError, match="kind 'future'"):
        replay(journal)
    assert len(journal.steps()) == 1


@pytest.mark.parametrize("trick", ["link", "writable", "folder"])
def test_a_file_that_others_could_have_written_is_not_believed(journal, tmp_path, trick):
    if trick == "folder":
        journal.path.mkdir()
    else:
        target = tmp_path / "target" if trick == "link" else journal.path
        target.write_text('{"step_id": "1", "kind": "file", "arguments": {"path": "/etc/passwd"}}\n')
        target.chmod(0o666)
        if trick == "link":
            journal.path.symlink_to(target)
    for use in (journal.steps, lambda: journal.add("file", path="x"), lambda: replay(journal)):
        with pytest.raises(JournalError, match=r"journal .*python -m pipeline.gpu clean"):
            use()


def test_no_step_is_taken_when_the_journal_cannot_be_written(tmp_path):
    journal = Journal(tmp_path / "missing", UUID)
    with pytest.raises(JournalError, match="does not exist"), journal.undoing("file", path="x"):
        pytest.fail("the step was taken")


def test_a_full_disk_is_an_error_before_the_step(journal, monkeypatch):
    first = journal.add("file", path="a")
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:10]))
    with pytest.raises(JournalError, match="disk is full"):
        journal.add("file", path="b")
    monkeypatch.undo()
    assert journal.steps() == (first,)


def test_a_line_and_its_file_are_synced_before_the_step_may_be_taken(journal, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.readlink(f"/proc/self/fd/{descriptor}")))
    journal.add("file", path="a")
    assert synced == [str(journal.path), str(journal.path.parent)]


def test_a_disk_that_fails_is_an_error_before_the_step(journal, monkeypatch):
    def broken(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(JournalError, match="Input/output error"), journal.undoing("file", path="a"):
        pytest.fail("the step was taken")
