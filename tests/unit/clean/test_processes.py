"""Marked processes and temporary folders: what is found, ended and removed."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

import pytest

from pipeline.base.system.errors import ConfigError
from pipeline.base.system.paths import PROJECT_DIR
from pipeline.clean import processes, temporary_folder

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
