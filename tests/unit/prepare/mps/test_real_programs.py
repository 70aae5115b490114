"""Real control programs of five branches of the driver, without a GPU: the product's daemon, and the simulated program.

The programs are those of `nvidia_packages`; where they cannot be had, these tests are skipped.
"""

from __future__ import annotations

import ctypes.util
import os
import re
import shutil
import signal
import stat
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from pipeline.base.domain.driver_programs import Programs
from pipeline.base.system.errors import SharingError
from pipeline.clean.journal import Journal
from pipeline.prepare.mps import sm_partitions
from pipeline.prepare.mps.control_program import CONTROL, ControlProgram
from pipeline.prepare.mps.mps_daemon import MpsDaemon, run_daemon
from pipeline.prepare.sharing.mps import Mps, MpsPercent
from pipeline.simulation.mps.control_program import write_program
from tests.conftest import DATA
from tests.support import nvidia_packages
from tests.support.rows import gpu_settings, group
from tests.support.waiting import wait_until
from tests.unit.simulation.test_command_answers import make_answers

pytestmark = pytest.mark.covers("pipeline/simulation/mps", "tests/support/nvidia_packages.py")
UUID = "GPU-11111111-2222-3333-4444-555555555555"


@dataclass(frozen=True)
class Real:
    """The programs of a branch, and a folder of this test."""

    branch: str
    programs: Path
    folder: Path

    @property
    def program(self) -> Path:
        return self.programs / CONTROL


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path, below which the sockets have names of at most 107 bytes."""
    path = Path(tempfile.mkdtemp(prefix="mps-", dir="/tmp"))
    try:
        yield path
        wait_until(lambda: list_processes(path) == [])  # a daemon replies to `quit` before its end
    finally:
        for pid in list_processes(path):
            os.kill(pid, signal.SIGKILL)
        shutil.rmtree(path)


@pytest.fixture(params=nvidia_packages.PACKAGES)
def real(request: pytest.FixtureRequest, folder: Path) -> Real:
    return Real(request.param, nvidia_packages.find_or_skip(request.param), folder)


def list_processes(folder: Path) -> list[int]:
    """List the processes whose MPS folder is below the folder, without the product's own means."""
    pids = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            environ = (process / "environ").read_bytes()
        except OSError:
            continue
        if f"CUDA_MPS_PIPE_DIRECTORY={folder}".encode() in environ:
            pids.append(int(process.name))
    return pids


class Session:
    """Commands for the daemon of one control program, real or simulated."""

    def __init__(self, program: Path, pipes: Path, **environ: str) -> None:
        self.program, self.pipes = program, pipes
        self.pipes.mkdir()
        self.environ = os.environ | environ
        self.environ |= {"CUDA_MPS_PIPE_DIRECTORY": str(pipes), "CUDA_MPS_LOG_DIRECTORY": str(pipes)}

    def run(self, *arguments: str, stdin: str = "") -> tuple[list[str], int]:
        done = subprocess.run(
            [self.program, *arguments],
            env=self.environ,
            input=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
        )
        return [line.strip("\0 ") for line in done.stdout.splitlines()], done.returncode

    def list_files(self) -> set[tuple[str, str]]:
        """List modes and names; a real daemon creates the log of its server before the server."""
        names = (path for path in self.pipes.iterdir() if path.name != "server.log")
        return {(stat.filemode(path.lstat().st_mode), path.name) for path in names}


def list_commands(name: str) -> list[str]:
    text = (DATA / "mps_control" / name).read_text()
    return [line.removeprefix("> ") for line in text.splitlines() if line.startswith("> ") and "> quit" not in line]


@pytest.mark.parametrize("is_static", [False, True])
def test_the_simulated_program_answers_each_command_as_the_real_one(real: Real, is_static: bool) -> None:
    if is_static and int(real.branch) < 590:
        pytest.skip(f"R{real.branch} has no static partitions")
    session = Session(real.program, real.folder / "p", **nvidia_packages.environ_of(real.branch, real.programs))
    assert session.run(*["-d", "-S"] if is_static else ["-d"]) == ([], 0)
    log: list[str] = []
    answers = make_answers(real.branch, log, devices=[], is_static=is_static)
    try:
        commands = list_commands("session_615.71.09_static.txt" if is_static else "session_550.163.01.txt")
        for command in [*commands, "nonsense a b", ""]:
            expected = [line.strip() for line in answers.answer(command.split())]
            assert session.run(stdin=f"{command}\n") == (expected, 0), command
        assert log or is_static
        assert {f"Control: {hide_numbers(line)}" for line in log} <= list_kinds(session)
    finally:
        assert session.run(stdin="quit\n") == ([], 0)


@pytest.mark.sampled(1)
def test_the_simulated_daemon_starts_ends_and_logs_as_the_real_one(real: Real) -> None:
    simulated = Session(write_program(real.folder, branch=real.branch), real.folder / "s")
    session = Session(real.program, real.folder / "r", **use_stand_in(real))
    for words in (["-d", "-x"], ["-d"], ["-d"]):
        (lines, status), (expected, expected_status) = simulated.run(*words), session.run(*words)
        assert (lines[:1], status) == (expected[:1], expected_status), words  # the help has more lines
    assert simulated.list_files() == session.list_files()
    for one in (simulated, session):
        assert one.run(stdin=f"start_server -uid {os.getuid()}\n") == ([], 0)
        wait_until(lambda one=one: "Ready" in (one.pipes / "control.log").read_text())
        assert one.run(stdin="get_server_list\n")[0][0].isdecimal()
        assert one.run(stdin="quit\n") == ([], 0)
        wait_until(lambda one=one: list_processes(one.pipes) == [])
    assert list_kinds(simulated) <= list_kinds(session)
    assert {"Control: NEW SERVER N: Ready", "Control: Server N exited with status N"} <= list_kinds(simulated)
    assert simulated.list_files() == session.list_files()
    assert simulated.run(stdin="get_server_list\n") == session.run(stdin="get_server_list\n")


def list_kinds(session: Session) -> set[str]:
    """Return what `control.log` has, without instants, PIDs, the folder and levels."""
    log = (session.pipes / "control.log").read_text().replace(str(session.pipes), "<pipes>")
    lines = (re.sub(r"^\[.*? (Control)[ A-Z]* *\d+\]", r"\1:", line) for line in log.splitlines())
    return {hide_numbers(line) for line in lines}


def hide_numbers(text: str) -> str:
    return re.sub(r"\b\d+\b", "N", text)


def use_stand_in(real: Real) -> dict[str, str]:
    """Write a server that is ready without a GPU; return the variables with which the control program starts it."""
    (real.folder / "bin").mkdir()
    nvidia_packages.write_server(real.folder / "bin")
    return nvidia_packages.environ_of(real.branch, real.programs, server_in=real.folder / "bin")


@contextmanager
def start_daemon(
    real: Real, monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], divide: Callable[..., None] | None = None
) -> Iterator[MpsDaemon]:
    for name, text in environ.items():
        monkeypatch.setenv(name, text)
    journal = Journal(real.folder, UUID, Programs(configured={CONTROL: str(real.program)}))
    try:
        with run_daemon(UUID, real.folder, str(real.program), journal, divide) as daemon:
            yield daemon
    finally:
        assert not journal.path.exists()
        assert list_processes(real.folder) == []


def test_mps_starts_answers_and_ends(real: Real, monkeypatch: pytest.MonkeyPatch) -> None:
    with start_daemon(real, monkeypatch, use_stand_in(real)) as daemon:
        assert daemon.server in list_processes(real.folder)
        assert daemon.control.read_status(daemon.server) == (None if real.branch == "535" else "ACTIVE")
        assert daemon.list_clients() == set()
        daemon.check_health()
        assert "server.log" not in daemon.logs.explain() or real.branch == "535"


@pytest.mark.parametrize("mode", [Mps, MpsPercent])
def test_a_mode_prepares_its_jobs(real: Real, monkeypatch: pytest.MonkeyPatch, mode: type[Mps]) -> None:
    for name, text in use_stand_in(real).items():
        monkeypatch.setenv(name, text)
    jobs = group("a", "b", gpu=gpu_settings(lock_dir=real.folder))
    with mode(program=str(real.program)).prepare(jobs, real.folder) as slots:
        environ = dict(slots.slots[1].environ)
        assert environ["CUDA_MPS_PIPE_DIRECTORY"].startswith(f"{real.folder}/")
        assert environ.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE") == (None if mode is Mps else "50")
        control = ControlProgram(program=str(real.program), pipes=Path(environ["CUDA_MPS_PIPE_DIRECTORY"]))
        (server,) = control.list_pids("get_server_list")
        assert control.ask(f"get_client_list {server}") == []


def test_a_server_that_was_killed_is_an_error(real: Real, monkeypatch: pytest.MonkeyPatch) -> None:
    with start_daemon(real, monkeypatch, use_stand_in(real)) as daemon:
        os.kill(daemon.server, signal.SIGKILL)
        wait_until(daemon.logs.has_server_ended)
        with pytest.raises(SharingError, match=r"servers now: none.*; control\.log: Server \d+ exited with status"):
            daemon.check_health()


def test_a_server_without_a_gpu_is_an_error(real: Real, monkeypatch: pytest.MonkeyPatch) -> None:
    says = r"its server exited immediately .*; control\.log: Server \d+ exited with status \d$"
    environ = nvidia_packages.environ_of(real.branch, real.programs)
    with pytest.raises(SharingError, match=says), start_daemon(real, monkeypatch, environ):
        pytest.fail("it is not ready")


def test_partitions_that_cannot_be_made_are_refused(real: Real, monkeypatch: pytest.MonkeyPatch) -> None:
    says = "-d -S was refused: .*; static partitions need driver R590 or newer"
    if int(real.branch) >= 590:
        says = f"the MPS daemon lists no chunks of multiprocessors for {UUID}"
    with pytest.raises(SharingError, match=says), start_daemon(real, monkeypatch, use_stand_in(real), divide_in_two):
        pytest.fail("there are no partitions")


def divide_in_two(control: ControlProgram) -> None:
    sm_partitions.divide(control, UUID, None, 2)


@pytest.mark.skipif(ctypes.util.find_library("cuda") is not None, reason="this machine has a libcuda")
def test_a_program_that_finds_no_libcuda_is_refused(real: Real, monkeypatch: pytest.MonkeyPatch) -> None:
    if int(real.branch) < 580:
        pytest.skip(f"the control program of R{real.branch} needs no libcuda")
    refused = pytest.raises(SharingError, match=r"the daemon exited immediately.*libcuda\.so\.1")
    with refused, start_daemon(real, monkeypatch, {"PATH": os.environ["PATH"]}):
        pytest.fail("there is no daemon")
