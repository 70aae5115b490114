"""Undo steps, marked processes and temporary folders: found, ended and removed once, and after every kill."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import tempfile
import time
import uuid
from functools import partial
from pathlib import Path

import pytest

from pipeline.base.domain.driver_programs import Programs
from pipeline.base.system.errors import ConfigError, SharingError
from pipeline.base.system.host_info import boot_id
from pipeline.base.system.paths import PROJECT_DIR
from pipeline.clean import processes, temporary_folder
from pipeline.clean.journal import Journal, JournalError, UndoStep, describe, find_journals, replay, undo_all
from pipeline.clean.kinds import undoes
from tests.support.killed import run_killed
from tests.support.programs import write_script

UUID = "GPU-11111111-2222-3333-4444-555555555555"
TAKEN = "taken"


@undoes("file", "remove {path}")
def remove_file(programs: Programs, path: str) -> None:
    """What the tests undo: a file that was made. Content with what is gone, as every such function is."""
    Path(path).unlink(missing_ok=True)
    with (Path(path).parent / "undone.log").open("a") as log:
        log.write(Path(path).name + "\n")


@undoes("stuck", "loosen {path}")
def fail(programs: Programs, path: str) -> None:
    raise SharingError(f"{path} is stuck")


@undoes("refused", "ask {path}")
def be_refused(programs: Programs, path: str) -> None:
    raise PermissionError(1, "Operation not permitted")


@undoes("program", "run {name}")
def run_program(programs: Programs, name: str) -> None:
    subprocess.run([programs.find(name)], check=True)


@pytest.fixture
def journal(tmp_path):
    return Journal(tmp_path, UUID)


def plant(journal: Journal, content: bytes) -> None:
    """Write the file past the journal."""
    journal.path.parent.mkdir(mode=0o755, exist_ok=True)
    journal.path.write_bytes(content)


def replay_kinds(tmp_path):
    log = tmp_path / "undone.log"
    return log.read_text().split() if log.exists() else []


def test_a_step_is_on_disk_while_its_body_runs_and_nothing_is_left_afterwards(journal, tmp_path):
    taken = tmp_path / TAKEN
    with journal.guard("file", path=str(taken)):
        assert json.loads(journal.path.read_text())["arguments"] == {"path": str(taken)}
        taken.touch()
        assert [step.kind for step in Journal(tmp_path, UUID).read_steps()] == ["file"]  # as another process reads it
    assert not taken.exists()
    assert not journal.path.exists()


def test_each_device_has_a_journal_of_its_own(journal, tmp_path):
    other = Journal(tmp_path, "MIG-0/1")
    other.add("file", path=str(tmp_path / "other"))
    journal.add("file", path=str(tmp_path / "own"))
    assert [step.arguments["path"] for step in replay(journal)] == [str(tmp_path / "own")]
    assert len(other.read_steps()) == 1
    assert [file.device_uuid for file in find_journals(tmp_path)] == ["MIG-0_1"]
    assert other.path.parent.parent == tmp_path


def test_what_became_known_later_is_used(journal, tmp_path):
    (tmp_path / "known-later").touch()
    with journal.guard("file", path="/nonexistent/guess") as step:
        journal.amend(step, path=str(tmp_path / "known-later"))
        assert len(journal.read_steps()) == 1
    assert replay_kinds(tmp_path) == ["known-later"]


def test_steps_are_undone_newest_first_and_once(journal, tmp_path):
    steps = [journal.add("file", path=str(tmp_path / name)) for name in ("a", "b", "c")]
    journal.undo(steps[1])
    assert [step.step_id for step in replay(journal)] == [steps[2].step_id, steps[0].step_id]
    assert replay_kinds(tmp_path) == ["b", "c", "a"]
    assert replay(journal) == ()
    journal.undo(steps[0])
    assert replay_kinds(tmp_path) == ["b", "c", "a"]


def test_a_step_that_cannot_be_undone_stays_and_the_older_ones_are_undone(journal, tmp_path):
    journal.add("file", path=str(tmp_path / "a"))
    for name in ("x", "y"):
        journal.add("stuck", path=name)
    with pytest.raises(SharingError, match="y is stuck") as caught:
        replay(journal)
    assert caught.value.__notes__ == ["also not undone: x is stuck"]
    assert replay_kinds(tmp_path) == ["a"]
    assert [step.kind for step in journal.read_steps()] == ["stuck", "stuck"]


def test_what_the_system_refuses_keeps_its_step_and_not_the_older_ones(journal, tmp_path):
    journal.add("file", path=str(tmp_path / "a"))
    journal.add("refused", path="it")
    with pytest.raises(JournalError, match=r"cannot ask it: .*not permitted"):
        replay(journal)
    assert replay_kinds(tmp_path) == ["a"]
    assert [step.kind for step in journal.read_steps()] == ["refused"]


def test_the_error_of_a_body_is_not_hidden_by_that_of_its_undoing(journal):
    with pytest.raises(ValueError, match="the body") as caught, journal.guard("stuck", path="it"):
        raise ValueError("the body")
    assert "it is stuck" in caught.value.__notes__[0]
    assert [step.kind for step in journal.read_steps()] == ["stuck"]


def test_a_failed_undoing_of_a_good_body_is_raised(journal):
    with pytest.raises(SharingError, match="it is stuck"), journal.guard("stuck", path="it"):
        pass


def take_two_steps(folder: Path) -> None:
    journal = Journal(folder, UUID)
    with journal.guard("file", path=str(folder / "a")):
        (folder / "a").touch()
        with journal.guard("file", path=str(folder / "b")):
            (folder / "b").touch()


def test_killed_at_any_step_the_next_start_finds_and_undoes_everything(tmp_path):
    for fatal in range(1, 100):
        folder = tmp_path / str(fatal)
        folder.mkdir()
        status = run_killed(
            partial(take_two_steps, folder), fatal, ("os.mkdir", "os.chmod", "os.truncate", "os.remove")
        )
        replay(Journal(folder, UUID))
        remaining = {path.name for path in folder.rglob("*") if path.is_file()}
        assert remaining <= {"undone.log"}, f"killed at step {fatal}"
        if status == 0:
            break
        assert os.WIFSIGNALED(status)
    assert fatal > 12, "the process was hardly killed anywhere"


def test_half_a_line_is_a_step_that_was_not_taken(journal, tmp_path):
    first = journal.add("file", path=str(tmp_path / "a"))
    journal.add("file", path=str(tmp_path / "not-taken"))
    journal.path.write_bytes(journal.path.read_bytes()[:-20])
    assert journal.read_steps() == (first,)
    journal.add("file", path=str(tmp_path / "b"))
    replay(journal)
    assert replay_kinds(tmp_path) == ["b", "a"]


def test_a_file_with_only_half_a_line_goes_away(journal):
    plant(journal, b'{"step_id": "1", "ki')
    assert replay(journal) == ()
    assert not journal.path.exists()


@pytest.mark.parametrize(
    "line", [b"rubbish\n", b'{"undone": "nothing that was added"}\n', b'{"step_id": "1"}\n', b"[]\n"]
)
def test_a_line_of_somebody_else_is_refused(journal, line):
    plant(journal, line)
    with pytest.raises(JournalError, match="has an invalid line"):
        replay(journal)
    assert journal.path.read_bytes() == line


# A kind is a word, and no path of a function; those of another version may need other arguments.
@pytest.mark.parametrize("kind", ["future", "file", "os.getpid", "pipeline.prepare.mps.mps_daemon.end_daemon"])
def test_a_step_that_this_version_cannot_undo_is_kept(journal, kind):
    plant(journal, json.dumps({"step_id": "1", "kind": kind, "arguments": {}}).encode() + b"\n")
    with pytest.raises(JournalError, match=f"kind '{kind}' that this version cannot undo"):
        replay(journal)
    (step,) = journal.read_steps()
    assert describe(step) == f"a step of unknown kind {kind!r}"


def test_whoever_replays_a_journal_knows_every_kind_without_importing_what_wrote_it():
    code = """
from pipeline.clean.journal import UndoStep, describe
import sys
kinds = {"compute_mode": {"mode": "default"}, "dcgm_profiling": {}, "mps_daemon": {"pipes": "/p"}, "mig_mode": {},
    "mig_instance": {"profile_id": 9, "start": 4}}
print(*(describe(UndoStep(kind=kind, arguments=arguments)) for kind, arguments in kinds.items()), sep="\\n")
assert "pipeline.prepare.env" not in sys.modules, "no environment is ever undone"
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=PROJECT_DIR, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "set the compute mode back to default",
        "resume DCGM's profiling",
        "end the MPS daemon in /p",
        "switch MIG mode off",
        "destroy the GPU instance of profile 9 at slice 4",
    ]


def test_two_functions_cannot_undo_one_kind():
    with pytest.raises(AssertionError, match="two functions undo file"):
        undoes("file", "anything")(remove_file)


def test_a_step_says_what_its_undoing_does():
    assert describe(UndoStep(kind="file", arguments={"path": "/x"})) == "remove /x"


@pytest.mark.parametrize(
    "trick", ["link", "hard link", "writable", "folder", "pipe", "folder of others", "linked folder"]
)
def test_a_file_that_others_could_have_written_is_not_believed(journal, tmp_path, trick):
    line = b'{"step_id": "1", "kind": "file", "arguments": {"path": "/etc/passwd"}}\n'
    target = tmp_path / "target"
    target.write_bytes(line)
    plant(journal, line)
    if trick == "writable":
        journal.path.chmod(0o666)
    elif trick == "folder of others":
        journal.path.parent.chmod(0o777)
    elif trick == "linked folder":
        journal.path.parent.rename(tmp_path / "elsewhere")
        journal.path.parent.symlink_to(tmp_path / "elsewhere")
    else:
        journal.path.unlink()
        make = {
            "link": lambda: journal.path.symlink_to(target),
            "hard link": lambda: journal.path.hardlink_to(target),
            "folder": journal.path.mkdir,
            "pipe": lambda: os.mkfifo(journal.path),
        }
        make[trick]()
    for use in (journal.read_steps, lambda: journal.add("file", path="x"), lambda: replay(journal)):
        with pytest.raises(JournalError, match=r"remove it; python -m pipeline.gpu clean reads only files"):
            use()
    assert target.read_bytes() == line


def test_a_step_of_an_earlier_boot_is_removed_without_being_carried_out(journal, tmp_path):
    for name, arguments in (("a", {"boot": boot_id()}), ("b", {"boot": "an earlier one"}), ("c", {})):
        journal.add("file", path=str(tmp_path / name), **arguments)
    assert len(replay(journal)) == 3
    assert replay_kinds(tmp_path) == ["c", "a"]
    assert not journal.path.exists()


def test_a_file_of_ours_that_somebody_moved_into_the_lock_folder_is_no_journal(journal, tmp_path):
    """Whoever owns a folder can move root's own file out of it, with content that was his, to where all can write."""
    moved = tmp_path / f"{UUID}.journal"
    moved.write_text('{"step_id": "1", "kind": "file", "arguments": {"path": "/etc/passwd"}}\n')
    moved.rename(tmp_path / f"collocation-{UUID}.journal")
    assert replay(journal) == ()
    assert find_journals(tmp_path) == ()


def become_another_user(monkeypatch, number=4242):
    monkeypatch.setattr(os, "geteuid", lambda: number)


def test_what_another_user_left_is_named_and_not_carried_out(journal, tmp_path, monkeypatch):
    journal.add("file", path=str(tmp_path / "a"))
    become_another_user(monkeypatch)
    second_journal = Journal(tmp_path, UUID)
    with pytest.raises(JournalError, match="must clean up"):
        replay(second_journal)
    assert [(file.device_uuid, file.is_ours) for file in find_journals(tmp_path)] == [(UUID, False)]
    assert undo_all(second_journal) == ([], [])
    assert replay_kinds(tmp_path) == []


def test_a_folder_that_another_user_made_in_our_place_is_refused(journal, tmp_path, monkeypatch):
    (tmp_path / "collocation-journals-4242").mkdir()
    become_another_user(monkeypatch)
    with pytest.raises(JournalError, match="is not a folder, or other users can write"):
        Journal(tmp_path, UUID).add("file", path="x")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("which", ["folder", "file"])
def test_root_undoes_nothing_that_another_user_planted(journal, tmp_path, which):
    line = {"step_id": "1", "kind": "file", "arguments": {"path": str(tmp_path / "a")}}
    plant(journal, json.dumps(line).encode() + b"\n")
    os.chown(journal.path.parent if which == "folder" else journal.path, 4242, 4242)
    with pytest.raises(JournalError, match=r"other users can write|contains steps of user"):
        replay(journal)
    with pytest.raises(JournalError, match="other users can write"):
        undo_all(journal)
    assert replay_kinds(tmp_path) == []


def test_others_see_that_something_is_left_and_no_cleaner_of_old_files_takes_it(journal, tmp_path):
    before = os.umask(0o077)
    try:
        journal.add("file", path="x")
    finally:
        os.umask(before)
    assert stat.S_IMODE(journal.path.parent.stat().st_mode) == 0o755
    assert journal.path.stat().st_mode & stat.S_ISVTX


@pytest.fixture
def program(tmp_path):
    return write_script(tmp_path / "bin/program", f"echo program >> {tmp_path}/undone.log")


def test_a_program_is_looked_for_when_it_is_needed(tmp_path, program, monkeypatch):
    """A path that a journal names could be anybody's by the time that root reads it."""
    monkeypatch.setenv("PATH", str(tmp_path))
    journal = Journal(tmp_path, UUID)
    journal.add("program", name="program")
    with pytest.raises(SharingError, match="needs program, which is not on PATH"):
        replay(journal)
    monkeypatch.setenv("PATH", f"{tmp_path}:{program.parent}")
    replay(journal)
    assert replay_kinds(tmp_path) == ["program"]


@pytest.mark.parametrize("simulated", [{}, {"program": "/nonexistent/program"}])
def test_for_a_simulated_device_no_real_program_is_run(tmp_path, program, monkeypatch, simulated):
    monkeypatch.setenv("PATH", str(program.parent))
    journal = Journal(tmp_path, UUID, Programs(simulated=simulated))
    journal.add("program", name="program")
    with pytest.raises(SharingError, match=r"needs program|/nonexistent/program is not executable"):
        replay(journal)
    assert replay_kinds(tmp_path) == []


def test_no_step_is_taken_when_the_journal_cannot_be_written(tmp_path):
    journal = Journal(tmp_path / "missing", UUID)
    with pytest.raises(JournalError, match="does not exist"), journal.guard("file", path="x"):
        pytest.fail("the step was taken")


def test_a_full_disk_is_an_error_before_the_step(journal, monkeypatch):
    first = journal.add("file", path="a")
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:10]))
    with pytest.raises(JournalError, match="disk is full"):
        journal.add("file", path="b")
    monkeypatch.undo()
    assert journal.read_steps() == (first,)


def test_a_line_and_its_file_are_synced_before_the_step_may_be_taken(journal, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.readlink(f"/proc/self/fd/{descriptor}")))
    journal.add("file", path="a")
    assert synced == [str(journal.path.parent.parent), str(journal.path), str(journal.path.parent)]


def test_a_disk_that_fails_is_an_error_before_the_step(journal, monkeypatch):
    def broken(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(JournalError, match="Input/output error"), journal.guard("file", path="a"):
        pytest.fail("the step was taken")


STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
ORPHAN = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {STUBBORN!r}], start_new_session=True, stdout=-1, stderr=-3)
child.stdout.readline()
print(child.pid, flush=True)
"""


def test_an_orphan_that_ignores_term_is_found_and_ended():
    mark = uuid.uuid4().hex
    environ = os.environ | {processes.MARK_VARIABLE: mark}
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        done = subprocess.run([sys.executable, "-c", ORPHAN], env=environ, capture_output=True, text=True, timeout=120)
        pid = int(done.stdout)
        assert processes.list_marked(mark) == [pid]
        assert processes.end(mark, grace_s=0.3) == 1
        assert processes.list_marked(mark) == []
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_a_polite_process_gets_the_time_to_end():
    mark = uuid.uuid4().hex
    polite = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(60)"], env=os.environ | {processes.MARK_VARIABLE: mark}
    )
    while processes.list_marked(mark) != [polite.pid]:
        time.sleep(0.01)
    processes.end(mark, grace_s=60)
    assert polite.wait(timeout=60) == -signal.SIGTERM


def test_what_sheds_its_mark_when_it_is_told_to_end_is_ended_all_the_same():
    mark = uuid.uuid4().hex
    script = "trap 'exec env -i sleep 60' TERM; echo up; while :; do sleep 0.05; done"
    environ = os.environ | {processes.MARK_VARIABLE: mark}
    with subprocess.Popen(["/bin/sh", "-c", script], env=environ, stdout=subprocess.PIPE) as shedding:
        assert shedding.stdout is not None and shedding.stdout.readline() == b"up\n"
        processes.end(mark, grace_s=1)
        assert shedding.wait(timeout=60) == -signal.SIGKILL


def test_what_is_started_meanwhile_is_ended_too():
    mark = uuid.uuid4().hex
    environ = os.environ | {processes.MARK_VARIABLE: mark}
    child = f'{sys.executable} -c "import time; time.sleep(60)"'
    script = f"trap '{child} & exit 0' TERM; echo up; while :; do sleep 0.05; done"
    with subprocess.Popen(["/bin/sh", "-c", script], env=environ, stdout=subprocess.PIPE) as starting:
        assert starting.stdout is not None and starting.stdout.readline() == b"up\n"
        begin = time.monotonic()
        assert processes.end(mark, grace_s=60) > 1
        assert processes.list_marked(mark) == []
        assert time.monotonic() - begin < 60  # it was told to end like the others


PREFIX = "kept-"
NAME = "[a-z0-9_]+"
# Is killed at the line that would lock its folder, or holds the folder until it is killed.
MAKER = """
import fcntl, os, signal, sys, time
from pathlib import Path
from pipeline.clean import temporary_folder
if sys.argv[2] == "unnamed":
    fcntl.flock = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
with temporary_folder.hold(Path(sys.argv[1]), "kept-") as folder:
    (folder / "file").touch()
    print(folder, flush=True)
    time.sleep(60)
"""


def abandoned(parent: Path) -> list[Path]:
    return temporary_folder.find_abandoned(parent, PREFIX, NAME)


def make(parent: Path, how: str) -> subprocess.Popen[str]:
    argv = [sys.executable, "-c", MAKER, str(parent), how]
    environ = os.environ | {"PYTHONPATH": str(PROJECT_DIR)}
    return subprocess.Popen(argv, env=environ, stdout=subprocess.PIPE, text=True)


def test_it_is_private_and_goes_with_its_context(tmp_path):
    with temporary_folder.hold(tmp_path, PREFIX, "named") as folder:
        assert folder == tmp_path / "kept-named"
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert abandoned(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_it_is_abandoned_once_its_maker_is_gone(tmp_path):
    with make(tmp_path, "named") as maker:
        assert maker.stdout is not None
        folder = Path(maker.stdout.readline().strip())
        assert abandoned(tmp_path) == []
        maker.kill()
    assert abandoned(tmp_path) == [folder]


def test_one_whose_maker_was_killed_before_it_had_a_name_is_found_as_well(tmp_path):
    with make(tmp_path, "unnamed") as maker:
        assert maker.wait(30) == -signal.SIGKILL
    (folder,) = tmp_path.iterdir()
    assert folder.name.startswith(f"kept-new-{maker.pid}-")
    assert abandoned(tmp_path) == [folder]


def test_what_is_no_folder_of_ours_is_neither_waited_for_nor_removed(tmp_path):
    parent, elsewhere = tmp_path / "parent", tmp_path / "elsewhere"
    for folder in (parent, elsewhere, parent / "kept-Other.Name"):
        folder.mkdir()
    os.mkfifo(parent / "kept-fifo")
    (parent / "kept-link").symlink_to(elsewhere)
    (parent / "kept-file").touch()
    assert abandoned(parent) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make what belongs to somebody else")
def test_a_folder_of_another_user_is_left_to_its_user(tmp_path):
    (tmp_path / "kept-theirs").mkdir()
    assert abandoned(tmp_path) == [tmp_path / "kept-theirs"]
    os.chown(tmp_path / "kept-theirs", 65533, -1)
    assert abandoned(tmp_path) == []


def test_scratch_of_dead_makers_is_removed_at_the_next_start(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / f"{temporary_folder.SCRATCH}of_a_dead_maker").mkdir()  # nobody holds its lock
    with temporary_folder.hold_scratch() as first:
        with temporary_folder.hold_scratch() as second:
            assert sorted(tmp_path.iterdir()) == sorted((first, second))
        assert list(tmp_path.iterdir()) == [first]
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    with pytest.raises(ConfigError, match="; set TMPDIR to a writable folder"), temporary_folder.hold_scratch():
        pass


@pytest.mark.slow
def test_a_pipe_that_anybody_made_does_not_hang_simulated_studies(tmp_path):
    os.mkfifo(tmp_path / "colloc-simulated-x")
    code = "from pipeline import rehearsal; rehearsal.remove_abandoned()"
    environ = os.environ | {"PYTHONPATH": str(PROJECT_DIR), "TMPDIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", code], env=environ, timeout=120, check=True)
    assert (tmp_path / "colloc-simulated-x").is_fifo()
