"""The simulated MPS control program against the recorded one, and what its logs say."""

from __future__ import annotations

import os
import re
import select
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.base.system.paths import PROJECT_DIR
from pipeline.clean import processes
from pipeline.prepare.mps.mps_daemon import MpsLogs
from pipeline.simulation.machine.driver import Driver
from pipeline.simulation.machine.queries import mig_devices, used_memory_mib
from pipeline.simulation.machine.state_file import StateFile, mig_uuid
from pipeline.simulation.mps import control_program
from pipeline.simulation.mps.control_program import connect, write_program
from tests.conftest import DATA

UUID = "GPU-11111111-2222-3333-4444-555555555555"
RECORDED = DATA / "h100_mps"
CLIENT = """
import os, time
from pipeline.simulation.mps.control_program import connect
connection = connect(os.environ)
os.close(1)
time.sleep(600)
"""


class Session:
    """One daemon in a folder of its own, asked what the recorded one was asked."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pipes = folder / "mr"
        self.pipes.mkdir()
        self.program = write_program(folder)
        self.environ = os.environ | {
            "CUDA_MPS_PIPE_DIRECTORY": str(self.pipes),
            "CUDA_MPS_LOG_DIRECTORY": str(self.pipes),
            "CUDA_VISIBLE_DEVICES": UUID,
            "PYTHONPATH": str(PROJECT_DIR),
            processes.MARK_VARIABLE: str(folder),
        }
        self.names: dict[str, str] = {}
        self.checked: set[str] = set()

    def run(self, *arguments: str, stdin: str | None = None) -> str:
        done = subprocess.run(
            [self.program, *arguments],
            env=self.environ,
            input="" if stdin is None else f"{stdin}\n",
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
        )
        return f"{done.stdout}exit {done.returncode}\n"

    def client(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen([sys.executable, "-S", "-c", CLIENT], env=self.environ, stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.read()
        process.stdout.close()
        return process

    def check(self, name: str) -> None:
        """Ask what was recorded and compare the answers, PIDs apart."""
        self.checked.add(name)
        command, _, answer = (RECORDED / f"{name}.txt").read_text().partition("\n")
        answer = answer.removesuffix("other client exit 0\n")  # what the recorder noted, no answer
        if "echo" not in command:
            assert self.run(*command.split()[2:]) == answer, name
            return
        recorded = {"577": "<server>", "539": "<first>", "538": "<second>"}
        pids = {who: pid for pid, who in self.names.items()}
        question = _strip_answer(command.split("'")[1], {pid: pids.get(who, pid) for pid, who in recorded.items()})
        expected = _strip_answer(answer, recorded)
        assert _strip_answer(self.run(stdin=question), self.names) == expected, name


def check_ps(session: Session) -> None:
    """Compare the table of clients: all but the number of the namespace and the name of the program."""
    session.checked.add("ps")
    _, header, *recorded, status = (RECORDED / "ps.txt").read_text().splitlines()
    own_header, *lines, own_status = session.run(stdin="ps").splitlines()
    assert (own_header, own_status) == (header, status)
    recorded_names = {"577": "<server>", "539": "<first>", "538": "<second>"}
    for line, expected in zip(lines, recorded, strict=True):
        cells, expected_cells = line.split(), expected.split()
        assert [line.find(f" {cell} ") for cell in cells[2:]] == [
            expected.find(f" {cell} ") for cell in expected_cells[2:]
        ]
        assert [session.names.get(cell, cell) for cell in cells[:4]] == [
            recorded_names.get(cell, cell) for cell in expected_cells[:4]
        ]
        assert cells[4].isdecimal()


def _strip_answer(text: str, names: dict[str, str]) -> str:
    """The text with names in the place of PIDs, all at once: a name may be another PID."""
    return re.sub(r"\b\d+\b", lambda match: names.get(match[0], match[0]), text)


@pytest.fixture
def session() -> Iterator[Session]:
    folder = Path(tempfile.mkdtemp(prefix="mps-", dir="/tmp"))
    try:
        yield Session(folder)
    finally:
        processes.end(str(folder), grace_s=1)
        shutil.rmtree(folder)


def make_listing(pipes: Path) -> set[tuple[str, str]]:
    return {(stat.filemode(path.lstat().st_mode), path.name) for path in pipes.iterdir()}


def read_recorded_listing(name: str) -> set[tuple[str, str]]:
    rows = [line.split() for line in (RECORDED / f"{name}.txt").read_text().splitlines()]
    return {(row[0], row[-1]) for row in rows if len(row) == 9 and not row[-1].startswith(".")}


@pytest.mark.slow
def test_the_recorded_session_word_for_word(session):
    file = StateFile(session.folder / "machine.json")
    file.create(["h100_80gb"])
    with file.change() as cell:
        cell.state = replace(cell.state, gpus=(replace(cell.state.gpus[0], uuid=UUID),))
    write_program(session.folder, machine=file.path)
    session.check("no_daemon")
    session.check("start")
    session.check("start_again")
    session.check("servers_empty")
    first, second = session.client(), session.client()
    try:
        server = int(session.run(stdin="get_server_list").split()[0])
        session.names = {str(server): "<server>", str(first.pid): "<first>", str(second.pid): "<second>"}
        for name in ("servers", "status", "clients", "devclients", "query", "bad", "bad_pid"):
            session.check(name)
        for name in ("pct", "get_pct", "pct_bad"):
            session.check(name)
        check_ps(session)
        assert make_listing(session.pipes) == read_recorded_listing("files")
        second.kill()
        second.wait()
        session.check("after_kill")
        session.check("status_after_kill")
    finally:
        first.kill()
        first.wait()
        second.kill()
    session.check("clients_end")
    session.check("quit")
    assert make_listing(session.pipes) == read_recorded_listing("files_after")
    with pytest.raises(ProcessLookupError):
        os.kill(server, 0)
    session.check("no_daemon")
    of_others = {"files", "files_after", "control_log", "server_log"}
    assert session.checked | of_others == {path.stem for path in RECORDED.iterdir()}, "a recording is not replayed"


@pytest.mark.parametrize("name", ["control", "server"])
def test_the_logs_say_nothing_that_the_recorded_ones_do_not(session, name):
    session.run("-d")
    client = session.client()
    session.run(stdin="get_server_list")
    client.kill()
    client.wait()
    session.run(stdin="quit")
    written = _list_kinds((session.pipes / f"{name}.log").read_text())
    assert len(written) >= 4
    assert written <= _list_kinds((RECORDED / f"{name}_log.txt").read_text())


def _list_kinds(log: str) -> set[str]:
    """What is logged, without instants, PIDs and folders, and blanks as one."""
    plain = re.sub(r"^\[[^]]*? (\w+) +\d+\]", r"\1", log, flags=re.M)
    plain = re.sub(r"/tmp/\S*?(?=$|/control\b)", "<folder>", plain, flags=re.M)
    return set(re.sub(r"\b\d+\b", "N", plain).splitlines())


def test_an_option_that_the_program_does_not_know_starts_no_daemon(session):
    assert session.run("-d", "-S").startswith("Unrecognized option \0\nCUDA MPS Control for Linux/Unix/QNX.\n")
    assert session.run() == "Cannot find MPS control daemon process\nexit 1\n"


@pytest.mark.parametrize("branch", ["535", "550"])
def test_files_and_log_of_older_daemons(session, branch):
    write_program(session.folder, branch=branch)
    assert session.run("-d", "-S") == "Cannot find MPS control daemon process\nexit 1\n"  # it is the front end
    session.run("-d")
    session.run(stdin="start_server -uid 0")
    log = (session.pipes / "control.log").read_text()
    daemon, server = (int(pid) for pid in re.search(r" (\d+)\] Starting new server (\d+) for user 0", log).groups())
    assert (daemon == server) == (branch == "550")
    assert "binary version" not in log
    assert ("-rw-rw-rw-", "nvidia-cuda-mps-control.pid") in make_listing(session.pipes) or branch == "535"
    session.run(stdin="quit")


def test_without_a_daemon_a_program_runs_without_mps_and_nothing_says_so(session):
    assert connect(session.environ) is None
    assert connect({}) is None


def test_the_default_folder_of_a_real_daemon_is_never_used(session):
    del session.environ["CUDA_MPS_PIPE_DIRECTORY"]
    assert "exit 1" in session.run("-d")
    assert "may belong to a real daemon" in session.run(stdin="quit")


def test_a_new_daemon_can_take_the_folder_of_a_killed_one(session):
    session.run("-d")
    os.kill(int((session.pipes / "nvidia-cuda-mps-control.pid").read_text()), signal.SIGKILL)
    while "Cannot find" not in session.run(stdin="get_server_list"):
        pass
    assert connect(session.environ) is None  # the stale folder bypasses MPS in silence
    assert session.run("-d") == "exit 0\n"
    assert session.run(stdin="quit") == "exit 0\n"


@pytest.mark.slow
def test_a_server_in_fault_takes_nobody_until_its_clients_are_gone(session):
    write_program(session.folder, faults=["fault_on_client"])
    session.run("-d")
    connection = connect(session.environ)
    assert connection is not None
    server = session.run(stdin="get_server_list").split()[0]
    assert session.run(stdin=f"get_server_status {server}") == "FAULT\nexit 0\n"
    with pytest.raises(RuntimeError, match="NOT_READY"):
        connect(session.environ)
    connection.close()
    while session.run(stdin=f"get_server_status {server}") != "ACTIVE\nexit 0\n":
        pass
    terminated = connect(session.environ)
    assert session.run(stdin=f"get_server_status {server}") == "FAULT\nexit 0\n"
    assert session.run(stdin=f"terminate_client {server} {os.getpid()}") == "0\nexit 0\n"
    assert session.run(stdin=f"get_server_status {server}") == "ACTIVE\nexit 0\n"
    terminated.close()
    session.run(stdin="quit")


def test_who_says_nothing_nonsense_or_speaks_for_the_dead_does_not_stop_the_daemon(session):
    session.run("-d")
    ended = subprocess.Popen(["true"])
    ended.wait()
    with pytest.raises(RuntimeError, match="NOT_READY"):
        connect(session.environ, on_behalf_of=ended.pid)
    with ExitStack() as stack:
        for words in (b"", b"CLIENT -\n", b"\xff\n"):
            speaker = stack.enter_context(socket.socket(socket.AF_UNIX))
            speaker.connect(str(session.pipes / "control"))
            speaker.sendall(words)
        client = connect({**session.environ, "CUDA_MPS_SM_PARTITION": ""})
        assert client is not None
        stack.enter_context(client)
        assert session.run(stdin="get_client_list 1") == "Server 1 not found\nexit 0\n"
    assert session.run(stdin="quit") == "exit 0\n"


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("visible", "held"), [(None, [66, 66]), ("1", [0, 66]), ("", [0, 0])])
def test_the_server_is_on_the_devices_that_cuda_shows_to_its_daemon(session, visible, held):
    file = StateFile(session.folder / "machine.json")
    file.keep(["h100_80gb", "a100_40gb"])
    write_program(session.folder, machine=file.path)
    del session.environ["CUDA_VISIBLE_DEVICES"]
    session.environ |= {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    session.run("-d")
    session.run(stdin="start_server -uid 0")
    assert [used_memory_mib(gpu) for gpu in file.read().gpus] == held
    session.run(stdin="quit")


@pytest.mark.parametrize(("branch", "profile", "most"), [("580", None, 48), ("590", None, 60), ("590", 19, 9)])
def test_a_server_takes_as_many_clients_as_mps_of_its_driver(session, branch, profile, most):
    file = StateFile(session.folder / "machine.json")
    gpu = file.keep(["h100_80gb"], branch).gpus[0]
    session.environ["CUDA_VISIBLE_DEVICES"] = gpu.uuid if profile is None else _make_mig_device(file, profile)
    write_program(session.folder, machine=file.path)
    session.run("-d")
    with ExitStack() as stack:
        for _ in range(most):
            stack.enter_context(connect(session.environ))
        with pytest.raises(RuntimeError, match="CUDA_ERROR_MPS_MAX_CLIENTS_REACHED"):
            connect(session.environ)
    session.run(stdin="quit")


def _make_mig_device(file: StateFile, profile_id: int) -> str:
    driver = Driver(file)
    driver.set_mig_mode(0, is_on=True)
    gpu_instance = driver.create_gpu_instance(0, profile_id)
    driver.create_compute_instance(0, gpu_instance.id)
    gpu = file.read().gpus[0]
    return mig_uuid(gpu, *mig_devices(gpu)[0])


def test_an_unknown_fault_is_refused(tmp_path):
    with pytest.raises(ValueError, match="unknown faults gremlins"):
        write_program(tmp_path, faults=["gremlins"])


def test_a_daemon_that_is_killed_before_it_answers_is_not_there(capsys) -> None:
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as daemon:
        daemon.bind(f"{folder}/control")
        daemon.listen()

        def die() -> None:
            connection, _ = daemon.accept()
            select.select([connection], [], [])
            connection.close()  # with what was asked unread: the connection is reset

        thread = threading.Thread(target=die)
        thread.start()
        assert control_program._ask(Path(folder), "get_server_list") == 1
        thread.join()
    assert capsys.readouterr().out == "Cannot find MPS control daemon process\n"


REPORT = DATA / "mps_control"


def make_logs(folder: Path, control: Path | None = None, server: Path | None = None) -> MpsLogs:
    for name, source in (("control.log", control), ("server.log", server)):
        if source is not None:
            (folder / name).write_bytes(source.read_bytes())
    return MpsLogs(folder=folder)


def test_a_server_that_exits_is_told_with_the_lines_that_say_why(tmp_path: Path) -> None:
    control, server = REPORT / "mps_control_server_exits_1.log", REPORT / "mps_server_failed_to_start.log"
    logs = make_logs(tmp_path, control, server)
    assert logs.has_server_ended()
    assert not logs.is_server_ready(95)
    assert logs.explain() == (
        "; server.log: Failed to start : invalid argument"
        "; control.log: Server encountered a fatal exception. Shutting down / Server 95 exited with status 1"
    )


def test_a_recorded_start_is_ready_and_questions_explain_nothing(tmp_path: Path) -> None:
    control = (RECORDED / "control_log.txt").read_text()
    before_quit = control.partition("Try shutting down server")[0]
    (tmp_path / "control.log").write_text(before_quit)
    logs = MpsLogs(folder=tmp_path)
    assert logs.is_server_ready(577)
    assert not logs.is_server_ready(57)
    assert not logs.has_server_ended()
    assert "UI closed" not in logs.explain()
    assert "credentials" not in logs.explain()


def test_logs_that_are_not_there_explain_nothing(tmp_path: Path) -> None:
    logs = MpsLogs(folder=tmp_path / "gone")
    assert (logs.explain(), logs.has_server_ended(), logs.is_server_ready(1)) == ("", False, False)
